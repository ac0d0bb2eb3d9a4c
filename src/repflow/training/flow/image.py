"""A heat map of one metric, depth upwards and steps to the right, as an image for loggers that take one."""

from __future__ import annotations

import numpy as np

from repflow.core.results import Result

FIRST = "token_similarity"
SCALE = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Colours from the lowest to the highest value, equally spaced between them: viridis at its quarters."""
GREY = (128, 128, 128)
"""What is not finite."""
SIDE, STEPS = 240, 480
"""Pixels of an image's sides, at least, and steps of one, at most."""


def mapped_metric(result: Result) -> str | None:
    """The metric that an image shows: token similarity, else the first by state or layer; None where there is none."""
    deep = [name for name, axes in result.axes.items() if {"state", "layer"} & set(axes)]
    return FIRST if FIRST in deep else next(iter(deep), None)


def heat_map(result: Result, name: str, span: tuple[float, float] | None = None) -> np.ndarray:
    """Image (row, column, colour) of bytes, the last state on top.

    Args:
        result: of a meter.
        name: a metric by state or layer.
        span: values of the lowest and highest colour; by default the least and greatest that occur.

    >>> result = Result({"m": np.array([[0.0, 1.0]])}, {"m": ("step", "state")})
    >>> image = heat_map(result, "m")
    >>> image.shape, image[0, 0].tolist(), image[-1, 0].tolist()
    ((240, 240, 3), [253, 231, 37], [68, 1, 84])
    """
    values = np.asarray(result.mean(name), dtype=np.float64)
    values = values.reshape(len(values), values.shape[1], -1).mean(-1)
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), STEPS)).round().astype(int))
    grid = values[chosen].T[::-1]
    finite = grid[np.isfinite(grid)]
    low, high = span if span is not None else (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
    share = np.clip((grid - low) / (high - low if high > low else 1.0), 0, 1)
    quarters = np.linspace(0, 1, len(SCALE))
    colours = np.stack([np.interp(np.nan_to_num(share), quarters, [c[i] for c in SCALE]) for i in range(3)], -1)
    colours[~np.isfinite(grid)] = GREY
    rows, columns = (max(1, -(-SIDE // size)) for size in grid.shape)
    return np.asarray(np.repeat(np.repeat(colours.round().astype(np.uint8), rows, 0), columns, 1))
