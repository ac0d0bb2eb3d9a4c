"""LightningFlowCallback: a FlowMeter in a Trainer of Lightning, logged by its loggers. Needs the extra `lightning`."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import MissingExtraError
from repflow.training.flow.meter import FlowMeter
from repflow.training.flow.watch import RUNS, Watch

PRECISIONS = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}


def _base() -> Any:
    """Lightning's Callback, by either of the names under which it is installed."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise MissingExtraError("this needs lightning, which is not installed; pip install 'repflow[lightning]'")


if TYPE_CHECKING:
    Base = object
else:
    Base = _base()


class LightningFlowCallback(Base):
    """Reads the model every few steps and hands the numbers to the trainer's loggers, beside the loss.

        trainer = Trainer(callbacks=[LightningFlowCallback(ids, every=50)])

    It reads before the first step, every `every` steps of the optimiser and after the last. The history is stored in
    `LOG_DIR/flow`, unless `out` names another folder. The transformers model is found inside the LightningModule.

    Args:
        prompts: texts, token ids or the name of a task; see FlowMeter.
        every: steps between readings.
        **options: of FlowMeter.
    """

    def __init__(self, prompts: Any, every: int = 50, **options: Any) -> None:
        super().__init__()
        self._watch = Watch(prompts, every, options)

    @property
    def meter(self) -> FlowMeter | None:
        """The meter, from the beginning of the training on."""
        return self._watch.meter

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the meter and read once."""
        if not trainer.is_global_zero:
            return
        cuda = pl_module.device.type == "cuda"
        usual = {
            "out": Path(trainer.log_dir or trainer.default_root_dir) / RUNS,
            "autocast": PRECISIONS.get(str(trainer.precision)) if cuda else None,
            "tokenizer": getattr(pl_module, "tokenizer", None),
        }
        self._log(trainer, self._watch.begin(pl_module, trainer.global_step, **usual))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """Read where a step of the optimiser was made and it is due."""
        if self.meter is not None:
            self._log(trainer, self.meter.step(trainer.global_step))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Read after the last step, and store the whole history."""
        if self.meter is not None:
            self._log(trainer, self.meter.measure(trainer.global_step), last=True)
            self.meter.close()

    def _log(self, trainer: Any, numbers: dict[str, float], *, last: bool = False) -> None:
        step = trainer.global_step
        for logger in trainer.loggers if numbers else ():
            self._watch.hand(logger, partial(logger.log_metrics, numbers, step=step))
        image = self._watch.image(last=last) if numbers or last else None
        if image is not None:
            for logger in trainer.loggers:
                self._watch.hand(logger, partial(_show_image, logger, image, step))


def _show_image(logger: Any, named: tuple[str, np.ndarray], step: int) -> None:
    tag, image = named
    if hasattr(logger, "log_image"):  # W&B's
        logger.log_image(tag, [image], step=step)
    elif hasattr(logger.experiment, "add_image"):  # TensorBoard's
        logger.experiment.add_image(tag, image, step, dataformats="HWC")
        logger.experiment.flush()
