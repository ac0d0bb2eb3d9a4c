"""Loss on held-out batches, as a callback."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from repflow.spec.request import check_least
from repflow.training.batch import BatchSource
from repflow.training.callback import Callback, Moment
from repflow.training.losses import CrossEntropy, Loss


class HeldOut(Callback):
    """Mean loss, and what the loss reports, over fixed batches of a source, in the precision of the weights.

    Args:
        source: of batches that are not trained on.
        batches: how many, from number 0.
        loss: by default cross entropy with accuracy.
        prefix: of the logged names: `held_out_loss`, `held_out_accuracy`.
    """

    def __init__(
        self, source: BatchSource, batches: int, *, loss: Loss | None = None, prefix: str = "held_out_"
    ) -> None:
        check_least([("batches", batches, 1)])
        self.source, self.batches, self.prefix = source, batches, prefix
        self.loss: Loss = CrossEntropy(accuracy=True) if loss is None else loss

    def on_evaluate(self, moment: Moment) -> dict[str, float]:
        """Evaluate in eval mode, without gradients."""
        moment.network.eval()
        with torch.no_grad():
            rows = [self._one(moment, number) for number in range(self.batches)]
        total = sum(weight for weight, _ in rows)
        names: Iterable[str] = rows[0][1]
        means = {name: sum(weight * values[name] for weight, values in rows) / total for name in names}
        return {self.prefix + name: value for name, value in means.items()}

    def _one(self, moment: Moment, number: int) -> tuple[float, dict[str, float]]:
        batch = self.source.batch(number).to(moment.device)
        loss, metrics = self.loss(moment.network, batch)
        values = {"loss": float(loss), **{name: float(value) for name, value in metrics.items()}}
        return float(self.loss.weight(batch)), values
