"""PenalisedTrainer: transformers' Trainer with penalties beside its loss."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from repflow.training.batch import Batch
from repflow.training.losses.cross_entropy import IGNORED
from repflow.training.losses.penalised import Weights
from repflow.training.losses.states import Penalty, pass_of

FILE = "repflow_penalties.json"
"""In a checkpoint: the moving weights."""


class PenalisedTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose training loss is the model's own plus Σ weight · penalty, from one pass.

    Evaluation stays the model's own loss, so that runs with and without penalties can be compared. Each penalty is
    logged as `penalty/NAME` beside the loss, a moving weight as `weight/NAME`.

    Args:
        args: as for Trainer.
        penalties: terms beside the loss.
        kwargs: as for Trainer.
    """

    def __init__(self, *args: Any, penalties: Sequence[Penalty], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.penalty_weights = Weights(tuple(penalties))
        self._penalty_sums: dict[str, Tensor] = {}
        self._penalty_count = 0

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The model's loss, with the penalties while it is trained."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        batch = Batch(
            inputs["input_ids"], targets=_next_labels(inputs.get("labels")), mask=inputs.get("attention_mask")
        )
        arguments = {**inputs, "output_hidden_states": True}
        loss, output = super().compute_loss(model, arguments, True, num_items_in_batch)
        added, parts = self.penalty_weights.add(pass_of(self.accelerator.unwrap_model(model), batch, output))
        for name, value in parts.items():
            self._penalty_sums[name] = self._penalty_sums.get(name, 0) + value.detach()
        self._penalty_count += 1
        loss = loss + added / self._parts_of_step(num_items_in_batch)
        return (loss, output) if return_outputs else loss

    def _parts_of_step(self, num_items_in_batch: Any) -> int:
        """Trainer divides a loss by the accumulation's passes, unless the model has done so by the number of items."""
        scaled = (self.model_accepts_loss_kwargs or self.compute_loss_func) and num_items_in_batch is not None
        return int(self.current_gradient_accumulation_steps) if scaled else 1

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """With the penalties' means since the last log of a loss."""
        if "loss" in logs and self._penalty_count:
            logs |= {name: float(total / self._penalty_count) for name, total in self._penalty_sums.items()}
            self._penalty_sums, self._penalty_count = {}, 0
        super().log(logs, *args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save and (state := self.penalty_weights.state()):
            (Path(output_dir) / FILE).write_text(json.dumps(state))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (path := Path(checkpoint) / FILE).is_file():
            self.penalty_weights.restore(json.loads(path.read_text()))


def _next_labels(labels: Tensor | None) -> Tensor | None:
    """Labels beside the token that predicts them, as Trainer's models shift them."""
    if labels is None or labels.ndim != 2:
        return labels
    shifted = torch.roll(labels, -1, 1)
    shifted[:, -1] = IGNORED
    return shifted
