"""Prompts of the needle test: one document per needle and length, the needle at every position of the sweep.

    Fendewick is a market town in the north of its province. The capital of France is Madrid. Its walls and gates ...

    Ignore the fact, only use information in the context to answer the questions.
    Question: What is the capital of France?
    Answer:

The instruction is paper 2's; the paper does not say where it is placed; here it follows the document. Documents of one
needle are the same text at every position, and a longer one begins like a shorter one, so that cells differ in nothing
else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.tasks.needle.haystack import Haystack, Sentence
from repflow.tasks.needle.needles import Needle
from repflow.tasks.prompt import Encoder, Prompt, Prompts

INSTRUCTION = "Ignore the fact, only use information in the context to answer the questions."
TAIL = 200
"""Characters at the end of a prompt that decide how the tokenizer joins an answer to it."""
SLACK = 8
"""Tokens by which a text that runs out may miss a length."""
TRIES = 40


def needle_text(document: str, question: str, instruction: str = INSTRUCTION) -> str:
    r"""Prompt for a document.

    >>> needle_text("A. B.", "What is A?", "Read.")
    'A. B.\n\nRead.\nQuestion: What is A?\nAnswer:'
    """
    before = f"{instruction}\n" if instruction else ""
    return f"{document}\n\n{before}Question: {question}\nAnswer:"


def joined(sentences: Sequence[Sentence]) -> str:
    """A document's text."""
    return "".join(f"{sentence.gap}{sentence.text}" for sentence in sentences).lstrip()


def cut_words(sentences: Sequence[Sentence], words: int) -> list[Sentence]:
    """The first sentences with this many words in all, the last one cut and closed with a full stop.

    >>> joined(cut_words([Sentence("It is an old town.", " "), Sentence("Few go there.", " ")], 6))
    'It is an old town. Few.'
    """
    first = []
    for sentence in sentences:
        own = sentence.text.split()
        if words <= 0:
            break
        if len(own) > words:
            text = " ".join(own[:words]).rstrip(",;:-–(")
            sentence = Sentence(text if text.endswith((".", "!", "?")) else f"{text}.", sentence.gap)
        first.append(sentence)
        words -= len(own)
    return first


def with_needle(sentences: Sequence[Sentence], statement: str, position: float) -> tuple[str, int]:
    """Document with a statement between two sentences, and the character at which the statement begins.

    The boundary is the one whose share of characters before it is nearest to `position`.

    >>> with_needle([Sentence("Old.", " "), Sentence("New.", " ")], "So.", 0.5)
    ('Old. So. New.', 5)
    """
    sizes = [0, *(len(sentence.gap) + len(sentence.text) for sentence in sentences)]
    shares = np.cumsum(sizes) / max(1, sum(sizes))
    place = int(np.argmin(np.abs(shares - position)))
    before, after = list(sentences[:place]), list(sentences[place:])
    if not before and after:
        after[0] = Sentence(after[0].text, " ")  # the needle begins the first paragraph
    text = joined([*before, Sentence(statement, " "), *after])
    begin = len(joined(before)) + 1 if before else 0
    return text, begin


@dataclass(frozen=True)
class NeedleSweep:
    """What is swept.

    Attributes:
        lengths: tokens of a prompt at most.
        positions: where the needle goes, from 0 (first) to 1 (last).
        instruction: text before the question.
    """

    lengths: tuple[int, ...]
    positions: tuple[float, ...]
    instruction: str = INSTRUCTION


