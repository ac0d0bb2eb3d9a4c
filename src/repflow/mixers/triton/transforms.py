"""torch.func transforms around a call: whether they leave kernels that take whole tensors alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def only_batched() -> bool:
    """Whether one torch.vmap is the only transform around: what it batches over can be more rows.

    >>> only_batched(), torch.vmap(lambda x: x + only_batched())(torch.zeros(2)).tolist()
    (False, [1.0, 1.0])
    """
    around = torch._C._functorch.peek_interpreter_stack()
    alone = torch._C._functorch.maybe_current_level() == 1
    return around is not None and bool(alone) and around.key() == torch._C._functorch.TransformType.Vmap


def whole_tensors() -> bool:
    """Whether kernels that have a rule for torch.vmap can run: no other transform is around, nor forward mode."""
    free = torch._C._functorch.peek_interpreter_stack() is None or only_batched()
    return free and torch.autograd.forward_ad._current_level < 0


def batch_first(info: Any, axes: Sequence[int | None], *parts: Tensor) -> list[Tensor]:
    """Parts of a vmap rule with the axis that is batched over in front, those without one expanded."""
    return [
        part.expand(info.batch_size, *part.shape) if axis is None else part.movedim(axis, 0)
        for part, axis in zip(parts, axes, strict=True)
    ]
