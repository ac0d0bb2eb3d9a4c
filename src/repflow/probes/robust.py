"""The robust recipe: z-scored features, L2 penalty chosen on validation, L-BFGS to a small gradient.

Each seed's features are z-scored with its own training rows, but all seeds share one matrix: with mean m and deviation
s of the seed, z = (x - m) / s gives z Wᵀ = x (W / s)ᵀ - W (m / s), so only the weights differ. The shared matrix is
z-scored over all training rows first, which keeps m near 0 and s near 1 and costs no digits.

The objective is mean cross-entropy + λ/2 ‖W‖² (biases free); scikit-learn's C is 1 / (λ n). Every penalty is tried,
from the strongest, each starting where the last one ended. The validation likelihood has more than one peak along the
way: where the signal lies in directions of little variance, it falls first and rises steeply later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from repflow.probes.lbfgs import minimise
from repflow.probes.objective import Objective
from repflow.probes.rows import RowPlan

PENALTIES = (10.0, 1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
TOLERANCE = 1e-3
"""Of the gradient's 2-norm: the loss is then within 1e-6 / (2 λ) of its minimum, 0.005 nats at λ = 1e-4. With weaker
penalties the fit stops before its minimum, which is a penalty of its own kind; validation chooses among them all."""


class Scale(NamedTuple):
    """Mean and deviation of each seed's training rows, (state, seed, width)."""

    mean: Tensor
    deviation: Tensor


class RobustFit(NamedTuple):
    """Weights for the shared matrix, and how the fit ended.

    Attributes:
        weight: (state, seed, class, width).
        bias: (state, seed, class).
        gradient: 2-norm of the penalised objective's gradient, (state, seed).
        penalty: Chosen λ, (state, seed).
    """

    weight: Tensor
    bias: Tensor
    gradient: Tensor
    penalty: Tensor


def standardise(rows: Tensor, n_train_rows: int) -> None:
    """Z-score (state, row, width) in place with the statistics of the first rows. Constant columns become 0."""
    for state in rows:
        variance, mean = torch.var_mean(state[:n_train_rows], 0, correction=0)
        deviation = variance.sqrt()
        state.sub_(mean)
        # a column that never changes keeps only the rounding of its mean
        constant = deviation <= 1e-6 * mean.abs().clamp_min(torch.finfo(rows.dtype).tiny)
        state.mul_(torch.where(constant, 0.0, 1 / deviation))


def seed_scales(objective: Objective) -> Scale:
    """Each seed's own mean and deviation within the shared, already z-scored matrix."""
    plan, rows = objective.plan, objective.rows
    shape = (rows.shape[0], plan.n_seeds, rows.shape[2])
    first, second = (torch.zeros(shape, dtype=rows.high.dtype, device=rows.high.device) for _ in range(2))
    for chunk, state in product(plan.chunks, range(shape[0])):  # one state's chunk: squares take room
        part = rows.high[state, chunk.start : chunk.stop]
        if rows.split:
            part = part + rows.low[state, chunk.start : chunk.stop]
        squares = part.square()
        for column, seed in enumerate(chunk.seeds):
            weight = part.new_ones(len(part)) if chunk.mask is None else chunk.mask[:, column]
            first[state, seed] += weight @ part
            second[state, seed] += weight @ squares
    mean = first / plan.counts[:, None]
    deviation = (second / plan.counts[:, None] - mean.square()).clamp_min(0).sqrt()
    return Scale(mean, torch.where(deviation > 1e-4, deviation, 1.0))


def fit_robust(
    objective: Objective, targets: Tensor, valid: Tensor, *, penalties: Sequence[float], tolerance: float = TOLERANCE
) -> RobustFit:
    """Fit along the penalties and keep, for each probe, the one with the best validation likelihood.

    Args:
        objective: On z-scored rows.
        targets: (row, seed) classes.
        valid: (row, seed) bool.
        penalties: λ to choose from.
        tolerance: Of the gradient.
    """
    scale = seed_scales(objective)
    states, width, plan = objective.rows.shape[0], objective.rows.shape[2], objective.plan
    point = scale.mean.new_zeros(states, plan.n_seeds, objective.n_classes * (width + 1))
    best = _Best(point)
    path = sorted(penalties, reverse=True)
    for penalty in path:
        value = partial(_penalised, objective, scale, penalty)
        found = minimise(value, point, active=torch.ones_like(best.likely, dtype=torch.bool), tolerance=tolerance)
        point = found.point
        weight, bias = _unscaled(objective, scale, point)
        likely = objective.read(weight, bias, targets).log_likelihood
        best.offer(_mean_over(likely, valid), point, found.gradient, penalty)
    weight, bias = _unscaled(objective, scale, best.point)
    return RobustFit(weight, bias, best.gradient, best.penalty)


class _Best:
    """The best point of each probe so far; each decides for itself, whatever its neighbours in the batch do."""

    def __init__(self, point: Tensor) -> None:
        problems = point.shape[:-1]
        self.point = point
        self.likely = point.new_full(problems, -torch.inf)
        self.gradient = point.new_full(problems, torch.nan)
        self.penalty = point.new_full(problems, torch.nan, dtype=torch.float64)

    def offer(self, likely: Tensor, point: Tensor, gradient: Tensor, penalty: float) -> None:
        better = (likely > self.likely) | self.penalty.isnan()
        self.likely = torch.where(better, likely, self.likely)
        self.point = torch.where(better[..., None], point, self.point)
        self.gradient = torch.where(better, gradient, self.gradient)
        self.penalty = torch.where(better, penalty, self.penalty)


def _mean_over(values: Tensor, rows: Tensor) -> Tensor:
    """Mean of (state, row, seed) over each seed's own rows."""
    return (values * rows).sum(1) / rows.sum(0)


def _parts(objective: Objective, point: Tensor) -> tuple[Tensor, Tensor]:
    cut = point.shape[-1] - objective.n_classes
    return point[..., :cut].view(*point.shape[:-1], objective.n_classes, -1), point[..., cut:]


def _unscaled(objective: Objective, scale: Scale, point: Tensor) -> tuple[Tensor, Tensor]:
    """Weights that do to the shared matrix what the point's do to the seed's own z-scored features."""
    weight, bias = _parts(objective, point)
    weight = weight / scale.deviation[:, :, None]
    return weight, bias - (weight @ scale.mean[..., None])[..., 0]


def _penalised(
    objective: Objective, scale: Scale, penalty: float, point: Tensor, active: Tensor
) -> tuple[Tensor, Tensor]:
    """Value (state, seed) and gradient of mean cross-entropy + λ/2 ‖W‖²."""
    weight, bias = _unscaled(objective, scale, point)
    seeds = tuple(active.any(0).nonzero()[:, 0].tolist())
    found = objective.gradient(weight, bias, with_loss=True, active=seeds)
    assert found.loss is not None
    own, _ = _parts(objective, point)
    gradient = (found.weight - found.bias[..., None] * scale.mean[:, :, None]) / scale.deviation[:, :, None]
    gradient += penalty * own
    value = found.loss + penalty / 2 * own.square().sum((-2, -1))
    return value, torch.cat([gradient.flatten(2), found.bias], -1)


def masks(plan: RowPlan, parts: Sequence[Sequence[int] | Tensor]) -> Tensor:
    """(row, seed) True at each seed's own rows, given as samples."""
    out = torch.zeros(len(plan.order), plan.n_seeds, dtype=torch.bool)
    for seed, samples in enumerate(parts):
        out[torch.as_tensor(plan.place)[torch.as_tensor(samples)], seed] = True
    return out.to(plan.order.device)
