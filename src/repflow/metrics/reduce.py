r"""One pass over newly arrived states: what the default meters need from each, with the fewest reads of memory.

States are far larger than caches, so the reductions walk over blocks of tokens and do everything they need with a
block while it is in cache. `repflow.metrics.fused` does the same in one GPU kernel; both are tested against the pure
functions in float64.

Glossary: h, p, q are the newest state and the two before it, (row, width) with row = batch · token flattened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK_ENTRIES = 65_536
"""Entries per block and thread: eight float32 blocks of this size stay within a 2 MB cache."""


def block_rows(width: int) -> int:
    """Rows of a block that all threads work on together.

    Each operation on a block ends with the threads waiting for one another, so a block gives every thread its share.
    """
    return max(1, BLOCK_ENTRIES * torch.get_num_threads() // width)


@dataclass
class DepthSums:
    """Running sums over depth for one batch.

    Attributes:
        count: states seen so far.
        width: channels of a state.
        mean: running mean over states (batch, token, width).
        squares: running sum of squared deviations from it (Welford), same shape.
        bend: Σ_s Σ_k |H[s] - (H[s-1] + H[s+1]) / 2| (batch, token).
        step: Σ_s ‖H[s+1] - H[s]‖² (batch, token).
        size: Σ_s Σ_k |H[s]| (batch, token).
        spread: Σ_k of the standard deviation over states (batch, token); set with the last state.
        variance: Σ_k of the variance over states (batch, token); set with the last state.
    """

    count: int
    width: int
    mean: Tensor
    squares: Tensor
    bend: Tensor
    step: Tensor
    size: Tensor
    spread: Tensor | None = None
    variance: Tensor | None = None

    @classmethod
    def start(cls, like: Tensor) -> DepthSums:
        """Start at no states, accumulating in float32 or wider on the states' device.

        Mean and squares hold nothing yet: the first state sets them, which saves a pass over both.
        """
        dtype = torch.promote_types(like.dtype, torch.float32)
        mean, squares = (torch.empty(like.shape, dtype=dtype, device=like.device) for _ in range(2))
        bend, step, size = (torch.zeros(like.shape[:2], dtype=dtype, device=like.device) for _ in range(3))
        return cls(0, like.shape[-1], mean, squares, bend, step, size)

    def close(self) -> None:
        """Fold the squared deviations into their per-token sums, once all states are in."""
        self.spread, self.variance = torch.empty_like(self.bend), torch.empty_like(self.bend)
        rows, step = self.squares.view(-1, self.width), block_rows(self.width)
        for start in range(0, rows.shape[0], step):
            part = slice(start, start + step)
            deviation = rows[part] / self.count
            self.variance.view(-1)[part] = deviation.sum(-1)
            self.spread.view(-1)[part] = deviation.sqrt_().sum(-1)

    def release(self) -> None:
        """Free the memory of mean and squares; the per-token sums remain."""
        self.mean = self.squares = torch.empty(0)


@dataclass
class StepNorms:
    """Per-token values of one state: its norm, and its inner product with the state before (None for the first)."""

    norm: Tensor
    inner: Tensor | None


def add_states(
    window: list[Tensor], new: int, norms: list[Tensor], raw: DepthSums, direction: DepthSums | None, *, last: bool
) -> list[StepNorms]:
    """Take the last `new` states of the window into the running sums; `last` when no more will come."""
    norms, steps = list(norms), []
    for end in range(len(window) - new + 1, len(window) + 1):
        steps.append(add_state(window[max(0, end - 3) : end], norms, raw, direction))
        norms.append(steps[-1].norm)
    if last:
        raw.close()
        if direction is not None:
            direction.close()
    return steps


def add_state(window: list[Tensor], norms: list[Tensor], raw: DepthSums, direction: DepthSums | None) -> StepNorms:
    """Take the newest state of the window into the running sums.

    Args:
        window: the newest state last, before it up to two earlier ones; each (batch, token, width).
        norms: token norms (batch, token) of the states before the newest, oldest first.
        raw: sums over the states as they are.
        direction: sums over the states with every token at root mean square 1 (mean, squares and bend only); None
            leaves them out.

    Returns:
        Norms and inner products of the newest state.
    """
    newest = window[-1]
    width, dtype = newest.shape[-1], raw.mean.dtype
    norm = torch.empty(newest.shape[:2], dtype=dtype, device=newest.device)
    inner = torch.empty_like(norm) if len(window) > 1 else None
    rows = [state.reshape(-1, width) for state in window]
    lengths = [n.reshape(-1) for n in norms[1 - len(window) :]] if len(window) > 1 else []
    step = block_rows(width)
    for start in range(0, rows[0].shape[0], step):
        part = slice(start, start + step)
        blocks = [r[part].to(dtype) for r in rows]
        norm.view(-1)[part] = torch.linalg.vector_norm(blocks[-1], dim=-1)
        if inner is not None:
            inner.view(-1)[part] = torch.linalg.vecdot(blocks[-1], blocks[-2])
        _add_block(blocks, raw, part)
        if direction is not None:
            scales = [(width**0.5 / n[part])[:, None] for n in (*lengths, norm.view(-1))]
            _add_direction_block(blocks, scales, direction, part)
    raw.count += 1
    if direction is not None:
        direction.count += 1
    return StepNorms(norm, inner)


def _add_block(blocks: list[Tensor], sums: DepthSums, part: slice) -> None:
    """Add one block of tokens of the newest state to the sums.

    `abs().sum()` rather than a 1-norm throughout, which is four times slower on CPUs.
    """
    h = blocks[-1]
    sums.size.view(-1)[part] += h.abs().sum(-1)
    if len(blocks) > 1:
        change = h - blocks[-2]
        sums.step.view(-1)[part] += torch.linalg.vecdot(change, change)
        if len(blocks) > 2:
            # p - (q + h) / 2 is half the difference of the two steps
            bend = change.sub_(blocks[-2]).add_(blocks[-3])
            sums.bend.view(-1)[part] += bend.abs_().sum(-1).mul_(0.5)
    mean = sums.mean.view(-1, h.shape[-1])[part]
    if sums.count == 0:
        mean.copy_(h)
        sums.squares.view(-1, h.shape[-1])[part].zero_()
    else:
        _welford(sums, part, mean - h)


def _add_direction_block(blocks: list[Tensor], scales: list[Tensor], sums: DepthSums, part: slice) -> None:
    """As `_add_block` for the rows times their scales, without forming the scaled rows more than once."""
    h = blocks[-1]
    if len(blocks) > 2:
        bend = blocks[-3] * scales[-3]
        bend.addcmul_(h, scales[-1]).addcmul_(blocks[-2], scales[-2], value=-2)
        sums.bend.view(-1)[part] += bend.abs_().sum(-1).mul_(0.5)
    mean = sums.mean.view(-1, h.shape[-1])[part]
    if sums.count == 0:
        torch.mul(h, scales[-1], out=mean)
        sums.squares.view(-1, h.shape[-1])[part].zero_()
    else:
        _welford(sums, part, torch.addcmul(mean, h, scales[-1], value=-1))


def _welford(sums: DepthSums, part: slice, off: Tensor) -> None:
    """Update mean and squared deviations with `off` = mean - newest: numerically safe where Σx² - (Σx)² is not."""
    width, count = off.shape[-1], sums.count
    sums.mean.view(-1, width)[part].sub_(off, alpha=1 / (count + 1))
    sums.squares.view(-1, width)[part].addcmul_(off, off, value=count / (count + 1))


def column_sums(
    states: list[Tensor], weights: Tensor, probes: Tensor, others: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Weighted sums over real tokens, and the energy of each channel, for a group of states.

    Args:
        states: each (batch, token, width).
        weights: (state, batch, row, token).
        probes: entries -1, 0 or 1 (batch, probe, token).
        others: tokens that the probes see (state, batch, token).
        lengths: real tokens of each sample; what follows them is never read, so padding may hold anything.

    Returns:
        weights and probes @ states (state, batch, row + probe, width) and Σ_t h² (state, batch, width), in the dtype
        of `weights`.
    """
    count, batch, rows, _ = weights.shape
    width, dtype, device = states[0].shape[-1], weights.dtype, weights.device
    sums = torch.zeros(count, batch, rows + probes.shape[1], width, dtype=dtype, device=device)
    energy = torch.zeros(count, batch, width, dtype=dtype, device=device)
    step = 8 * block_rows(width)  # a matrix product wants more rows than a cache holds
    for b, length in enumerate(lengths.tolist()):
        for s, state in enumerate(states):
            for start in range(0, length, step):
                part = slice(start, min(start + step, length))
                block = state[b, part].to(dtype)
                table = torch.cat([weights[s, b, :, part], probes[b, :, part] * others[s, b, part]])
                sums[s, b].addmm_(table, block)
                energy[s, b] += block.square().sum(0)
    return sums, energy


