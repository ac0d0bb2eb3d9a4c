"""Scan of Mamba-2 as matrix products over chunks of tokens: plain torch operations on any device.

Glossary: Q tokens of a chunk, G groups, R heads of a group, P dim of a head, N state.

Within a chunk y = (C Bᵀ ∘ Γ) (delta x), Γ_ts = exp(Σ_{s<r≤t} delta_r A); C Bᵀ is computed once per group, and decays
are applied to x and y rather than to B and C, so that the products with the state run over all heads at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from repflow.mixers.scan.nonfinite import cleaned, from_here_on, is_finite
from repflow.mixers.scan.precision import without_autocast

CHUNK = 64
# Bound on the elements of Γ that exist at once (they are float64 before the exponential).
SLAB = 2**22


def ssd_scan_chunked(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    initial: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs (batch, token, head, dim) and final state (batch, head, dim, state); arguments as `ssd_scan`'s.

    >>> x = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    >>> y, final = ssd_scan_chunked(x, x[..., 0], -torch.tensor([2.0], dtype=torch.float64).log(), x, x, chunk=2)
    >>> y.flatten().tolist(), final.item()
    ([1.0, 1.5, 1.75], 1.75)
    """
    with without_autocast(x.device):  # which would round the products
        return _ssd_scan_chunked(x, delta, A, B, C, D, initial, chunk)


