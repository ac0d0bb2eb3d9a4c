"""What every laboratory may be asked for: which models of a grid, how long, how many side by side; no torch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

from repflow.core.errors import InputError, teach
from repflow.spec.request import check_device, check_least
from repflow.studies.engine.naming import Names, option_tag
from repflow.studies.engine.parts import Device, FlowSamples, defaults, listed, option, words
from repflow.studies.laboratory.cell import Cell

HOW = ("seconds", "checkpoint", "keep_models")
"""Options that may change between a run and its resumption."""


@dataclass
class Grid:
    """Which models: all combinations of what is listed, or cells by name."""

    rates: list[str] = listed("learning rates", ["0.002"])
    seeds: list[str] = listed("seeds of weights and rows", ["0"])
    cells: list[str] = listed("these models alone, as --dry-run prints them, instead of all combinations")


@dataclass
class Stacks:
    """Stacks of a grid: what a row is, the laboratory says."""

    rows: list[str] = listed("models, each by a word")
    layers: list[str] = listed("numbers of blocks, repeated or comma separated", ["2"])
    widths: list[str] = listed("widths of the residual stream", ["64"])


@dataclass
class Optimisation:
    """How each model is trained."""

    steps: int = option(20_000, "optimiser steps of each model")
    batch: int = option(128, "rows of a step")
    decay: float = option(0.1, "weight decay of matrices and embeddings")
    clip: float = option(1.0, "greatest norm of a gradient; 0 for no clipping")
    warmup: float = option(0.0, "share of the steps in which the rate rises; then a cosine to 0")


@dataclass
class Bench:
    """How many models at once, for how long, and what stays."""

    together: int = option(16, "models of one shape that are trained side by side, at most")
    memory: float | None = option(None, "GB of the device that models side by side may take: fewer at once if need be")
    seconds: float | None = option(None, "stop after this time; the same command resumes")
    checkpoint: int = option(2000, "steps between checkpoints")
    keep_models: bool = option(False, "keep each trained model as a folder that every command takes as MODEL")


@dataclass
@defaults(flow_samples=option(8, "prompts for flow, influence and memory of each trained model; 0 for none"))
class LaboratoryConfig(Bench, Optimisation, Grid, FlowSamples, Device):
    """A grid of models and how they are trained; a laboratory adds its own axes, data and tests.

    Attributes:
        cell: the laboratory's kind of cell.
        command_words: of the command line.
        separated: lists beside those of the grid whose entries may be separated by commas.
    """

    cell: ClassVar[type[Cell]]
    command_words: ClassVar[str]
    separated: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Lists in one form, so that the same request makes the same run."""
        for name in (*self.swept(), "cells", *self.separated):
            setattr(self, name, words(getattr(self, name)))

    @classmethod
    def swept(cls) -> tuple[str, ...]:
        """Options whose combinations make the grid, the last one fastest."""
        return cls.cell.order or tuple(cls.cell.options().values())

    def grid(self) -> list[Any]:
        """All models, in order."""
        if self.cells:
            return [self.cell.parse(word) for word in self.cells]
        fields = {name: field for field, name in self.cell.options().items()}
        kinds, swept = self.cell.kinds(), self.swept()
        product = itertools.product(*(self.listed(name, kinds[fields[name]]) for name in swept))
        return [self.cell(**{fields[name]: value for name, value in zip(swept, row, strict=True)}) for row in product]

    def listed(self, name: str, kind: type = str) -> list[Any]:
        """Values of an option that lists some; numbers are different ones of at least 0."""
        entries = getattr(self, name)
        return list(entries) if kind is str else numbers(name, entries, kind)

    def command(self, *cells: Cell) -> str:
        """What trains some models again."""
        plain, parts = type(self)(), [f"repflow {self.command_words}", f"--cells {','.join(map(str, cells))}"]
        for name, field in self.__dataclass_fields__.items():
            value = getattr(self, name, None)
            if name in (*self.swept(), *HOW, "cells", "device") or value == getattr(plain, name, None):
                continue
            word = field.metadata.get("flag", f"--{name.replace('_', '-')}")
            if isinstance(value, bool):
                parts.append(word)
            else:
                parts.append(f"{word} {_quoted(','.join(value) if isinstance(value, list) else str(value))}")
        return " ".join(parts)


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def numbers(name: str, entries: list[str], kind: type) -> list[Any]:
    """Numbers of an option that lists them.

    >>> numbers("layers", ["2", "4"], int)
    [2, 4]
    """
    try:
        values = [kind(word) for word in entries]
    except ValueError:
        got = ",".join(entries)
        raise InputError(teach(f"numbers in --{name}", repr(got), "write such as 2,4")) from None
    if not values or len(set(values)) < len(values) or not all(value >= 0 for value in values):
        remedy = "name each once" if len(set(values)) < len(values) else "correct it"
        raise InputError(teach(f"different numbers of at least 0 in --{name}", f"{values}", remedy))
    return values


def check_grid(config: LaboratoryConfig) -> list[Any]:
    """Refuse what no model could be trained with; gives the cells."""
    least = {"steps": 1, "batch": 1, "flow_samples": 0, "together": 1, "checkpoint": 1}
    check_least([(f"--{name.replace('_', '-')}", getattr(config, name), low) for name, low in least.items()])
    for name, low, high in (("decay", 0, 1e9), ("clip", 0, 1e9), ("warmup", 0, 1)):
        if not low <= getattr(config, name) <= high:
            remedy = f"see repflow {config.command_words} --help"
            bounds = f"from {low} to {high:g}"
            raise InputError(teach(f"--{name} {bounds}", f"{getattr(config, name)}", remedy))
    for name in ("seconds", "memory"):
        value = getattr(config, name)
        if value is not None and not 0 <= value < float("inf"):
            raise InputError(teach(f"--{name} of at least 0", f"{value}", "leave it out for no bound"))
    if config.device is not None:
        check_device(config.device)
    cells = config.grid()
    if not cells or len(set(cells)) < len(cells):
        raise InputError(teach("different models", f"{len(cells)}, some alike", "name each row, rate and seed once"))
    for cell in cells:
        if not 0 < cell.rate < 10 or cell.seed < 0:
            raise InputError(teach("a rate above 0 and below 10, and a seed of at least 0", str(cell), "correct it"))
    return cells


def grid_names(config: LaboratoryConfig) -> Names:
    """Number of models and steps, then eight digits for everything else."""
    from repflow.store import safe_name

    tag, count = option_tag(config, ()), len(config.grid())
    name = safe_name("-".join(filter(None, [config.command_words, f"{count}x{config.steps}-steps", tag])))
    return Names(name, name, name)
