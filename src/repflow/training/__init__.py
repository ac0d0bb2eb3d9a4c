"""Training: one resumable loop for stacks and transformers models, with its batches, losses, schedules and callbacks.

>>> import torch
>>> from repflow.models import StackConfig, StackForCausalLM
>>> ids = torch.arange(12).repeat(8, 1)
>>> network = StackForCausalLM(StackConfig("s6", hidden_size=8, vocab_size=12))
>>> run = train(network, RowBatches(Batch(ids), 4), TrainingConfig(steps=3, device="cpu"))
>>> run.steps, run.history["loss"].shape
(3, (3,))
"""

import importlib
from typing import TYPE_CHECKING, Any

from repflow.training.ahead import ahead
from repflow.training.batch import Batch, BatchSource, DrawnBatches, RowBatches, step_seed
from repflow.training.callback import Callback, Moment, undisturbed
from repflow.training.config import TrainingConfig
from repflow.training.evaluation import HeldOut
from repflow.training.flow.meter import FlowMeter
from repflow.training.loop import train
from repflow.training.losses import CrossEntropy, Loss
from repflow.training.optimiser import OptimiserConfig
from repflow.training.recipe import RECIPES, paper_config
from repflow.training.run import TrainingRun
from repflow.training.schedule import Schedule

if TYPE_CHECKING:
    from repflow.training.flow.lightning import LightningFlowCallback
    from repflow.training.flow.trainer import FlowCallback

__all__ = [
    "RECIPES",
    "Batch",
    "BatchSource",
    "Callback",
    "CrossEntropy",
    "DrawnBatches",
    "FlowCallback",
    "FlowMeter",
    "HeldOut",
    "LightningFlowCallback",
    "Loss",
    "Moment",
    "OptimiserConfig",
    "RowBatches",
    "Schedule",
    "TrainingConfig",
    "TrainingRun",
    "ahead",
    "paper_config",
    "step_seed",
    "train",
    "undisturbed",
]

_LATER = {"FlowCallback": "trainer", "LightningFlowCallback": "lightning"}
"""Callbacks of other libraries, which are imported when they are asked for: Lightning is an extra."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.flow.{_LATER[name]}"), name)