def _ssd_scan_chunked(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial: Tensor | None,
    chunk: int | None,
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(torch.promote_types(x.dtype, A.dtype), torch.float32)
    dtype, (x, delta, A, B, C) = x.dtype, (part.to(wide) for part in (x, delta, A, B, C))
    batch, tokens, heads, dim = x.shape
    groups, states = B.shape[2:]
    size = min(chunk or CHUNK, tokens)
    if initial is None:
        h = x.new_zeros(batch, groups, states, heads // groups * dim)
    else:
        h = torch.unflatten(initial.to(wide), 1, (groups, -1)).permute(0, 1, 4, 2, 3).flatten(3)
    entry = x * delta[..., None]
    # In float64: the differences of these sums are exponents, and float32 sums lose a digit of y.
    exponent = delta.double() * A.double()
    y, last = _scanned(entry, exponent, B, C, h, size)
    if D is not None:
        y = torch.addcmul(y, x, (D if D.ndim == 2 else D[:, None]).to(wide))
    final = torch.unflatten(last, 3, (-1, dim)).permute(0, 1, 3, 4, 2).flatten(1, 2)
    return y.to(dtype), final


def head_scan(entry: Tensor, log_decay: Tensor, keys: Tensor, queries: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """The same with what enters apart from the decay.

        h_t = exp(log_decay_t) h_{t−1} + entry_t ⊗ keys_t        y_t = h_t queries_t

    Args:
        entry: (batch, token, head, dim).
        log_decay: At most 0 (batch, token, head).
        keys: (batch, token, head, state).
        queries: (batch, token, head, state).
        chunk: Tokens in a chunk.

    Returns:
        y (batch, token, head, dim).

    >>> one = torch.ones(1, 3, 1, 1)
    >>> head_scan(one, -torch.log(2 * one[..., 0]), one, one).flatten().tolist()
    [1.0, 1.5, 1.75]
    """
    with without_autocast(entry.device):
        wide = torch.promote_types(entry.dtype, torch.float32)
        wide_entry, B, C = (part.to(wide) for part in (entry, keys, queries))
        batch, tokens, heads, dim = entry.shape
        h = wide_entry.new_zeros(batch, heads, keys.shape[-1], dim)
        y, _ = _scanned(wide_entry, log_decay.double(), B, C, h, min(chunk, tokens))
    return y.to(entry.dtype)


def _scanned(entry: Tensor, exponent: Tensor, B: Tensor, C: Tensor, h: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Outputs and last state; tokens that are not finite leave earlier ones alone."""
    y, last = _slabs(entry, exponent, B, C, h, size)
    if not is_finite(y):
        clean = _slabs(cleaned(entry), cleaned(exponent), cleaned(B), C, h, size)[0]
        y = torch.where(_spoiled(entry, exponent, B), y, clean)
    return y, last


def _slabs(entry: Tensor, exponent: Tensor, B: Tensor, C: Tensor, h: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Outputs (batch, token, head, dim) and last state, in runs of as many chunks as memory is meant for."""
    batch, tokens, heads, _ = entry.shape
    per_slab = size * max(1, SLAB // max(1, batch * size * size * heads))
    outputs = []
    for first in range(0, tokens, per_slab):
        part = slice(first, first + per_slab)
        y, h = _slab(entry[:, part], exponent[:, part], B[:, part], C[:, part], h, size)
        outputs.append(y)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1), h


def _spoiled(entry: Tensor, exponent: Tensor, B: Tensor) -> Tensor:
    """Outputs (batch, token, head, dim) behind what is not finite; a read-out C spoils its own token alone."""
    of_group = ~B.isfinite().all(-1)
    of_head = ~exponent.isfinite() | of_group.repeat_interleave(entry.shape[2] // B.shape[2], dim=2)
    return from_here_on(~entry.isfinite() | of_head[..., None])


def _slab(entry: Tensor, exponent: Tensor, B: Tensor, C: Tensor, h: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Outputs and last state of a run of chunks, from the state h (batch, group, N, R·P) before them."""
    tokens, groups, wide = entry.shape[1], B.shape[2], entry.dtype
    size = min(size, tokens)
    entry, exponent, B, C = (_in_chunks(part, size) for part in (entry, exponent, B, C))
    total = exponent.cumsum(2)
    # (batch, chunk, token, head, …) → (batch, chunk, group, …), heads of a group behind it.
    total = torch.unflatten(total, 3, (groups, -1)).permute(0, 1, 3, 4, 2)
    entry = torch.unflatten(entry, 3, (groups, -1)).permute(0, 1, 3, 4, 2, 5)
    B, C = B.transpose(2, 3), C.transpose(2, 3)
    later = torch.ones(size, size, dtype=torch.bool, device=entry.device).triu(1)
    # Masked before the exponential: behind it, inf · 0 would be NaN in the gradients.
    between = (total[..., :, None] - total[..., None, :]).masked_fill_(later, -torch.inf)
    to_end = total[..., -1:] - total
    # A token does not fade itself: as a constant, it puts no rounding of cancelling gradients into delta's and A's.
    between.diagonal(dim1=-2, dim2=-1).zero_()
    to_end[..., -1].zero_()
    gamma, to_end, from_start = (_exponential(part, wide) for part in (between, to_end, total))
    inside = (gamma * (C @ B.mT)[:, :, :, None]) @ entry
    # (Q, R·P): the heads of a group side by side, for one product with B.
    faded = (entry * to_end[..., None]).transpose(3, 4).flatten(4)
    added = B.mT @ faded
    fade = from_start[..., -1].repeat_interleave(entry.shape[-1], dim=3)[:, :, :, None]
    starts = []
    for index in range(added.shape[1]):
        starts.append(h)
        h = torch.addcmul(added[:, index], fade[:, index], h)
    carried = torch.unflatten(C @ torch.stack(starts, dim=1), 4, (-1, entry.shape[-1]))
    y = torch.addcmul(inside.transpose(3, 4), carried, from_start.transpose(3, 4)[..., None])
    # (batch, chunk, group, Q, R, P) → (batch, token, head, dim)
    y = y.transpose(2, 3).flatten(3, 4).flatten(1, 2)
    return y[:, :tokens], h


def _exponential(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """Take exp in a dtype, 0 below its smallest normal number: denormal numbers make products many times slower."""
    return torch.threshold(exponent.to(dtype), math.log(torch.finfo(dtype).tiny), -torch.inf).exp()


def _in_chunks(part: Tensor, size: int) -> Tensor:
    """(batch, token, …) → (batch, chunk, token, …); a token of zeros neither adds to the state nor fades it."""
    missing = -part.shape[1] % size
    if missing:
        part = torch.nn.functional.pad(part, (0, 0) * (part.ndim - 2) + (0, missing))
    return torch.unflatten(part, 1, (-1, size))
