"""Tables of a comparison: which state of B each state of A is most like, or how checkpoints approach the last one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.results import Result
from repflow.report.terminal.cell import ABSENT, number, thinned
from repflow.report.terminal.fitted import FittedTable

CHANCE_SD = 3
"""A CKA this many standard deviations of its permutation null above its mean counts as above chance."""
MARK = "°"
STEP_DEPTHS = (0, 50, 100)


def view(result: Result) -> list[RenderableType]:
    """What the command line shows of a comparison, findings below."""
    table = _step_table(result) if "cka_to_last" in result else _pair_table(result)
    return [table, *(Text.assemble((f"finding {f.code}: ", "yellow"), f.message) for f in result.findings)]


def _pair_table(result: Result) -> FittedTable:
    cka, above = result["cka_cross_pooled"], above_chance(result, "cka_cross_pooled")
    shared = result.mean("neighbours_cross")
    names = [result.provenance["models"][side] for side in ("a", "b")]
    title = f"A = {_label(names[0])}, B = {_label(names[1])} on task {result.config['task']}"
    headings = ["state of A", "depth", "most alike in B", "CKA", "B at equal depth", "CKA", "shared neighbours"]
    rows = []
    for state in thinned(len(cka)):
        best, level = best_match(cka[state]), equal_depth(state, *cka.shape)
        rows.append(
            [
                str(state),
                f"{_share(state, len(cka)):.0%}",
                ABSENT if best is None else str(best),
                ABSENT if best is None else _marked(cka[state, best], above[state, best]),
                str(level),
                _marked(cka[state, level], above[state, level]),
                number(shared[state, level]),
            ]
        )
    return _fitted(title, headings, rows, _pair_caption(result, thinned(len(cka))))


def _fitted(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> FittedTable:
    """Cells in the order of the headings; headings may repeat, so cells are found by their place."""

    def build(names: Sequence[str], below: Text) -> Table:
        table = Table(box=box.SIMPLE, title=Text(title), title_justify="left", caption=below, caption_justify="left")
        for name in names:
            step = name == "step"
            table.add_column(name, justify="left" if step else "right", no_wrap=not step, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row[: len(names)]))
        return table

    return FittedTable(headings, 1, build, caption, folds=("step",))


def _pair_caption(result: Result, rows: list[int]) -> str:
    shares = result["kept_share"]
    share = f"{shares.mean():.0%}" + (
        f" ({shares.min():.0%} to {shares.max():.0%})" if shares.min() < shares.max() else ""
    )
    by = " or ".join(result.provenance["matched_by"])
    states = len(result["cka_cross_pooled"])
    notes = [
        f"{len(rows)} of {states} states shown" if len(rows) < states else "",
        f"kept share: {share} of the tokens, matched by {by}",
        f"CKA {result.config['cka_form']}, n/d = {number(float(result['cka_rows_per_width'].mean()), 2)};"
        f" {MARK} within {CHANCE_SD} null sd of chance, so not above it",
        f"shared neighbours at equal depth, k = {result.config['neighbours']}, mean over A's states"
        f" {number(_mean_at_equal_depth(result))}, chance {number(float(result['neighbours_chance'].mean()))}",
    ]
    return "\n".join(note for note in notes if note)


def above_chance(result: Result, name: str) -> np.ndarray:
    """Where a CKA lies over its permutation null's mean by more than `CHANCE_SD` standard deviations."""
    return result[name] - result[f"{name}_null_mean"] > CHANCE_SD * result[f"{name}_null_sd"]


def best_match(row: np.ndarray) -> int | None:
    """State of B with the highest CKA, None where all are NaN."""
    return None if np.isnan(row).all() else int(np.nanargmax(row))


def equal_depth(state: int, states_a: int, states_b: int) -> int:
    """State of B at the relative depth of a state of A.

    >>> [equal_depth(s, 5, 9) for s in range(5)]
    [0, 2, 4, 6, 8]
    """
    return round(_share(state, states_a) * (states_b - 1))


def _share(state: int, states: int) -> float:
    return state / max(states - 1, 1)


def _mean_at_equal_depth(result: Result) -> float:
    shared = result.mean("neighbours_cross")
    values = np.array([shared[s, equal_depth(s, *shared.shape)] for s in range(len(shared))])
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _label(facts: dict[str, str]) -> str:
    return facts["name"] if facts["init"] == "trained" else f"{facts['name']} ({facts['init']})"


def _marked(value: float, above: np.bool_) -> str:
    return number(value) + ("" if above or not np.isfinite(value) else MARK)


def _step_table(result: Result) -> FittedTable:
    labels = result.provenance["steps"]
    cka, above = result["cka_to_last_pooled"], above_chance(result, "cka_to_last_pooled")
    similarity = result.mean("token_similarity") if "token_similarity" in result else None
    states = cka.shape[1]
    at = [round(depth / 100 * (states - 1)) for depth in STEP_DEPTHS]
    title = f"{result.provenance['model']['name']}: {len(labels)} checkpoints on task {result.config['task']}"
    headings = ["step", *(f"{what} {depth} %" for what in ("similarity", "CKA to last") for depth in STEP_DEPTHS)]
    rows = []
    for step in thinned(len(labels)):
        row = [ABSENT if similarity is None else number(similarity[step, state]) for state in at]
        row += [_marked(cka[step, state], above[step, state]) for state in at]
        for name in ("smoothness", "stability"):
            row.append(number(float(result.mean(name)[step]), 4) if name in result else ABSENT)
        rows.append([labels[step], *row])
    count_text = f"{len(rows)} of {len(labels)} checkpoints shown; " if len(rows) < len(labels) else ""
    caption = f"{count_text}similarity and CKA at relative depth; {MARK} within {CHANCE_SD} null sd of chance"
    return _fitted(title, [*headings, "Sm", "St"], rows, caption)
