"""Assumptions 5 to 8 of paper 1 on a model's blocks: tails, dependence between tokens, Lipschitz constants, energies.

Glossary: F_l block, h^(l) what it reads, J its Jacobian over a whole prompt, Λ_l its Lipschitz constant. The largest
singular value of J at the prompts bounds Λ_l from below: a block may stretch other inputs more, never less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from repflow.capture.influence.jacobian import gradient_graph
from repflow.core.seconds import timed
from repflow.models.reading import called_with, hidden_of, input_of
from repflow.theory.hypotheses import Hypothesis

if TYPE_CHECKING:
    from repflow.models import Model

GAUSSIAN = 3.0
"""Kurtosis of a Gaussian."""
TAILS = 6.0
"""Largest kurtosis of a channel that counts as sub-Gaussian: twice a Gaussian's."""
LITTLE = 0.05
"""Correlation of distant tokens that counts as none."""
ITERATIONS = 12
"""Power iterations for the largest singular value."""


@dataclass(frozen=True)
class BlockFacts:
    """What one block's inputs and its map are like.

    Attributes:
        kurtosis: largest over channels of E x⁴ / (E x²)², x centred, of what the mixer reads.
        dependence: Σ over lags of |correlation of tokens that far apart|, lags up to half the prompt.
        far: mean |correlation| at the lags from a quarter to half of the prompt.
        lipschitz: largest singular value of the block's Jacobian at the prompts.
        energy: mean of ‖F_l(h)‖² per token and channel.
    """

    kurtosis: float
    dependence: float
    far: float
    lipschitz: float
    energy: float

    def hypotheses(self) -> list[Hypothesis]:
        """Assumptions 5 to 7, as far as one model shows."""
        tails = f"largest kurtosis of a channel is {self.kurtosis:.3g}, a Gaussian's is {GAUSSIAN:g}"
        apart = f"mean correlation of distant tokens {self.far:.0%}, sum over lags {self.dependence:.3g}"
        gain = f"Λ is at least {self.lipschitz:.3g}"
        return [
            Hypothesis("Assumption 5: sub-Gaussian rows", self.kurtosis <= TAILS, tails),
            Hypothesis("Assumption 6: weakly dependent tokens", self.far <= LITTLE, apart),
            Hypothesis("Lemma 2: the block contracts, Λ < 1", self.lipschitz < 1, gain),
        ]


def largest_kurtosis(rows: np.ndarray) -> float:
    """Largest kurtosis of a channel of rows (token, channel); channels that do not vary count for nothing.

    >>> round(largest_kurtosis(np.array([[-1.0], [1.0], [-1.0], [1.0]])), 3)  # a coin
    1.0
    """
    centred = rows - rows.mean(0)
    variance = (centred**2).mean(0)
    varies = variance > 0
    if not varies.any():
        return math.nan
    return float(((centred[:, varies] ** 4).mean(0) / variance[varies] ** 2).max())


def correlation_by_lag(prompts: Sequence[np.ndarray]) -> np.ndarray:
    """Mean product of two centred tokens so far apart over their mean energy, (lag,): lags 1 to half of the shortest.

    The mean is that of all tokens of all prompts.
    """
    mean = np.concatenate(prompts).mean(0)
    centred = [rows - mean for rows in prompts]
    energy = float(np.mean(np.concatenate([(rows**2).sum(1) for rows in centred])))
    lags = max(1, min(map(len, centred)) // 2)
    if energy == 0:
        return np.zeros(lags)
    totals = [
        np.concatenate([(rows[lag:] * rows[:-lag]).sum(1) for rows in centred]).mean() for lag in range(1, lags + 1)
    ]
    return np.array(totals) / energy


def block_facts(inputs: Sequence[np.ndarray], leaving: Sequence[np.ndarray], lipschitz: float) -> BlockFacts:
    """Facts of one block.

    Args:
        inputs: what the mixer reads of each prompt (token, channel).
        leaving: the block's output on each prompt (token, channel).
        lipschitz: largest singular value of its Jacobian.
    """
    correlation = np.abs(correlation_by_lag(inputs))
    return BlockFacts(
        largest_kurtosis(np.concatenate(inputs)),
        float(correlation.sum()),
        float(correlation[len(correlation) // 2 :].mean()),
        lipschitz,
        float(np.mean([np.mean(rows**2) for rows in leaving])),
    )


@timed("forward")
def block_gains(model: Model, ids: Tensor, *, iterations: int = ITERATIONS) -> list[float]:
    """Largest singular value of every block's Jacobian on one prompt (1, token), by power iteration.

    J v is a difference quotient that only steers the iteration; the value is ‖Jᵀu‖ of a unit u by an exact backward
    pass, which is never above the true one.
    """
    calls: dict[int, tuple[tuple, dict[str, Any]]] = {}

    def keep(place: int) -> Callable[..., None]:
        def hook(_: Any, args: tuple, kwargs: dict[str, Any]) -> None:
            calls[place] = (args, kwargs)

        return hook

    handles = [
        block.register_forward_pre_hook(keep(place), with_kwargs=True) for place, block in enumerate(model.blocks)
    ]
    try:
        with gradient_graph(model) as caught:
            model.reading.base(**model.reading.arguments(ids.to(model.device), None))
    finally:
        for handle in handles:
            handle.remove()
    random = torch.Generator().manual_seed(0)
    gains = []
    for place, block in enumerate(model.blocks):
        args, kwargs = calls[place]
        before, after = caught.states[place], caught.states[place + 1]
        start = torch.randn(before.shape, generator=random, dtype=torch.float64)

        def run(hidden: Tensor, block: Any = block, args: tuple = args, kwargs: dict[str, Any] = kwargs) -> Tensor:
            positional, named = called_with(args, kwargs, hidden)
            return hidden_of(block(*positional, **named))

        gains.append(_gain(run, before, after, input_of(args, kwargs).detach(), start, iterations))
    return gains


def _gain(
    run: Callable[[Tensor], Tensor], before: Tensor, after: Tensor, at: Tensor, start: Tensor, iterations: int
) -> float:
    """Largest ‖Jᵀu‖ that power iteration from `start` comes across."""
    direction = (start / start.norm()).to(at)
    # some scans run in float32 whatever the weights are, and smaller steps would drown in their rounding
    rounding = max(torch.finfo(at.dtype).eps, torch.finfo(torch.float32).eps)
    size = float(at.detach().double().norm()) * rounding ** (1 / 3)
    largest = 0.0
    for _ in range(iterations):
        with torch.no_grad():
            moved = run(at + size * direction) - run(at - size * direction)
        length = float(moved.double().norm())
        if not math.isfinite(length) or length == 0:
            return largest if length == 0 else math.nan
        (pulled,) = torch.autograd.grad(after, before, (moved / length).to(after), retain_graph=True)
        gain = float(pulled.double().norm())
        if not math.isfinite(gain) or gain == 0:
            return largest if gain == 0 else math.nan
        largest, direction = max(largest, gain), (pulled / gain).to(at)
    return largest
