"""Batches of multi-query associative recall: fresh rows at every step, drawn where the model is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from repflow.core.errors import InputError, teach
from repflow.spec.request import check_least, check_seed
from repflow.tasks.recall import RecallSetting, recall_rows
from repflow.training.batch import Batch, step_seed

ORDER = 20
"""Seed of the order of settings, which is the same for every seed of the rows."""


class RecallBatches:
    """Rows of one setting at every step; over as many steps as there are settings each comes once, in random order.

    The order of the settings does not depend on the seed, so that trainings with different rows meet the same shapes
    at the same steps.

    Args:
        settings: kinds of rows, such as lengths and numbers of pairs.
        rows: rows of a batch.
        seed: of the rows.
        device: where rows are drawn; a GPU draws other rows than a CPU.

    >>> source = RecallBatches([RecallSetting(length=16, pairs=2), RecallSetting(length=8, pairs=2)], rows=3)
    >>> sorted(tuple(source.batch(step).inputs.shape) for step in range(2))
    [(3, 8), (3, 16)]
    """

    def __init__(
        self, settings: Sequence[RecallSetting], *, rows: int, seed: int = 0, device: str | torch.device = "cpu"
    ) -> None:
        check_least([("rows", rows, 1)])
        check_seed(seed)
        if not settings:
            raise InputError(teach("at least one setting of rows", "none", "pass [RecallSetting(...)]"))
        self.settings, self.rows, self.seed, self.device = tuple(settings), rows, seed, torch.device(device)

    def setting(self, step: int) -> RecallSetting:
        """Kind of the rows of a step."""
        cycle, place = divmod(step, len(self.settings))
        draws = torch.Generator().manual_seed(step_seed(ORDER, cycle))
        return self.settings[int(torch.randperm(len(self.settings), generator=draws)[place])]

    def batch(self, step: int) -> Batch:
        """Draw the rows of a step."""
        generator = torch.Generator(self.device).manual_seed(step_seed(self.seed, step))
        rows = recall_rows(self.setting(step), self.rows, generator)
        return Batch(rows.ids, rows.targets, positions=rows.positions)

    def facts(self) -> dict[str, Any]:
        """Settings, rows, seed and kind of device."""
        kinds = [setting.facts() for setting in self.settings]
        return {"settings": kinds, "rows": self.rows, "seed": self.seed, "drawn_on": self.device.type}
