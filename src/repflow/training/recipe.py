"""How the papers trained, as settings: optimiser, schedule and clipping of each table.

| recipe | trains | rate | decay | schedule |
|---|---|---|---|---|
| recency-table1 | pixels, 3 layers (paper 2, also Table 3) | 1e-3 | .1 | cosine to 0 by epoch |
| recency-table2 | recall, 2 or 4 layers (paper 2, also Table 5) | 1e-3 | .1 | cosine to 0 by epoch |
| recency-fig4 | depth × context (paper 2, Table 4) | 3e-3; 1.5e-3, 1.25e-3 for larger | .1 | warm-up, cosine to 1e-5 |
| dynamics-table2 | language models, constrained eigenvalues (paper 3) | 1.5e-3 | .25 | warm-up 1 %, cosine to a tenth |
| dynamics-table3 | images with token reordering (paper 3) | 8e-4 | .05 | warm-up 20 of 310 epochs, cosine, hold 10 |
| pixels-strong | pixels by S4D, 4 layers of 128 (no paper of ours) | 1e-2 | .01 | cosine to 0 by epoch |

pixels-strong is how S4D is known to learn pixels: a tenth of the rate, and no decay, for rates and step sizes of the
recurrence. Without that and a schedule 66 % are reported on CIFAR-10, where 88 to 89 % are known.

The papers do not say which parameters decay; here norms, biases and a recurrence's own do not. Where a paper prints no
betas they are torch's own; the length of the warm-up of recency-fig4 is not printed and is 1 % here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from repflow.core.errors import InputError, nearest, teach
from repflow.spec.request import check_least
from repflow.training.config import TrainingConfig
from repflow.training.optimiser import OptimiserConfig
from repflow.training.schedule import Schedule

TORCH_BETAS = (0.9, 0.999)
RECURRENCE = "log_dt|log_A_real|A_imag|A_log|dt_bias|dt_proj"
"""In the names of rates and step sizes of all recurrent mixers that have them."""


@dataclass(frozen=True)
class Recipe:
    """What a paper says of a training, free of its length.

    Attributes:
        rate: greatest learning rate.
        decay: weight decay.
        warmup: share of the steps up to the greatest rate.
        last: last learning rate.
        hold: share of the steps at the end that stay at it.
        clip: greatest norm of the gradient; None where the paper prints none.
        by_epoch: the rate moves once an epoch.
        recurrence: factor of the rate for rates and step sizes of a recurrence.
    """

    rate: float
    decay: float
    warmup: float = 0.0
    last: float = 0.0
    hold: float = 0.0
    clip: float | None = None
    by_epoch: bool = False
    recurrence: float = 1.0

    def rates(self, names: Iterable[str]) -> dict[str, float]:
        """Rates by name (`OptimiserConfig.rates`) for a model with parameters of these names.

        >>> RECIPES["pixels-strong"].rates(["blocks.0.mixer.kernel.log_dt", "score.weight"])
        {'log_dt|log_A_real|A_imag|A_log|dt_bias|dt_proj': 0.1}
        """
        own = any(re.search(RECURRENCE, name) for name in names)
        return {RECURRENCE: self.recurrence} if own and self.recurrence != 1 else {}


RECIPES = {
    "recency-table1": Recipe(1e-3, 0.1, by_epoch=True),
    "recency-table2": Recipe(1e-3, 0.1, by_epoch=True),
    "recency-fig4": Recipe(3e-3, 0.1, warmup=0.01, last=1e-5, clip=1.0),
    "dynamics-table2": Recipe(1.5e-3, 0.25, warmup=0.01, last=1.5e-4, clip=1.0),
    "dynamics-table3": Recipe(8e-4, 0.05, warmup=20 / 310, hold=10 / 310),
    "pixels-strong": Recipe(1e-2, 0.01, by_epoch=True, recurrence=0.1),
}


def paper_config(
    name: str, steps: int, *, epoch: int = 1, rate: float | None = None, names: Iterable[str] = (), **changes: Any
) -> TrainingConfig:
    """Settings of a paper's training for a number of steps.

    Args:
        name: of the recipe.
        steps: optimiser steps.
        epoch: steps of an epoch, for a schedule that moves once in each.
        rate: greatest learning rate, in place of the recipe's.
        names: of the model's parameters, where the recipe has a rate of its own for some.
        changes: other fields of TrainingConfig.

    >>> config = paper_config("dynamics-table2", 22500)
    >>> config.schedule.warmup, config.rate(0) < config.rate(224), round(config.rate(22499), 6)
    (225, True, 0.00015)
    """
    check_least([("steps", steps, 1), ("epoch", epoch, 1)])
    if name not in RECIPES:
        raise InputError(teach("the name of a paper's recipe", repr(name), nearest(name, RECIPES)))
    recipe = RECIPES[name] if rate is None else replace(RECIPES[name], rate=rate)
    rates = recipe.rates(names)
    optimiser = OptimiserConfig(rate=recipe.rate, betas=TORCH_BETAS, decay=recipe.decay, rates=rates)
    schedule = Schedule(
        "cosine",
        warmup=round(recipe.warmup * steps),
        final=min(1.0, recipe.last / recipe.rate),
        hold=round(recipe.hold * steps),
        stage=epoch if recipe.by_epoch else 1,
    )
    return TrainingConfig(steps, **{"optimiser": optimiser, "schedule": schedule, "clip": recipe.clip, **changes})
