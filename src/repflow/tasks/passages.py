"""Questions with the passage that answers each: a library that multi-document prompts are drawn from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from repflow.core.errors import InputError, teach
from repflow.tasks.draw import Draw
from repflow.tasks.lines import json_lines, string_of, strings_of
from repflow.tasks.ranking import Ranking

ASKED, OTHERS = 20, 21  # purposes of a Draw
REACH = 2048
"""Passages considered as distractors of one prompt; more than any prompt of this kind holds."""
EXPECTED = "an object with 'question', 'answers', 'title' and 'text'"
SHORT = 3
BLANK = re.compile(r"\s+")


@dataclass(frozen=True)
class Passage:
    """A piece of an encyclopedia.

    Attributes:
        title: what it is about.
        text: what it says.
    """

    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """A question and where its answer is.

    Attributes:
        text: the question.
        answers: strings that answer it.
        passage: number of the gold passage.
        group: questions that share their text or their gold passage have the same.
    """

    text: str
    answers: tuple[str, ...]
    passage: int
    group: str


@runtime_checkable
class Library(Protocol):
    """What multi-document prompts are drawn from."""

    def question(self, sample: int) -> Question:
        """Question of a sample."""

    def passage(self, number: int) -> Passage:
        """A passage by its number."""

    def distractors(self, sample: int, count: int) -> list[int]:
        """Numbers of up to `count` passages without an answer of the sample's question, the hardest first."""


def plain(text: str) -> str:
    """Text normalised for the search for answers: case and blanks do not matter.

    >>> plain("Wilhelm  Conrad RÖNTGEN ")
    'wilhelm conrad röntgen'
    """
    return BLANK.sub(" ", text).strip().casefold()


def plain_passage(passage: Passage) -> str:
    """A passage with its title, normalised for the search for answers."""
    return plain(f"{passage.title}\n{passage.text}")


def tells(plain_text: str, answers: Sequence[str]) -> bool:
    """Whether a plain text holds one of the answers.

    An answer of up to three characters counts only as a word of its own: a "4" is in every other year.

    >>> tells("born in 1945", ["4"]), tells("it has 4 legs", ["4"]), tells("in berlin", ["Berlin"])
    (False, True, True)
    """
    for answer in map(plain, answers):
        if len(answer) > SHORT and answer in plain_text:
            return True
        if len(answer) <= SHORT and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", plain_text):
            return True
    return False


def without_answers(numbers: Iterable[int], plain_passages: Sequence[str], question: Question) -> Iterator[int]:
    """Passages that are not the gold one and hold none of the answers."""
    for number in numbers:
        if number != question.passage and not tells(plain_passages[number], question.answers):
            yield number


class FileLibrary:
    """Questions and passages of a JSONL file; every passage of the file may be a distractor.

    Each question comes once before any comes twice.
    """

    def __init__(self, file: str | Path, seed: int, distractors: str) -> None:
        self.passages, self.questions = read_library(file)
        self.seed = seed
        self._plain = [plain_passage(passage) for passage in self.passages]
        if not any(tells(self._plain[question.passage], question.answers) for question in self.questions):
            got = f"none of {len(self.questions)}, such as {self.questions[0].answers[0]!r:.60}"
            remedy = "check that 'answers' and 'text' belong together; no prompt could be answered from its documents"
            raise InputError(teach(f"answers that occur in their passages in {file}", got, remedy))
        self._ranking = Ranking(self._plain) if distractors == "bm25" else None
        self._ranked: dict[int, Sequence[int]] = {}
        self._round: tuple[int, list[int]] = (-1, [])

    def question(self, sample: int) -> Question:
        """Question of a sample."""
        return self.questions[self._asked(sample)]

    def _asked(self, sample: int) -> int:
        turn, place = divmod(sample, len(self.questions))
        if self._round[0] != turn:
            self._round = (turn, Draw(self.seed, ASKED, turn).order(len(self.questions)))
        return self._round[1][place]

    def passage(self, number: int) -> Passage:
        """A passage by its number."""
        return self.passages[number]

    def distractors(self, sample: int, count: int) -> list[int]:
        """Passages without the answer: by rank, or random ones of the sample's own."""
        question = self.question(sample)
        numbers = without_answers(self._candidates(sample, question), self._plain, question)
        return [number for number, _ in zip(numbers, range(count), strict=False)]

    def _candidates(self, sample: int, question: Question) -> Sequence[int]:
        if self._ranking is None:
            return random_numbers(Draw(self.seed, OTHERS, sample), len(self.passages), REACH)
        key = self._asked(sample)
        if key not in self._ranked:
            self._ranked[key] = self._ranking.best(question.text, REACH)
        return self._ranked[key]


