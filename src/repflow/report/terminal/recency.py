"""Tables of influence by distance: one model, its twin, its depths, and the ratio of two models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.catalogue import EXPONENTIAL_R2, is_exponential
from repflow.core.intervals import LEAST_VALUES, NO_INTERVAL, student_quantile
from repflow.core.results import Result
from repflow.report.terminal.cell import ABSENT, number, thinned
from repflow.report.terminal.fitted import FittedTable
from repflow.report.terminal.paper_figure import figure_view

DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
RATIO, FIGURE = "recency-ratio", "recency-figure"
PROBES = "± probes"
ANSWER = "influence"
"""The finding that answers the question; it is printed first."""
HALF_LIFE = f"half-life where the decay is exponential (R² from {EXPONENTIAL_R2}, no power law better)"
STATES = 9
"""States in the table of depths."""


def view(result: Result) -> list[RenderableType]:
    """What the command line shows of one model: the curve, what is read from it, depths, findings.

    Of a ratio of two models, and of a figure of paper 2, their own tables.
    """
    if result.config.get("study") == RATIO:
        return [ratio_table([result])]
    if result.config.get("study") == FIGURE:
        return figure_view(result)
    answers, rest = ([f for f in result.findings if (f.code == ANSWER) == first] for first in (True, False))
    name, task = result.provenance["model"]["name"], result.config["task"]
    parts: list[RenderableType] = [Text(f"{name} on task {task}: {finding.message}") for finding in answers]
    parts += [curve_table(result), summary_table(result), depth_table(result)]
    return parts + [Text.assemble((f"finding {finding.code}: ", "yellow"), finding.message) for finding in rest]


def side_by_side(results: Sequence[Result]) -> FittedTable:
    """Models one under the other; ratios likewise."""
    ratios = all(result.config.get("study") == RATIO for result in results)
    return ratio_table(results) if ratios else reach_table(results)


def cell(result: Result) -> dict[str, float]:
    """Decay of the influence per token, and the distances that hold half of it."""
    fit = result.provenance["recency"]["fit"] or {}
    kappa = fit.get("kappa")
    return {"κ": float("nan") if kappa is None else kappa, "half reach": float(result.mean("half_reach"))}


def curve_table(result: Result) -> FittedTable:
    """Ln influence at doubling distances, with its interval; that of the twin beside it."""
    band = result.band("log_influence")
    twin = result.mean("twin/log_influence") if "twin/log_influence" in result else None
    ends = ["95 %"] if np.isfinite(band.low).any() else []
    headings = ["distance", "ln influence", *ends, *(["twin"] if twin is not None else []), PROBES]
    facts = result.provenance["recency"]
    error = result.mean("log_influence_error") * probe_quantile(facts)
    rows = []
    for distance in shown_distances(len(band.mean)):
        row = {
            "distance": str(distance),
            "ln influence": number(float(band.mean[distance])),
            "95 %": _interval(float(band.low[distance]), float(band.high[distance])),
            PROBES: number(float(error[distance])),
        }
        rows.append(row | ({} if twin is None else {"twin": number(float(twin[distance]))}))
    rows_of = "exact Jacobian rows" if facts["exact"] else f"{facts['probes']} ±1 probes"
    target = "the final norm's output" if facts["target"] == "final" else f"state {facts['target']}"
    at = "the last token" if facts["at"] == -1 else f"token {facts['at']}"
    samples = result["log_influence"].shape[0]
    caption = f"‖∂y_t/∂x_s‖ on {target} at {at} by t − s, {rows_of}, mean of logarithms over {samples} prompts"
    caption += "" if facts["exact"] else f"; {PROBES}: 95 % half width that the probes leave of one prompt's value"
    caption += f"; {NO_INTERVAL}" if samples < LEAST_VALUES else ""
    return FittedTable(headings, 2, _builder(rows, title="Influence by distance"), caption)


def probe_quantile(facts: dict[str, Any]) -> float:
    """Standard errors of the probes' mean in the half width of its 95 % interval: Student's quantile, not 1.96.

    >>> round(probe_quantile({"probes": 8}), 3), probe_quantile({"probes": None})
    (2.365, 1.0)
    """
    probes = facts["probes"]
    return 1.0 if probes is None else float(student_quantile(probes - 1)) if probes > 1 else float("nan")


def shown_distances(count: int) -> list[int]:
    """Distances of the table: doubling, and the largest.

    >>> shown_distances(20)
    [0, 1, 2, 4, 8, 16, 19]
    """
    return sorted({*(distance for distance in DISTANCES if distance < count), count - 1})


def summary_table(result: Result) -> FittedTable:
    """Fit, half-life, shares and index of the model and its twin."""
    rows = [_summary("model", result, "", result.provenance["recency"])]
    if result.provenance.get("twin"):
        rows.append(_summary(f"twin, {result.provenance['twin']['init']}", result, "twin/", result.provenance["twin"]))
    facts = result.provenance["recency"]
    rows += [_summary(f"to state {to}", result, f"to:{to}/", facts, to) for to in facts["targets"][1:]]
    caption = (
        "κ by least squares, a level for each prompt, intervals over prompts; ½ within: least last tokens with half; "
        f"{HALF_LIFE}"
    )
    headings = [name for name in rows[0] if any(row.get(name, ABSENT) != ABSENT for row in rows)]
    return FittedTable(headings, 2, _builder(rows, left=("weights",)), caption, folds=("weights",))


def reach_table(results: Sequence[Result]) -> FittedTable:
    """Models one under the other, each above its random twin."""
    rows = []
    for result in results:
        name, twin = result.provenance["model"]["name"], result.provenance.get("twin")
        rows.append({"model": name} | _summary("trained", result, "", result.provenance["recency"]))
        if twin:
            rows.append({"model": ""} | _summary(f"random ({twin['init']})", result, "twin/", twin))
    caption = (
        "influence of each input on the output at the last token; ½ within: least last tokens with half of it; "
        f"{HALF_LIFE}"
    )
    if any(len(result["log_influence"]) < LEAST_VALUES for result in results):
        caption += f"; {NO_INTERVAL}"
    shares = (key for row in rows for key in row if key[:4] == "last")
    first = dict.fromkeys(("model", "weights", "½ within", "R²", *shares))
    order = dict.fromkeys([*first, *(key for row in rows for key in row)])  # reach first: what is narrow shows it
    headings = [name for name in order if any(row.get(name, ABSENT) != ABSENT for row in rows)]
    return FittedTable(headings, 3, _builder(rows, left=("model", "weights")), caption, folds=("model", "weights"))


def _summary(
    label: str, result: Result, prefix: str, facts: dict[str, Any], target: str | None = None
) -> dict[str, str]:
    fit = facts["fit"] if target is None else facts["fits"][target]
    fit = fit or {}
    shares = result.mean(f"{prefix}recent_share")
    row = {
        "weights": label,
        "R²": number(fit.get("r2")),
        "κ": number(fit.get("kappa"), 4),
        "95 %": _interval(fit.get("kappa_low"), fit.get("kappa_high"), 4),
        "half-life": number(fit.get("half_life") if is_exponential(fit) else None, 1),
        "½ within": number(float(result.mean(f"{prefix}half_reach")), 1),
    }
    for window, share in zip(facts["windows"], shares, strict=True):
        if window > 1:
            row[f"last {window}"] = number(float(share))
    theorem = f"{prefix}theorem_kappa"
    if theorem in result:
        row["Thm 3.1 κ ≥"] = _bound(result[theorem])
    return row | {"middle": number(float(result.mean(f"{prefix}lost_in_the_middle")), 2)}


def _bound(values: np.ndarray) -> str:
    least = float(np.nanmin(values)) + 0.0 if np.isfinite(values).any() else float("nan")  # −0 of an A of one
    return ABSENT if not np.isfinite(least) else f"{least:.2g}"


def depth_table(result: Result) -> FittedTable:
    """From which state on the reach comes."""
    rows = []
    shares, reach, kappa = (result.mean(f"depth/{name}") for name in ("recent_share", "half_reach", "kappa"))
    theorem = result.mean("theorem_kappa") if "theorem_kappa" in result else None
    windows = result.provenance["recency"]["windows"]
    for state in thinned(len(reach), STATES):
        row = {
            "from state": str(state),
            "κ": number(float(kappa[state]), 4),
            "½ within": number(float(reach[state]), 1),
        }
        for place, window in enumerate(windows):
            if window in (1, 16):
                row["own token" if window == 1 else f"last {window}"] = number(float(shares[state, place]))
        if theorem is not None:
            of_layer = float(theorem[state]) + 0.0 if state < len(theorem) else float("nan")
            row["Thm 3.1 κ of next block"] = f"{of_layer:.2g}" if np.isfinite(of_layer) else ABSENT
        rows.append(row)
    return FittedTable(list(rows[0]), 2, _builder(rows, title="From each depth to the same output"))


def ratio_table(results: Sequence[Result]) -> FittedTable:
    """Figure 7b in numbers: one row per pair of models."""
    rows = []
    for result in results:
        facts = result.provenance["ratio"]
        log = result["log_ratio"]
        row = {
            "ratio": f"{facts['models'][0]} / {facts['models'][1]}",
            "κ": number(facts["kappa"], 4),
            "95 %": _interval(facts["kappa_low"], facts["kappa_high"], 4),
            "R²": number(facts["r2"]),
        }
        for distance in (1, 16, 64):
            row[f"ln at {distance}"] = number(float(log[distance])) if distance < len(log) else ABSENT
        rows.append(row)
    nearest = results[0].provenance["ratio"]["nearest"]
    caption = f"ln of the first model's influence over the second's, fitted over the nearest {nearest} tokens"
    title = "Ratio of influence, and how fast it falls with distance"
    return FittedTable(list(rows[0]), 2, _builder(rows, left=("ratio",), title=title), caption, folds=("ratio",))


def _builder(rows: Sequence[dict[str, str]], *, left: Sequence[str] = (), title: str | None = None) -> Any:
    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(box=box.SIMPLE, title=title, title_justify="left", caption=caption, caption_justify="left")
        table.min_width = 40
        for name in names:
            text = name in left
            table.add_column(name, justify="left" if text else "right", no_wrap=not text, overflow="fold")
        for row in rows:
            table.add_row(*(Text(row.get(name, ABSENT)) for name in names))
        return table

    return build


def _interval(low: float | None, high: float | None, digits: int = 2) -> str:
    if low is None or high is None or not np.isfinite([low, high]).all():
        return ABSENT
    return f"{low:.{digits}f} to {high:.{digits}f}"
