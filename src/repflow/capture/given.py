"""Prompts given from Python: the name of a task, a text, texts, token ids, or what a tokenizer returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, nearest, teach
from repflow.core.tasks import NAMES, OWN
from repflow.models import Model
from repflow.tasks import Encoder, Prompts, id_prompts, text_prompts
from repflow.tasks.lines import is_jsonl
from repflow.tasks.prompt import note_unknown


def task_name(task: Any) -> str | None:
    """Name of a task; None for a Task, texts and ids. A lone word is a misspelt task rather than a text."""
    if not isinstance(task, (str, Path)):
        return None
    name = str(task)
    if name in NAMES or is_jsonl(name):
        return name
    if isinstance(task, Path) or len(name.split()) < 2:
        hint = nearest(name, [*NAMES, OWN])
        raise InputError(f"unknown task {name!r}; {hint}; to measure it as a text, pass a list: [{name!r}]")
    return None


def given_prompts(
    model: Model,
    texts_or_ids: Any,
    *,
    bos: str = "model",
    length: int | None = None,
    samples: int | None = None,
    vocab_size: int | None = None,
) -> Prompts:
    """Prompts from a text, texts or token ids, for this model's tokenizer.

    Args:
        model: the model that will read them.
        texts_or_ids: a text, texts, token ids (batch, token), or what a tokenizer of transformers returned.
        bos: policy for the first token of texts.
        length: each prompt is cut to its first `length` tokens, the begin token among them; a shorter one stays whole.
        samples: how many are used, from the first on; having fewer is an error.
        vocab_size: number of ids that are allowed, if not all of the model's.
    """
    rows = plain_rows(texts_or_ids)
    texts = [isinstance(row, str) for row in rows] if isinstance(rows, Sequence) else []
    if not texts or any(texts) != all(texts):
        raise InputError(teach("texts, or token ids (batch, token)", repr(texts_or_ids)[:80], "pass a list of them"))
    if samples is not None and len(rows) < samples:
        what = "texts" if all(texts) else "rows of token ids"
        remedy = "pass more of them, a smaller --samples, or leave --samples out"
        raise InputError(teach(f"at least {samples} {what}", f"{len(rows)}", remedy))
    rows = list(rows)[:samples]
    if all(texts):
        prompts = text_prompts(rows, Encoder(model.tokenizer, bos, model.bos_token_id), length=length)
        return note_unknown(prompts, model.tokenizer)
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
    if not isinstance(rows[0], Sequence):
        raise InputError(teach("token ids of shape (batch, token)", "a flat list", "pass [ids] for one prompt"))
    cut = [row[:length] if isinstance(row, Sequence) else row for row in rows]
    prompts = id_prompts(cut, vocab_size or model.vocab_size, tokenizer=model.tokenizer, bos_id=model.bos_token_id)
    return note_unknown(prompts, model.tokenizer)


def plain_rows(rows_or_texts: Any) -> Any:
    """Texts as a list; token ids of a tensor, or of a tokenizer's output without its padding, as nested lists."""
    if isinstance(rows_or_texts, Mapping):
        return _encoded_rows(rows_or_texts)
    rows = rows_or_texts.tolist() if hasattr(rows_or_texts, "tolist") else rows_or_texts
    return [rows] if isinstance(rows, str) else rows


def _encoded_rows(encoding: Mapping[str, Any]) -> list[list[int]]:
    """Ids of a BatchEncoding, or a dictionary like one; padding on either side is removed."""
    if "input_ids" not in encoding:
        keys = ", ".join(map(str, encoding)) or "nothing"
        raise InputError(teach("token ids under 'input_ids'", f"a mapping with {keys}", "pass tokenizer(texts)"))
    rows, mask = (_nested(encoding.get(name)) for name in ("input_ids", "attention_mask"))
    if mask is None:
        return rows
    if [len(row) for row in mask] != [len(row) for row in rows]:
        raise InputError(teach("one entry of attention_mask per token id", "another shape", "pass tokenizer(texts)"))
    flags = [[int(real) for real in row] for row in mask]
    for index, row in enumerate(flags):
        inside = row[row.index(1) : len(row) - row[::-1].index(1)] if 1 in row else []
        if 0 in inside:
            got = f"a hole in sample {index}"
            raise InputError(
                teach("an attention_mask of ones with padding at its ends", got, "leave masked tokens out")
            )
    return [[i for i, real in zip(row, ones, strict=True) if real] for row, ones in zip(rows, flags, strict=True)]


def _nested(value: Any) -> Any:
    """Rows of ids as lists; one flat row is a batch of one."""
    if value is None:
        return None
    rows = value.tolist() if hasattr(value, "tolist") else list(value)
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
    return rows if rows and isinstance(rows[0], list | tuple) else [rows]
