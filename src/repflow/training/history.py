"""Numbers of every step, kept where they are computed, so that a GPU is not waited for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LOSS, NORM = "loss", "gradient_norm"


class History:
    """Loss, metrics and norm of the gradient of every step.

    Attributes:
        names: of the columns; the first is the loss, the last the gradient's norm before clipping.
        done: steps that are kept.
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        self.names: tuple[str, ...] = ()
        self.done = 0
        self._steps, self._device = steps, device
        self._kept = torch.zeros(0, 0)

    def keep(self, parts: Tensor, names: tuple[str, ...]) -> None:
        """Keep the numbers (name,) of the next step."""
        if not self.names:
            self.names = names
            self._kept = torch.zeros(self._steps, len(names), device=self._device)
        self._kept[self.done].copy_(parts)
        self.done += 1

    def rows(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Numbers (step, name) of steps from `start` up to `stop`; waits for the GPU."""
        rows: np.ndarray = self._kept[start : self.done if stop is None else stop].cpu().numpy()
        return rows

    def last(self) -> dict[str, float]:
        """Numbers of the last step; waits for the GPU."""
        return dict(zip(self.names, self.rows(self.done - 1)[0].tolist(), strict=True)) if self.done else {}

    def mean(self, start: int, stop: int) -> dict[str, float]:
        """Means over steps, in float64."""
        means = self.rows(start, stop).mean(0, dtype=np.float64).tolist()
        return dict(zip(self.names, means, strict=True))

    def first_nonfinite(self, start: int, stop: int) -> tuple[int, str] | None:
        """First step from 0, and what of it, whose loss or gradient is not finite."""
        if stop <= start:
            return None
        rows = self.rows(start, stop)
        for place, row in zip(*np.nonzero(~np.isfinite(rows)), strict=True):
            if self.names[row] in (LOSS, NORM):
                return start + int(place), self.names[row]
        return None

    def tensors(self) -> dict[str, Tensor]:
        """As a named tensor, for a checkpoint."""
        return {"rows": self._kept[: self.done].detach().cpu().clone()}

    def restore(self, rows: Tensor, names: tuple[str, ...]) -> None:
        """Put back what a checkpoint kept.

        Raises:
            ValueError: The rows are not a number per name.
        """
        if rows.ndim != 2 or rows.shape[1] != len(names):
            raise ValueError(f"a history of shape {tuple(rows.shape)} for {len(names)} names")
        self.names, self.done = names, len(rows)
        self._kept = torch.zeros(self._steps, rows.shape[1], device=self._device)
        self._kept[: self.done].copy_(rows)
