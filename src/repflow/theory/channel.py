"""Theorems 3 to 5 for a block whose channels have states of their own, as Mamba's do (paper 1).

A dense A of (channel · state)² would not fit for a real model; here everything is by channel r:

| letter | is | shape |
|---|---|---|
| decay | exp(Δ_t A) | (token, channel, state), the last axis may be 1 |
| drive | Δ_t | (token, channel) |
| B, C | input and output of the state | (token, channel or 1, state) |
| taps | convolution by lag and channel, W_c | (lag, channel) |
| W_h, W_z | input and gate projection | (channel, width) |

M_{t,m}[r] = k_{t,m,r} W_h[r] with a number k, so that norms of rows are all that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from repflow.theory.ordering import Contractivity


class ChannelBlock(NamedTuple):
    """One Mamba mixer on one prompt, its A, B, C and Δ as that prompt made them."""

    decay: np.ndarray
    drive: np.ndarray
    B: np.ndarray
    C: np.ndarray
    taps: np.ndarray
    W_h: np.ndarray
    W_z: np.ndarray


def channel_mean(block: ChannelBlock, sigma2: float) -> np.ndarray:
    """Rows σ²/4 diag(C_t B_t W_c[0] W_h W_zᵀ) of Theorem 3, (token, channel)."""
    return np.asarray(sigma2 / 4 * own_gain(block) * block.taps[0] * (block.W_h * block.W_z).sum(1))


def channel_trace(block: ChannelBlock, sigma2: float, *, printed: bool = False) -> float:
    """Tr Σ of Theorem 4, corrected or as printed, summed over tokens."""
    taps = block.taps[:1] if printed else block.taps
    both = (block.W_h**2).sum(1) * (block.W_z**2).sum(1)
    aligned = (block.W_h * block.W_z).sum(1) ** 2
    total = 0.0
    for gains in _gains(block, taps):
        seen = gains[:-1] if printed else gains
        total += float((both * (seen**2).sum(0)).sum() + (aligned * gains[-1] ** 2).sum())
    return sigma2**2 / (4 if printed else 16) * total


def channel_contractivity(block: ChannelBlock) -> Contractivity:
    """Smallest ρ, c, b, h and z; A, B and C are block diagonal, so that norms are the largest over channels."""
    filters = [np.linalg.eigvalsh((tap[:, None] * block.W_h).T @ (tap[:, None] * block.W_h))[-1] for tap in block.taps]
    return Contractivity(
        float(np.abs(block.decay).max()),
        float(np.linalg.norm(block.C, axis=-1).max()),
        float((np.abs(block.drive) * np.linalg.norm(block.B, axis=-1)).max()),
        float(np.sqrt(np.maximum(filters, 0)).sum()),
        float(np.linalg.norm(block.W_z)),
    )


def channel_output(block: ChannelBlock, inputs: np.ndarray) -> np.ndarray:
    """o_t = C_t s_t of inputs h' (token, channel), by the recurrence."""
    state = np.zeros((inputs.shape[1], block.B.shape[-1]))
    out = np.empty_like(inputs)
    for t in range(len(inputs)):
        state = block.decay[t] * state + (block.drive[t] * inputs[t])[:, None] * block.B[t]
        out[t] = (state * block.C[t]).sum(-1)
    return out


def own_gain(block: ChannelBlock) -> np.ndarray:
    """C_t B_t of each channel (token, channel): what a token does to its own output."""
    return np.asarray(block.drive * (block.B * block.C).sum(-1))


def _gains(block: ChannelBlock, taps: np.ndarray) -> Iterator[np.ndarray]:
    """k_{t,m,r} for each token t in turn, (m ≤ t, channel)."""
    tokens, channels = block.drive.shape
    states = np.zeros((tokens, channels, block.B.shape[-1]))
    for t in range(tokens):
        so_far = states[: t + 1]
        so_far *= block.decay[t]
        entry = block.drive[t][:, None] * block.B[t]
        for lag in range(min(len(taps), t + 1)):
            so_far[t - lag] += taps[lag][:, None] * entry
        yield (so_far * block.C[t]).sum(-1)
