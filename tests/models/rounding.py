"""How much a model makes of rounding: the yardstick for two float32 passes that only round differently.

Other CPUs, thread counts and batch shapes add in another order. To a model that is like weights that are off in their
last bit, and models answer very differently: the states of the tiny GPT-2 move by 5e-7, those of the tiny Mamba by
2e-4, since its random recurrence grows. A fixed tolerance is too strict for the one or blind for the other.
"""

import copy
import functools

import torch

from repflow.models import load
from tests.models.tiny_configs import tiny_model

DRAWS = 3
MARGIN = 8
"""Sums of a few hundred terms round more than once."""


def nudged(network, seed):
    """The network with every parameter off by at most its last bit."""
    generator = torch.Generator().manual_seed(seed)
    network = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in network.parameters():
            bit = torch.finfo(parameter.dtype).eps
            parameter.mul_(1 + bit * (2 * torch.rand(parameter.shape, generator=generator).to(parameter.device) - 1))
    return network


def states_of(model, ids):
    """Every state and the final norm's output."""
    states = []
    model.stream(ids, on_state=lambda _, hidden: states.append(hidden.clone()), on_final_norm=states.append)
    return states


def worst(actual, expected):
    """Largest difference, each state's by its largest entry."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(actual, expected, strict=True))


def amplification(network, ids):
    """Largest relative change of a state when the weights are off in their last bit."""
    states = states_of(load(network), ids)
    return max(worst(states_of(load(nudged(network, seed)), ids), states) for seed in range(DRAWS))


@functools.cache
def tolerance(model_type):
    """Relative difference up to which two float32 passes of a tiny model are the same."""
    ids = torch.randint(0, 128, (3, 20), generator=torch.Generator().manual_seed(7))
    return MARGIN * amplification(tiny_model(model_type), ids)
