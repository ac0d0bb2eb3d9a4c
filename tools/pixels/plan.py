"""What the phases of the pixel laboratory cost on a GPU, from the rates that benchmarks/pixels.py measured there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from repflow.spec.corruption import parse_regions
from repflow.studies.pixels.config import PixelCell, PixelsConfig, parse_row
from repflow.studies.pixels.study import READINGS, STUDY, image_kind, kinds_of

TEST_IMAGES = 10_000
"""Of CIFAR-10, which are read once as they are."""
MILLION = 1e6


class Cost(NamedTuple):
    """Models of one row in a phase: how many, tokens that they are trained on and read, and seconds of each.

    Seconds are None where the row was not measured.
    """

    row: str
    models: int
    trained: float
    read: float
    training: float | None
    reading: float | None


def read_tokens(config: PixelsConfig) -> float:
    """Tokens that one trained model reads: test images as they are, on the way, with regions replaced, and attacks."""
    shape = image_kind(config).shape
    tokens = config.layout("row").tokens(shape)
    replaced = len(parse_regions(config.regions, tokens)) * len(kinds_of(config)) * config.draws
    aimed = len(config.attacked(tokens)) * 2 * config.draws
    targets = image_kind(config).classes if config.targets == ["all"] else len(config.targets)
    passes = replaced + aimed * targets + 1 + READINGS + 1
    return float(tokens) * (config.test_images * passes + TEST_IMAGES)


def costs(config: PixelsConfig, speed: Sequence[Mapping[str, Any]]) -> list[Cost]:
    """Costs of a phase, row by row; each takes the rate of the measurement with the most similar number of models."""
    by_row: dict[str, list[PixelCell]] = {}
    for cell in config.grid():
        by_row.setdefault(cell.row, []).append(cell)
    added = []
    for row, cells in by_row.items():
        trained = config.steps * sum(STUDY.step_tokens(cell, config) for cell in cells)
        read = len(cells) * read_tokens(config)
        known = [one for one in speed if _alike(one, cells[0]) and "failed" not in one]
        nearest = min(known, key=lambda one: abs(one["models"] - len(cells)), default=None)
        seconds: list[float | None] = [None, None]
        if nearest is not None:
            rates = (nearest["million_tokens_per_second"], nearest["million_tokens_read_per_second"])
            seconds = [tokens / (MILLION * rate) for tokens, rate in zip((trained, read), rates, strict=True)]
        added.append(Cost(row, len(cells), trained, read, *seconds))
    return added


def _alike(measured: Mapping[str, Any], cell: PixelCell) -> bool:
    """Whether a measurement is of a cell's row and size; dropout, mirrors and the class token's place cost nothing."""
    free = {"dropout", "inside", "mirror", "first", "middle"}
    mine, other = parse_row(cell.row), parse_row(measured["row"])
    sizes = (measured["layers"], measured["width"]) == (cell.layers, cell.width)
    return sizes and (mine.model, mine.state, mine.parts - free) == (other.model, other.state, other.parts - free)


def lines(phase: str, parts: Sequence[Cost], epochs: float) -> list[str]:
    """For a reader."""
    shown = []
    for cost in parts:
        times = "not measured"
        if cost.training is not None and cost.reading is not None:
            times = f"{cost.training:.0f} s training, {cost.reading:.0f} s reading"
        size = f"{cost.trained / 1e9:.2f} billion tokens trained, {cost.read / 1e9:.2f} read"
        shown.append(f"{phase}, {epochs:g} epochs: {cost.models} × {cost.row}: {size}; {times}")
    known = [cost for cost in parts if cost.training is not None and cost.reading is not None]
    total = sum((cost.training or 0.0) + (cost.reading or 0.0) for cost in known)
    shown.append(f"{phase}: {total:.0f} s for {len(known)} of {len(parts)} rows, one after another")
    return shown


def epochs_in(parts: Sequence[Cost], epochs: float, seconds: float) -> float | None:
    """Epochs of a phase that fit into a time, beside its reading; None where some row was not measured.

    >>> epochs_in([Cost("mamba", 9, 1e9, 1e8, 200.0, 50.0)], 10, 450)
    20.0
    """
    if any(cost.training is None or cost.reading is None for cost in parts):
        return None
    training = sum(cost.training or 0.0 for cost in parts)
    return max(0.0, epochs * (seconds - sum(cost.reading or 0.0 for cost in parts)) / training)
