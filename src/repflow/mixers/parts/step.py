"""Step sizes of Mamba at initialisation, drawn as the real models draw them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach


def initial_step_bias(size: int, dt_min: float, dt_max: float, dt_floor: float) -> Tensor:
    """Bias whose softplus is log-uniform between dt_min and dt_max, and dt_floor at least.

        dt = exp(u (ln dt_max − ln dt_min) + ln dt_min),  u uniform in [0, 1)        bias = dt + ln(1 − e^{−dt})

    Left at zero instead, as the public code of paper 2 has it, dt is softplus(0) = .69 and the slowest state decays by
    .50 a token instead of .999.

    >>> step = torch.nn.functional.softplus(initial_step_bias(1000, 1e-3, 1e-1, 1e-4))
    >>> bool((step > 0.999e-3).all() and (step < 1.001e-1).all())
    True
    """
    if not 0 < dt_min <= dt_max:
        raise InputError(teach("0 < dt_min <= dt_max", f"{dt_min} and {dt_max}", "Mamba has 0.001 and 0.1"))
    dt = torch.exp(torch.rand(size) * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min)).clamp(min=dt_floor)
    return dt + torch.log(-torch.expm1(-dt))
