"""How much a step of a model is, and what follows: whether it is trained alone, and in how many parts of its batch."""

from __future__ import annotations

from typing import Any

ALONE, PART = 1e8, 3.2e8
"""Tokens × layers × width of a step from which a model is trained alone, and at most of a part of its batch: a Mamba
keeps about 40 GB in float32 for the gradient of such a part."""


def step_volume(tokens: float, network: Any) -> float:
    """Tokens × layers × width of a step."""
    return float(tokens * int(network.config.num_hidden_layers) * int(network.config.hidden_size))


def fills_a_device(tokens: float, network: Any) -> bool:
    """Whether a model is so large that others beside it gain nothing and may not fit."""
    return step_volume(tokens, network) > ALONE


def batch_parts(work: float, batch: int) -> int:
    """Parts that a batch is split into so that its gradient fits into memory; the step is that of the whole batch.

    >>> batch_parts(8.4e6, 64), batch_parts(128 * 1024 * 24 * 768, 128), batch_parts(1e12, 6)
    (1, 8, 2)
    """
    parts = 1
    while work / parts > PART and batch % (2 * parts) == 0:
        parts *= 2
    return parts
