"""Batches of a text with some of associative recall among them, at steps that are spread evenly."""

from __future__ import annotations

from typing import Any

from repflow.core.errors import InputError, teach
from repflow.training.batch import Batch, BatchSource


class MixedBatches:
    """A share of the steps from one source, all others from another, whose batches go on where they were.

    Step s is one of the share where ⌊(s + 1) share⌋ > ⌊s share⌋: every fourth for a quarter.

    Args:
        usual: batches of most steps.
        other: batches of the share.
        share: from 0 to below 1.
        offset: added to the ids of `other`, so that they stand behind those of `usual`.

    >>> class Constant:
    ...     def __init__(self, value): self.value = value
    ...     def batch(self, step): return Batch(torch.tensor([[self.value + step]]), torch.tensor([[0]]))
    ...     def facts(self): return {}
    >>> import torch
    >>> source = MixedBatches(Constant(0), Constant(100), share=0.5, offset=1000)
    >>> [int(source.batch(step).inputs) for step in range(4)]
    [0, 1100, 1, 1101]
    """

    def __init__(self, usual: BatchSource, other: BatchSource, *, share: float, offset: int = 0) -> None:
        if not 0 <= share < 1:
            raise InputError(teach("a share from 0 to below 1", str(share), "0.25 is every fourth step"))
        self.usual, self.other, self.share, self.offset = usual, other, share, offset

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        before, behind = self._others(step), self._others(step + 1)
        if behind == before:
            return self.usual.batch(step - before)
        batch = self.other.batch(before)
        assert batch.targets is not None
        parts = batch.tensors() | {"inputs": batch.inputs + self.offset, "targets": batch.targets + self.offset}
        return Batch(**parts)

    def _others(self, step: int) -> int:
        """Steps of the share before a step; a millionth is added, as ten times a tenth is below one."""
        return int(step * self.share + 1e-6)

    def facts(self) -> dict[str, Any]:
        """Facts of both, and the share."""
        both = {"usual": dict(self.usual.facts()), "other": dict(self.other.facts())}
        return {**both, "share": self.share, "offset": self.offset}
