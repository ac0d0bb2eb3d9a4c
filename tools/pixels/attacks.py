"""Attacks of runs that do not all attack at the same regions, read by region and not by place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RATES = ("success", "random_pair")
"""By target and region."""


def joined(runs: Sequence[tuple[Sequence[str], Sequence[Mapping[str, Any]]]]) -> tuple[list[str], list[dict[str, Any]]]:
    """Regions of several runs, each once, and their models with the rates of all of them, None for those not attacked.

    Args:
        runs: attack regions and models of each.

    >>> regions, models = joined([(["0:2"], [{"success": [[0.5]]}]), (["6:8", "0:2"], [{"success": [[0.1, 0.2]]}])])
    >>> regions, [model["success"] for model in models]
    (['0:2', '6:8'], [[[0.5, None]], [[0.2, 0.1]]])
    """
    regions = list(dict.fromkeys(region for own, _ in runs for region in own))
    return regions, [by_region(cell, own, regions) for own, cells in runs for cell in cells]


def by_region(cell: Mapping[str, Any], own: Sequence[str], regions: Sequence[str]) -> dict[str, Any]:
    """A model with its rates at some regions.

    Args:
        cell: the model.
        own: regions that it was attacked at, in the order of its rates.
        regions: wanted ones.
    """
    places = [list(own).index(region) if region in own else None for region in regions]
    rates = {
        name: [[None if place is None else row[place] for place in places] for row in cell[name]]
        for name in RATES
        if name in cell
    }
    return {**cell, **rates}
