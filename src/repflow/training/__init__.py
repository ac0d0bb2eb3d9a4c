"""Training: one resumable loop for stacks and transformers models, with its batches, losses, schedules and callbacks.

>>> import torch
>>> from repflow.models import StackConfig, StackForCausalLM
>>> ids = torch.arange(12).repeat(8, 1)
>>> network = StackForCausalLM(StackConfig("s6", hidden_size=8, vocab_size=12))
>>> run = train(network, RowBatches(Batch(ids), 4), TrainingConfig(steps=3, device="cpu"))
>>> run.steps, run.history["loss"].shape
(3, (3,))
"""

from repflow.training.ahead import ahead
from repflow.training.batch import Batch, BatchSource, DrawnBatches, RowBatches, step_seed
from repflow.training.callback import Callback, Moment, undisturbed
from repflow.training.config import TrainingConfig
from repflow.training.evaluation import HeldOut
from repflow.training.loop import train
from repflow.training.losses import CrossEntropy, Loss
from repflow.training.optimiser import OptimiserConfig
from repflow.training.recipe import RECIPES, paper_config
from repflow.training.run import TrainingRun
from repflow.training.schedule import Schedule

__all__ = [
    "RECIPES",
    "Batch",
    "BatchSource",
    "Callback",
    "CrossEntropy",
    "DrawnBatches",
    "HeldOut",
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
