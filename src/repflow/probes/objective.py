"""Cross-entropy of all probes of a group of states, its gradient, and how well each row is read.

Glossary: weights W (state, seed, class, width) and biases b (state, seed, class); z = x Wᵀ + b. The gradient of the
mean cross-entropy is Dᵀ X / n with D = softmax(z) - onehot. Rows are read in chunks, each once an epoch for both
products, so that nothing of size (row, seed, class) is held.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from repflow.probes.product import RowMatrix
from repflow.probes.rows import Chunk, RowPlan

LEAST = -69.0
"""Logits this far below the largest count as this far: e⁻⁶⁹ = 1e-30. Raw features give logits in the hundreds, whose
softmax is full of subnormal numbers; they make a CPU's matrix product ten times slower and change nothing."""
EVALUATION_ROWS = 1024


class Gradient(NamedTuple):
    """Gradient of the mean training cross-entropy, and its value where requested.

    Attributes:
        weight: (state, seed, class, width).
        bias: (state, seed, class).
        loss: (state, seed), or None.
    """

    weight: Tensor
    bias: Tensor
    loss: Tensor | None


class Reading(NamedTuple):
    """How each row of the plan is read: (state, row, seed)."""

    correct: Tensor
    log_likelihood: Tensor


class Objective:
    """Training loss of all seeds' probes on a group of states."""

    def __init__(self, rows: RowMatrix, plan: RowPlan, n_classes: int) -> None:
        self.rows, self.plan, self.n_classes = rows, plan, n_classes

    def gradient(
        self, weight: Tensor, bias: Tensor, *, with_loss: bool = False, active: tuple[int, ...] | None = None
    ) -> Gradient:
        """Mean gradient over each seed's training rows; seeds outside `active` are left at 0."""
        total = Gradient(
            torch.zeros_like(weight), torch.zeros_like(bias), bias.new_zeros(bias.shape[:2]) if with_loss else None
        )
        for chunk in self.plan.chunks:
            columns = _columns(chunk, active)
            if len(columns):
                self._add(total, chunk, columns, weight, bias)
        counts = self.plan.counts[None, :, None]
        total.weight.div_(counts[..., None])
        total.bias.div_(counts)
        if total.loss is not None:
            total.loss.div_(counts[..., 0])
        return total

    def _add(self, total: Gradient, chunk: Chunk, columns: list[int], weight: Tensor, bias: Tensor) -> None:
        seeds = [chunk.seeds[column] for column in columns]
        every = len(seeds) == self.plan.n_seeds
        part = len(columns) < len(chunk.seeds)
        targets = chunk.targets[:, columns] if part else chunk.targets
        mask = chunk.mask[:, columns] if part and chunk.mask is not None else chunk.mask
        logits = self._logits(chunk.start, chunk.stop, seeds, weight, bias)
        where = targets[None, :, :, None].expand(logits.shape[0], -1, -1, -1)
        logits.sub_(logits.amax(-1, keepdim=True))
        if total.loss is not None:
            own = logits.gather(-1, where)[..., 0]
        residual = logits.clamp_(min=LEAST).exp_()
        sums = residual.sum(-1, keepdim=True)
        residual.div_(sums)
        if total.loss is not None:
            loss = sums[..., 0].log() - own
            self._put(total.loss, seeds, (loss if mask is None else loss * mask).sum(1))
        residual.scatter_add_(-1, where, residual.new_full((1, 1, 1, 1), -1.0).expand(where.shape))
        if mask is not None:
            residual.mul_(mask[None, :, :, None])
        self._put(total.bias, seeds, residual.sum(1))
        flat = residual.flatten(2)
        if every:
            self.rows.gather_into(total.weight.flatten(1, 2), chunk.start, chunk.stop, flat)
        else:
            product = self.rows.gather(chunk.start, chunk.stop, flat)
            self._put(total.weight, seeds, product.view(len(product), len(seeds), self.n_classes, -1))

    def _put(self, total: Tensor, seeds: list[int], part: Tensor) -> None:
        if len(seeds) == self.plan.n_seeds:
            total += part
        else:
            for place, seed in enumerate(seeds):  # slices: an index tensor would be a copy to the device each time
                total[:, seed] += part[:, place]

    def _logits(self, start: int, stop: int, seeds: list[int], weight: Tensor, bias: Tensor) -> Tensor:
        if len(seeds) < self.plan.n_seeds:
            weight = torch.stack([weight[:, seed] for seed in seeds], 1)
            bias = torch.stack([bias[:, seed] for seed in seeds], 1)
        scores = self.rows.scores(start, stop, weight.flatten(1, 2))
        scores += bias.flatten(1)[:, None]
        return scores.view(*scores.shape[:2], len(seeds), self.n_classes)

    def read(self, weight: Tensor, bias: Tensor, targets: Tensor) -> Reading:
        """Whether each row's largest logit is its label's, and the label's log-probability, under every seed's probe.

        Args:
            weight: (state, seed, class, width).
            bias: (state, seed, class).
            targets: (row, seed) classes of all rows of the plan.
        """
        correct, likely = [], []
        every = list(range(self.plan.n_seeds))
        for start in range(0, targets.shape[0], EVALUATION_ROWS):
            stop = min(start + EVALUATION_ROWS, targets.shape[0])
            logits = self._logits(start, stop, every, weight, bias)
            wanted = targets[start:stop]
            correct.append(logits.argmax(-1) == wanted[None])
            where = wanted[None, :, :, None].expand(logits.shape[0], -1, -1, -1)
            likely.append(torch.log_softmax(logits, -1).gather(-1, where)[..., 0])
        return Reading(torch.cat(correct, 1), torch.cat(likely, 1))


def _columns(chunk: Chunk, active: tuple[int, ...] | None) -> list[int]:
    """Columns of the chunk's targets whose seeds are still being fitted."""
    return [place for place, seed in enumerate(chunk.seeds) if active is None or seed in active]


def gradient_norm(weight: Tensor, bias: Tensor) -> Tensor:
    """2-norm of each probe's gradient, (state, seed)."""
    return (weight.square().sum((-2, -1)) + bias.square().sum(-1)).sqrt()
