"""Theorems 3 to 5 for a block whose channels have states of their own, as Mamba's do (paper 1).

A dense A of (channel · state)² would not fit for a real model; here everything is by channel r:

| letter | is | shape |
|---|---|---|
| decay | exp(Δ_t A) | (token, head, state), the last axis may be 1 |
| drive | Δ_t | (token, head) |
| B, C | input and output of the state | (token, head or group, state) |
| taps | convolution by lag and channel, W_c | (lag, channel) |
| W_h, W_z | input and gate projection | (channel, width) |

Neighbouring channels share a head, neighbouring heads a group; Mamba has a head for each channel, and one group.
M_{t,m}[r] = k_{t,m,r} W_h[r] with a number k, so that norms of rows are all that is needed. Works in float64 on the
device of the tensors it is given: for a model of billions of weights a CPU takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repflow.theory.ordering import Contractivity

ROOM = 2**28
"""Bytes of a slab of kernels or states."""
DENSE = 512
"""Width up to which all eigenvalues are found where the largest is wanted."""


class ChannelBlock(NamedTuple):
    """One Mamba mixer on one prompt, its A, B, C and Δ as that prompt made them; float64 tensors or arrays."""

    decay: Any
    drive: Any
    B: Any
    C: Any
    taps: Any
    W_h: Any
    W_z: Any


class Reach(NamedTuple):
    """What follows from the kernels k of a block.

    Attributes:
        past: Σ_t Σ_{m≤t} k² of each channel.
        printed_past: the same without convolution and without the token itself.
        own: Σ_t k_{t,t}² of each channel.
        outputs: o (token, channel) for each of the given inputs.
    """

    past: Tensor
    printed_past: Tensor
    own: Tensor
    outputs: list[Tensor]


def channel_mean(block: ChannelBlock, sigma2: float) -> Tensor:
    """Rows σ²/4 diag(C_t B_t W_c[0] W_h W_zᵀ) of Theorem 3, (token, channel)."""
    block = _tensors(block)
    return sigma2 / 4 * own_gain(block) * block.taps[0] * (block.W_h * block.W_z).sum(1)


def channel_trace(block: ChannelBlock, sigma2: float, *, printed: bool = False) -> float:
    """Tr Σ of Theorem 4, corrected or as printed, summed over tokens."""
    return trace_of(block, channel_reach(block), sigma2, printed=printed)


def trace_of(block: ChannelBlock, reach: Reach, sigma2: float, *, printed: bool = False) -> float:
    """`channel_trace` where the kernels' sums are known."""
    block = _tensors(block)
    both = block.W_h.square().sum(1) * block.W_z.square().sum(1)
    aligned = (block.W_h * block.W_z).sum(1).square()
    total = both * (reach.printed_past if printed else reach.past) + aligned * reach.own
    return sigma2**2 / (4 if printed else 16) * float(total.sum())


def channel_contractivity(block: ChannelBlock, filters: float | None = None) -> Contractivity:
    """Smallest ρ, c, b, h and z; A, B and C are block diagonal, so that norms are the largest over channels.

    Args:
        block: the mixer on a prompt.
        filters: `filter_norm` of its weights, where it is known from another prompt.
    """
    block = _tensors(block)
    heads = block.drive.shape[1]
    return Contractivity(
        float(block.decay.abs().max()),
        float(block.C.norm(dim=-1).max()),
        float((block.drive.abs() * _spread(block.B.norm(dim=-1), heads)).max()),
        filter_norm(block.taps, block.W_h) if filters is None else filters,
        float(block.W_z.norm()),
    )


def filter_norm(taps: Any, W_h: Any) -> float:
    """Σ over lags of ‖diag(W_c[lag]) W_h‖₂."""
    taps, weight = _double(taps), _double(W_h)
    return float(sum(_largest(tap[:, None] * weight) for tap in taps))


def channel_output(block: ChannelBlock, inputs: Any) -> Tensor:
    """o_t = C_t s_t of inputs h' (token, channel)."""
    return channel_reach(block, [inputs]).outputs[0]


def own_gain(block: ChannelBlock) -> Tensor:
    """C_t B_t of each channel (token, channel): what a token does to its own output."""
    block = _tensors(block)
    heads, channels = block.drive.shape[1], block.taps.shape[1]
    return _spread(block.drive * _spread((block.B * block.C).sum(-1), heads), channels)


