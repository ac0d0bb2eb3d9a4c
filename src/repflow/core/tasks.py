"""The table of tasks: what a model may read, by name. No torch; it imports no task.

A new task is a module with a `repflow.tasks.Task`, and one row here.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

OWN = "FILE.jsonl"
"""What stands for a file of a user's own among the names."""
OPTIONS = ("format", "documents", "distractors", "index", "classes", "items", "label", "chat_template")
"""Options of `repflow.tasks.TaskOptions`, in the order in which a wrong one is named."""


@dataclass(frozen=True)
class TaskRow:
    """One task.

    Attributes:
        name: as in `--task NAME`.
        maker: "module:NAME" of what makes it from `TaskOptions`: a `repflow.tasks.Task`, for any tokenizer.
        drawer: "module:NAME" of the function that draws its token ids, where it needs no tokenizer; it takes the size
            of the vocabulary, what `repflow.tasks.random_prompts` takes, and the row's options.
        options: those among OPTIONS that mean something to it.
        labelled: whether its prompts have labels, which a probe can read.
        item: what the gold item is called, where the label is its place.
    """

    name: str
    maker: str = ""
    drawer: str = ""
    options: tuple[str, ...] = ()
    labelled: bool = False
    item: str = ""


_RETRIEVAL = ("index", "classes", "items", "label", "chat_template")
TASKS = (
    TaskRow("text"),
    TaskRow("random", drawer="repflow.tasks.make:random_prompts"),
    TaskRow("kvpr", "repflow.tasks.retrieval:kvpr", options=("format", *_RETRIEVAL), labelled=True, item="pair"),
    TaskRow(
        "mdqa",
        "repflow.tasks.retrieval:mdqa",
        options=("documents", "distractors", *_RETRIEVAL),
        labelled=True,
        item="document",
    ),
    TaskRow("recall", drawer="repflow.tasks.recall:recall_of", options=("index", "classes", "items"), labelled=True),
    TaskRow("pixels", drawer="repflow.tasks.pixels:pixel_prompts", labelled=True),
)

NAMES = tuple(row.name for row in TASKS)
MADE = tuple(row.name for row in TASKS if row.maker)
"""Tasks that are made from options and a seed, for any tokenizer."""
DRAWN = tuple(row.name for row in TASKS if row.drawer)
"""Tasks that are token ids and need no tokenizer."""
LABELLED = (*(row.name for row in TASKS if row.labelled), OWN)
UNLABELLED = tuple(row.name for row in TASKS if not row.labelled)
WORDS = f"text (built-in English, or --text FILE), {', '.join(name for name in NAMES if name != 'text')}, or {OWN}"
"""All of them, for the help of commands."""


def task_row(name: str) -> TaskRow | None:
    """Row of a task; None for a file.

    >>> task_row("kvpr").item, task_row("own.jsonl")
    ('pair', None)
    """
    return next((row for row in TASKS if row.name == name), None)


def part_of(place: str) -> Any:
    """What a row names as "module:NAME"."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def takers(option: str) -> tuple[str, ...]:
    """Tasks that an option means something to.

    >>> takers("format"), takers("chat_template")
    (('kvpr',), ('kvpr', 'mdqa', 'FILE.jsonl'))
    """
    return (*(row.name for row in TASKS if option in row.options), *((OWN,) if option == "chat_template" else ()))
