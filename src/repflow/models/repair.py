"""Repair of hidden-state tuples made elsewhere with transformers' `output_hidden_states`.

The tuple always has one entry more than the model has blocks, but its entries mean different things:

| model types | entries | missing |
|---|---|---|
| most | embedding, block 1 .. block L-1, final norm | the raw last block |
| mamba, mamba2, falcon_mamba, rwkv | block 1 .. block L, final norm | the embedding |

Which is which stands in `repflow.models.families`, measured on transformers 5.17 and 5.22 (tests/models/test_repair.py
compares every row with hooks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from repflow.core.errors import InputError, nearest, teach
from repflow.models.families import EMBEDDING, FAMILIES


@dataclass(frozen=True)
class RepairedStates:
    """States at their right places.

    Attributes:
        hidden: (state, batch, token, width), or (state, token, width) for one sample; NaN where a state is missing.
        missing: Indices of the states that the tuple does not hold.
        final_norm: The tuple's last entry, which is the final norm's output and no state.
    """

    hidden: Tensor
    missing: list[int]
    final_norm: Tensor


def from_hidden_states(states: Sequence[Tensor] | Tensor, model_type: str) -> RepairedStates:
    """Put the entries of transformers' tuple where they belong; what it does not hold is marked, never invented.

    Args:
        states: `output.hidden_states`: tensors (batch, token, width), or (token, width) for one sample.
        model_type: `model.config.model_type` of the model they came from.

    Returns:
        Repaired states.

    Raises:
        InputError: The tuple is too short, its shapes differ, or the model type's convention is not known.

    >>> tuple_of_mamba = [torch.ones(3, 4), 2 * torch.ones(3, 4), torch.zeros(3, 4)]  # block 1, block 2, final norm
    >>> repaired = from_hidden_states(tuple_of_mamba, "mamba")
    >>> repaired.missing, repaired.hidden[:, 0, 0].tolist()
    ([0], [nan, 1.0, 2.0])
    """
    states = list(states)
    _check(states, model_type)
    *raw, final_norm = states
    gap = torch.full_like(raw[0], torch.nan)
    skips_embedding = FAMILIES[model_type].missing == EMBEDDING
    ordered = [gap, *raw] if skips_embedding else [*raw, gap]
    return RepairedStates(torch.stack(ordered), [0 if skips_embedding else len(raw)], final_norm)


def check_type(model_type: str) -> None:
    """Refuse a model type whose tuple was not measured, or holds several residual streams in an entry."""
    if model_type not in FAMILIES:
        hint = nearest(model_type, FAMILIES)
        remedy = f"docs/decoders.md lists the {len(FAMILIES)} that were; or have repflow load the model and read it"
        remedy = remedy if hint.startswith("known") else f"{hint} {remedy}"
        raise InputError(teach("a model type whose tuple was measured", repr(model_type), remedy))
    if FAMILIES[model_type].streams:
        expected, got = "a model type with one residual stream", f"{model_type}, whose tuple holds all of its streams"
        raise InputError(teach(expected, got, "load the model with repflow, which reads them"))


def _check(states: Sequence[Tensor], model_type: str) -> None:
    check_type(model_type)
    if len(states) < 2:
        raise InputError(teach("a tuple of at least two entries", f"{len(states)}", "pass output.hidden_states whole"))
    shapes = sorted({tuple(state.shape) for state in states})
    if len(shapes) > 1 or len(shapes[0]) not in (2, 3):
        expected = "entries of one shape (batch, token, width) or (token, width)"
        raise InputError(teach(expected, f"{shapes}", "pass the tuple of a single forward pass without a cache"))
    if not states[0].is_floating_point():
        raise InputError(teach("floating-point states", f"{states[0].dtype}", "pass hidden states, not token ids"))
