"""The page's part on theory: closed forms as printed and corrected beside simulations, and beside real layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repflow.core.results import Result
from repflow.report.data.comparable import basis
from repflow.report.data.context import Context
from repflow.report.data.model import Block, Card, Content, Figure, Table, Text, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.curve import band_traces, bare, gaps, joined, layer_depth
from repflow.report.draw.number import plain
from repflow.report.terminal.theory import corrected, short_verdict
from repflow.theory.depth import uniform_gap

VERIFY, APPLY = "theory-verify", "theory-apply"
FORMS = {"printed": ("bad", "x"), "corrected": ("good", "circle")}
"""Form → colour and marker."""
LAYER_LINES = {"measured": "solid", "predicted": "dash", "printed": "dot"}
"""Per-layer St² → dash."""
RATIO_COLUMNS = ("printed", "corrected", "simulation", "error", "verdict")
NOISE = 3
"""Standard errors below which a simulated value counts as zero."""
LEAST = 1e-3
"""Ratio to the simulation below which a form is drawn at the edge of the figure."""


def of_study(runs: Sequence[StoredRun], *studies: str) -> list[StoredRun]:
    """Runs of these studies."""
    return [run for run in runs if run.study in studies]


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Closed forms beside simulations and beside layers; None where no run is about theory."""
    checked, applied = of_study(runs, VERIFY), of_study(runs, APPLY)
    if not checked and not applied:
        return None
    blocks: list[Block] = []
    for place, run in enumerate(checked):
        blocks += _verified(run, "" if place == 0 else f"-{place + 1}", run.name if len(checked) > 1 else "")
    if applied:
        blocks += [_layer_figure(applied), _linearisation_figure(applied), _stack_table(applied)]
        blocks += [*_gap_table(applied), _hypothesis_table(applied)]
    lead = (
        "Each closed form of the papers as printed, as corrected, and as a simulation gives it; then, for real layers, "
        "what the forms predict beside what is measured. A form that holds for random weights and independent tokens "
        "need not hold for a trained model: the hypotheses that fail are listed."
    )
    facts = [*(fact for run in checked[:1] for fact in _facts(run)), *_layer_facts(applied)]
    return Content(lead, blocks, facts=facts)


def _draws(run: StoredRun) -> str:
    """What the simulations rest on."""
    return f"simulations of {int(run.result.config['samples']):,} draws"


