"""L-BFGS for many smooth convex problems at once: every round evaluates all of them in one batched product.

Each problem keeps its own step length and its own history. A problem whose step is refused tries a shorter one in the
next round while the others continue, so that no evaluation is spent on waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from repflow.probes.product import exact_products

HISTORY = 10
ROUNDS = 300
"""Most evaluations of a problem."""
DESCENT = 1e-4
"""Share of the predicted decrease that a step must achieve (Armijo)."""
SHORTEST = 1e-7
"""Shorter steps mean that float32 has no lower value to find."""

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(problem..., parameter) and which are active, on the CPU → values (problem...) and gradients."""


@dataclass
class Minimum:
    """Where each problem ended.

    Attributes:
        point: (problem..., parameter).
        gradient: Its gradient's 2-norm, (problem...).
        rounds: Evaluations of the batch.
    """

    point: Tensor
    gradient: Tensor
    rounds: int


class _History:
    """The last steps s and changes of gradient y of each problem, and their inner products.

    Glossary (Nocedal and Wright, section 7.2): S, Y (problem, slot, parameter), R the upper triangle of S Yᵀ with
    diagonal D, γ the scale, H the approximation of the inverse Hessian. A round fills one slot of every problem, in
    turn. A problem that takes no step in it leaves its slot empty: S and Y are 0 there and D is 1, so that nothing of
    it counts.
    """

    def __init__(self, point: Tensor) -> None:
        self.pairs = point.new_zeros(*point.shape[:-1], 2 * HISTORY, point.shape[-1])
        self.upper, self.squares = (point.new_zeros(*point.shape[:-1], HISTORY, HISTORY) for _ in range(2))
        self.scale = point.new_ones(point.shape[:-1])
        self.rounds = 0

    def add(self, chosen: Tensor, step: Tensor, change: Tensor) -> None:
        """Add a step of the chosen problems."""
        product = (step * change).sum(-1)
        size = change.square().sum(-1)
        chosen = chosen & (product > torch.finfo(step.dtype).eps * size)
        self.scale = torch.where(chosen, product / size.clamp_min(torch.finfo(step.dtype).tiny), self.scale)
        slot = self.rounds % HISTORY
        # where, not a product: what a refused step met may be infinite
        self.pairs[..., slot, :] = torch.where(chosen[..., None], step, 0.0)
        self.pairs[..., HISTORY + slot, :] = change = torch.where(chosen[..., None], change, 0.0)
        with exact_products(change):  # s·y may be a small difference
            inner = (self.pairs @ change[..., None])[..., 0]
        self.upper[..., slot] = inner[..., :HISTORY]
        self.upper[..., slot, slot] = torch.where(chosen, product, 1.0)
        self.squares[..., slot] = self.squares[..., slot, :] = inner[..., HISTORY:]
        self.rounds += 1

    def direction(self, gradient: Tensor) -> Tensor:
        """- H g in the compact form (equation 7.24): the vector of the two-loop recursion, in a few batched products.

        The recursion takes four dependent operations for each slot, twice.
        """
        with exact_products(gradient):
            return self._direction(gradient)

    def _direction(self, gradient: Tensor) -> Tensor:
        filled = min(self.rounds, HISTORY)
        turn = -(self.rounds % HISTORY) if self.rounds > HISTORY else 0  # oldest first
        upper, squares = (
            part[..., :filled, :filled].roll((turn, turn), (-2, -1)) for part in (self.upper, self.squares)
        )
        inner = (
            (self.pairs @ gradient[..., None]).view(*gradient.shape[:-1], 2, HISTORY, 1)[..., :filled, :].roll(turn, -2)
        )
        along, across = inner[..., 0, :, :], inner[..., 1, :, :]
        scale = self.scale[..., None, None]
        share = torch.linalg.solve_triangular(upper, along, upper=True)
        pull = upper.diagonal(dim1=-2, dim2=-1)[..., None] * share + scale * (squares @ share - across)
        back = torch.linalg.solve_triangular(upper.mT, pull, upper=False)
        factors = torch.stack([back, -scale * share], -3).roll(-turn, -2)
        factors = torch.nn.functional.pad(factors, (0, 0, 0, HISTORY - filled)).flatten(-3, -2)
        return -(self.scale[..., None] * gradient + (factors.mT @ self.pairs)[..., 0, :])


def minimise(evaluate: Evaluate, start: Tensor, *, active: Tensor, tolerance: float, rounds: int = ROUNDS) -> Minimum:
    """Minimise every active problem until its gradient's 2-norm is at most `tolerance`.

    Args:
        evaluate: Values and gradients of all problems; those not active may hold anything.
        start: (problem..., parameter).
        active: (problem...) bool; the others stay where they are.
        tolerance: Of the gradient's 2-norm.
        rounds: Most evaluations.

    >>> target = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> bowl = lambda x, active: ((x - target).square().sum(-1) / 2, x - target)
    >>> minimise(bowl, torch.zeros(2, 2), active=torch.tensor([True, False]), tolerance=1e-6).point
    tensor([[1., 2.],
            [0., 0.]])
    """
    point = start.clone()
    value, gradient = evaluate(point, active.cpu())
    norm = gradient.norm(dim=-1)
    open_ = active & (norm > tolerance)
    history = _History(point)
    direction = -gradient
    length = 1 / norm.clamp_min(1.0)
    done = 1
    slack = 4 * torch.finfo(point.dtype).eps
    while done < rounds and bool((still := open_.cpu()).any()):  # the round's only wait for the device
        slope = (gradient * direction).sum(-1)
        trial = point + (length * open_)[..., None] * direction
        new_value, new_gradient = evaluate(trial, still)
        done += 1
        # near the minimum the decrease is smaller than the value's own rounding
        accepted = open_ & (new_value <= value + DESCENT * length * slope + slack * value.abs())
        history.add(accepted, trial - point, new_gradient - gradient)
        point = torch.where(accepted[..., None], trial, point)
        value = torch.where(accepted, new_value, value)
        gradient = torch.where(accepted[..., None], new_gradient, gradient)
        norm = torch.where(accepted, new_gradient.norm(dim=-1), norm)
        direction = torch.where(accepted[..., None], history.direction(gradient), direction)
        length = torch.where(accepted, 1.0, length * _shrink(new_value - value, length * slope))
        open_ = open_ & (norm > tolerance) & (length > SHORTEST)
    return Minimum(point, norm, done)


def _shrink(rise: Tensor, promised: Tensor) -> Tensor:
    """By how much to shorten a refused step: to the minimum of the parabola through what is known, within 0.1 … 0.5."""
    best = -promised / (2 * (rise - promised))
    return torch.where(torch.isfinite(best), best, 0.1).clamp(0.1, 0.5)
