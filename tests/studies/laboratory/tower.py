"""A laboratory for the tests: towers of any blocks that learn the class of a sequence of levels, or the next token."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from repflow.models.stack.config import StackConfig
from repflow.models.stack.network import StackForCausalLM, StackForSequenceClassification
from repflow.studies.engine.parts import listed, option
from repflow.studies.laboratory.cell import Cell, axis
from repflow.studies.laboratory.config import LaboratoryConfig
from repflow.studies.laboratory.evaluation import loss_by_position, right_answers
from repflow.studies.laboratory.study import Laboratory
from repflow.training import Batch, CrossEntropy, DrawnBatches
from repflow.training.losses import Penalised, TokenDiversity

TOKENS = 8


@dataclass(frozen=True)
class TowerCell(Cell):
    example: ClassVar[str] = "language:s6:none:0.01:0"
    task: str = axis("tasks")
    blocks: str = axis("blocks")
    remedy: str = axis("remedies")
    rate: float = axis("rates")
    seed: int = axis("seeds")


@dataclass
class TowerConfig(LaboratoryConfig):
    cell: ClassVar = TowerCell
    command_words: ClassVar[str] = "tower"
    tasks: list[str] = listed("language, classes", ["language"])
    blocks: list[str] = listed("mixers of all blocks with + between them", ["s6+s6"])
    remedies: list[str] = listed("none, diversity", ["none"])
    points: int = option(0, "steps between readings on the way")


class Tower(Laboratory[TowerConfig]):
    name = "recall"  # a row of the table that it borrows
    config = TowerConfig
    tested: ClassVar = {"loss_by_position": ("position",), "class_accuracy": ()}

    def network(self, cell, config):
        mixers = cell.blocks.split("+")
        if cell.task == "classes":
            frame = {"class_token": "end", "bidirectional": True, "norm": "layer", "num_labels": 2}
            return StackForSequenceClassification(StackConfig(mixers, hidden_size=8, input_channels=1, **frame))
        return StackForCausalLM(StackConfig(mixers, hidden_size=8, vocab_size=6))

    def source(self, cell, config, device):
        draw = classes if cell.task == "classes" else tokens
        return DrawnBatches(lambda generator: draw(generator, config.batch), seed=cell.seed, device=device)

    def loss(self, cell, config):
        plain = CrossEntropy(accuracy=True)
        return Penalised([TokenDiversity(0.1)], loss=plain) if cell.remedy == "diversity" else plain

    def step_tokens(self, cell, config):
        return config.batch * TOKENS

    def evaluate(self, network, cell, config):
        generator = torch.Generator().manual_seed(9)
        if cell.task == "classes":
            rows = classes(generator, 16)
            return {"class_accuracy": right_answers(network, rows.inputs, rows.targets).mean()}
        return {"loss_by_position": loss_by_position(network, tokens(generator, 16).inputs, rows=5)}

    def watched(self, config):
        return list(range(0, config.steps, config.points)) if config.points else ()

    def watch(self, network, cell, config):
        return {"first_weight": float(next(network.parameters()).flatten()[0])}


def tokens(generator, rows):
    """Each token is the one before it plus 1 or 2, of six."""
    steps = torch.randint(1, 3, (rows, TOKENS), generator=generator)
    return Batch(steps.cumsum(1) % 6)


def classes(generator, rows):
    """Class 1 rises, class 0 falls."""
    labels = torch.randint(0, 2, (rows,), generator=generator)
    slope = torch.linspace(-1, 1, TOKENS) * (2 * labels[:, None] - 1)
    return Batch((slope + 0.1 * torch.randn(rows, TOKENS, generator=generator))[..., None], labels)


STUDY = Tower()


def tower(**more):
    return TowerConfig(**{"steps": 6, "batch": 4, "rates": ["0.01"], "flow_samples": 0, "device": "cpu", **more})


def same(first, second):
    return all(np.array_equal(first[name], second[name], equal_nan=True) for name in first)
