"""Needles: counterfactual statements, each with its question, the planted word, the true one and other candidates.

    The capital of France is Madrid.     What is the capital of France?     Madrid     (Paris; Oslo, Cairo ...)

The statement is false so that a model cannot answer from what it learnt: "Madrid" shows that it read the document
(paper 2, arXiv 2501.00658, section 3.2 and appendix E.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from repflow.core.errors import InputError, teach
from repflow.tasks.draw import Draw
from repflow.tasks.lines import json_lines, string_of, strings_of
from repflow.tasks.needle.table import KINDS, LEAST_VALUES, NeedleKind

ORDER, PLANTED = 60, 61  # purposes of a Draw
CANDIDATES = 8
EXPECTED = "an object with 'statement', 'question', 'planted', 'true' and 'others'"


@dataclass(frozen=True)
class Needle:
    """One statement to be found.

    Attributes:
        kind: kind of fact.
        statement: what is put into the document, a whole sentence.
        question: what is asked.
        planted: the statement's answer.
        true: the world's answer.
        others: further candidates of the same kind.
    """

    kind: str
    statement: str
    question: str
    planted: str
    true: str
    others: tuple[str, ...]

    @property
    def candidates(self) -> tuple[str, ...]:
        """Planted, true, others."""
        return (self.planted, self.true, *self.others)


@lru_cache(maxsize=4096)
def _pattern(word: str) -> re.Pattern[str]:
    blanks = r"\s+".join(re.escape(part) for part in word.split())
    return re.compile(rf"(?<!\w){blanks}(?!\w)", re.IGNORECASE)


def stands(word: str, text: str) -> bool:
    """Whether a text holds a word or phrase as a whole, whatever the case.

    >>> stands("Rome", "In rome, all is well"), stands("iron", "the environment")
    (True, False)
    """
    return _pattern(word).search(text) is not None


def made_needles(count: int, seed: int, *, candidates: int = CANDIDATES, avoid: str = "") -> list[Needle]:
    """Needles of a seed: every subject comes once before any comes twice, kinds take turns.

    Args:
        count: number of needles.
        seed: needle i depends on the seed and i alone, unless words are avoided.
        candidates: words to rank for each, the planted and the true one among them.
        avoid: a text; needles with a candidate that occurs in it are skipped.

    >>> made_needles(1, 0)[0].statement
    'The country known for the pyramids of Giza is Peru.'
    """
    check_count(candidates)
    needles: list[Needle] = []
    turns = _turns(seed, candidates)
    while len(needles) < count:
        fit = [needle for needle in next(turns) if told_in(needle, avoid) is None]
        needles += fit
        if not fit:
            expected = f"{count} needles without a word that occurs in the haystack"
            remedy = "pass other text with --haystack, own needles with --needles, or fewer --samples"
            raise InputError(teach(expected, f"{len(needles)}", remedy))
    return needles[:count]


def check_count(candidates: int) -> None:
    """Refuse numbers of candidates that the built-in kinds do not have."""
    if not 2 <= candidates <= LEAST_VALUES:
        got = f"{candidates}"
        raise InputError(teach(f"2 to {LEAST_VALUES} --candidates", got, f"pass --candidates {LEAST_VALUES}"))


def told_in(needle: Needle, text: str) -> str | None:
    """The first candidate that a text holds; None if it holds none.

    >>> told_in(made_needles(1, 0)[0], "They came from Egypt.")
    'Egypt'
    """
    return next((word for word in needle.candidates if stands(word, text)), None)


def _turns(seed: int, candidates: int) -> Iterator[list[Needle]]:
    """All subjects in an order of the turn's own, again and again; each turn plants other words."""
    turn = 0
    while True:
        yield [
            _needle(kind, subject, Draw(seed, PLANTED, turn, place), candidates)
            for place, (kind, subject) in enumerate(_ordered(seed, turn))
        ]
        turn += 1


def _ordered(seed: int, turn: int) -> Iterator[tuple[NeedleKind, str]]:
    draw = Draw(seed, ORDER, turn)
    kinds = [KINDS[place] for place in draw.order(len(KINDS))]
    queues = [[list(kind.facts)[place] for place in draw.order(len(kind.facts))] for kind in kinds]
    for row in range(max(map(len, queues))):
        for kind, queue in zip(kinds, queues, strict=True):
            if row < len(queue):
                yield kind, queue[row]


def _needle(kind: NeedleKind, subject: str, draw: Draw, candidates: int) -> Needle:
    true, question = kind.facts[subject], kind.question.format(subject=subject)
    values = [value for value in kind.values if value != true and not stands(value, question)]
    planted, *others = (values[place] for place in draw.order(len(values))[: candidates - 1])
    statement = kind.statement.format(subject=subject, value=planted)
    return Needle(kind.name, statement[:1].upper() + statement[1:], question, planted, true, tuple(others))


def file_needles(file: str | Path) -> list[Needle]:
    """Own needles: one JSON object per line with statement, question, planted, true and others (a list)."""
    needles = []
    for where, entry in json_lines(file, EXPECTED):
        texts = [" ".join(string_of(entry, key, where).split()) for key in ("statement", "question", "planted", "true")]
        others = tuple(" ".join(word.split()) for word in strings_of(entry, "others", where))
        statement, question, planted, true = texts
        needle = Needle("own", statement, question, planted, true, others)
        check_needle(needle, where)
        needles.append(needle)
    return needles


def check_needle(needle: Needle, where: str) -> None:
    """Refuse a needle whose score would say nothing."""
    if not stands(needle.planted, needle.statement):
        got = f"{needle.planted!r} and {needle.statement!r}"
        raise InputError(f"{where}: " + teach("a statement that contains its planted word", got, "correct the line"))
    for word in needle.candidates:
        if stands(word, needle.question):
            got = f"{word!r} in {needle.question!r}"
            raise InputError(f"{where}: " + teach("a question without a candidate in it", got, "ask in other words"))
    clash = clashing(needle.candidates)
    if clash is not None:
        got = f"{clash[0]!r} and {clash[1]!r}"
        remedy = "leave one out: the longer word's probability would count for the shorter one too"
        raise InputError(f"{where}: " + teach("candidates that do not begin another", got, remedy))


def clashing(words: Sequence[str]) -> tuple[str, str] | None:
    """Two words where one begins the other, or equals it.

    >>> clashing(["Rio", "Rome", "Rio Grande"])
    ('Rio', 'Rio Grande')
    """
    plain = [word.casefold() for word in words]
    for i, first in enumerate(plain):
        for j, second in enumerate(plain):
            if i != j and second.startswith(first):
                return words[i], words[j]
    return None
