"""What stands along an axis of a result: numbers where the run stored them, names of cells and steps, else counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.core.results import Result

WORDS = {"ssm_layer": "block", "dim": "channel"}
"""Axis → what a reader calls it, where that differs."""


def axis_values(result: Result, name: str, axis: str, count: int) -> list[Any]:
    """Places along an axis of a metric, as the run stored them, blocks from 1; 0, 1, 2 ... where it stored none."""
    prefix = name[: name.rfind("/") + 1]
    about = result.provenance
    probe = about.get("probe") or {}
    recency = about.get("recency") or {}
    branches = about.get("branch_layers")
    values_by_axis: dict[str, Any] = {
        "token": about.get("positions"),
        "threshold": about.get("thresholds"),
        "window": recency.get("windows"),
        "length": about.get("lengths"),
        "position": probe.get("sweep") or about.get("positions"),
        "ssm_layer": _blocks(about.get("ssm_layers")),
        "state": _blocks(branches),
        "layer": _blocks(range(count) if branches is None else branches[1:]),  # a step stands where it ends
        "step": about.get("steps"),
        "time": result.arrays.get(f"{prefix}t"),
        "moment": result.arrays.get(f"{prefix}moments"),
        "kind": about.get("kinds"),
    }
    values = values_by_axis.get(axis)
    if axis == "cell":
        values = cell_names(result)
    if axis == "row":
        values = row_names(result)
    if values is None or len(values) != count:
        return list(range(count))
    return list(np.asarray(values, dtype=object).tolist())


def _blocks(indices: Sequence[int] | None) -> list[int] | None:
    """Numbers of blocks as words count them."""
    return None if indices is None else [index + 1 for index in indices]


def axis_word(result: Result, axis: str) -> str:
    """What a reader calls an axis; what a block adds to the stream is not a state.

    >>> axis_word(Result({}, {}, {}, {"branch_layers": [0, 1]}), "state"), axis_word(Result({}, {}), "state")
    ('block', 'state')
    """
    branches = axis == "state" and result.provenance.get("branch_layers") is not None
    return "block" if branches else WORDS.get(axis, axis)


def cell_names(result: Result) -> list[str]:
    """What is its own of every cell of a grid."""
    own = [cell["config"] for cell in result.provenance.get("cells", [])]
    return [", ".join(str(value) for key, value in cell.items() if key != "match_with") for cell in own]


def row_names(result: Result) -> list[str] | None:
    """Lines of a comparison with printed values."""
    checks = result.provenance.get("checks")
    if checks:
        return [f"{check['statement']}: {check['setting']}" for check in checks]
    return None


def line_names(result: Result, name: str, axis: str, count: int) -> list[str]:
    """Names of the lines that an axis is drawn as."""
    values = axis_values(result, name, axis, count)
    if axis in ("cell", "step", "kind", "row"):
        return [str(value) for value in values]
    if axis == "position":
        return [f"at {value}" for value in values]
    return [f"{axis_word(result, axis)} {value}" for value in values]


def menu_names(result: Result, name: str, axes: Sequence[str], shape: Sequence[int]) -> list[str]:
    """One name for every place on some axes, as entries of a menu."""
    lists = [line_names(result, name, axis, count) for axis, count in zip(axes, shape, strict=True)]
    return [", ".join(lists[i][place] for i, place in enumerate(places)) for places in np.ndindex(*shape)]
