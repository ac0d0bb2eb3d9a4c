"""Matrix states: keys × values per head, as linear attention and its descendants keep them, in the one formulation.

Glossary: k key, q query, v value; a head's state is Σ decay · v kᵀ, values on the channel axis, keys on the state axis.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repflow.mixers.transition import Transition


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, token, head · dim) → (batch, token, head, dim)."""
    return torch.unflatten(x, -1, (heads, -1))


def matrix_transition(queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor | None = None) -> Transition:
    """Transition of h_t = decay_t h_{t−1} + v_t k_tᵀ, y_t = h_t q_t, head by head.

    As in paper 2, b is the key, c the query and delta the value, which may be negative.

    Args:
        queries: (batch, token, head, key), scaled as the family scales them.
        keys: (batch, token, head, key).
        values: (batch, token, head, value).
        decay: Broadcastable to (batch, token, head, key); 1 if left out.

    >>> one = torch.ones(1, 2, 1, 1)
    >>> matrix_transition(one, one, 3 * one).delta.flatten().tolist()
    [3.0, 3.0]
    """
    size = values.shape[-1]
    decay = keys.new_ones(1, 1, 1, 1) if decay is None else decay
    return Transition(
        _per_value(decay, size), _per_value(keys, size), _per_value(queries, size), values.flatten(2).unsqueeze(-1)
    )


def _per_value(x: Tensor, size: int) -> Tensor:
    # A single head broadcasts over its values, which the chunked form turns into one matrix product.
    return x if x.shape[2] == 1 else torch.repeat_interleave(x, size, dim=2)
