"""FlowCallback: a FlowMeter in a Trainer of transformers, logged by whatever `report_to` names."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from repflow.training.flow.meter import FlowMeter
from repflow.training.flow.watch import RUNS, Watch


class FlowCallback(TrainerCallback):  # type: ignore[misc]
    """Reads the model every few steps and hands the numbers to the trainer's loggers, beside the loss.

        trainer = Trainer(model, args, train_dataset=..., callbacks=[FlowCallback(texts, every=50)])

    It reads before the first step, every `every` steps and after the last. The history is stored in
    `OUTPUT_DIR/flow`, unless `out` names another folder. Texts are encoded by the trainer's `processing_class`.
    Whatever goes wrong is reported once and the training goes on.

    Args:
        prompts: texts, token ids or the name of a task; see FlowMeter.
        every: steps between readings.
        **options: of FlowMeter.
    """

    def __init__(self, prompts: Any, every: int = 50, **options: Any) -> None:
        self._watch = Watch(prompts, every, options)

    @property
    def meter(self) -> FlowMeter | None:
        """The meter, from the beginning of the training on."""
        return self._watch.meter

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make the meter and read once."""
        if not state.is_world_process_zero:
            return
        usual = {"out": Path(args.output_dir) / RUNS, "autocast": _autocast(args)}
        usual["tokenizer"] = kwargs.get("processing_class")
        self._log(self._watch.begin(kwargs["model"], state.global_step, **usual), args, state, control)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Read where it is due, and after the last step: at the end of the training loggers are closed already."""
        if self.meter is None:
            return
        last = control.should_training_stop or state.global_step >= state.max_steps
        at = state.global_step
        self._log(self.meter.measure(at) if last else self.meter.step(at), args, state, control, last=last)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Store the whole history."""
        if self.meter is not None:
            self.meter.close()

    def _log(
        self, numbers: dict[str, float], args: Any, state: TrainerState, control: TrainerControl, *, last: bool = False
    ) -> None:
        """As Trainer.log does: into the log of the trainer's state, and to the callbacks beside this one."""
        handler = _handler()
        others = [] if handler is None else [callback for callback in handler.callbacks if callback is not self]
        if numbers:
            epoch = {} if state.epoch is None else {"epoch": state.epoch}
            state.log_history.append({**numbers, **epoch, "step": state.global_step})
        for callback in others if numbers else ():
            logs = {**numbers}
            self._watch.hand(callback, partial(callback.on_log, args, state, control, logs=logs))
        image = self._watch.image(last=last) if others and (numbers or last) else None
        if image is not None:
            for callback in others:
                self._watch.hand(callback, partial(show_image, callback, image, state.global_step))


def show_image(callback: Any, named: tuple[str, np.ndarray], step: int) -> None:
    """Hand an image to a reporting callback of transformers; those that take none are passed over."""
    (tag, image), kind = named, type(callback).__name__
    if getattr(callback, "tb_writer", None) is not None:
        callback.tb_writer.add_image(tag, image, step, dataformats="HWC")
        callback.tb_writer.flush()
    elif kind in ("WandbCallback", "TrackioCallback"):  # both count steps by themselves and keep the trainer's beside
        package = callback._wandb if kind == "WandbCallback" else callback._trackio
        package.log({tag: package.Image(image), "train/global_step": step})


def _handler() -> CallbackHandler | None:
    """The trainer's callbacks, of which ours is one.

    An event hands a callback the state of the training but not the callbacks beside it, and the loggers come before
    those of a user, so that what `on_log` adds to the numbers would reach nobody. The handler is the caller of ours.
    """
    frame: Any = sys._getframe()
    while frame is not None:
        if isinstance(handler := frame.f_locals.get("self"), CallbackHandler):
            return handler
        frame = frame.f_back
    return None


def _autocast(args: TrainingArguments) -> str | None:
    """As the training computes on a GPU; on a CPU readings stay in the precision of the weights."""
    if args.device.type != "cuda":
        return None
    return "bfloat16" if args.bf16 else "float16" if args.fp16 else None
