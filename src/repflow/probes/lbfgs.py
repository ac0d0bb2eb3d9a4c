"""L-BFGS for many smooth convex problems at once: every round evaluates all of them in one batched product.

Each problem keeps its own step length and its own history. A problem whose step is refused tries a shorter one in the
next round while the others go on, so that no evaluation is spent on waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

HISTORY = 10
ROUNDS = 300
"""Most evaluations of a problem."""
DESCENT = 1e-4
"""Share of the promised decrease that a step must bring (Armijo)."""
SHORTEST = 1e-7
"""Shorter steps mean that float32 has no lower value to find."""

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(problem..., parameter) and which are active → values (problem...) and gradients."""


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
    """The last steps s, changes of gradient y and 1 / s·y (0 where empty) of each problem, newest first."""

    def __init__(self, point: Tensor) -> None:
        self.steps: list[Tensor] = []
        self.changes: list[Tensor] = []
        self.curvature: list[Tensor] = []
        self.scale = point.new_ones(point.shape[:-1])

    def add(self, chosen: Tensor, ended: Tensor, step: Tensor, change: Tensor) -> None:
        """Take in a step of the chosen problems; what those that have ended take in is never read."""
        product = (step * change).sum(-1)
        size = change.square().sum(-1)
        chosen = chosen & (product > torch.finfo(step.dtype).eps * size)
        self.scale = torch.where(chosen, product / size.clamp_min(torch.finfo(step.dtype).tiny), self.scale)
        every = bool((chosen | ended).all())
        for kept, new, which in (
            (self.steps, step, chosen[..., None]),
            (self.changes, change, chosen[..., None]),
            (self.curvature, torch.where(chosen, 1 / product, 0.0), chosen),
        ):
            if every:  # nothing to copy
                kept.insert(0, new)
                del kept[HISTORY:]
            else:
                _shift(kept, new, which)

    def direction(self, gradient: Tensor) -> Tensor:
        """- H g by the two-loop recursion (Nocedal and Wright, algorithm 7.4)."""
        out, shares = gradient.clone(), []
        rows = list(zip(self.steps, self.changes, self.curvature, strict=True))
        for step, change, curvature in rows:
            share = curvature * (step * out).sum(-1)
            out -= share[..., None] * change
            shares.append(share)
        out *= self.scale[..., None]
        for (step, change, curvature), share in zip(reversed(rows), reversed(shares), strict=True):
            back = curvature * (change * out).sum(-1)
            out += (share - back)[..., None] * step
        return -out


def _shift(kept: list[Tensor], new: Tensor, chosen: Tensor) -> None:
    """Put the new row in front of the kept ones where chosen, in place: the others keep theirs."""
    if len(kept) < HISTORY:
        kept.append(torch.zeros_like(new))
    for older in range(len(kept) - 1, 0, -1):
        torch.where(chosen, kept[older - 1], kept[older], out=kept[older])
    torch.where(chosen, new, kept[0], out=kept[0])


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
    value, gradient = evaluate(point, active)
    norm = gradient.norm(dim=-1)
    open_ = active & (norm > tolerance)
    history = _History(point)
    direction = -gradient
    length = 1 / norm.clamp_min(1.0)
    done = 1
    slack = 4 * torch.finfo(point.dtype).eps
    while done < rounds and bool(open_.any()):
        slope = (gradient * direction).sum(-1)
        trial = point + (length * open_)[..., None] * direction
        new_value, new_gradient = evaluate(trial, open_)
        done += 1
        # near the minimum the decrease is smaller than the value's own rounding
        taken = open_ & (new_value <= value + DESCENT * length * slope + slack * value.abs())
        history.add(taken, ~open_, trial - point, new_gradient - gradient)
        point = torch.where(taken[..., None], trial, point)
        value = torch.where(taken, new_value, value)
        gradient = torch.where(taken[..., None], new_gradient, gradient)
        norm = torch.where(taken, new_gradient.norm(dim=-1), norm)
        direction = torch.where(taken[..., None], history.direction(gradient), direction)
        length = torch.where(taken, 1.0, length * _shrink(new_value - value, length * slope))
        open_ = open_ & (norm > tolerance) & (length > SHORTEST)
    return Minimum(point, norm, done)


def _shrink(rise: Tensor, promised: Tensor) -> Tensor:
    """By how much to shorten a refused step: to the minimum of the parabola through what is known, within 0.1 … 0.5."""
    best = -promised / (2 * (rise - promised))
    return torch.where(torch.isfinite(best), best, 0.1).clamp(0.1, 0.5)
