"""Batches of a training, and what yields them.

A source gives the batch of a step by its number, and the batch depends on the number and the source's own seed alone.
So a training that resumes at step 7,000 asks for batch 7,000 and replays nothing, and two models that are trained from
equal sources see the same rows in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.models.weights.digest import weights_digest
from repflow.spec.request import check_least, check_seed


@dataclass(frozen=True)
class Batch:
    """Rows of one step; every tensor has them as its first axis.

    Attributes:
        inputs: token ids (batch, token), or real inputs (batch, token, channel).
        targets: what the logits should name: (batch, token) beside each token, (batch, query) at `positions`, or
            (batch,) for a classifier; −100 is left out. None: the next token of `inputs`.
        weights: weight of each target's loss, of the targets' shape; None: 1.
        positions: tokens whose logits are read (batch, query); None: all.
        mask: 1 at tokens, 0 at padding on the right (batch, token); None: no padding.
    """

    inputs: Tensor
    targets: Tensor | None = None
    weights: Tensor | None = None
    positions: Tensor | None = None
    mask: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with every tensor changed."""
        return Batch(**{name: change(value) for name, value in self.tensors().items()})

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        return self.each(lambda value: value.to(device, non_blocking=True))

    def split(self, parts: int) -> list[Batch]:
        """The rows in this many equal parts.

        >>> [part.inputs.tolist() for part in Batch(torch.arange(4)[:, None]).split(2)]
        [[[0], [1]], [[2], [3]]]
        """
        rows = len(self.inputs)
        if rows % parts:
            remedy = "choose accumulate that divides the rows, or another number of rows"
            raise InputError(teach(f"rows of a batch that split into {parts} equal parts", f"{rows} rows", remedy))
        size = rows // parts
        return [self.rows(slice(at, at + size)) for at in range(0, rows, size)]

    def rows(self, index: slice | Tensor) -> Batch:
        """Some of the rows."""
        return self.each(lambda value: value[index])

    @property
    def token_count(self) -> int:
        """Tokens of the inputs, padding included; rows where a row is one input."""
        return self.inputs.shape[0] * (self.inputs.shape[1] if self.inputs.ndim > 1 else 1)


@runtime_checkable
class BatchSource(Protocol):
    """What yields the batches of a training."""

    def batch(self, step: int) -> Batch:
        """Batch of a step from 0; the same whenever it is asked for."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What the batches depend on, as plain JSON values: a training is not resumed with other facts."""
        ...


def step_seed(seed: int, step: int) -> int:
    """Seed of one step's own draws: the first 63 bits of SHA-256 of `seed:step`, the same on every machine.

    >>> step_seed(0, 1) == step_seed(0, 1) != step_seed(1, 0)
    True
    """
    return int.from_bytes(hashlib.sha256(f"{seed}:{step}".encode()).digest()[:8], "big") >> 1


class DrawnBatches:
    """Fresh rows for every step, drawn by a function of a generator that is seeded by seed and step.

    Args:
        draw: gives a batch; draws from the generator alone.
        seed: another seed gives other rows.
        device: where the generator draws; a GPU draws other numbers than a CPU.
        facts: the function's own settings, as plain JSON values.

    >>> source = DrawnBatches(lambda g: Batch(torch.randint(0, 9, (2, 3), generator=g)), seed=1)
    >>> torch.equal(source.batch(5).inputs, source.batch(5).inputs)
    True
    """

    def __init__(
        self,
        draw: Callable[[torch.Generator], Batch],
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        check_seed(seed)
        self.draw, self.seed, self.device, self._facts = draw, seed, torch.device(device), dict(facts or {})

    def batch(self, step: int) -> Batch:
        """Draw the rows of a step."""
        return self.draw(torch.Generator(self.device).manual_seed(step_seed(self.seed, step)))

    def facts(self) -> dict[str, Any]:
        """Function, seed, kind of device, and the function's settings."""
        name = getattr(self.draw, "__qualname__", type(self.draw).__qualname__)
        return {"draw": name, "seed": self.seed, "drawn_on": self.device.type, **self._facts}


class RowBatches:
    """Rows of tensors in memory, each epoch in an order of its own; what does not fill a last batch is left out.

    Args:
        rows: all rows, as a batch.
        size: rows of a batch.
        seed: of the orders.

    >>> source = RowBatches(Batch(torch.arange(6)[:, None]), 3)
    >>> sorted(torch.cat([source.batch(0).inputs, source.batch(1).inputs]).flatten().tolist())
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, rows: Batch, size: int, *, seed: int = 0) -> None:
        check_least([("size", size, 1)])
        check_seed(seed)
        if size > len(rows.inputs):
            remedy = "choose a smaller size or give more rows"
            raise InputError(teach(f"size of at most {len(rows.inputs)}, the number of rows", str(size), remedy))
        self.all_rows, self.size, self.seed = rows, size, seed
        self.epoch_steps = len(rows.inputs) // size
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def batch(self, step: int) -> Batch:
        """The rows of a step."""
        epoch, place = divmod(step, self.epoch_steps)
        if self._order[0] != epoch:
            draws = torch.Generator().manual_seed(step_seed(self.seed, epoch))
            order = torch.randperm(len(self.all_rows.inputs), generator=draws)
            self._order = (epoch, order.to(self.all_rows.inputs.device))
        index = self._order[1][place * self.size : (place + 1) * self.size]
        return self.all_rows.rows(index)

    def facts(self) -> dict[str, Any]:
        """Digest of the rows, batch size and seed."""
        return {"rows": weights_digest(self.all_rows.tensors().items()), "size": self.size, "seed": self.seed}
