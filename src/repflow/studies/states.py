"""States: the hidden states of a few prompts, whole, for looking at them yourself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from repflow.errors import InputError, teach

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
        texts_or_ids: A text, a list of texts, or token ids (batch, token), nested or as a tensor.
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


def given_prompts(model: Model, texts_or_ids: Any, *, bos: str = "model") -> Prompts:
    """Prompts from a text, texts or token ids, for this model's tokenizer."""
    from repflow.tasks import Encoder, id_prompts, text_prompts

    rows = texts_or_ids.tolist() if hasattr(texts_or_ids, "tolist") else texts_or_ids
    rows = [rows] if isinstance(rows, str) else rows
    texts = [isinstance(row, str) for row in rows] if isinstance(rows, Sequence) else []
    if not texts or any(texts) != all(texts):
        raise InputError(teach("texts, or token ids (batch, token)", repr(texts_or_ids)[:80], "pass a list of them"))
    if all(texts):
        return text_prompts(list(rows), Encoder(model.tokenizer, bos, model.bos_token_id))
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
    if not isinstance(rows[0], Sequence):
        raise InputError(teach("token ids of shape (batch, token)", "a flat list", "pass [ids] for one prompt"))
    return id_prompts(rows, model.vocab_size, tokenizer=model.tokenizer, bos_id=model.bos_token_id)
