"""Sequential references: each scan token by token in plain operations, which every faster form is compared with.

Glossary: h state, A decay rate (decay in a Transition), B input map, C read-out, D skip, delta step size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repflow.mixers.transition import AnyTransition, DeltaTransition, four_axes, joint_shape


def recurrence(transition: AnyTransition, *, return_states: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """Sequential reference of a linear recurrence, one token at a time.

        h_t = A_t h_{t−1} + delta_t · b_t        y_t = Re Σ_state c_t h_t        h_0 = 0

    or the delta rule of a `DeltaTransition`.

    Returns:
        y (batch, token, channel); with `return_states` also h (batch, token, channel, state). The channels of the delta
        rule are head · value.

    >>> from repflow.mixers.transition import Transition
    >>> half, one = torch.tensor([[[[0.5]]]]), torch.ones(1, 3, 1, 1)
    >>> recurrence(Transition(half, one, one, one)).flatten().tolist()
    [1.0, 1.5, 1.75]
    """
    if isinstance(transition, DeltaTransition):
        y, states = _delta_recurrence(transition, None, keep=return_states)
        return (y.flatten(2), torch.stack(states, dim=1).flatten(2, 3)) if return_states else y.flatten(2)
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


def delta_scan_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    initial: Tensor | None,
    unit: float | None,
) -> tuple[Tensor, Tensor]:
    """The delta rule: y (batch, token, head, value) and the state after the last token (batch, head, value, key)."""
    wide = torch.promote_types(v.dtype, torch.float32)
    dtype, (q, k, v, beta) = v.dtype, (part.to(wide) for part in (q, k, v, beta))
    if unit is not None:
        q, k = (part / (part.square().sum(-1, keepdim=True) + unit).sqrt() for part in (q, k))
    decay = k.new_ones(1, 1, 1, 1) if log_decay is None else log_decay.to(wide).exp()
    decay = decay if decay.ndim == 4 else decay[..., None]
    transition = DeltaTransition(decay, k, v, q, beta)
    y, states = _delta_recurrence(transition, None if initial is None else initial.to(wide), keep=False)
    return y.to(dtype), states[-1]


def delta_states(transition: DeltaTransition, initial: Tensor | None) -> Tensor:
    """States of the delta rule behind every token (batch, token, head, value, key), from one before the first."""
    return torch.stack(_delta_recurrence(transition, initial, keep=True)[1], dim=1)


def _delta_recurrence(
    transition: DeltaTransition, initial: Tensor | None, *, keep: bool
) -> tuple[Tensor, list[Tensor]]:
    """Outputs (batch, token, head, value), and the states (batch, head, value, key), the last one alone unless kept."""
    decay, k, v, q, beta = transition.per_head()
    batch, tokens, heads, values = v.shape
    h = v.new_zeros(batch, heads, values, k.shape[-1]) if initial is None else initial
    states: list[Tensor] = []
    outputs: list[Tensor] = []
    for token in range(tokens):
        h = h * decay[:, token, :, None]
        key = k[:, token, :, None]
        correction = beta[:, token, :, None] * (v[:, token] - (h * key).sum(-1))
        h = h + correction[..., None] * key
        outputs.append((h * q[:, token, :, None]).sum(-1))
        if not keep:
            states.clear()
        states.append(h)
    return torch.stack(outputs, dim=1), states
