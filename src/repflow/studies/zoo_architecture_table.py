"""Tables of the study of what architecture decides: means over seeds with Student's 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repflow.errors import InputError, teach
from repflow.studies.zoo_variants import VARIANTS

T975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}
"""Student's 97.5 % quantile for so many seeds."""
TASKS = ("prose", "kvpr")
PLACE = "kvpr/256"
"""Task and length of the probes that the table shows."""


def interval(values: Sequence[float]) -> str:
    """Mean and half the width of its 95 % interval.

    >>> interval([0.10, 0.20, 0.30])
    '0.20 ± 0.25'
    >>> interval([0.5])
    '0.50'
    """
    known = np.asarray([value for value in values if value is not None and math.isfinite(value)], dtype=float)
    if not len(known):
        return "not measured"
    mean = f"{known.mean():.2f}"
    if len(known) not in T975:
        return mean
    return f"{mean} ± {T975[len(known)] * known.std(ddof=1) / math.sqrt(len(known)):.2f}"


def late_rise(similarity: Sequence[float]) -> float:
    """Similarity after the last block less that after the middle one; similarity by state, embedding first.

    >>> round(late_rise([0.1, 0.2, 0.3, 0.4, 0.7]), 2)
    0.4
    """
    return float(similarity[-1]) - float(similarity[len(similarity) // 2])


def homogenised(similarity: Sequence[float]) -> float:
    """Relative depth of the state whose tokens are most alike.

    >>> homogenised([0.1, 0.9, 0.3])
    0.5
    """
    return int(np.argmax(similarity)) / (len(similarity) - 1)


def table(folder: Path) -> str:
    """Flow of every variant, then retrieval and read-out, as Markdown."""
    from repflow.studies.zoo_architecture import read_cells

    cells = read_cells(folder)
    if not cells:
        raise InputError(teach(f"cells in {folder}", "none", "make them with `zoo_architecture run`"))
    return "\n\n".join([_flow_table(cells), _read_table(cells)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _of(cells: list[dict[str, Any]], variant: str) -> list[dict[str, Any]]:
    return [cell for cell in cells if cell["variant"] == variant]


def _similarity(cell: dict[str, Any], task: str, when: int) -> list[float]:
    found: list[float] = cell["record"]["flow"][when][task]["token_similarity"]
    return found


def _flow_table(cells: list[dict[str, Any]]) -> str:
    heads = ("variant", "changed", "seeds", "prompts", "first block", "middle", "last block", "late rise",
             "most alike at depth", "last block before training")  # fmt: skip
    lines = [_row(heads), "|" + "---|" * len(heads)]
    for variant in VARIANTS:
        mine = _of(cells, variant)
        for task in TASKS if mine else ():
            curves = [_similarity(cell, task, -1) for cell in mine]
            values = [
                [curve[1] for curve in curves],
                [curve[len(curve) // 2] for curve in curves],
                [curve[-1] for curve in curves],
                [late_rise(curve) for curve in curves],
                [homogenised(curve) for curve in curves],
                [_similarity(cell, task, 0)[-1] for cell in mine],
            ]
            shown = [interval(column) for column in values]
            lines.append(_row([variant, VARIANTS[variant].factor, str(len(mine)), task, *shown]))
    return "\n".join(lines)


def _read_table(cells: list[dict[str, Any]]) -> str:
    sets = sorted({name for cell in cells for name in cell["evaluation"]["retrieval"]})
    heads = ("variant", *sets, "prose, nats", "best probe of the answer", "at the last block",
             "best probe of the index", "at the last block")  # fmt: skip
    lines = [_row(heads), "|" + "---|" * len(heads)]
    for variant in VARIANTS:
        mine = _of(cells, variant)
        if not mine:
            continue
        shown = [interval([_share(cell, name) for cell in mine]) for name in sets]
        shown.append(interval([cell["evaluation"]["prose"]["nats_per_token"] for cell in mine]))
        probed = [cell["reading"]["probes"] for cell in mine if "reading" in cell]
        for label in ("answer", "index"):
            accuracies = [probes[f"{label}/{PLACE}"]["accuracy"] for probes in probed]
            shown += [interval([max(curve) for curve in accuracies]), interval([curve[-1] for curve in accuracies])]
        lines.append(_row([variant, *shown]))
    return "\n".join(lines)


def _share(cell: dict[str, Any], name: str) -> float:
    found = cell["evaluation"]["retrieval"][name]
    return float(found["exact"]) / float(found["of"])