@dataclass(frozen=True)
class NeedlePrompts:
    """All prompts of a run.

    Attributes:
        prompts: cell after cell (length, position, sample), then the documents without a needle (length, sample).
        needles: one per sample.
        sweep: what is swept.
        depth: share of the document's other tokens that come before the needle (length, position, sample).
        candidates: ids of every candidate as it follows the prompt, planted and true first (sample, candidate).
        haystack: what the documents are made of.
    """

    prompts: Prompts
    needles: tuple[Needle, ...]
    sweep: NeedleSweep
    depth: np.ndarray
    candidates: tuple[tuple[tuple[int, ...], ...], ...]
    haystack: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Lengths, positions, samples."""
        return len(self.sweep.lengths), len(self.sweep.positions), len(self.needles)

    def sample(self, prompt: int) -> int:
        """Needle of a prompt."""
        return prompt % len(self.needles)


def needle_prompts(
    needles: Sequence[Needle], haystack: Haystack, sweep: NeedleSweep, encoders: Sequence[Encoder]
) -> NeedlePrompts:
    """Make the prompts for the first encoder, such that they fit the lengths of all of them.

    Raises:
        InputError: A length too short for its needle, text that runs out, words that the tokenizer cannot distinguish.
    """
    own = encoders[0]
    fits = [
        [_Fit(sample, needle, haystack, sweep, encoders, length) for sample, needle in enumerate(needles)]
        for length in sweep.lengths
    ]
    prompts: list[Prompt] = []
    depth = np.empty((len(sweep.lengths), len(sweep.positions), len(needles)))
    for i, per_sample in enumerate(fits):
        for j, position in enumerate(sweep.positions):
            for k, fit in enumerate(per_sample):
                prompts.append(_prompt(own, fit, fit.text(position), position))
                depth[i, j, k] = fit.depth(position)
    prompts += [_prompt(own, fit, fit.text(None), None) for per_sample in fits for fit in per_sample]
    candidates = tuple(candidate_ids(own, prompts[k].text or "", needle) for k, needle in enumerate(needles))
    return NeedlePrompts(Prompts("needle", tuple(prompts)), tuple(needles), sweep, depth, candidates, haystack.about)


def _prompt(encoder: Encoder, fit: _Fit, text: str, position: float | None) -> Prompt:
    bare = encoder.prompt(encoder.ids(text), encoder.render(text))
    needle = fit.needle
    return replace(
        bare, answers=(needle.planted,), group=f"needle {fit.sample}", position=position, key=needle.question
    )


def candidate_ids(encoder: Encoder, prompt: str, needle: Needle) -> tuple[tuple[int, ...], ...]:
    """Ids of every candidate as the tokenizer writes it after the prompt, including the blank between them.

    Where the tokenizer joins prompt and answer differently than it cut the prompt, the answer is cut on its own.
    """
    tail = prompt[-TAIL:]
    gap = "" if tail[-1:].isspace() else " "
    before = encoder.text_ids(tail)
    rows = []
    for word in needle.candidates:
        whole = encoder.text_ids(f"{tail}{gap}{word}")
        joins = whole[: len(before)] == before
        rows.append(tuple(whole[len(before) :] if joins else encoder.text_ids(f"{gap}{word}")))
    for place, ids in enumerate(rows):
        if not ids or ids in rows[:place]:
            twin = needle.candidates[rows.index(ids)] if ids else "nothing"
            got = f"{needle.candidates[place]!r} written like {twin!r}"
            remedy = "use the model's own tokenizer, or needles in its words (--needles FILE.jsonl)"
            raise InputError(teach("a tokenizer that distinguishes the candidates", got, remedy))
    return tuple(rows)


class _Fit:
    """One needle's document at one length: as many words of its haystack as fit, at every position of the sweep."""

    def __init__(
        self,
        sample: int,
        needle: Needle,
        haystack: Haystack,
        sweep: NeedleSweep,
        encoders: Sequence[Encoder],
        length: int,
    ) -> None:
        self.sample, self.needle, self.sweep, self.encoders, self.length = sample, needle, sweep, encoders, length
        self.sentences = _enough(haystack, sample, needle, length)
        self.words = sum(len(sentence.text.split()) for sentence in self.sentences)
        self.kept: list[Sentence] = []
        self._search(self.words)
        self._check(haystack)

    def text(self, position: float | None) -> str:
        """Prompt with the needle at a position; None leaves it out."""
        if position is None:
            document = joined(self.kept)
        else:
            document, _ = with_needle(self.kept, self.needle.statement, position)
        return needle_text(document, self.needle.question, self.sweep.instruction)

    def depth(self, position: float) -> float:
        """Tokens before the needle by those before and after it."""
        document, begin = with_needle(self.kept, self.needle.statement, position)
        encoder = self.encoders[0]
        before = len(encoder.text_ids(document[:begin].rstrip()))
        after = len(encoder.text_ids(document[begin + len(self.needle.statement) :].lstrip()))
        return before / max(1, before + after)

    def _tokens(self, position: float) -> int:
        """Tokens of a prompt over all encoders, the one that needs most."""
        text = self.text(position)
        return max(len(encoder.prefix) + len(encoder.ids(text)) for encoder in self.encoders)

    def _search(self, most: int) -> None:
        """Find the most words that fit, by guesses along the tokens that a word takes; then for all positions."""
        first = self.sweep.positions[0]
        frame = self._tokens(first)
        low, high, guess, rate = 0, most + 1, min(most, max(1, self.length - frame)), 1.0
        for _ in range(TRIES):
            self.kept = cut_words(self.sentences, guess)
            tokens = self._tokens(first)
            if tokens <= self.length:
                low = guess
            else:
                high = guess
            if high - low <= 1:
                break
            rate = max((tokens - frame) / guess, 0.5)
            step = round((self.length - tokens) / rate) or (1 if tokens <= self.length else -1)
            guess = min(max(guess + step, low + 1), high - 1)
        self.kept = cut_words(self.sentences, low)
        while low and any(self._tokens(position) > self.length for position in self.sweep.positions):
            low -= 1
            self.kept = cut_words(self.sentences, low)

    def _check(self, haystack: Haystack) -> None:
        """Refuse a document shorter than its needle, and one for which the text does not suffice."""
        statement = self.needle.statement
        sizes = [
            (len(e.prefix) + len(e.ids(needle_text("", self.needle.question, self.sweep.instruction))), e)
            for e in self.encoders
        ]
        frame, encoder = max(sizes, key=lambda pair: pair[0])
        needle = len(encoder.text_ids(statement))
        if len(encoder.text_ids(joined(self.kept))) < needle:
            takes = f"instruction and question take {frame} and {statement!r} {needle} tokens"
            got = f"--lengths {self.length}, where {takes}"
            need = frame + 2 * needle + SLACK
            if self.length >= need:  # the length would do, the text does not
                expected, got = f"a haystack longer than its needle in {haystack.about}", f"{joined(self.kept)!r}"
                raise InputError(teach(expected, got[:80], "pass more text with --haystack"))
            raise InputError(teach("a haystack longer than its needle", got, f"pass --lengths of at least {need}"))
        words = sum(len(sentence.text.split()) for sentence in self.kept)
        tokens = self._tokens(self.sweep.positions[0])
        if words >= self.words and tokens < self.length - SLACK:
            expected = f"text for documents of {self.length} tokens in {haystack.about}"
            raise InputError(teach(expected, f"{tokens} tokens with all of it", "pass more text or shorter --lengths"))


def _enough(haystack: Haystack, sample: int, needle: Needle, length: int) -> list[Sentence]:
    """Sentences that surely fill a length: a word takes a token at least."""
    sentences: list[Sentence] = []
    words = 0
    stream = haystack.sentences(sample, needle)
    while words < length and (part := list(islice(stream, 32))):
        sentences += part
        words += sum(len(sentence.text.split()) for sentence in part)
    return sentences
