"""kvpr prompts with their answers, put together as token ids: what training reads, fast enough to feed a GPU.

As every UUID is 20 tokens, a prompt of n pairs has a fixed shape: only the pairs' digits change. The text is that of
`repflow.tasks.key_value` in the format `liu2024`, then the value right after the colon, without a blank:

    … "4f0c3e11-…": "09b7d2aa-…"}⏎⏎Key: "4f0c3e11-…"⏎Corresponding value:09b7d2aa-…<|endoftext|>

So the token that follows the prompt is the value's first, and the state at the last token has to hold it. More
questions about the same object may follow an answer, each in the words of the first.

| part | weight of its loss |
|---|---|
| keys and values of the object | 0: they are random, there is nothing to learn |
| template, key of the question | 1: after its first pair the key is a copy from the object |
| answer and end of text | `answer_weight` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.zoo.tokenizer import GROUPS, UUID_TOKENS, pairs

FREE, TEXT, ANSWER = 0, 1, 2
"""Roles of a token: random, text, answer."""
MARK = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Template:
    """Ids of the parts of a prompt.

    Attributes:
        head: before the first key.
        inner: between a key and its value.
        outer: between a value and the next key.
        ask: between the last value and the asked key.
        reply: between the asked key and the answer.
        again: between an answer and the next asked key.
        end: end of text.
        digits: id of each pair of digits (256,).
        dash: id of the dash.
    """

    head: np.ndarray
    inner: np.ndarray
    outer: np.ndarray
    ask: np.ndarray
    reply: np.ndarray
    again: np.ndarray
    end: int
    digits: np.ndarray
    dash: int

    def size(self, items: int, questions: int = 1) -> int:
        """Tokens of a prompt with its answers and the end of text."""
        body = len(self.head) + items * (2 * UUID_TOKENS + len(self.inner)) + (items - 1) * len(self.outer)
        tail = len(self.ask) + (questions - 1) * len(self.again) + questions * (2 * UUID_TOKENS + len(self.reply))
        return body + tail + 1

    def most(self, window: int) -> int:
        """Pairs that fit into a window with one answer."""
        items = 0
        while self.size(items + 1) <= window:
            items += 1
        return items


def read_template(tokenizer: Any) -> Template:
    """Cut the task's own text of two pairs into its parts; `tokenizer` is of the `tokenizers` library."""
    from repflow.tasks.key_value import key_value_text

    text = key_value_text([(MARK, MARK), (MARK, MARK)], 0)
    head, inner, outer, _, ask, reply = text.split(MARK)

    def ids(part: str) -> np.ndarray:
        return np.array(tokenizer.encode(part).ids, dtype=np.uint16)

    end = tokenizer.token_to_id("<|endoftext|>")
    digits = np.array([tokenizer.token_to_id(pair) for pair in pairs()], dtype=np.uint16)
    question = ask.removeprefix('"}')
    return Template(
        ids(head), ids(inner), ids(outer), ids(ask), ids(reply), ids(question), end, digits, tokenizer.token_to_id("-")
    )


def draw_uuids(template: Template, rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Ids of random UUIDs of version 4 (..., 20)."""
    raw = rng.integers(0, 256, size=(*shape, sum(GROUPS)), dtype=np.uint8)
    raw[..., 6] = raw[..., 6] & 0x0F | 0x40
    raw[..., 8] = raw[..., 8] & 0x3F | 0x80
    ids = np.full((*shape, UUID_TOKENS), template.dash, dtype=np.uint16)
    ids[..., _digit_places()] = template.digits[raw]
    return ids


def _digit_places() -> np.ndarray:
    dashes = np.cumsum(np.array(GROUPS[:-1]) + 1) - 1
    return np.setdiff1d(np.arange(UUID_TOKENS), dashes)


def kvpr_rows(
    template: Template, rng: np.random.Generator, rows: int, items: int, questions: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Ids and roles (rows, size) of prompts with their answers; the pairs asked for differ within a prompt."""
    keys, values = draw_uuids(template, rng, 2, rows, items)
    places = np.argsort(rng.random((rows, items)), axis=1)[:, :questions]
    take = np.arange(rows)
    parts: list[tuple[np.ndarray, int]] = [(template.head, TEXT)]
    for item in range(items):
        parts += [(template.outer, TEXT)] if item else []
        parts += [(keys[:, item], FREE), (template.inner, TEXT), (values[:, item], FREE)]
    for question in range(questions):
        gold = places[:, question]
        parts += [(template.again if question else template.ask, TEXT), (keys[take, gold], TEXT)]
        parts += [(template.reply, TEXT), (values[take, gold], ANSWER)]
    parts.append((np.array([template.end], dtype=np.uint16), ANSWER))
    ids = np.concatenate([np.broadcast_to(part, (rows, part.shape[-1])) for part, _ in parts], axis=1)
    roles = np.concatenate([np.full(part.shape[-1], role, dtype=np.uint8) for part, role in parts])
    return ids, np.broadcast_to(roles, ids.shape)


def layouts(template: Template, window: int) -> list[list[tuple[int, int]]]:
    """What kvpr windows hold, each a list of (pairs, questions).

    One long prompt (twice as often as the others), two of half the window, many short ones, one object with several
    questions. Short prompts are learnt first and lead to the long ones.
    """
    whole, half = template.most(window), template.most(window // 2)
    plans = [[(whole, 1)], [(whole, 1)]]
    if half >= 2:
        plans.append([(half, 1), (half, 1)])
    plans.append([(2, 1)] * max(1, window // template.size(2)))
    middle = max(2, (2 * whole) // 3)
    questions = 1
    while questions < middle and template.size(middle, questions + 1) <= window:
        questions += 1
    return [*plans, [(middle, questions)]]
