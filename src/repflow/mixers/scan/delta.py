"""The delta rule as matrix products over chunks of tokens: plain torch operations on any device.

Glossary: C tokens of a chunk, N samples × heads, K keys, V values; h state (N, K, V) here; G running sum of log decays
in a chunk; u what a token writes at its key, after what the state already holds there is taken off.

Within a chunk every u depends on those before it:

    u_t = beta_t (v_t − k_tᵀ e^{G_t} h − Σ_{s<t} k_tᵀ e^{G_t − G_s} k_s u_s)        (I + L) u = beta (v − k e^G h)

so that one triangular matrix is inverted per chunk, and all else is a product (Yang et al. 2024). Exponents are
differences of sums and at most 0: decays are never divided out, and a closed gate loses nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from repflow.mixers.parts.length import reciprocal_length
from repflow.mixers.scan.nonfinite import cleaned, from_here_on, is_finite
from repflow.mixers.scan.precision import without_autocast

CHUNK = 32
CHUNK_GPU = 64
"""Tokens of a chunk: short ones do least arithmetic (a CPU), long ones have fewest steps (a GPU)."""
CLOSED = -88.0
"""Log decay of a closed gate, e^−88 = 6e-39: larger ones would cost the differences of their sums their digits."""
SLAB, SLAB_GPU = 2**19, 2**27
"""Numbers of the keys that are worked on at once: as many as a CPU's cache holds, or as memory is meant for."""


