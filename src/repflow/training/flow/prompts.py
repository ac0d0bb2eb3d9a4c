"""Prompts that a meter reads: texts, token ids, the name of a task, or ready Prompts."""

from __future__ import annotations

from typing import Any

from repflow.capture.given import given_prompts, task_name
from repflow.core.errors import InputError, teach
from repflow.core.tasks import DRAWN, part_of, task_row
from repflow.models import Model
from repflow.tasks import Encoder, Prompts, Task, TaskOptions, make_task
from repflow.tasks.prompt import note_unknown

LENGTH, SAMPLES = 128, 8
"""Of prompts that a task makes, where the call says nothing."""


def flow_prompts(
    model: Model, prompts: Any, *, length: int | None = None, samples: int | None = None, seed: int = 0
) -> Prompts:
    """Prompts for a model.

    Args:
        model: that will read them.
        prompts: texts, token ids (batch, token), what a tokenizer returned, `random`, `recall`, `kvpr`, `mdqa`,
            `FILE.jsonl`, a Task, or ready Prompts.
        length: tokens of a task's prompts; texts and ids are cut to it where it is given.
        samples: number of prompts; of texts and ids the first `samples`.
        seed: of a task.
    """
    if isinstance(prompts, Prompts):
        return prompts
    name = None if isinstance(prompts, Task) else task_name(prompts)
    if name is None and not isinstance(prompts, Task):
        return given_prompts(model, prompts, length=length, samples=samples)
    if name == "text":
        raise InputError(teach("texts themselves, or another task", "the task text", "pass a list of texts"))
    size: dict[str, Any] = {"length": length or LENGTH, "samples": samples or SAMPLES, "seed": seed}
    if model.max_length is not None and length is None:
        size["length"] = min(size["length"], model.max_length)
    if name in DRAWN:
        return _drawn(model, name, size)
    task = make_task(str(name)) if name is not None else prompts
    encoder = Encoder(model.tokenizer, "model", model.bos_token_id, limit=model.max_length)
    return note_unknown(task.prompts(encoder, **size), model.tokenizer)


def _drawn(model: Model, name: str, size: dict[str, int]) -> Prompts:
    """Prompts of a task that draws token ids, with its options at their defaults."""
    row, options = task_row(name), TaskOptions()
    assert row is not None
    own: dict[str, Any] = {option: getattr(options, option) for option in row.options}
    without = [] if model.padding_id is None else [model.padding_id]
    prompts: Prompts = part_of(row.drawer)(
        model.vocab_size,
        tokenizer=model.tokenizer,
        bos="model",
        bos_id=model.bos_token_id,
        without=without,
        **size,
        **own,
    )
    return prompts
