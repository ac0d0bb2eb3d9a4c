"""check_task: does a task keep the promises of `Task`? For those of this package and for one's own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.tasks import OPTIONS, task_row
from repflow.tasks.prompt import Encoder, Prompt, Prompts
from repflow.tasks.retrieval import Task, make_task

BOS = 0x110000
"""First token of the check's tokenizers: no letter has this number."""


@dataclass(frozen=True)
class TaskReport:
    """What check_task found.

    Attributes:
        task: name of the task.
        checks: what was held, in the order it ran.
        labelled: whether a probe can read it.
        seeded: whether another seed gives other prompts; a file's prompts are always the same.
        same_text: whether another tokenizer, with room for as many letters, gives the same texts.
    """

    task: str
    checks: tuple[str, ...]
    labelled: bool
    seeded: bool
    same_text: bool

    def __str__(self) -> str:
        facts = {"with labels": self.labelled, "seeded": self.seeded, "the same text for all models": self.same_text}
        text = ", ".join(f"{'' if holds else 'not '}{fact}" for fact, holds in facts.items())
        return f"{self.task}: {len(self.checks)} checks passed ({', '.join(self.checks)}); {text}"


def check_task(task: Task | str, *, length: int = 2000, samples: int = 6, seed: int = 0) -> TaskReport:
    """Hold a task to what studies and stored runs rely on, with two small tokenizers of its own.

    | check | what must hold |
    |---|---|
    | prompts | `Prompts` of the task's name, at least one and at most as many as asked for |
    | length | 2 to `length` tokens in each, the tokenizer's first token included |
    | tokens | the ids are those of the text, from its beginning |
    | labels | on all prompts or on none, each the number of one of the classes, whose names differ |
    | facts | answers are not empty, a position is between 0 and 1 |
    | repeated | the same arguments give the same prompts, whatever else draws random numbers |
    | refusals | no room, and no prompts, are refused with an error of `repflow.errors` |
    | row | the name's row in `repflow.core.tasks` says the same; for a task given by its name |

    Args:
        task: an object with `name` and `prompts`, or the name of one in the table.
        length: most tokens of a prompt; a token is a letter.
        samples: number of prompts, at least 2.
        seed: of the prompts.

    Raises:
        InputError: a promise is broken; the message names the check.

    >>> print(check_task("kvpr", samples=2))
    kvpr: 8 checks passed (prompts, length, tokens, labels, facts, repeated, refusals, row); with labels, seeded, the \
same text for all models
    """
    if samples < 2:
        raise InputError(teach("at least 2 prompts to check a task", str(samples), "leave samples out"))
    named = isinstance(task, str)
    subject: Any = make_task(task) if isinstance(task, str) else task
    size = {"length": length, "samples": samples, "seed": seed}
    letters, pairs = _encoder(1), _encoder(2)
    prompts = subject.prompts(letters, **size)
    _check_prompts(subject, prompts, samples)
    for number, prompt in enumerate(prompts):
        _check_prompt(subject.name, number, prompt, letters, length)
    _check_labels(subject.name, prompts)
    _check_repeated(subject, prompts, letters, size)
    _check_refusals(subject, letters, size)
    checks: tuple[str, ...] = ("prompts", "length", "tokens", "labels", "facts", "repeated", "refusals")
    labelled = prompts[0].label is not None
    if named:
        _check_row(subject.name, labelled)
        checks = (*checks, "row")
    other = subject.prompts(letters, **{**size, "seed": seed + 1})
    coarse = subject.prompts(pairs, **size)
    seeded, same_text = _texts(other) != _texts(prompts), _texts(coarse) == _texts(prompts)
    return TaskReport(subject.name, checks, labelled, seeded, same_text or _matches(subject, letters, pairs, size))


class _Letters:
    """A tokenizer with a token for every letter, or every few letters."""

    bos_token_id = BOS
    chat_template = None

    def __init__(self, each: int) -> None:
        self.each = each
        self.words: list[str] = []
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str | list[str], add_special_tokens: bool = True) -> dict[str, Any]:
        """Ids of a text or of several, as a tokenizer of transformers gives them."""
        if not isinstance(text, str):
            return {"input_ids": [self(one, add_special_tokens)["input_ids"] for one in text]}
        pieces = [text[at : at + self.each] for at in range(0, len(text), self.each)]
        for piece in pieces:
            if piece not in self.numbers:
                self.numbers[piece] = len(self.words)
                self.words.append(piece)
        return {"input_ids": [BOS] * add_special_tokens + [self.numbers[piece] for piece in pieces]}

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return "".join("" if number == BOS else self.words[number] for number in ids)


def _encoder(each: int) -> Encoder:
    return Encoder(_Letters(each))


def _broken(check: str, task: str, expected: str, got: str, remedy: str) -> InputError:
    return InputError(teach(f"{expected} (check {check!r} of {task})", got, remedy))