def delta_scan_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    initial: Tensor | None = None,
    chunk: int | None = None,
    unit: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs (batch, token, head, value) and final state (batch, head, value, key); arguments as `delta_scan`'s.

    >>> one = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    >>> y, final = delta_scan_chunked(one, one, 2 * one, one[..., 0] / 2, chunk=2)
    >>> y.flatten().tolist(), final.item()
    ([1.0, 1.5, 1.75], 1.75)
    """
    with without_autocast(v.device):  # which would round the products
        return _delta_scan_chunked(q, k, v, beta, log_decay, initial, chunk, unit)


def _delta_scan_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    initial: Tensor | None,
    chunk: int | None,
    unit: float | None,
) -> tuple[Tensor, Tensor]:
    batch, tokens, heads, values = v.shape
    wide, keys = torch.promote_types(v.dtype, torch.float32), k.shape[-1]
    on_gpu = v.device.type == "cuda"
    size = chunk or (CHUNK_GPU if on_gpu else CHUNK)
    size = min(1 << (size - 1).bit_length(), 1 << (tokens - 1).bit_length())  # the inverse halves it to the end
    if initial is None:
        h = torch.zeros(batch * heads, keys, values, dtype=wide, device=v.device)
    else:
        h = initial.to(wide).mT.flatten(0, 1)
    parts = _Parts(q, k, v, beta, log_decay)
    slab = size * max(1, (SLAB_GPU if on_gpu else SLAB) // (batch * heads * size * keys))
    run = _Run(size, slab, heads, wide, unit)
    y, last = run(parts, h)
    if not is_finite(y):
        clean = _Parts(q, *(None if part is None else cleaned(part) for part in parts[1:]))  # type: ignore[arg-type]
        y = torch.where(parts.spoiled(), y, run(clean, h)[0])
    return y.to(v.dtype), torch.unflatten(last.mT, 0, (batch, heads))


class _Parts(NamedTuple):
    """As the caller gave them: (batch, token, head, …)."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    log_decay: Tensor | None

    def some(self, tokens: slice) -> _Parts:
        """Some tokens."""
        return _Parts(*(None if part is None else part[:, tokens] for part in self))  # type: ignore[arg-type]

    def spoiled(self) -> Tensor:
        """Outputs (batch, token, head, value) behind what is not finite; a query spoils its own token alone."""
        fine = self.k.isfinite().all(-1).repeat_interleave(self.v.shape[2] // self.k.shape[2], dim=2)
        fine = fine & self.beta.isfinite()
        if self.log_decay is not None:
            open_ = self.log_decay.isfinite() | (self.log_decay == -torch.inf)  # a closed gate is not a fault
            fine = fine & (open_.all(-1) if open_.ndim == 4 else open_)
        return from_here_on(~(fine[..., None] & self.v.isfinite()))


class _Run(NamedTuple):
    """How a scan is cut.

    Attributes:
        size: Tokens of a chunk, a power of two.
        slab: Tokens worked on at once.
        heads: Heads.
        wide: Dtype of the sums.
        unit: Added to the squared norm that queries and keys are divided by the root of; None leaves them.
    """

    size: int
    slab: int
    heads: int
    wide: torch.dtype
    unit: float | None

    def __call__(self, parts: _Parts, h: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (batch, token, head, value) and the last state, in runs of chunks."""
        outputs = []
        for first in range(0, parts.v.shape[1], self.slab):
            y, h = self._slab(parts.some(slice(first, first + self.slab)), h)
            outputs.append(y)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1), h

    def _cut(self, part: Tensor) -> Tensor:
        """(batch, token, head, …) → (chunk, N, token, …); a token of zeros neither adds to the state nor fades it."""
        missing = -part.shape[1] % self.size
        if missing:
            part = pad(part, (0, 0) * (part.ndim - 2) + (0, missing))
        if part.shape[2] != self.heads:
            part = part.repeat_interleave(self.heads // part.shape[2], dim=2)
        part = torch.unflatten(part, 1, (-1, self.size)).transpose(0, 1).transpose(2, 3)
        return part.flatten(1, 2)

    def _slab(self, parts: _Parts, h: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, beta = (self._cut(part).to(self.wide) for part in parts[:4])
        total = None
        if parts.log_decay is not None:  # in float64: the differences of these sums are exponents
            total = self._cut(parts.log_decay).double().clamp_min(CLOSED).cumsum(2)
        lengths = None if self.unit is None else [reciprocal_length(part, self.unit) for part in (q, k)]
        if total is not None and total.ndim == 4:
            chunks = _own_fades(q, k, total, lengths)
        else:
            chunks = _shared_fades(q, k, total, lengths)
        scale = beta if lengths is None else beta * lengths[1]
        inverse = UnitLowerInverse.apply(chunks.known * scale[..., None]) * beta[..., None, :]  # type: ignore[no-untyped-call]
        if lengths is not None:
            inverse = inverse * lengths[1][..., None]
        outputs = []
        for index in range(len(q)):
            y, h = chunks.step(index, inverse[index], v[index], h)
            outputs.append(y)
        batch, tokens = parts.v.shape[:2]
        y = torch.unflatten(torch.stack(outputs), 1, (batch, self.heads))  # (chunk, batch, head, token, value)
        return y.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :tokens], h


class _Chunks(NamedTuple):
    """What the state passes through, chunk by chunk: (chunk, N, …).

    Attributes:
        seen: q_t · k_s for s ≤ t, faded from s to t, with the reciprocal length of q_t (chunk, N, token, token).
        known: k_t · k_s for s < t, faded from s to t, with the reciprocal length of k_s.
        ask: Queries that read the state at the chunk's start, (chunk, N, token, K), as the next two.
        read: Keys that read it.
        write: Keys that u is written at.
        start: What is left at token t of the start's state, with the reciprocal length of q_t, and without it; (chunk,
            N, token, 1); None where ask and read contain it, as where nothing fades.
        end: What is left at the chunk's end of token t, likewise.
        last: What is left of the state at the chunk's end, broadcastable to h.
    """

    seen: Tensor
    known: Tensor
    ask: Tensor
    read: Tensor
    write: Tensor
    start: tuple[Tensor | None, Tensor | None]
    end: Tensor | None
    last: Tensor | None

    def step(self, index: int, inverse: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of a chunk (N, token, V), and the state behind it.

        `u` here contains the reciprocal length of its key, and `read` and the inverse do not.
        """
        asked, held = torch.bmm(self.ask[index], h), torch.bmm(self.read[index], h)
        of_query, of_key = self.start
        rest = v - held if of_key is None else torch.addcmul(v, of_key[index], held, value=-1)
        u = torch.bmm(inverse, rest)
        if of_query is None:
            y = torch.baddbmm(asked, self.seen[index], u)
        else:
            y = torch.addcmul(torch.bmm(self.seen[index], u), of_query[index], asked)
        left = h if self.last is None else h * self.last[index]
        added = u if self.end is None else u * self.end[index]
        return y, torch.baddbmm(left, self.write[index].mT, added)


def _shared_fades(q: Tensor, k: Tensor, total: Tensor | None, lengths: list[Tensor] | None) -> _Chunks:
    """One decay for all keys of a head, or none.

    Args:
        q: (chunk, N, token, K), as k.
        k: Keys.
        total: Running sums of log decays (chunk, N, token), in float64; None without decay.
        lengths: Reciprocal lengths of queries and keys (chunk, N, token), which stand apart from them; None for 1.
    """
    size, wide = q.shape[2], q.dtype
    seen, known = ((part.flatten(0, 1) @ k.flatten(0, 1).mT).view(*q.shape[:3], -1) for part in (q, k))
    if total is None:
        seen, known, of_query, of_key, end, last = seen.tril(), known.tril(-1), None, None, None, None
    else:
        later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
        # masked before the exponential: behind it, inf · 0 would be NaN in the gradients
        between = fade((total[..., :, None] - total[..., None, :]).masked_fill(later, -torch.inf), wide)
        seen, known = seen * between, (known * between).tril(-1)
        of_key, end = fade(total, wide)[..., None], fade(total[..., -1:] - total, wide)[..., None]
        of_query, last = of_key, of_key[:, :, -1:]
    if lengths is not None:
        of_q, of_k = lengths
        seen, known = seen * of_q[..., None], known * of_k[..., None, :]
        of_query = of_q[..., None] if of_query is None else of_query * of_q[..., None]
        of_key = of_k[..., None] if of_key is None else of_key * of_k[..., None]
    return _Chunks(seen, known, q, k, k, (of_query, of_key), end, last)


def _own_fades(q: Tensor, k: Tensor, total: Tensor, lengths: list[Tensor] | None) -> _Chunks:
    """A decay of every key: total is (chunk, N, token, K); other arguments as `_shared_fades`'."""
    wide = q.dtype
    seen, known = _pairs(torch.stack([q, k]), k, total)
    last = total[:, :, -1:]
    start = fade(total, wide)
    chunks = _Chunks(
        seen, known.tril(-1), q * start, k * start, k * fade(last - total, wide), (None, None), None,
        fade(last.mT, wide),
    )  # fmt: skip
    if lengths is None:
        return chunks
    of_q, of_k = (part[..., None] for part in lengths)
    return chunks._replace(seen=seen * of_q, known=chunks.known * of_k.mT, start=(of_q, of_k))


def _pairs(rows: Tensor, k: Tensor, total: Tensor) -> Tensor:
    """Products of rows (kind, chunk, N, token, K) with keys, every key faded by itself; 0 for later keys.

    The matrix is put together from its diagonal by doubling: tokens of a block's second half see those of its first
    half through the border between them, so that both exponents are at most 0 and no (token, token, K) table is made.
    """
    wide, size, width = k.dtype, k.shape[2], 1
    matrix = (rows * k).sum(-1)[..., None, None]  # (kind, chunk, N, block, 1, 1)
    while width < size:
        shape = (size // (2 * width), 2, width)
        sums, keys, asked = (torch.unflatten(part, -2, shape) for part in (total, k, rows))
        border = sums[..., 0, -1:, :]
        near = asked[..., 1, :, :] * fade(sums[..., 1, :, :] - border, wide)
        far = keys[..., 0, :, :] * fade(border - sums[..., 0, :, :], wide)
        block = near @ far.mT
        first, second = matrix[..., 0::2, :, :], matrix[..., 1::2, :, :]
        upper = torch.cat([first, torch.zeros_like(block)], -1)
        matrix = torch.cat([upper, torch.cat([block, second], -1)], -2)
        width *= 2
    return matrix[..., 0, :, :]


def fade(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """Take exp in a dtype, 0 below its smallest normal number: denormal numbers make products many times slower.

    >>> fade(torch.tensor([0.0, -1000.0]), torch.float32).tolist()
    [1.0, 0.0]
    """
    return torch.threshold(exponent.to(dtype), math.log(torch.finfo(dtype).tiny), -torch.inf).exp()


class UnitLowerInverse(torch.autograd.Function):
    """(I + L)⁻¹ of strictly lower triangular L (…, size, size), size a power of two, by doubling.

    Of blocks (A 0; C D) the inverse is (A⁻¹ 0; −D⁻¹ C A⁻¹ D⁻¹). Powers of L would grow before they vanish: with equal
    keys they are binomials, and their sum would lose all digits.
    """

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        """Entries of `lower` on and above its diagonal are not looked at."""
        size, width = lower.shape[-1], 1
        inverse = torch.zeros_like(lower)
        inverse.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        while width < size:
            whole, source = (_diagonal_blocks(part, 2 * width) for part in (inverse, lower))
            corner = source[..., width:, :width]
            if width > 1:
                corner = whole[..., width:, width:] @ (corner @ whole[..., :width, :width])
            whole[..., width:, :width] = -corner
            width *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        """−Xᵀ slope Xᵀ, below the diagonal."""
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ slope @ inverse.mT).tril(-1)


def _diagonal_blocks(matrix: Tensor, width: int) -> Tensor:
    """View (…, block, width, width) of the blocks on the diagonal of (…, size, size)."""
    blocks = torch.unflatten(torch.unflatten(matrix, -1, (-1, width)), -3, (-1, width))
    return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
