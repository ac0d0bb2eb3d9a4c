"""What `repflow classify` may be asked for: which classifiers, of which labelled texts, how long; no torch.

A row is an architecture (`repflow.spec.architecture`). A model of seed s is tested on fold s modulo the number of
folds, and trained on all others: with as many seeds as folds every text is tested once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from repflow.core.errors import InputError, teach
from repflow.spec.architecture import parse_architecture
from repflow.spec.request import check_least
from repflow.studies.architecture.config import ENGLISH, RowNumbers, check_row
from repflow.studies.engine.parts import Length, Tokenizing, defaults, listed, option
from repflow.studies.laboratory.cell import Cell, axis
from repflow.studies.laboratory.config import LaboratoryConfig, Stacks, check_grid

POOLINGS = ("mean", "last")


@dataclass(frozen=True)
class ClassifyCell(Cell):
    """One classifier to train.

    Attributes:
        row: word of its architecture.
        layers: number of blocks.
        width: of the residual stream.
        rate: greatest learning rate.
        seed: of weights and of the texts' order; it names the fold that is tested.
    """

    example: ClassVar[str] = "mamba:2:64:0.001:0"

    row: str = axis("rows")
    layers: int = axis("layers")
    width: int = axis("widths")
    rate: float = axis("rates")
    seed: int = axis("seeds")


@dataclass
class LabelledSource:
    """Where texts with labels are."""

    labelled: str = option(
        ENGLISH, "texts with labels: FILE.jsonl (text, label), a folder with a folder per class, or english (built in)"
    )


@dataclass
@defaults(
    {
        "length": "tokens of a text, at most: its first ones",
        "tokenizer": "bytes, a folder or file, zoo:NAME or hub id; default bytes",
        "seeds": "seeds of weights; a seed names its test fold, so as many as folds test every text once",
        "cells": "these models alone: ROW:LAYERS:WIDTH:RATE:SEED, instead of all combinations",
    },
    length=256,
    rows=listed("architectures: mamba, mamba+leaky (whole texts sorted), transformer ...", ["mamba", "mamba+leaky"]),
    rates=listed("learning rates", ["0.001"]),
    seeds=listed("", ["0", "1", "2", "3", "4"]),
    steps=option(1000, "optimiser steps of each model"),
    batch=option(32, "texts of a step"),
    warmup=option(0.05, "share of the steps in which the rate rises; then a cosine"),
    flow_samples=option(0, "texts for flow, influence and memory of causal models; 0 for none"),
)
class ClassifyConfig(LabelledSource, RowNumbers, Stacks, Length, Tokenizing, LaboratoryConfig):
    """Which classifiers to train and how; the fields are the command line's options and the Result's `config`."""

    cell: ClassVar[type[Cell]] = ClassifyCell
    command_words: ClassVar[str] = "classify"

    folds: int = option(5, "parts of the texts, each the test of one seed in turn")
    pooling: str = option("mean", "what the class is read from: mean of the tokens, or last")


def check(config: ClassifyConfig) -> None:
    """Refuse what no classifier could be trained with; imports no torch."""
    check_least([("--length", config.length, 2), ("--folds", config.folds, 2), ("--chunk", config.chunk, 1)])
    if config.pooling not in POOLINGS:
        raise InputError(teach(f"a pooling of {' or '.join(POOLINGS)}", repr(config.pooling), "leave it out for mean"))
    if config.labelled != ENGLISH and not Path(config.labelled).expanduser().exists():
        got = f"{config.labelled}, which does not exist"
        raise InputError(teach("a file or folder of labelled texts", got, f"check the path, or pass {ENGLISH}"))
    for cell in check_grid(config):
        if cell.layers < 1 or cell.width < 1:
            raise InputError(teach("layers and width of at least 1", str(cell), "correct the cell"))
        row = parse_architecture(cell.row)
        check_row(row, config.length, config)
        beside = [*row.penalties, *({"frozen"} & row.parts)]
        if beside:
            remedy = "leave it out, or train language models by repflow architecture"
            raise InputError(teach("classifiers trained by their classes alone", f"+{beside[0]} in {cell.row}", remedy))