def _check_prompts(task: Any, prompts: Any, samples: int) -> None:
    if not isinstance(prompts, Prompts):
        got, remedy = type(prompts).__name__, "return repflow.tasks.Prompts"
        raise _broken("prompts", task.name, "Prompts", got, remedy)
    if prompts.task != task.name:
        raise _broken("prompts", task.name, "Prompts of its own name", repr(prompts.task), "pass the name to Prompts")
    if not 1 <= len(prompts) <= samples:
        expected = f"1 to {samples} prompts where {samples} are asked for"
        raise _broken("prompts", task.name, expected, str(len(prompts)), "make `samples` of them")


def _check_prompt(task: str, number: int, prompt: Prompt, encoder: Encoder, length: int) -> None:
    if not 2 <= len(prompt.ids) <= length:
        expected, got = f"2 to {length} tokens in each prompt", f"{len(prompt.ids)} in sample {number}"
        raise _broken("length", task, expected, got, "count encoder.prefix too; put fewer items in, or refuse")
    begun = len(encoder.prefix)
    if prompt.text is not None:
        right = (*encoder.prefix, *encoder.text_ids(prompt.text))[: len(prompt.ids)]
        if prompt.ids[:begun] != encoder.prefix or prompt.ids != right:
            got = f"others in sample {number}"
            raise _broken("tokens", task, "the ids of the text", got, "make them with encoder.prompt(ids, text)")
    if any(not isinstance(answer, str) or not answer for answer in prompt.answers):
        got = f"{prompt.answers!r:.60} in sample {number}"
        raise _broken("facts", task, "answers that are words", got, "leave empty answers out")
    if prompt.position is not None and not 0 <= prompt.position <= 1:
        got = f"{prompt.position} in sample {number}"
        raise _broken("facts", task, "a position from 0 to 1", got, "divide the index by the number of items less one")


def _check_labels(task: str, prompts: Prompts) -> None:
    classes, labels = prompts.classes, [prompt.label for prompt in prompts]
    if len(set(classes)) != len(classes):
        raise _broken("labels", task, "classes with different names", f"{classes!r:.80}", "name each class once")
    if (classes and None in labels) or any(label is not None for label in labels) != bool(classes):
        got = f"{len(classes)} classes, and {labels.count(None)} of {len(labels)} prompts without a label"
        raise _broken("labels", task, "classes with a label on every prompt", got, "give all a label, or none")
    for number, label in enumerate(labels):
        if label is not None and not (isinstance(label, int) and 0 <= label < len(classes)):
            got = f"{label!r} in sample {number}"
            raise _broken("labels", task, f"labels from 0 to {len(classes) - 1}", got, "number the classes from 0")


def _check_repeated(task: Any, prompts: Prompts, encoder: Encoder, size: dict[str, int]) -> None:
    states = random.getstate(), np.random.get_state()
    try:
        random.seed(size["seed"] + 12345)
        np.random.seed(size["seed"] + 12345)
        again = task.prompts(encoder, **size)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    if again != prompts or again.samples != prompts.samples:
        number = next((n for n, (a, b) in enumerate(zip(again, prompts, strict=False)) if a != b), len(prompts))
        got = f"others from sample {number} on"
        remedy = "draw from numpy.random.default_rng([seed, number]) alone"
        raise _broken("repeated", task.name, "the same prompts when called again", got, remedy)


def _check_refusals(task: Any, encoder: Encoder, size: dict[str, int]) -> None:
    for wrong in ({"length": 1}, {"samples": 0}):
        what = ", ".join(f"{name}={value}" for name, value in wrong.items())
        try:
            task.prompts(encoder, **{**size, **wrong})
        except InputError:
            continue
        except Exception as error:  # whatever else a task raises is what this check is for
            got = f"{type(error).__name__}: {error}"
            raise _broken("refusals", task.name, f"an InputError for {what}", got, "call check_size first") from error
        raise _broken("refusals", task.name, f"an InputError for {what}", "prompts", "call check_size first")


def _check_row(name: str, labelled: bool) -> None:
    row = task_row(name)
    if row is None:
        raise _broken("row", name, "a row in repflow.core.tasks", "none", "add it to TASKS")
    if unknown := [option for option in row.options if option not in OPTIONS]:
        raise _broken("row", name, f"options among {', '.join(OPTIONS)}", unknown[0], "correct the row")
    if row.labelled != labelled:
        got = f"labelled={row.labelled} and prompts {'with' if labelled else 'without'} labels"
        raise _broken("row", name, "a row that says whether prompts have labels", got, f"write labelled={labelled}")


def _matches(task: Any, fine: Encoder, coarse: Encoder, size: dict[str, int]) -> bool:
    """Whether a task that fills the length can be made alike for two tokenizers."""
    if not hasattr(task, "matched"):
        return False
    first, second = task.matched([fine, coarse], **size)
    return _texts(first) == _texts(second)


def _texts(prompts: Sequence[Prompt]) -> list[Any]:
    return [(prompt.text, prompt.label) for prompt in prompts]
