"""The built-in English text: what a model reads where no task is named. Forty-eight paragraphs of everyday facts.

Random ids are noise to a trained model, and a text needs no choice of task. Paragraphs stand in an order by the seed,
as a ring; the prompts begin at places spread evenly over it, so that short ones share no paragraph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.results import Finding
from repflow.tasks.make import check_size, text_prompts
from repflow.tasks.prompt import Encoder, Prompts

FILE = Path(__file__).with_name("english.txt")


@cache
def paragraphs() -> tuple[str, ...]:
    """The paragraphs, in the order of the file.

    >>> len(paragraphs()), all(text.isascii() for text in paragraphs())
    (48, True)
    """
    return tuple(FILE.read_text(encoding="utf-8").splitlines())


def english_texts(encoder: Encoder, *, length: int, samples: int, seed: int = 0) -> list[str]:
    """One text per prompt: the whole ring of paragraphs from its place on. Too short a ring is refused."""
    check_size(length, samples)
    order = np.random.default_rng(seed).permutation(len(paragraphs()))
    ring = [paragraphs()[at] for at in order]
    starts = [index * len(ring) // samples for index in range(samples)]
    texts = ["\n".join([*ring[start:], *ring[:start]]) for start in starts]
    tokens = len(encoder.ids(texts[0])) + len(encoder.prefix)
    if tokens < length:
        got = f"a built-in text of {tokens} tokens"
        raise InputError(teach(f"text for prompts of {length} tokens", got, "pass --text FILE or a smaller --length"))
    return texts


def english_prompts(encoder: Encoder, *, length: int, samples: int, seed: int = 0) -> Prompts:
    """Prompts of `length` tokens of the built-in text."""
    return text_prompts(
        english_texts(encoder, length=length, samples=samples, seed=seed), encoder, length=length, task="text"
    )


def note_random(prompts: Prompts, models: Sequence[str]) -> Prompts:
    """Random ids with a finding, where trained models that have no tokenizer read them."""
    if not models:
        return prompts
    text = (
        f"random token ids, which are noise to a trained model: {' and '.join(models)} without a tokenizer cannot "
        "read the built-in text; pass --tokenizer FOLDER"
    )
    return replace(prompts, findings=(*prompts.findings, Finding("random_ids", None, text)))