def random_numbers(draw: Draw, bound: int, count: int) -> list[int]:
    """Up to `count` different numbers below `bound` in random order.

    >>> sorted(random_numbers(Draw(0), 4, 10)), len(set(random_numbers(Draw(0), 10**6, 10)))
    ([0, 1, 2, 3], 10)
    """
    if bound <= 2 * count:
        return draw.order(bound)[:count]
    return list(dict.fromkeys(int(number) for number in draw.raw(2 * count) % bound))[:count]


def read_library(file: str | Path) -> tuple[list[Passage], list[Question]]:
    """Passages and questions of a file: lost-in-the-middle's form, or lines of question, answers, title and text."""
    numbers: dict[Passage, int] = {}
    rows: list[tuple[str, tuple[str, ...], int]] = []
    for where, entry in json_lines(file, EXPECTED):
        question, answers = string_of(entry, "question", where), strings_of(entry, "answers", where)
        gold, *others = [_passage(each, where) for each in _contexts(entry, where)]
        for passage in (gold, *others):
            numbers.setdefault(passage, len(numbers))
        rows.append((_one_line(question), answers, numbers[gold]))
    groups = _groups(rows)
    questions = [Question(*row, group=f"passage {group}") for row, group in zip(rows, groups, strict=True)]
    return list(numbers), questions


def _contexts(entry: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The gold context first; without `ctxs` the line itself is one."""
    if "ctxs" not in entry:
        return [entry]
    contexts = entry["ctxs"]
    if not isinstance(contexts, list) or not contexts or not all(isinstance(each, dict) for each in contexts):
        raise InputError(f"{where}: expected a list of objects in 'ctxs'; got {contexts!r:.80}; correct the line")
    marked = [place for place, each in enumerate(contexts) if each.get("isgold")]
    if not marked and len(contexts) > 1:
        expected = "'isgold': true at one of the 'ctxs'"
        raise InputError(f"{where}: expected {expected}; got none of {len(contexts)}; mark the passage with the answer")
    gold = marked[0] if marked else 0
    return [contexts[gold], *contexts[:gold], *contexts[gold + 1 :]]


def _passage(entry: dict[str, Any], where: str) -> Passage:
    title, text = string_of(entry, "title", where), string_of(entry, "text", where)
    if not text.strip():
        raise InputError(f"{where}: expected words in 'text'; got none; correct the line")
    return Passage(_one_line(title), _one_line(text))


def _one_line(text: str) -> str:
    """Text without line breaks, which end a document in the prompt."""
    return " ".join(text.splitlines()).strip()


def _groups(rows: Sequence[tuple[str, tuple[str, ...], int]]) -> list[int]:
    """Number of each row's group: rows that share a question or a passage, directly or over others, are one."""
    parent = {row[2]: row[2] for row in rows}

    def root(number: int) -> int:
        while parent[number] != number:
            number = parent[number]
        return number

    seen: dict[str, int] = {}
    for question, _, passage in rows:
        other = seen.setdefault(plain(question), passage)
        low, high = sorted((root(other), root(passage)))
        parent[high] = low
    return [root(row[2]) for row in rows]
