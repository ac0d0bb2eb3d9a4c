"""States: the complete hidden states of a few prompts, for your own inspection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from repflow.core.errors import InputError, teach

if TYPE_CHECKING:
    from torch import Tensor

    from repflow.models import Model
    from repflow.tasks import Prompts


class States(NamedTuple):
    """Hidden states of a batch.

    Attributes:
        hidden: (state, batch, token, width).
        mask: (batch, token), True for real tokens.
        tokens: One display string per real token, for each sample.
    """

    hidden: Tensor
    mask: Tensor
    tokens: list[list[str]]


def states(model: Any, texts_or_ids: Any, *, kind: str = "residual", bos: str = "model") -> States:
    """Run a model once over a few prompts and keep every state.

    All of them stay in memory: for measuring many or long prompts use `repflow.measure`, which does not.

    Args:
        model: A loaded Model, a spec, or a live transformers model.
        texts_or_ids: A text, a list of texts, token ids (batch, token), nested or as a tensor, or what the tokenizer
            returned for texts (`input_ids` and `attention_mask`).
        kind: `residual`, `branch`, `branch:attention|mlp|ssm|...` or `hf-tuple`.
        bos: First token of texts: `model`, `always` or `never`.

    Returns:
        States: hidden (state, batch, token, width), mask (batch, token) and token strings.
    """
    from repflow.capture import collect_states
    from repflow.models import Model, load
    from repflow.tasks import check_fit

    loaded = model if isinstance(model, Model) else load(model)
    prompts = given_prompts(loaded, texts_or_ids, bos=bos)
    check_fit(prompts, loaded.max_length, loaded.vocab_size)
    hidden, mask, _ = collect_states(loaded, prompts, kind=kind)
    return States(hidden, mask, [list(prompt.tokens) for prompt in prompts])


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
    from repflow.tasks import Encoder, id_prompts, text_prompts
    from repflow.tasks.prompt import note_unknown

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
