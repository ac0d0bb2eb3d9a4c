"""Numbered documents with made-up facts (mdqa), put together as token ids from articles that were cut beforehand.

    … Document [2](Title: Keldorf) Keldorf is a river … It is 257 kilometres long.⏎⏎Question: how long is keldorf⏎Answer: 257 kilometres<|endoftext|>

The words are those of `repflow.tasks.multi_document`; an answer follows with a blank, so that its tokens are those of
the article. No question asks for a document's number.
"""  # noqa: E501  the template's own line

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.zoo.kvpr import ANSWER, TEXT

MOST = 9
"""Documents in a prompt at most: their numbers then have one digit."""


@dataclass(frozen=True)
class Facts:
    """Articles and the question about each, as ids.

    Attributes:
        parts: all ids, one part behind the other: for each article the article, its question, its answer.
        bounds: where each part begins, and the end (3 × articles + 1,).
        head: before the first document.
        numbers: what stands before each document's title, for its place.
        ask: between the last document and the question.
        reply: between question and answer.
        newline: between documents.
        end: end of text.
    """

    parts: np.ndarray
    bounds: np.ndarray
    head: np.ndarray
    numbers: list[np.ndarray]
    ask: np.ndarray
    reply: np.ndarray
    newline: np.ndarray
    end: int

    def __len__(self) -> int:
        return len(self.bounds) // 3

    def part(self, article: int, which: int) -> np.ndarray:
        """Ids of an article (0), its question (1) or its answer (2)."""
        at = 3 * article + which
        return self.parts[self.bounds[at] : self.bounds[at + 1]]


def cut_articles(tokenizer: Any, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and bounds of articles with their questions and answers; `tokenizer` is of the `tokenizers` library."""
    from repflow.tasks.facts.articles import article

    texts: list[str] = []
    for number in range(count):
        passage, question = article(seed, number)
        texts += [f"Title: {passage.title}) {passage.text}", question.text, f" {question.answers[0]}"]
    # a question stands behind ": ", whose blank belongs to its first word
    texts = [f" {text}" if place % 3 == 1 else text for place, text in enumerate(texts)]
    cut = [encoded.ids for encoded in tokenizer.encode_batch(texts)]
    bounds = np.concatenate([[0], np.cumsum([len(ids) for ids in cut])])
    return np.concatenate([np.array(ids, dtype=np.uint16) for ids in cut]), bounds.astype(np.int64)


def read_facts(tokenizer: Any, parts: np.ndarray, bounds: np.ndarray) -> Facts:
    """The parts of the template with the articles."""
    from repflow.tasks.multi_document import HEAD

    def ids(part: str) -> np.ndarray:
        return np.array(tokenizer.encode(part).ids, dtype=np.uint16)

    return Facts(
        parts,
        bounds,
        ids(HEAD),
        [ids(f"Document [{number}](") for number in range(1, MOST + 1)],
        ids("\n\nQuestion:"),
        ids("\nAnswer:"),
        ids("\n"),
        tokenizer.token_to_id("<|endoftext|>"),
    )


def fact_row(facts: Facts, rng: np.random.Generator, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and roles of one prompt with its answer: as many documents as fit, at least the gold one."""
    gold, *others = (int(number) for number in rng.integers(0, len(facts), size=MOST))
    question, answer = facts.part(gold, 1), facts.part(gold, 2)
    tail = [facts.ask, question, facts.reply]
    room = window - len(facts.head) - sum(map(len, tail)) - len(answer) - 1
    chosen: list[int] = []
    for number in [gold, *others]:
        cost = len(facts.part(number, 0)) + len(facts.numbers[0]) + 1
        if cost > room:
            break
        if number not in chosen:
            chosen.append(number)
            room -= cost
    order = [chosen[place] for place in rng.permutation(len(chosen))]
    documents = [part for at, number in enumerate(order) for part in _document(facts, at, number)]
    text = np.concatenate([facts.head, *documents, *tail])
    reply = np.append(answer, np.uint16(facts.end))
    roles = np.repeat(np.array([TEXT, ANSWER], dtype=np.uint8), [len(text), len(reply)])
    return np.concatenate([text, reply]), roles


def _document(facts: Facts, place: int, number: int) -> list[np.ndarray]:
    begin = [facts.newline] if place else []
    return [*begin, facts.numbers[place], facts.part(number, 0)]
