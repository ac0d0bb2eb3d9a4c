"""Documents of a text that models are trained on: of a file, a folder, JSON lines, or the built-in English; no torch.

| where | a document is |
|---|---|
| `english` | a paragraph of the built-in text |
| FILE.jsonl | a line: `{"text": "...", "label": "pos"}`; the label is needed by classifiers alone |
| a file with lines `<|endoftext|>` | what stands between two of them |
| a file that begins with a heading ` = Title = `, as WikiText does | an article |
| any other file | all of it |
| a folder | the documents of its files, and of those in folders below it, in the order of their names |
| a folder with one folder for each class, for classifiers | a file, whose label is the folder's name |
| `english`, for classifiers | a sentence of the built-in text: `whole`, or its words `shuffled` |

Files may end with .gz or .xz. Training and held-out parts are split by document, in an order that the documents' own
words decide: copies of one stand on the same side. Of too few documents the end of the longest is held out; an interval
over documents then has no bounds.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.tasks.english import paragraphs
from repflow.tasks.lines import is_jsonl, json_lines, string_of
from repflow.tasks.make import PACKED, read_text

ENGLISH = "english"
END = "<|endoftext|>"
HEADING = re.compile(r"^ = [^=\n]+ = *$", re.MULTILINE)
"""An article's title in WikiText; titles of its parts have more signs of equality."""
SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".jsonl", ".tokens", ".raw", "")
"""Ends of a folder's files that are read, .tokens and .raw for WikiText, compressed ones too; a file that is named by
itself may end with anything."""