def channel_reach(block: ChannelBlock, inputs: Any = ()) -> Reach:
    """Sums over the kernels k_{t,m,r} of a block, and its answers to inputs, heads in slabs that fit."""
    block = _tensors(block)
    signals = [_double(part) for part in inputs]
    tokens, channels = len(block.drive), block.taps.shape[1]
    share = channels // block.drive.shape[1]
    past, before, own = (torch.zeros(channels, dtype=torch.float64, device=block.drive.device) for _ in range(3))
    outputs = [part.new_empty(tokens, channels) for part in signals]
    for heads, kernel in _kernels(block):
        here = slice(heads.start * share, heads.stop * share)
        taps = block.taps[:, here].reshape(len(block.taps), -1, share)
        past[here] = _energy(kernel, taps).flatten()
        itself = kernel.diagonal(dim1=1, dim2=2).square().sum(1)[:, None] * taps[0].square()
        own[here] = itself.flatten()
        before[here] = (kernel.square().sum((1, 2))[:, None] * taps[0].square() - itself).flatten()
        for part, out in zip(signals, outputs, strict=True):
            answer = torch.einsum("htm,mhr->thr", kernel, part[:, here].reshape(tokens, -1, share))
            out[:, here] = answer.flatten(1)
    return Reach(past, before, own, outputs)


def _energy(kernel: Tensor, taps: Tensor) -> Tensor:
    """Σ over t and m of (Σ_lag W_c[lag] k_{t,m+lag})² for heads (head, t, m) and taps (lag, head, channel)."""
    lags = min(len(taps), kernel.shape[2])
    padded = torch.nn.functional.pad(kernel, (0, lags - 1))
    moved = [padded[:, :, lag : lag + kernel.shape[2]] for lag in range(lags)]
    pairs = torch.stack([torch.stack([(a * b).sum((1, 2)) for b in moved], -1) for a in moved], -1)
    return torch.einsum("ahr,bhr,hab->hr", taps[:lags], taps[:lags], pairs)


def _kernels(block: ChannelBlock) -> Iterator[tuple[slice, Tensor]]:
    """Slabs of heads with C_t A_t … A_{m+1} B_m as (head, t, m), the convolution left out."""
    tokens, heads = block.drive.shape
    states = block.decay.shape[2]
    size = max(1, ROOM // (8 * tokens * max(tokens, states)))
    for start in range(0, heads, size):
        here = slice(start, min(start + size, heads))
        yield here, (_shared_decay if states == 1 else _own_decays)(block, here)


def _shared_decay(block: ChannelBlock, heads: slice) -> Tensor:
    """Of heads with one decay for all states: the decays' products times C_t · B_m, group by group."""
    drive, decay = block.drive[:, heads], block.decay[:, heads, 0]
    weight = drive.new_zeros(len(drive), *drive.shape)
    for t in range(len(drive)):
        if t:
            weight[t, :t] = weight[t - 1, :t] * decay[t]
        weight[t, t] = drive[t]
    products = torch.einsum("tgn,mgn->tmg", block.C, block.B)
    shared = _spread(products, block.drive.shape[1])[..., heads]
    return (weight * shared).permute(2, 0, 1)


def _own_decays(block: ChannelBlock, heads: slice) -> Tensor:
    """Of heads whose states decay each by its own rate: what token m left in the state, read at t."""
    total = block.drive.shape[1]
    read_in, read_out = (
        _spread(part.transpose(1, 2), total)[..., heads].transpose(1, 2) for part in (block.B, block.C)
    )
    decay, drive = block.decay[:, heads], block.drive[:, heads]
    kernel = drive.new_zeros(len(drive), *drive.shape)
    states = decay.new_zeros(decay.shape)
    for t in range(len(drive)):
        states[:t] *= decay[t]
        states[t] = drive[t][:, None] * read_in[t]
        kernel[t, : t + 1] = (states[: t + 1] * read_out[t]).sum(-1)
    return kernel.permute(2, 0, 1)


def _largest(matrix: Tensor) -> float:
    """Largest singular value."""
    if matrix.shape[1] <= DENSE:
        return float(torch.linalg.eigvalsh(matrix.T @ matrix)[-1].clamp_min(0).sqrt())
    from scipy.sparse.linalg import LinearOperator, eigsh

    def gram(vector: np.ndarray) -> np.ndarray:
        moved = torch.from_numpy(np.ravel(vector)).to(matrix.device)
        return np.asarray((matrix.T @ (matrix @ moved)).cpu().numpy())

    width = matrix.shape[1]
    operator = LinearOperator((width, width), matvec=gram, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(width)
    eigenvalues = eigsh(operator, k=1, which="LA", v0=start, return_eigenvectors=False)
    return float(np.sqrt(max(eigenvalues[0], 0.0)))


def _spread(part: Tensor, size: int) -> Tensor:
    """Last axis repeated for those that share its entries."""
    return part if part.shape[-1] == size else part.repeat_interleave(size // part.shape[-1], -1)


def _double(part: Any) -> Tensor:
    return torch.as_tensor(part, dtype=torch.float64)


def _tensors(block: ChannelBlock) -> ChannelBlock:
    return ChannelBlock(*map(_double, block))
