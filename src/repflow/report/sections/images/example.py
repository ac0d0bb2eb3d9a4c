"""Images before and after: a panel for each way in which a region is replaced, in the image's own colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.report.data.model import Figure, Variant
from repflow.report.data.runs import StoredRun, called
from repflow.report.draw.number import plain


def example_figure(number: int, runs: Sequence[StoredRun], *, part: str, ways: Sequence[str], caption: str) -> Figure:
    """The example images of a run.

    Args:
        number: of the run, whose result has `examples` (kind, sample, row, column, channel), the first as it is.
        runs: all of this part of the page: a name is said where there are several.
        part: of the page, in the figure's id.
        ways: what each further kind is called.
        caption: which images, and what is replaced.
    """
    run, names = runs[number], ["as it is", *ways]
    shown = run.result["examples"]
    return Figure(
        f"{part}-examples-{number + 1}",
        f"Images before and after{f', {called(run, runs)}' if len(runs) > 1 else ''}",
        caption,
        "An image as it is, and with its last region replaced in every way.",
        [_example(shown[:, sample], names, sample) for sample in range(shown.shape[1])],
        models_toggle=False,
    )


def _example(shown: np.ndarray, names: Sequence[str], sample: int) -> Variant:
    """A panel for each way (replacement, row, column, channel); the table has brightness."""
    traces: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    columns = -(-len(names) // 2)
    layout: dict[str, Any] = {"grid": {"rows": 2, "columns": columns, "pattern": "independent"}, "annotations": notes}
    for place, name in enumerate(names):
        axis = "" if place == 0 else str(place + 1)
        colours = np.broadcast_to(shown[place], (*shown.shape[1:3], 3))  # grey ones have one channel
        traces.append({"type": "image", "z": colours.tolist(), "xaxis": f"x{axis}", "yaxis": f"y{axis}", "name": name})
        hidden = {"showticklabels": False, "ticks": "", "showgrid": False, "showline": False}
        layout[f"xaxis{axis}"], layout[f"yaxis{axis}"] = hidden, {**hidden, "autorange": "reversed"}
        where = {"xref": f"x{axis} domain", "yref": f"y{axis} domain", "x": 0.5, "y": 1.12, "showarrow": False}
        notes.append({"text": name, **where})
    rows = [[name, *plain(row, 4)] for place, name in enumerate(names) for row in shown[place].mean(-1)]
    head = ["replacement", *(f"column {number}" for number in range(shown.shape[2]))]
    reading = f"Test image {sample + 1} as it is, and with a region replaced in {len(names) - 1} ways."
    return Variant({"image": str(sample + 1)}, traces, layout, head, rows, reading=reading)
