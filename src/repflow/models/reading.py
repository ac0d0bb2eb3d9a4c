"""Reading: everything needed to read one model's states, as measured by the self-check."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from repflow.models.anatomy import Sublayer
from repflow.models.streams import Streams


@dataclass
class Reading:
    """Where a model's states are and which of them can be trusted.

    Attributes:
        base: The model without its head, run to get the states.
        blocks: Residual blocks in order.
        parts: Sublayers of each block that add to the stream.
        mixers: Modules that mix tokens, and how.
        final_norm: Norm after the last block; an Identity where the model has none.
        head: Matrix, or a few modules, that turn the final norm's output into logits; None for a bare base model.
        head_input_scale: Factor between the final norm's output and what the head is given.
        head_scale: Factor between the head's output and the logits.
        head_softcap: Bound c of the soft cap c·tanh(·/c) on the logits.
        causal: A token's states do not depend on later tokens; right padding then needs no mask.
        overwrites: The model changes states in place after handing them on, so they must be copied at once.
        tuple_skips_embedding: transformers' own tuple starts with the first block instead of the embedding.
        sublayer_problem: Why sublayer branches cannot be read, None if they can.
        ablation_problem: Why sublayers cannot be taken out, None if they can.
        streams: Where blocks hand on several streams; None for one.
        first_bad_state: First state made with a non-finite weight.
        final_norm_bad: The final norm itself holds non-finite weights.
    """

    base: nn.Module
    blocks: list[nn.Module]
    parts: list[list[Sublayer]]
    mixers: dict[nn.Module, str]
    final_norm: nn.Module = field(default_factory=nn.Identity)
    head: nn.Module | None = None
    head_input_scale: float = 1.0
    head_scale: float = 1.0
    head_softcap: float | None = None
    causal: bool = True
    overwrites: bool = False
    tuple_skips_embedding: bool = False
    sublayer_problem: str | None = None
    ablation_problem: str | None = None
    streams: Streams | None = None
    first_bad_state: int | None = None
    final_norm_bad: bool = False

    def residual(self, hidden: Tensor) -> Tensor:
        """State (batch, token, width) of what a block takes or hands on: itself, or the mixture of its streams."""
        return hidden if self.streams is None else self.streams.mixture(hidden)

    def spread(self, state: Tensor) -> Tensor:
        """What a block takes, every stream of it one state (batch, token, width)."""
        if self.streams is None:
            return state
        return self.streams.join(state[:, :, None].repeat(1, 1, self.streams.count, 1))

    def arguments(self, ids: Tensor, mask: Tensor | None) -> dict[str, Any]:
        """Keyword arguments of one forward pass of the base model, without a cache.

        A causal model gets no mask: no real token ever looks at the padding on its right, and without a mask the
        attention kernels take their fast causal path, the same one as for an unpadded prompt.
        """
        parameters = inspect.signature(self.base.forward).parameters
        arguments: dict[str, Any] = {"input_ids": ids}
        if "use_cache" in parameters:
            arguments["use_cache"] = False
        if mask is not None and not self.causal and "attention_mask" in parameters:
            arguments["attention_mask"] = mask.to(device=ids.device, dtype=ids.dtype)
        return arguments


def hidden_of(output: Any) -> Tensor:
    """Hidden states in what a module returned: the tensor itself, or the first entry of its tuple."""
    return output if isinstance(output, Tensor) else output[0]


def input_of(args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """Hidden states that a block was called with, by position or by name."""
    if args:
        return args[0]
    return kwargs["hidden_states"] if "hidden_states" in kwargs else next(iter(kwargs.values()))


def called_with(args: tuple, kwargs: dict[str, Any], hidden: Tensor) -> tuple[tuple, dict[str, Any]]:
    """Arguments of a block's call, with other hidden states."""
    if args:
        return (hidden, *args[1:]), kwargs
    name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
    return args, {**kwargs, name: hidden}