@dataclass(frozen=True)
class Document:
    """One text.

    Attributes:
        text: its words.
        where: file, and number within it.
        label: class, where it has one.
    """

    text: str
    where: str
    label: str | None = None

    def share(self, seed: int) -> float:
        """A number from 0 to 1 that its words and the seed alone decide.

        >>> Document("a", "one").share(0) == Document("a", "two").share(0) != Document("a", "one").share(1)
        True
        """
        digest = hashlib.sha256(f"{seed}:{self.text}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64


def read_documents(path: str | Path) -> list[Document]:
    """All documents of a file, a folder or the built-in text, in order.

    >>> len(read_documents("english"))
    48

    Raises:
        InputError: nothing is there, or nothing that is text.
    """
    if str(path) == ENGLISH:
        return [Document(text, f"{ENGLISH}, paragraph {number}") for number, text in enumerate(paragraphs(), 1)]
    place = Path(path).expanduser()
    documents = [document for file in _files(place) for document in _of_file(file)]
    if not documents:
        raise InputError(teach(f"documents in {place}", "none with words", "pass a file or folder with text"))
    return documents


def _files(place: Path) -> Iterator[Path]:
    if not place.exists():
        remedy = f"check the path, or pass {ENGLISH} for the built-in text"
        raise InputError(teach("a text file or a folder of them", f"{place}, which does not exist", remedy))
    if place.is_file():
        yield place
        return
    files = 0
    for file in sorted(place.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(place).parts)
        if file.is_file() and not hidden and _kind(file) in SUFFIXES:
            files += 1
            if file.stat().st_size:
                yield file
    if not files:
        expected = f"files that end with {', '.join(filter(None, SUFFIXES))}, also with {' or '.join(PACKED)}"
        raise InputError(teach(expected, f"none in {place}", "name a file itself, which may end with anything"))


def _kind(file: Path) -> str:
    """End of a file's name, before what says that it is compressed."""
    return (file.with_suffix("") if file.suffix in PACKED else file).suffix


def _of_file(file: Path) -> Iterator[Document]:
    if is_jsonl(file.name) or _kind(file) == ".jsonl":
        for where, entry in json_lines(file, "an object with a string 'text'"):
            label = entry.get("label")
            if label is not None and (isinstance(label, bool) or not isinstance(label, str | int)):
                got = f"{label!r:.80}"
                raise InputError(f"{where}: expected a string or whole number 'label'; got {got}; correct the line")
            if string_of(entry, "text", where).strip():
                yield Document(entry["text"], where, None if label is None else str(label))
        return
    for number, text in enumerate(split_documents(read_text(file)), 1):
        yield Document(text, f"{file}, document {number}")


def split_documents(text: str) -> list[str]:
    r"""Documents of one file, as the module says; those without words are left out.

    >>> split_documents("one\n<|endoftext|>\ntwo\n"), split_documents("\n = A = \n\n x \n = = B = = \n y \n = C = \n z")
    (['one\n', 'two\n'], [' = A = \n\n x \n = = B = = \n y \n', ' = C = \n z'])
    """
    parts = [text]
    if re.search(rf"^{re.escape(END)}$", text, re.MULTILINE):
        parts = re.split(rf"^{re.escape(END)}\n?", text, flags=re.MULTILINE)
    elif HEADING.fullmatch(next((line for line in text.split("\n", 8) if line.strip()), "")):
        starts = [match.start() for match in HEADING.finditer(text)]
        parts = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    return [part for part in parts if part.strip()]


def split_off(documents: Sequence[Document], share: float, seed: int = 0) -> tuple[list[Document], list[Document]]:
    """Documents to train on, and this share of the different ones that is held out.

    Where there are too few of them, as in a plain file, which is one document, the end of the longest is held out.

    >>> [part[0].text for part in split_off([Document("one two three four", "plain.txt")], 0.2)]
    ['one two three ', 'four']

    Raises:
        InputError: one side would be empty.
    """
    if not 0 < share < 1:
        raise InputError(teach("a held-out share between 0 and 1", str(share), "pass 0.1, or a held-out text"))
    order = sorted({document.text: document.share(seed) for document in documents}.items(), key=lambda item: item[::-1])
    kept = {text for text, _ in order[: round(share * len(order))]}
    held = [document for document in documents if document.text in kept]
    rest = [document for document in documents if document.text not in kept]
    if held and rest:
        return rest, held
    longest = max(order, key=lambda item: len(item[0]), default=("", 0))[0]
    head, tail = _cut(longest, share * sum(len(text) for text, _ in order))
    if not tail:
        got = f"documents: {len(order)}, words of the longest: {len(longest.split())}"
        remedy = "pass more text, or a held-out text of its own"
        raise InputError(teach(f"documents or words enough to hold out {share:g} of the text", got, remedy))
    rest = [replace(document, text=head) if document.text == longest else document for document in documents]
    whole = next(document for document in documents if document.text == longest)
    return rest, [replace(whole, text=tail, where=f"{whole.where}, its end")]


def _cut(text: str, characters: float) -> tuple[str, str]:
    r"""The text in two, at a line's end or else a blank, with about this many characters behind; no end without either.

    >>> _cut("one\ntwo\nthree\n", 5), _cut("one line", 4)
    (('one\ntwo\n', 'three\n'), ('one ', 'line'))
    >>> _cut("word", 2)
    ('word', '')
    """
    last = max(0, len(text) - round(characters))
    places = [text.rfind(mark, 0, last) + 1 for mark in ("\n", " ")]
    start = next((place for place in places if place and len(text) - place <= 2 * characters), max(places))
    head, tail = text[:start], text[start:]
    return (head, tail) if head.strip() and tail.strip() else (text, "")


def read_labelled(path: str | Path) -> list[Document]:
    """Documents with a label each: JSON lines with `text` and `label`, a folder with a folder per class, or `english`.

    Raises:
        InputError: a label is missing, there is one class alone, or a class has one document alone.
    """
    if str(path) == ENGLISH:
        return shuffled_sentences()
    place = Path(path).expanduser()
    if place.is_dir():
        classes = sorted(folder for folder in place.iterdir() if folder.is_dir() and not folder.name.startswith("."))
        documents = [
            Document(read_text(file), str(file), folder.name)
            for folder in classes
            for file in _files(folder)
            if _kind(file) != ".jsonl"
        ]
    else:
        documents = read_documents(place)
    bare = next((document for document in documents if document.label is None), None)
    if bare is not None or not documents:
        got = f"none in {place}" if bare is None else f"none at {bare.where}"
        remedy = 'write lines {"text": ..., "label": ...}, or put texts into a folder for each class'
        raise InputError(teach("a label on every text", got, remedy))
    counts = Counter(document.label for document in documents)
    if len(counts) < 2 or min(counts.values()) < 2:
        got = ", ".join(f"{count} of {label!r}" for label, count in sorted(counts.items())[:4])
        raise InputError(teach("at least two classes with two texts each", got, "add texts"))
    return documents


def shuffled_sentences() -> list[Document]:
    """Sentences of the built-in text, every second one with its words in another order: only the order names the class.

    >>> sentences = shuffled_sentences()
    >>> sentences[0].text, sentences[0].label, sentences[1].label, len(sentences) > 200
    ('Rivers carry more than water.', 'whole', 'shuffled', True)
    """
    sentences = [one for text in paragraphs() for one in re.split(r"(?<=[.!?]) ", text)]
    documents = []
    for number, text in enumerate(sentences):
        words, label = text.split(" "), "whole"
        if number % 2:
            order = np.random.default_rng([number, len(sentences)]).permutation(len(words))
            words, label = [words[at] for at in order], "shuffled"
        documents.append(Document(" ".join(words), f"{ENGLISH}, sentence {number + 1}", label))
    return documents
