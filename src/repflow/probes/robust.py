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
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from repflow.probes.lbfgs import minimise
from repflow.probes.objective import Objective, Reading
from repflow.probes.product import exact_products
from repflow.probes.rows import RowPlan

COPY_BYTES = 64 * 2**20
"""Of the rows that are scaled at once: few operations for small problems, little room for large ones."""
PENALTIES = (10.0, 1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
TOLERANCE = 1e-3
"""Of the gradient's 2-norm: the loss is then within 1e-6 / (2 λ) of its minimum, 0.005 nats at λ = 1e-4. With weaker
penalties the fit stops before its minimum, which is a penalty of its own kind; validation chooses among them all."""


class Scale(NamedTuple):
    """Mean and deviation of each seed's training rows, (state, seed, width)."""

    mean: Tensor
    deviation: Tensor


@runtime_checkable
class Probes(Protocol):
    """All probes of a group of states as one batched problem; a point is (state, seed, parameter).

    The parameters are weights (class, column) followed by biases (class). `SharedRows` has the features'
    own columns, `Span` those of the training rows' span.
    """

    def start(self) -> Tensor:
        """Where every fit begins: zeros."""

    def value(self, penalty: float, point: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Value (state, seed) and gradient of mean cross-entropy + λ/2 ‖W‖²."""

    def read(self, point: Tensor) -> Reading:
        """How every row is read."""


class RobustFit(NamedTuple):
    """How the chosen fits read the rows, and how they ended.

    Attributes:
        reading: Of the chosen penalty's probes.
        gradient: 2-norm of the penalised objective's gradient, (state, seed).
        penalty: Chosen λ, (state, seed).
        point: (state, seed, parameter).
    """

    reading: Reading
    gradient: Tensor
    penalty: Tensor
    point: Tensor


def standardise(rows: Tensor, n_train_rows: int) -> None:
    """Z-score (state, row, width) in place with the statistics of the first rows. Constant columns become 0."""
    for some in _few(rows):
        variance, mean = torch.var_mean(some[:, :n_train_rows], 1, correction=0, keepdim=True)
        deviation = variance.sqrt()
        some.sub_(mean)
        # a column that never changes keeps only the rounding of its mean
        constant = deviation <= 1e-6 * mean.abs().clamp_min(torch.finfo(rows.dtype).tiny)
        some.mul_(torch.where(constant, 0.0, 1 / deviation))


def _few(rows: Tensor) -> tuple[Tensor, ...]:
    """States a few at a time: as many as a copy of their rows may take room for, one at least."""
    return torch.split(rows, max(1, COPY_BYTES // (rows.element_size() * max(1, rows.shape[1] * rows.shape[2]))))


def seed_scales(objective: Objective) -> Scale:
    """Each seed's own mean and deviation within the shared, already z-scored matrix."""
    plan, rows = objective.plan, objective.rows
    shape = (rows.shape[0], plan.n_seeds, rows.shape[2])
    first, second = (torch.zeros(shape, dtype=rows.high.dtype, device=rows.high.device) for _ in range(2))
    place = 0
    for some in _few(rows.high):  # squares take room
        states = slice(place, place + len(some))
        place += len(some)
        for chunk in plan.chunks:
            part = some[:, chunk.start : chunk.stop]
            if rows.split:
                part = part + rows.low[states, chunk.start : chunk.stop]
            mask = part.new_ones(part.shape[1], len(chunk.seeds)) if chunk.mask is None else chunk.mask
            squares = part.square()
            with exact_products(part):
                for column, seed in enumerate(chunk.seeds):
                    first[states, seed] += mask[:, column] @ part
                    second[states, seed] += mask[:, column] @ squares
    mean = first / plan.counts[:, None]
    deviation = (second / plan.counts[:, None] - mean.square()).clamp_min(0).sqrt()
    return Scale(mean, torch.where(deviation > 1e-4, deviation, 1.0))


def fit_robust(probes: Probes, valid: Tensor, *, penalties: Sequence[float], tolerance: float = TOLERANCE) -> RobustFit:
    """Fit along the penalties and keep, for each probe, the one with the best validation likelihood.

    Args:
        probes: On z-scored rows.
        valid: (row, seed) bool.
        penalties: λ to choose from.
        tolerance: Of the gradient.
    """
    point = probes.start()
    best = _Best(point)
    for penalty in sorted(penalties, reverse=True):
        every = torch.ones_like(best.likely, dtype=torch.bool)
        minimum = minimise(partial(probes.value, penalty), point, active=every, tolerance=tolerance)
        point = minimum.point
        best.offer(_mean_over(probes.read(point).log_likelihood, valid), point, minimum.gradient, penalty)
    return RobustFit(probes.read(best.point), best.gradient, best.penalty, best.point)


class SharedRows:
    """Probes on one matrix that all seeds share, each seed's own z-scores folded into its weights."""

    def __init__(self, objective: Objective, targets: Tensor) -> None:
        self.objective, self.targets, self.scale = objective, targets, seed_scales(objective)

    def start(self) -> Tensor:
        """(state, seed, parameter) zeros."""
        states, _, width = self.objective.rows.shape
        return self.scale.mean.new_zeros(states, self.objective.plan.n_seeds, self.objective.n_classes * (width + 1))

    def value(self, penalty: float, point: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Value and gradient; seeds without an active probe are not computed."""
        weight, bias = self._unscaled(point)
        seeds = tuple(active.any(0).nonzero()[:, 0].tolist())
        gradients = self.objective.gradient(weight, bias, with_loss=True, active=seeds)
        assert gradients.loss is not None
        own, _ = parts(point, self.objective.n_classes)
        mean, deviation = (part[:, :, None] for part in self.scale)
        gradient = (gradients.weight - gradients.bias[..., None] * mean) / deviation
        gradient += penalty * own
        value = gradients.loss + penalty / 2 * own.square().sum((-2, -1))
        return value, torch.cat([gradient.flatten(2), gradients.bias], -1)

    def read(self, point: Tensor) -> Reading:
        """How every row of the plan is read."""
        return self.objective.read(*self._unscaled(point), self.targets)

    def _unscaled(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Weights that do to the shared matrix what the point's do to the seed's own z-scored features."""
        weight, bias = parts(point, self.objective.n_classes)
        weight = weight / self.scale.deviation[:, :, None]
        return weight, bias - (weight @ self.scale.mean[..., None])[..., 0]


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


def parts(point: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Weights (state, seed, class, column) and biases (state, seed, class) of a point."""
    cut = point.shape[-1] - n_classes
    return point[..., :cut].view(*point.shape[:-1], n_classes, -1), point[..., cut:]


def masks(plan: RowPlan, samples_of: Sequence[Sequence[int] | Tensor]) -> Tensor:
    """(row, seed) True at each seed's own rows, given as samples."""
    out = torch.zeros(len(plan.order), plan.n_seeds, dtype=torch.bool)
    for seed, samples in enumerate(samples_of):
        out[torch.as_tensor(plan.place)[torch.as_tensor(samples)], seed] = True
    return out.to(plan.order.device)
