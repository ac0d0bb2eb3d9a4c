"""The paper's recipe: raw features, full batch, Adam (Kingma and Ba 2015) for a fixed number of epochs.

Adam works on each weight alone, so one optimiser over the weights of all states and seeds takes the same steps as one
optimiser for each probe.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from repflow.probes.objective import Objective

EPOCHS = 150
RATE = 0.05


def initial(seeds: Sequence[int], n_classes: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Weights (seed, class, width) and biases (seed, class) as torch.nn.Linear draws them: uniform in ±1/√width.

    All states of a seed start alike, so that states differ by what they hold and not by their draw.

    >>> weight, bias = initial([0, 1], 3, 16, torch.float32)
    >>> tuple(weight.shape), bool(weight.abs().max() <= 0.25)
    ((2, 3, 16), True)
    """
    weights, biases = [], []
    bound = width**-0.5
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)  # on the CPU: the same draw on every machine
        weights.append((torch.rand(n_classes, width, generator=generator) * 2 - 1) * bound)
        biases.append((torch.rand(n_classes, generator=generator) * 2 - 1) * bound)
    return torch.stack(weights).to(dtype), torch.stack(biases).to(dtype)


def fit_paper(
    objective: Objective, weight: Tensor, bias: Tensor, *, epochs: int = EPOCHS, lr: float = RATE
) -> tuple[Tensor, Tensor]:
    """Train from the given start, (seed, class, width) and (seed, class); one copy for each state comes back."""
    states = objective.rows.shape[0]
    weight = weight[None].repeat(states, 1, 1, 1)
    bias = bias[None].repeat(states, 1, 1)
    optimiser = torch.optim.Adam([weight, bias], lr=lr, fused=True)
    for _ in range(epochs):
        gradient = objective.gradient(weight, bias)
        weight.grad, bias.grad = gradient.weight, gradient.bias
        optimiser.step()
    weight.grad = bias.grad = None
    return weight, bias
