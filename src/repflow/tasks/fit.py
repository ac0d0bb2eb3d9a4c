"""As many whole items as fit into N tokens, never over N, the same number in all prompts of a run.

Tokens are not additive: what a text costs inside a prompt is known only once the whole prompt is encoded. So every
prompt is encoded whole, in batches, and its exact length decides. The number of items is the smallest over the samples
of the largest number that fits a sample: found on the samples with the longest texts, lowered if another one does not
fit after all. A run so encodes nearly every prompt once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.tasks.prompt import Encoder

LEAST = 2
FIRST = 16
"""Samples that decide where to start: those with the longest texts."""
BATCH = 64
MIN_WORDS = 10
"""Words that a cut passage keeps at least; under that it is left out, and so is one item of every prompt."""
WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Draft:
    """Text of a prompt with what is known of it.

    Attributes:
        text: the prompt.
        index: index of the gold item from 0.
        answers: strings that count as an answer.
        key: queried key or question.
        group: prompts of one group stay together in a split.
        loose: first and past-the-last character of a passage that may be cut at its end.
        answerable: whether the gold item holds the answer.
    """

    text: str
    index: int
    answers: tuple[str, ...]
    key: str
    group: str
    loose: tuple[int, int] | None = None
    answerable: bool = True


@runtime_checkable
class Drafts(Protocol):
    """Prompts of a run, before it is known how many items fit."""

    @property
    def unit(self) -> str:
        """What the items are called."""

    @property
    def uneven(self) -> bool:
        """Whether prompts with equally many items differ in their numbers of characters."""

    def most(self, sample: int) -> int | None:
        """Most items that there are for a sample."""

    def draft(self, sample: int, items: int) -> Draft | None:
        """Prompt of a sample with this many items; None where there are fewer."""


@dataclass(frozen=True)
class Fitted:
    """Prompts that fit.

    Attributes:
        items: number of items in each.
        drafts: their texts.
        ids: for each encoder, the ids of each prompt without the first token that the encoder adds.
    """

    items: int
    drafts: list[Draft]
    ids: list[list[np.ndarray]]


class Fitting:
    """Search for the number of items."""

    def __init__(self, drafts: Drafts, encoders: Sequence[Encoder], length: int) -> None:
        self.drafts, self.encoders, self.length = drafts, encoders, length

    def run(self, samples: int, items: int | None = None) -> Fitted:
        """Fit all samples, with `items` of them each where that is given."""
        if items is not None and items < LEAST:
            raise InputError(teach(f"--items of at least {LEAST}", str(items), "one item leaves nothing to find"))
        if items is not None:
            self._check_items(items)
        count = items if items is not None else self._start(samples)
        while True:
            fitted, failed = self._pass(samples, count)
            if failed is None:
                return fitted
            if items is not None:
                raise self._too_many(failed, items)
            count = self._largest(failed, count - 1)

    def _check_items(self, items: int) -> None:
        """Refuse far too many items on one prompt, before a batch of such prompts is written and encoded."""
        if items > self.length:
            unit = self.drafts.unit
            remedy = f"pass fewer --items, or leave it out for as many {unit} as fit"
            raise InputError(teach(f"{items} {unit} within {self.length} tokens", "more items than tokens", remedy))
        if not self._fits(0, items):
            raise self._too_many(0, items)

    def _start(self, samples: int) -> int:
        count = self._largest(0, None)
        order = list(range(samples))
        if self.drafts.uneven:
            sizes = [self._size(sample, count) for sample in order]
            order.sort(key=lambda sample: -sizes[sample])
        for sample in order[:FIRST]:
            if not self._fits(sample, count):
                count = self._largest(sample, count - 1)
        return count

    def _size(self, sample: int, items: int) -> float:
        """Characters that cannot be cut: the prompt with most of them most likely has too many tokens."""
        draft = self.drafts.draft(sample, items)
        if draft is None:
            return float("inf")
        begin, end = draft.loose or (0, 0)
        return float(len(draft.text) - (end - begin))

    def _largest(self, sample: int, upper: int | None) -> int:
        """Largest number of items that fits a sample, by doubling and halving; at most `upper`."""
        if not self._fits(sample, LEAST):
            raise self._too_short(sample)
        low, high = LEAST, upper
        while high is None:  # low fits; look for a number that does not
            if self._fits(sample, 2 * low):
                low *= 2
            else:
                high = 2 * low - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(sample, middle):
                low = middle
            else:
                high = middle - 1
        return low

    def _fits(self, sample: int, items: int) -> bool:
        return self._pass_over([sample], items)[1] is None

    def _pass(self, samples: int, items: int) -> tuple[Fitted, int | None]:
        """Encode all samples, up to the first batch with one that does not fit."""
        fitted = Fitted(items, [], [[] for _ in self.encoders])
        for start in range(0, samples, BATCH):
            part, failed = self._pass_over(range(start, min(start + BATCH, samples)), items)
            if failed is not None:
                return fitted, failed
            fitted.drafts.extend(part.drafts)
            for all_ids, ids in zip(fitted.ids, part.ids, strict=True):
                all_ids.extend(ids)
        return fitted, None

    def _pass_over(self, samples: Sequence[int], items: int) -> tuple[Fitted, int | None]:
        drafts: list[Draft] = []
        for sample in samples:
            draft = self.drafts.draft(sample, items)
            if draft is None:
                return Fitted(items, [], []), sample
            drafts.append(draft)
        ids = [encoder.batch([draft.text for draft in drafts]) for encoder in self.encoders]
        for place, sample in enumerate(samples):
            if self._excess([each[place] for each in ids]) <= 0:
                continue
            shorter = self._shorten(drafts[place], [each[place] for each in ids])
            if shorter is None:
                return Fitted(items, [], []), sample
            drafts[place] = shorter[0]
            for each, own in zip(ids, shorter[1], strict=True):
                each[place] = own
        # as arrays they take a ninth of the memory of lists of Python's numbers
        return Fitted(items, drafts, [[np.asarray(own, dtype=np.int32) for own in each] for each in ids]), None

    def _excess(self, ids: Sequence[Sequence[int]]) -> int:
        """Tokens over the length, for the encoder that needs most."""
        return max(len(e.prefix) + len(own) - self.length for e, own in zip(self.encoders, ids, strict=True))

    def _shorten(self, draft: Draft, ids: list[list[int]]) -> tuple[Draft, list[list[int]]] | None:
        """Cut the loose passage at a word boundary until the prompt fits; None if it cannot."""
        if draft.loose is None:
            return None
        begin, end = draft.loose
        passage = draft.text[begin:end]
        ends = [word.end() for word in WORD.finditer(passage)]
        keep = len(ends)
        while (excess := self._excess(ids)) > 0:
            keep = min(keep - 1, self._words(passage, ends, keep, excess))
            if keep < MIN_WORDS:
                return None
            text = draft.text[: begin + ends[keep - 1]] + draft.text[end:]
            ids = [encoder.ids(text) for encoder in self.encoders]
        return replace(draft, text=text, loose=(begin, begin + ends[keep - 1])), ids

    def _words(self, passage: str, ends: Sequence[int], keep: int, excess: int) -> int:
        """Words to keep so that about `excess` tokens fall away; a guess, which the whole prompt then confirms."""
        least = keep
        for encoder in self.encoders:
            budget = len(encoder.text_ids(passage[: ends[keep - 1]])) - excess
            low, high = 0, keep - 1
            while low < high:
                middle = (low + high + 1) // 2
                if len(encoder.text_ids(passage[: ends[middle - 1]])) <= budget:
                    low = middle
                else:
                    high = middle - 1
            least = min(least, low)
        return least

    def _too_short(self, sample: int) -> InputError:
        unit, most = self.drafts.unit, self.drafts.most(sample)
        if most is not None and most < LEAST:
            expected = f"at least {LEAST} {unit} for every prompt"
            return InputError(teach(expected, f"{most} for prompt {sample}", "pass a file with more passages"))
        need = self._need(sample, LEAST)
        expected = f"a length that holds {LEAST} {unit}"
        remedy = self._beyond(need) or f"pass --length {need}"
        return InputError(teach(expected, f"{self.length} tokens, where {LEAST} need {need}", remedy))

    def _too_many(self, sample: int, items: int) -> InputError:
        unit, most = self.drafts.unit, self.drafts.most(sample)
        if most is not None and items > most:
            expected = f"at most {most} {unit}, which is all there are for prompt {sample}"
            return InputError(teach(expected, f"--items {items}", "pass fewer --items or a file with more passages"))
        need = self._need(sample, items)
        got = f"{need} in prompt {sample}"
        remedy = "pass fewer --items" if self._beyond(need) else f"pass --length {need} or more, or fewer --items"
        return InputError(teach(f"{items} {unit} within {self.length} tokens", got, remedy))

    def _beyond(self, need: int) -> str:
        """What to do where no length would help, as the model takes fewer tokens; empty where one would."""
        limits = [encoder.limit for encoder in self.encoders if encoder.limit is not None]
        if not limits or need <= min(limits):
            return ""
        return f"the model takes at most {min(limits)} tokens: use a tokenizer of fewer tokens, another task or model"

    def _need(self, sample: int, items: int) -> int:
        draft = self.drafts.draft(sample, items)
        assert draft is not None
        return max(len(encoder.prefix) + len(encoder.ids(draft.text)) for encoder in self.encoders)
