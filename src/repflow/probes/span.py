"""Probes on few prompts: fitted in the span of their training rows, where fewer dimensions hold the same problem.

Glossary: Z (row, width) a seed's z-scored features, Z_t its n training rows, K = Z Z_tᵀ, K_t the training rows' part of
it, K_t = U Λ Uᵀ. The minimum of cross-entropy + λ/2 ‖W‖² has its weights in the span of the training rows (a part of W
that is orthogonal to them changes no training logit and costs λ/2 of its square), and so has every point on L-BFGS's
way there from 0. With the orthonormal basis Q = Z_tᵀ U Λ^(-1/2) and W = V Qᵀ, ‖W‖ = ‖V‖ and Z Wᵀ = (Z Q) Vᵀ: the fit of
V on the coordinates Z Q = K U Λ^(-1/2) takes the same steps, in n dimensions instead of the width.

Does not include: the paper's recipe. Adam scales each weight alone, so a change of basis changes its way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repflow.probes.objective import Reading
from repflow.probes.robust import Scale, parts
from repflow.probes.rows import RowPlan

MOST = {"cpu": 512, "cuda": 128}
"""Training rows of a seed. The eigenvectors of K_t are taken on the CPU, 2 ms each at 100 rows and 40 ms at 400; a GPU
has the direct fit done by then."""
SHARE = 4
"""The width must be this many times the training rows."""
LEAST = 1e-12
"""Eigenvalues below this share of the largest are rounding: of prompts that repeat, and of the centring."""


def fits_span(plan: RowPlan, width: int, device: torch.device) -> bool:
    """Whether every seed's training rows are few enough for the fit in their span."""
    rows = int(plan.counts.max())
    return rows <= MOST.get(device.type, 0) and SHARE * rows <= width


def span_bytes(plan: RowPlan, width: int, n_classes: int, copies: int) -> int:
    """Working memory of one state in float64: its rows twice, coordinates and the weights of all seeds."""
    columns, rows = int(plan.counts.max()), len(plan.order)
    weights = plan.n_seeds * n_classes * (columns + 1)
    logits = 5 * plan.n_seeds * rows * n_classes
    return 8 * (2 * rows * width + plan.n_seeds * rows * (columns + 3) + copies * weights + logits)


def coordinates(rows: Tensor, plan: RowPlan, scale: Scale) -> Tensor:
    """Z Q of every seed, float64, (state, seed, row, column); columns beyond a seed's rank are 0."""
    columns = int(plan.counts.max())
    trains = _trains(plan)
    out = rows.new_zeros(len(rows), plan.n_seeds, rows.shape[1], columns, dtype=torch.float64)
    for seed in range(plan.n_seeds):
        scaled = rows.to(torch.float64, copy=True)
        scaled -= scale.mean[:, seed, None]
        scaled /= scale.deviation[:, seed, None]
        mine = trains[:, seed].nonzero()[:, 0]
        products = scaled @ scaled[:, mine].mT
        # on the CPU: many small eigenproblems are slower on a GPU
        values, vectors = (part.to(rows.device) for part in torch.linalg.eigh(products[:, mine].cpu()))
        real = values > LEAST * values[:, -1:]
        inverse = torch.where(real, values, 1.0).rsqrt() * real
        out[:, seed, :, : len(mine)] = products @ (vectors * inverse[:, None])
    return out


def _trains(plan: RowPlan) -> Tensor:
    """(row, seed) bool, the rows each seed trains on."""
    out = torch.zeros(len(plan.order), plan.n_seeds, dtype=torch.bool, device=plan.order.device)
    for chunk in plan.chunks:
        for column, seed in enumerate(chunk.seeds):
            out[chunk.start : chunk.stop, seed] = True if chunk.mask is None else chunk.mask[:, column] > 0
    return out


class Span:
    """Probes on the coordinates of each seed's rows; all states and seeds are one batch of small problems."""

    def __init__(self, rows: Tensor, plan: RowPlan, targets: Tensor, scale: Scale, n_classes: int) -> None:
        self.n_classes = n_classes
        self.rows = coordinates(rows, plan, scale)
        self.where = targets.T[None, :, :, None].expand(len(rows), -1, -1, -1)
        self.targets = targets
        # each training row's share of its seed's mean, (seed, row, 1)
        self.share = (_trains(plan) / plan.counts.double()).T[..., None].contiguous()
        self.wanted = self.rows.new_zeros(*self.where.shape[1:3], n_classes)
        self.wanted.scatter_(-1, self.where[0], self.share)

    def start(self) -> Tensor:
        """(state, seed, parameter) zeros."""
        return self.rows.new_zeros(*self.rows.shape[:2], self.n_classes * (self.rows.shape[-1] + 1))

    def _log_probability(self, point: Tensor) -> Tensor:
        weight, bias = parts(point, self.n_classes)
        return torch.log_softmax(self.rows @ weight.mT + bias[:, :, None], -1)

    def value(self, penalty: float, point: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Value and gradient of every probe, active or not: the batch is one launch whatever it holds."""
        logs = self._log_probability(point)
        own, _ = parts(point, self.n_classes)
        value = penalty / 2 * own.square().sum((-2, -1)) - (self.wanted * logs).sum((-2, -1))
        residual = logs.exp_().mul_(self.share).sub_(self.wanted)
        gradient = torch.add(residual.mT @ self.rows, own, alpha=penalty)
        return value, torch.cat([gradient.flatten(2), residual.sum(-2)], -1)

    def read(self, point: Tensor) -> Reading:
        """How every row of the plan is read, (state, row, seed)."""
        logs = self._log_probability(point)
        return Reading(logs.argmax(-1).mT == self.targets, logs.gather(-1, self.where)[..., 0].mT)
