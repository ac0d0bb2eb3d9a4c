"""What the command line shows of a probe: accuracy by state, the read-out in words, several models side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.intervals import bracketed
from repflow.core.readout import ReadOut
from repflow.core.results import Result
from repflow.report.data.labels import label
from repflow.report.terminal.cell import ABSENT, number, thinned
from repflow.report.terminal.fitted import FittedTable

RECIPES = ("paper", "robust")


def view(result: Result) -> list[RenderableType]:
    """States, what can be said of the best one, controls, findings."""
    parts: list[RenderableType] = [_state_table(result), *map(Text, summary_lines(result))]
    parts += [Text.assemble((f"finding {f.code}: ", "yellow"), f.message) for f in result.findings]
    return parts


def _state_table(result: Result) -> FittedTable:
    about = result.provenance["probe"]
    count = len(result["probe_corrected"])
    rows = sorted({*thinned(count), about["peak"], about["last"]})
    read_out = ReadOut.of(result)
    title = f"{label(result)}: {read_out.label} on task {result.config['task']}, {read_out.classes} classes, "
    title += f"chance {read_out.chance:.3f}"
    columns = dict(_columns(result))
    final: dict[str, Any] = {}
    if "final_norm/probe_accuracy" in result:
        final = {"test": _band_cells(result, "final_norm/probe_accuracy")}
        final["corrected"] = result["final_norm/probe_corrected"]
        final["bits"] = result["final_norm/probe_information"]

    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(box=box.SIMPLE, title=Text(title), title_justify="left", caption_justify="left")
        for name in ("block" if read_out.blocks else "state", *names):
            table.add_column(name, justify="right", no_wrap=True)
        for state in rows:
            mark = "*" if state == read_out.peak else "=" if state in read_out.tied else ""
            table.add_row(f"{read_out.number(state)}{mark}", *(_cell(columns[name], state) for name in names))
        if final:
            table.add_row("norm", *(_cell(final[name], 0) if name in final else "" for name in names))
        table.caption = caption
        return table

    notes = [f"{len(rows)} of {count} states shown"] if len(rows) < count else []
    notes += ["* peak, chosen on validation", "= not distinguished from it"]
    notes += [interval_note(read_out)] if np.isfinite(result.band("probe_accuracy").low).any() else []
    notes += [str(read_out.counts)] if read_out.counts is not None else []
    return FittedTable(list(columns), 1, build, "; ".join(notes))


def interval_note(read_out: ReadOut) -> str:
    """What the brackets cover."""
    covers = read_out.counts is not None and read_out.counts.covers_refits
    return "[ ]: 95 % over prompts and refits" if covers else "[ ]: 95 % over test prompts alone"


def _columns(result: Result) -> list[tuple[str, Any]]:
    """Columns that the result has: lists of text or arrays (state,)."""
    columns: list[tuple[str, Any]] = [("test", _band_cells(result, "probe_accuracy"))]
    columns += [("valid", result["probe_valid_accuracy"].mean(1))]
    other = [r for r in RECIPES if f"probe/{r}/accuracy" in result and r != result.provenance["probe"]["recipe"]]
    columns += [(recipe, result[f"probe/{recipe}/accuracy"].mean(1)) for recipe in other]
    columns += [("corrected", result["probe_corrected"]), ("bits", result["probe_information"])]
    if "probe_selectivity" in result:
        columns.append(("selectivity", result["probe_selectivity"]))
    if "twin/probe_accuracy" in result:
        columns.append(("twin", result["twin/probe_accuracy"].mean(1)))
    if "lens_rank" in result:
        columns.append(("lens rank", [_rank(value) for value in _medians(result["lens_rank"])]))
    return columns


def _band_cells(result: Result, name: str, row: int | None = None) -> list[str]:
    """Values with their intervals; of one row where there are several."""
    band = result.band(name)
    parts = [part if row is None else part[row] for part in (band.mean, band.low, band.high)]
    return [
        f"{number(float(mean))}{bracketed(float(low), float(high))}" for mean, low, high in zip(*parts, strict=True)
    ]


def _medians(values: np.ndarray) -> list[float]:
    """Median of each row without its NaN; NaN where nothing else is left, as for states that are not finite."""
    return [float(np.median(row[np.isfinite(row)])) if np.isfinite(row).any() else float("nan") for row in values]


def _rank(value: float) -> str:
    """A median of whole ranks has at most one decimal, and that a half.

    >>> _rank(12.0), _rank(168.5)
    ('12', '168.5')
    """
    return f"{value:g}" if np.isfinite(value) and value < 1e5 else number(value, 0)


def _cell(values: Any, state: int) -> str:
    value = values[state]
    return value if isinstance(value, str) else number(float(value))


def summary_lines(result: Result) -> list[str]:
    """The read-out in words; recipe and peak were chosen on validation, the numbers are from test prompts."""
    about, read_out = result.provenance["probe"], ReadOut.of(result)
    if not read_out.probed:
        return [f"{read_out.statement}", *_beside(result)]
    nothing = np.isfinite(read_out.accuracy.low) and not read_out.decodable
    lines = ["nothing is shown to be decodable: the accuracy at the peak is not above chance"] if nothing else []
    chosen = f"recipe {about['recipe']}, {read_out.chosen}, chosen on validation"
    last = f"last {'block' if read_out.blocks else 'state'} {number(read_out.last_accuracy)}"
    lines.append(f"{chosen}: test accuracy {read_out.accuracy.value:.3f}, {last}")
    lines.append(f"{read_out.statement}{read_out.beside}")
    alike = [str(read_out.number(state)) for state in read_out.tied if state != read_out.peak]
    if alike:
        lines.append(f"not distinguished from the peak: {'blocks' if read_out.blocks else 'states'} {', '.join(alike)}")
    if "probe_capacity" in result:
        lines.append(f"training accuracy on shuffled labels at the peak: {result['probe_capacity'][read_out.peak]:.3f}")
    return [*lines, *_beside(result)]


def _beside(result: Result) -> list[str]:
    """What the model itself answers, and the best of the other positions."""
    about, lines = result.provenance["probe"], []
    if "answer_correct" in result:
        values = result["answer_correct"]
        count = int(np.isfinite(values).sum())
        lines.append(f"greedy answers that hold the right one: {int(np.nansum(values))} of {count}")
    if "sweep/probe_peak_accuracy" in result:
        cells = _band_cells(result, "sweep/probe_peak_accuracy")
        read_out = ReadOut.of(result)
        states = [sorted({read_out.number(peak) for peak in peaks}) for peaks in about["sweep_peaks"]]
        where = [f"{'block' if read_out.blocks else 'state'} {'/'.join(map(str, mine))}" for mine in states]
        parts = zip(about["sweep"], where, cells, strict=True)
        text = ", ".join(f"{at} ({state}): {cell}" for at, state, cell in parts)
        lines.append(f"test accuracy at other positions, of the state that validation chose there: {text}")
    return lines


def side_by_side(results: Sequence[Result]) -> FittedTable:
    """Several models: accuracy at the peak and at the last state, with class count and chance."""
    rows = [_comparison_row(result) for result in results]

    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(
            box=box.SIMPLE, title="Probes side by side", min_width=60, caption=caption, caption_justify="left"
        )
        for name in names:
            model = name == "model"
            table.add_column(name, justify="left" if model else "right", no_wrap=not model, overflow="fold")
        for row in rows:
            table.add_row(*(Text(row[name]) for name in names))
        return table

    return FittedTable(list(rows[0]), 1, build, comparison_note(results), folds=("model",))


def _comparison_row(result: Result) -> dict[str, str]:
    """Cells by heading, in the order in which they matter."""
    about, read_out = result.provenance["probe"], ReadOut.of(result)
    counts = read_out.counts
    answers = number(float(np.nanmean(result["answer_correct"]))) if "answer_correct" in result else ABSENT
    return {
        "model": label(result),
        "at peak": number(about["peak_accuracy"]),
        "last": number(about["last_accuracy"]),
        "drop": read_out.loss.text(".3f", 1.0) if read_out.last_probed else ABSENT,
        "peak": str(read_out.number(read_out.peak)),
        "depth": f"{100 * read_out.number(read_out.peak) / max(read_out.number(read_out.last), 1):.0f} %",
        "train/test": ABSENT if counts is None else f"{counts.train}/{counts.test} x{counts.seeds}",
        "chance": number(about["chance"]),
        "classes": str(about["classes"]),
        "corrected": number(float(result["probe_corrected"][about["peak"]])),
        "answers": answers,
    }


def comparison_note(results: Sequence[Result]) -> str:
    """What the reader must know to compare these accuracies."""
    if len({result.provenance["probe"]["classes"] for result in results}) > 1:
        return "The class counts differ, so compare corrected accuracies only, or pass --match text."
    if len({result.provenance["digests"]["prompts"] for result in results}) > 1:
        return "The token sequences differ (other tokenizers); class counts are equal."
    return "All models read the same token sequences."
