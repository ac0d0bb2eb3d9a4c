"""Sequential references: each scan token by token in plain operations, which every faster form is compared with.

Glossary: h state, A decay rate (decay in a Transition), B input map, C read-out, D skip, delta step size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repflow.mixers.transition import Transition, four_axes, joint_shape


def recurrence(transition: Transition, *, return_states: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """Sequential reference of a diagonal linear recurrence, one token at a time.

        h_t = A_t h_{t−1} + delta_t · b_t        y_t = Re Σ_state c_t h_t        h_0 = 0

    Returns:
        y (batch, token, channel); with `return_states` also h (batch, token, channel, state).

    >>> half, one = torch.tensor([[[[0.5]]]]), torch.ones(1, 3, 1, 1)
    >>> recurrence(Transition(half, one, one, one)).flatten().tolist()
    [1.0, 1.5, 1.75]
    """
    decay, b, c, delta = four_axes(transition)
    entry = delta * b
    shape = joint_shape(decay, entry, c)
    decay, entry, c = decay.expand(shape), entry.expand(shape), c.expand(shape)
    h = torch.zeros_like(entry[:, 0], dtype=torch.result_type(decay, entry))
    states, outputs = [], []
    for token in range(shape[1]):
        h = decay[:, token] * h + entry[:, token]
        outputs.append((c[:, token] * h).sum(-1))
        if return_states:
            states.append(h)
    y = torch.stack(outputs, dim=1)
    y = y.real if y.is_complex() else y
    return (y, torch.stack(states, dim=1)) if return_states else y


def selective_scan_reference(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mamba's scan: y (batch, token, channel) and the state after the last token."""
    wide = torch.promote_types(torch.promote_types(x.dtype, A.dtype), torch.float32)
    dtype, (x, delta, A, B, C) = x.dtype, (part.to(wide) for part in (x, delta, A, B, C))
    h = x.new_zeros(x.shape[0], *A.shape) if initial is None else initial.to(wide)
    outputs = []
    for token in range(x.shape[1]):
        step = delta[:, token, :, None]
        h = torch.exp(step * A) * h + step * x[:, token, :, None] * B[:, token, None, :]
        outputs.append((h * C[:, token, None, :]).sum(-1))
    y = torch.stack(outputs, dim=1)
    y = y if D is None else y + D.to(wide) * x
    return y.to(dtype), h


def ssd_scan_reference(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mamba-2's scan: y (batch, token, head, dim) and the state after the last token."""
    wide = torch.promote_types(torch.promote_types(x.dtype, A.dtype), torch.float32)
    dtype, (x, delta, A, B, C) = x.dtype, (part.to(wide) for part in (x, delta, A, B, C))
    batch, tokens, heads, dim = x.shape
    B, C = (part.repeat_interleave(heads // part.shape[2], dim=2) for part in (B, C))
    h = x.new_zeros(batch, heads, dim, B.shape[-1]) if initial is None else initial.to(wide)
    outputs = []
    for token in range(tokens):
        step = delta[:, token, :, None, None]
        h = torch.exp(step * A[:, None, None]) * h + step * x[:, token, :, :, None] * B[:, token, :, None, :]
        outputs.append((h * C[:, token, :, None, :]).sum(-1))
    y = torch.stack(outputs, dim=1)
    if D is not None:
        y = y + (D if D.ndim == 2 else D[:, None]).to(wide) * x
    return y.to(dtype), h