def _clear(checks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Statements of a value that is not zero but for noise: a ratio to such a one says nothing."""
    valued = [check for check in checks if check["kind"] == "value"]
    return [check for check in valued if abs(check["simulation"]) > NOISE * abs(check["error"] or 0.0)]


def _facts(run: StoredRun) -> list[Card]:
    """How many printed forms needed a correction."""
    clear = _clear(run.result.provenance["checks"])
    text = "printed values of theorems agree with their simulation only once they are corrected"
    number = f"{sum(corrected(check) for check in clear)} of {len(clear)}"
    return [Card("Corrected", number, text, _draws(run), "theory-forms")] if clear else []


def _factor(run: StoredRun, name: str) -> float:
    """Median over blocks of how many times a form is too large or too small; NaN without it."""
    if name not in run.result:
        return float("nan")
    form, measured = (np.asarray(run.result[key], dtype=np.float64) for key in (name, "measured"))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.abs(np.log(form / measured))
    return float(np.exp(np.median(ratio[np.isfinite(ratio)]))) if np.isfinite(ratio).any() else float("nan")


def _layer_reading(runs: Sequence[StoredRun]) -> str:
    """How close the corrected form comes to what is measured, by model."""
    factors = [(run.label, _factor(run, "predicted")) for run in runs]
    words = [f"{factor:.3g} in {label}" for label, factor in factors if np.isfinite(factor)]
    if not words:
        return ""
    return f"The corrected form differs from the measured St² by a factor of {', '.join(words)} (median over blocks)."


def _layer_facts(runs: Sequence[StoredRun]) -> list[Card]:
    cards = []
    for run in runs[:2]:
        if np.isfinite(factor := _factor(run, "predicted")):
            text = f"between what theory predicts and what is measured in the median block of {run.label}"
            cards.append(Card("Theory's factor", f"{factor:.3g}", text, basis([run]), "theory-layers"))
    return cards


def _verified(run: StoredRun, suffix: str, name: str) -> list[Block]:
    result, checks = run.result, run.result.provenance["checks"]
    suffix_words = f" ({name})" if name else ""
    return [
        _ratio_figure(run, f"theory-forms{suffix}", f"Closed forms over their simulations{suffix_words}"),
        _check_table(checks, f"theory-checks{suffix}", f"Every statement{suffix_words}"),
        *_disagreements(result, f"theory-data{suffix}", f"Theory against the paper's own data{suffix_words}"),
    ]


def _ratio_figure(run: StoredRun, id: str, title: str) -> Figure:
    """Printed and corrected value over the simulated one; 1 is right."""
    checks = run.result.provenance["checks"]
    clear = _clear(checks)
    words = [f"{check['statement']}: {check['setting']}" for check in clear]
    labels = [f"{check['statement']}:\n{check['setting']}" for check in clear]  # two lines: narrow screens
    traces, rows = [], []
    for form, (colour, symbol) in FORMS.items():
        ratios = [None if check[form] is None else check[form] / check["simulation"] for check in clear]
        noise = [_noise(check) if ratio is not None else None for check, ratio in zip(clear, ratios, strict=True)]
        clipped = [None if ratio is None else max(ratio, LEAST) for ratio in ratios]
        trace: dict[str, Any] = {"type": "scatter", "mode": "markers", "name": form, "x": clipped, "y": labels}
        trace |= {"marker": {"color": colour, "symbol": symbol, "size": 8}, "meta": {"model": None}}
        trace |= {"error_x": {"type": "data", "array": noise, "color": colour}} if form == "corrected" else {}
        traces.append(trace)
    for check, word in zip(clear, words, strict=True):
        rows.append([word, *(check[name] for name in RATIO_COLUMNS)])
    line = {"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "xref": "x", "yref": "y domain"}
    layout = {
        "xaxis": {"title": {"text": "closed form / simulation"}, "type": "log"},
        "yaxis": {"autorange": "reversed", "automargin": True, "dtick": 1, "tickfont": {"size": 10}},
        "shapes": [{**line, "line": {"color": "muted", "width": 1, "dash": "dot"}}],
    }
    below = sum(r is not None and r < LEAST for check in clear for r in [_ratio(check, f) for f in FORMS])
    edge = f"{below} of the ratios lie below {LEAST:g} or are negative and stand at the edge." if below else ""
    left = sum(check["kind"] == "value" for check in checks) - len(clear)
    zero = f"{left} statements whose simulated value is zero within its noise are in the table only." if left else ""
    off = sum(corrected(check) for check in clear)
    reading = f"Of {len(clear)} printed values, {off} agree with the simulation only once they are corrected."
    columns = ["statement", *RATIO_COLUMNS]
    return Figure(
        id,
        title,
        "Each row is one statement in one setting. The dotted line is the simulation; bars are two of its standard "
        "errors. A printed form away from the line is wrong in that setting; the corrected form must touch it.",
        "Ratios of printed and corrected forms to their simulations, a row per statement.",
        [Variant({}, traces, layout, columns, rows, joined(edge, zero), reading, basis=_draws(run))],
        models_toggle=False,
        height=max(360, 34 * len(clear) + 120),
    )


def _ratio(check: Mapping[str, Any], form: str) -> float | None:
    return None if check[form] is None else float(check[form] / check["simulation"])


def _noise(check: Mapping[str, Any]) -> float | None:
    """Two standard errors of the simulation, relative to it."""
    return None if check["error"] is None else 2 * abs(check["error"] / check["simulation"])


def _check_table(checks: Sequence[Mapping[str, Any]], id: str, title: str) -> Table:
    columns = ["paper", "statement", "setting", "printed", "corrected", "simulation", "gap", "verdict", "why"]
    rows = [
        [check["paper"], check["statement"], check["setting"], *_numbers(check), short_verdict(check), check["verdict"]]
        for check in checks
    ]
    good = sum(check["passes"] for check in checks if check["kind"] != "data")
    total = sum(check["kind"] != "data" for check in checks)
    caption = (
        f"{good} of {total} corrected forms agree with the simulation within 1 %, or within its noise. Of inequalities "
        "the numbers are counts of drawn systems that break them, out of those drawn."
    )
    return Table(id, title, columns, rows, caption)


def _numbers(check: Mapping[str, Any]) -> list[Any]:
    if check["kind"] == "bound":
        broken = [None if check[key] is None else f"{int(check[key])} broken" for key in ("printed", "corrected")]
        return [*broken, f"of {int(check['simulation'])}", None]
    return [check[key] for key in ("printed", "corrected", "simulation", "gap")]


def _disagreements(result: Result, id: str, title: str) -> list[Block]:
    sentences = [finding.message for finding in result.findings]
    return [Text(id, title, sentences)] if sentences else []


def _layer_figure(runs: Sequence[StoredRun]) -> Figure:
    """Per layer: what the update's size is, what the corrected form says, what the printed one says."""
    traces, rows, notes = [], [], []
    for run in runs:
        count = len(run.result["measured"])
        for name, dash in LAYER_LINES.items():
            if name not in run.result:
                continue
            values = np.asarray(run.result[name], dtype=np.float64)
            traces += band_traces(
                layer_depth(count)["absolute"], bare(values), name=f"{run.label}: {name}", model=run.label, dash=dash,
                depth=layer_depth(count),
            )  # fmt: skip
            rows += [[run.label, layer, name, value] for layer, value in enumerate(plain(values), 1)]
            notes.append(gaps(f"{run.label} ({name})", values, "block", 1))
    layout = {"yaxis": {"title": {"text": "St² of one layer"}, "type": "log", "exponentformat": "power"}}
    names, columns = ", ".join(run.label for run in runs), ["model", "block", "form", "St2"]
    return Figure(
        "theory-layers",
        "Stability of each layer: measured, predicted, printed",
        "St² is the size of a layer's update, ‖update‖² over 4 · tokens · width. Predicted is the corrected form with "
        "this layer's weights and the measured variance of its input; printed is the paper's form.",
        f"Measured and predicted St² by layer for {names}.",
        [Variant({}, traces, layout, columns, rows, joined(*notes), _layer_reading(runs), basis=basis(runs))],
        depth_axis=True,
        log_axis=True,
    )


def _linearisation_figure(runs: Sequence[StoredRun]) -> Figure:
    traces, rows = [], []
    for run in runs:
        values = np.asarray(run.result["linearisation"], dtype=np.float64)
        depth = layer_depth(len(values))
        traces += band_traces(depth["absolute"], bare(values), name=run.label, model=run.label, depth=depth)
        rows += [[run.label, layer, value] for layer, value in enumerate(plain(values), 1)]
    layout = {"yaxis": {"title": {"text": "linearisation error"}, "tickformat": ".0%", "rangemode": "tozero"}}
    return Figure(
        "theory-linearisation",
        "What linearising costs",
        "The theorems take the activation for x/2. Shown is the size of what that changes, as a share of the update: "
        "near 100 % the linear theory says nothing about this layer.",
        "Linearisation error by layer.",
        [Variant({}, traces, layout, ["model", "block", "linearisation error"], rows, basis=basis(runs))],
        depth_axis=True,
    )


def _stack_table(runs: Sequence[StoredRun]) -> Table:
    columns = [
        "model",
        "St_L² measured",
        "lower bound",
        "upper bound",
        "uncorrelated increments",
        "upper over measured",
    ]
    rows: list[list[Any]] = []
    for run in runs:
        numbers = {name: float(run.result[f"depth_{name}"]) for name in ("stability", "lower", "upper", "uncorrelated")}
        ratio = numbers["upper"] / numbers["stability"] if numbers["stability"] else None
        rows.append([run.label, *numbers.values(), ratio])
    caption = (
        "The whole stack: Lemma 1 bounds St_L² by the path energy; a random walk of the same steps stands beside it."
    )
    return Table("theory-stack", "Stability of the stack and Lemma 1's bounds", columns, rows, caption)


def _gap_table(runs: Sequence[StoredRun]) -> list[Block]:
    """Assumption 8 for every Transformer beside every Mamba."""
    kinds: dict[str, list[StoredRun]] = {"transformer": [], "mamba": []}
    for run in runs:
        if "block/energy" in run.result:
            kinds[run.result.provenance["kind"]].append(run)
    rows: list[list[Any]] = []
    for first in kinds["transformer"]:
        for second in kinds["mamba"]:
            gap = uniform_gap(first.result["block/energy"], second.result["block/energy"])
            rows.append([first.label, second.label, gap.delta, f"{gap.depth:.0%}", "yes" if gap.holds else "no"])
    if not rows:
        return []
    caption = "δ of E‖F(h)‖² ≥ (1 + δ) E‖F(h)‖² at every relative depth, per token and channel; Theorem 6 needs δ > 0."
    columns = ["Transformer", "Mamba", "δ", "closest at depth", "δ > 0"]
    return [Table("theory-gap", "Assumption 8: the gap between blocks", columns, rows, caption)]


def _hypothesis_table(runs: Sequence[StoredRun]) -> Table:
    rows: list[list[Any]] = []
    for run in runs:
        hypotheses = run.result.provenance["hypotheses"]
        layers = len(run.result["sigma"])
        for name in dict.fromkeys(row["name"] for row in hypotheses):
            mine = [row for row in hypotheses if row["name"] == name]
            broken = [row for row in mine if not row["holds"]]
            example = f"block {broken[0]['layer'] + 1}: {broken[0]['found']}" if broken else mine[0]["found"]
            rows.append([run.label, name, f"{len(broken)} of {layers}", example])
    caption = "Where a hypothesis fails, the theorem says nothing about that layer, whatever its numbers."
    return Table(
        "theory-hypotheses", "Hypotheses", ["model", "hypothesis", "blocks that break it", "such as"], rows, caption
    )