class TokenProducts(NamedTuple):
    """Inner products of the tokens with given vectors.

    Attributes:
        tops: of the centred tokens with the top vectors (state, batch, token, top), 0 at padding.
        table: Σ_t of products of every two probes' values at the other tokens (state, batch, probe, probe).
        last: of the tokens as they are with one more vector (state, batch, token); anything at padding.
    """

    tops: Tensor
    table: Tensor
    last: Tensor


def token_products(
    states: list[Tensor], tops: Tensor, probes: Tensor, last: Tensor, mean: Tensor, others: Tensor, lengths: Tensor
) -> TokenProducts:
    """Inner products of every token with given vectors, for a group of states.

    Args:
        states: each (batch, token, width).
        tops: vectors whose product with each centred token is wanted (state, batch, top, width).
        probes: vectors whose products with the centred tokens are wanted as a table (state, batch, probe, width).
        last: vector whose product with each raw token is wanted (state, batch, width).
        mean: what centring takes off the tokens (state, batch, width).
        others: tokens that count in the table (state, batch, token).
        lengths: real tokens of each sample.
    """
    columns = torch.cat([tops, probes, last[:, :, None]], 2)
    offset = columns @ mean[..., None]
    offset[:, :, -1] = 0
    product = torch.stack([_rows(state, c) for state, c in zip(states, columns, strict=True)]) - offset.mT
    real = torch.arange(product.shape[2], device=product.device) < lengths[:, None]
    count = tops.shape[2]
    probed = torch.where((others & real)[..., None], product[..., count:-1], 0)
    return TokenProducts(torch.where(real[..., None], product[..., :count], 0), probed.mT @ probed, product[..., -1])


def _rows(state: Tensor, columns: Tensor) -> Tensor:
    """Inner products (batch, token, column) in the dtype of `columns`, without widening a whole state at once."""
    if state.dtype == columns.dtype:
        return state @ columns.mT
    batch, token, width = state.shape
    out = torch.empty(batch, token, columns.shape[1], dtype=columns.dtype, device=columns.device)
    step = block_rows(width)
    for b in range(batch):
        for start in range(0, token, step):
            part = slice(start, start + step)
            out[b, part] = state[b, part].to(columns.dtype) @ columns[b].mT
    return out
