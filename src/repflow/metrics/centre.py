"""Token similarity around a mean state of other prompts, opt-in: a calibration pass finds the mean, a meter uses it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from repflow.metrics.meter import BatchInfo, Meter, Table, stack_samples
from repflow.metrics.similarity import token_similarity


@dataclass
class MeanState(Meter):
    """Mean token vector of every state over all samples, each token counting once."""

    def begin(self, batch: BatchInfo) -> None:
        """Start a batch."""
        self._batch, self._totals = batch, list[Tensor]()

    def update(self, state: int, hidden: Tensor) -> None:
        """Add up the real tokens of each sample."""
        rows = [hidden[row, :length].double().sum(0) for row, length in enumerate(self._batch.lengths)]
        self._totals.append(torch.stack(rows))

    def end(self) -> None:
        """Keep the sums (state, width) and the token count of each sample."""
        totals = torch.stack(self._totals, 1).cpu().numpy()
        for row, (sample, length) in enumerate(zip(self._batch.samples, self._batch.lengths, strict=True)):
            self.records[sample] = {"total": totals[row], "count": totals[row].dtype.type(length)}

    def compute(self) -> Table:
        """`mean_state` (state, width)."""
        records = self.ordered()
        total = stack_samples(records, "total", 0).sum(0)
        return {"mean_state": (("state", "width"), total / sum(record["count"] for record in records))}


@dataclass
class CentredSimilarity(Meter):
    """`token_similarity(center=...)` as `centered/token_similarity`.

    Attributes:
        center: mean state (state, width) of other prompts.
    """

    center: Tensor

    def begin(self, batch: BatchInfo) -> None:
        """Start a batch."""
        self._batch, self._values = batch, list[Tensor]()

    def update(self, state: int, hidden: Tensor) -> None:
        """Measure one state; nothing of it is held."""
        center = self.center[state : state + 1].to(hidden.device)
        mask = self._batch.mask(hidden.shape[1], hidden.device)
        self._values.append(token_similarity(hidden[None], center=center, mask=mask)[0])

    def end(self) -> None:
        """One value per state and sample."""
        values = torch.stack(self._values, 1).cpu().numpy()
        for row, sample in enumerate(self._batch.samples):
            self.records[sample] = {"similarity": values[row]}

    def compute(self) -> Table:
        """`centered/token_similarity` (state, sample)."""
        values = stack_samples(self.ordered(), "similarity", 1)
        return {"centered/token_similarity": (("state", "sample"), values)}
