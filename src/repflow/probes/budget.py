"""How many states are worked on at once, so that working memory stays within a share of the features' size.

On a GPU one group at a time fills the device. On a CPU each core has a group of its own and shares nothing with the
others: threads inside a product would wait for one another after each of many small operations.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from repflow.core.errors import InputError, teach
from repflow.probes.features import Features, feature_bytes
from repflow.probes.lbfgs import HISTORY
from repflow.probes.rows import RowPlan
from repflow.probes.span import fits_span, span_bytes

SHARE = 0.4
"""Working memory over the features' own: together they stay below 1.5 times the features."""
CPU_GROUP = 32 * 2**20
"""On a CPU larger groups gain nothing: small problems are joined up to here to save calls."""
GPU_GROUP = 4 * 2**30
"""On a GPU small problems are joined up to here, whatever their share of the features: each group pays for its own
launches, and a launch costs the same for one state as for all."""
FREE_SHARE = 0.6
"""Of a GPU's free memory."""
COPIES = {"paper": 6, "robust": 2 * HISTORY + 14}
"""Tensors of the weights' size that a recipe holds: weights, moments and gradients, or steps and their changes."""


def state_bytes(features: Features, plan: RowPlan, *, n_classes: int, recipe: str, split: bool) -> int:
    """Working memory of one state: its rows in the plan's order (twice where split) and the recipe's weights."""
    if recipe == "robust" and fits_span(plan, features.width, plan.order.device):
        return span_bytes(plan, features.width, n_classes, COPIES[recipe])
    rows = len(plan.order) * features.width * (2 if split else 1)
    weights = plan.n_seeds * n_classes * (features.width + 1)
    readings = len(plan.order) * plan.n_seeds * 3
    return 4 * (rows + COPIES[recipe] * weights + readings)


class Groups(NamedTuple):
    """How the states are shared out.

    Attributes:
        size: States of a group.
        workers: Groups worked on at the same time.
    """

    size: int
    workers: int


def plan_groups(
    features: Features,
    plan: RowPlan,
    *,
    n_classes: int,
    recipe: str,
    split: bool,
    device: torch.device,
    memory: int | None,
) -> Groups:
    """As many workers and states as fit the budget, one at least, evenly shared out over the groups."""
    if memory is not None and memory <= 0:
        raise InputError(teach("a positive number of bytes", f"memory={memory}", "leave it out for the default"))
    one = state_bytes(features, plan, n_classes=n_classes, recipe=recipe, split=split)
    budget = int(SHARE * feature_bytes(features)) if memory is None else memory
    workers = 1
    if device.type == "cuda":
        budget = budget if memory is not None else max(budget, GPU_GROUP)
        budget = min(budget, int(FREE_SHARE * torch.cuda.mem_get_info(device)[0]))
    elif device.type == "cpu":
        workers = max(1, min(torch.get_num_threads(), features.n_states, budget // one))
        budget = min(budget // workers, CPU_GROUP)
    most = max(1, min(features.n_states, budget // one))
    groups = -(-features.n_states // most)
    return Groups(-(-features.n_states // groups), min(workers, groups))
