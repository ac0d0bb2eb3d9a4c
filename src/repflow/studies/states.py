"""States: the complete hidden states of a few prompts, for your own inspection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


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
        kind: `residual`, `branch`, `branch:attention|mlp|ssm|...`, `hf-tuple`, or `stream:K` of several streams.
        bos: First token of texts: `model`, `always` or `never`.

    Returns:
        States: hidden (state, batch, token, width), mask (batch, token) and token strings.
    """
    from repflow.capture import collect_states
    from repflow.capture.given import given_prompts
    from repflow.models import Model, load
    from repflow.tasks import check_fit

    loaded = model if isinstance(model, Model) else load(model)
    prompts = given_prompts(loaded, texts_or_ids, bos=bos)
    check_fit(prompts, loaded.max_length, loaded.vocab_size)
    hidden, mask, _ = collect_states(loaded, prompts, kind=kind)
    return States(hidden, mask, [list(prompt.tokens) for prompt in prompts])
