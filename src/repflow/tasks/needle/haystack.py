"""Haystacks: running text for needles to be put into, cut into sentences.

The built-in one is repflow's encyclopedia of made-up things (`repflow.tasks.facts.articles`); files of the user's own
are the other. A haystack must not contain the answer: the built-in one leaves out every article that holds a word of
the needle, a file that holds one is refused.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from repflow.core.errors import InputError, teach
from repflow.tasks.facts.articles import article
from repflow.tasks.make import read_text
from repflow.tasks.needle.needles import Needle, told_in

SENTENCE = re.compile(r"\S.*?(?:[.!?][\"'”’)\]]*(?=\s|$)|$)", re.DOTALL)
BREAK = "\n"
STRIDE = 1024
"""Articles between the beginnings of two samples' documents: only documents of some 100,000 tokens share any."""


class Sentence(NamedTuple):
    """One sentence of a haystack.

    Attributes:
        text: its words, without a line break.
        gap: what precedes it: a blank, or a line break where a paragraph begins.
    """

    text: str
    gap: str


@runtime_checkable
class Haystack(Protocol):
    """Where documents come from."""

    def sentences(self, sample: int, needle: Needle) -> Iterator[Sentence]:
        """Sentences of a sample's document in order, as many as there are; a longer document begins like a shorter."""

    @property
    def about(self) -> str:
        """What it is, for the record."""


class MadeUpProse:
    """The built-in encyclopedia: endless, and without any word of the needle."""

    about = "made-up articles"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def sentences(self, sample: int, needle: Needle) -> Iterator[Sentence]:
        """Articles of a sample one after the other, each a paragraph.

        >>> from repflow.tasks.needle.needles import made_needles
        >>> next(MadeUpProse(0).sentences(0, made_needles(1, 0)[0])).text
        'Fendewick is a market town in the north of its province.'
        """
        for number in itertools.count(sample * STRIDE):
            text = article(self.seed, number)[0].text
            if told_in(needle, text) is None:
                yield from split_sentences(text)


class FileProse:
    """Text files of the user's, read one after the other and from the end to the beginning again.

    Args:
        files: names of the files.
        samples: number of samples; their documents begin at places spread evenly over the text.
    """

    def __init__(self, files: Sequence[str | Path], samples: int) -> None:
        self.files, self.samples = [str(file) for file in files], samples
        self.text = [read_text(Path(file)) for file in files]
        self._sentences = [sentence for text in self.text for sentence in split_sentences(text)]

    @property
    def about(self) -> str:
        """The files' names."""
        return ", ".join(Path(file).name for file in self.files)

    def check(self, needles: Sequence[Needle]) -> None:
        """Refuse needles with a word that occurs in the files: the answer would be given twice, or denied."""
        for needle in needles:
            for file, text in zip(self.files, self.text, strict=True):
                if (word := told_in(needle, text)) is not None:
                    got = f"{word!r} of the needle {needle.statement!r} in {file}"
                    remedy = "pass other text, --skip-told to draw other needles, or own ones with --needles"
                    raise InputError(teach("a haystack without the answer and its rivals", got, remedy))

    def sentences(self, sample: int, needle: Needle) -> Iterator[Sentence]:
        """The whole text once, from the sample's place on."""
        start = sample % self.samples * len(self._sentences) // self.samples
        yield from self._sentences[start:]
        yield from self._sentences[:start]


def split_sentences(text: str) -> list[Sentence]:
    r"""Sentences of a text; blanks inside them are made single, a paragraph's first one keeps its line break.

    >>> split_sentences("It is 3.5 m\nlong. Is it?\n\nYes.")
    [Sentence(text='It is 3.5 m long.', gap='\n'), Sentence(text='Is it?', gap=' '), Sentence(text='Yes.', gap='\n')]
    """
    sentences = []
    for paragraph in re.split(r"\n\s*\n", text):
        parts = [" ".join(match.group().split()) for match in SENTENCE.finditer(paragraph)]
        sentences += [Sentence(part, " " if place else BREAK) for place, part in enumerate(parts) if part]
    return sentences
