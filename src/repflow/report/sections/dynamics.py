"""The page's part on token dynamics: trajectories, the scores P over time, and paper 3's prediction for real layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.core.results import Result
from repflow.report.data.comparable import basis
from repflow.report.data.context import Context
from repflow.report.data.model import Block, Card, Content, Figure, Table, Text, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.curve import band_of, band_traces, gaps, joined, layer_depth, state_depth
from repflow.report.draw.dynamics import path_figure
from repflow.report.draw.number import plain
from repflow.report.sections.theory import of_study

SIMULATED, REPRODUCED, APPLIED = "dynamics-simulate", "dynamics-figure", "dynamics-apply"
SIGNS = {"negative": "model:0", "zero": "muted", "positive": "model:1"}


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Trajectories and P(t) of simulations, and real Mamba layers; None where no run is about dynamics."""
    simulated, applied = of_study(runs, SIMULATED, REPRODUCED), of_study(runs, APPLIED)
    if not simulated and not applied:
        return None
    blocks: list[Block] = []
    for place, run in enumerate(simulated):
        blocks += _system_blocks(run, "" if place == 0 else f"-{place + 1}")
    if applied:
        blocks += [_norm_figure(applied), *_rate_figures(applied)]
        blocks += [_sign_figure(applied), _form_figure(applied), _said(applied)]
    lead = (
        "Paper 3's tokens move by dx/dt = P(t) x: they shrink, grow or blow up, and the hidden attention P(t) shows "
        "which token drives which. Beside the simulations stands what the layers of a real checkpoint do."
    )
    return Content(lead, blocks, facts=[*(_fact(run, place) for place, run in enumerate(simulated)), *_ends(applied)])


def _fact(run: StoredRun, place: int) -> Card:
    """The scenario of a simulation, or how many statements of a figure of the paper hold."""
    target, lines = f"dynamics-paths{'' if place == 0 else f'-{place + 1}'}", run.result.provenance.get("lines")
    if lines:
        good = sum(str(line["verdict"]).startswith("holds") for line in lines)
        return Card("Statements that hold", f"{good} of {len(lines)}", _title(run), "a simulation", target)
    verdict = run.result.provenance.get("classification") or {}
    name, by = str(verdict.get("scenario", "unknown")).replace("-", " "), str(verdict.get("theorem", ""))
    return Card("Scenario", name, f"{_title(run)}, by {by}" if by else _title(run), "a simulation", target)


def _ends(runs: Sequence[StoredRun]) -> list[Card]:
    """Whether the tokens of the first checkpoint grow or shrink."""
    cards = []
    for run in runs[:1]:
        norm = np.asarray(run.result.mean("token_norm"), dtype=np.float64)
        if np.isfinite(norm[[0, -1]]).all():
            text = f"mean norm of the tokens of {run.label} after the last block; {norm[0]:.3g} at the embedding"
            cards.append(Card("Token norm", f"{norm[-1]:.3g}", text, basis([run]), "dynamics-norms"))
    return cards


def _title(run: StoredRun) -> str:
    return str(run.result.provenance.get("title") or f"Simulation {run.name}".strip())


def _system_blocks(run: StoredRun, suffix: str) -> list[Block]:
    result: Result = run.result
    title = _title(run)
    blocks: list[Block] = [path_figure(result, f"dynamics-paths{suffix}", title)]
    if "lines" in result.provenance:
        columns = ["quantity", "measured", "exact", "stated", "verdict"]
        keys = ("quantity", "measured", "theory", "stated", "verdict")
        rows = [[line[key] for key in keys] for line in result.provenance["lines"]]
        blocks.append(Table(f"dynamics-lines{suffix}", f"{title}: stated and measured", columns, rows))
    verdict = result.provenance.get("classification")
    sentences = [finding.message for finding in result.findings]
    if verdict:
        reason = verdict["evidence"].get("reason")
        sentences = [f"{verdict['scenario']} ({verdict['theorem']})" + (f": {reason}" if reason else ""), *sentences]
    if sentences:
        blocks.append(Text(f"dynamics-events{suffix}", f"{title}: what happens", sentences))
    return blocks


def _norm_figure(runs: Sequence[StoredRun]) -> Figure:
    """Mean token norm through depth, with the model's norms and without those at the stream."""
    traces, rows, notes = [], [], []
    for run in runs:
        for name, words, dash in (
            ("token_norm", "with norms", "solid"),
            ("token_norm_without_norms", "without norms", "dash"),
        ):
            band = band_of(run.result, name)
            if not np.isfinite(band.mean).any():
                continue
            depth = state_depth(len(band.mean))
            style: dict[str, Any] = {"name": f"{run.label}: {words}", "model": run.label, "dash": dash, "depth": depth}
            traces += band_traces(depth["absolute"], band, **style)
            parts = zip(plain(band.mean), plain(band.low), plain(band.high), strict=True)
            rows += [[run.label, state, words, *part] for state, part in enumerate(parts)]
            notes.append(gaps(f"{run.label} {words}", band.mean, "state"))
    layout = {"yaxis": {"title": {"text": "mean token norm"}, "type": "log", "exponentformat": "power"}}
    columns = ["model", "state", "norms", "mean", "low", "high"]
    return Figure(
        "dynamics-norms",
        "Do real tokens shrink or grow?",
        "Mean length of the token vectors after each block, as the model is and with the norms at the residual stream "
        "taken out. Paper 3 predicts from the signs of eigenvalues alone.",
        "Token norm through depth with and without norms.",
        [Variant({}, traces, layout, columns, rows, joined(*notes), basis=basis(runs))],
        depth_axis=True,
        log_axis=True,
    )


def _rate_figures(runs: Sequence[StoredRun]) -> list[Figure]:
    """Norms beside the rates of the paper's three scenarios, one variant per model; none for runs without rates."""
    variants = []
    for run in runs:
        norms = run.result["token_norm_without_norms"].mean(1)
        if "token_norm_without_norms_rates" not in run.result or not np.isfinite(norms).any():
            continue
        lines = {"measured": norms}
        lines |= dict(zip(run.result.provenance["regimes"], run.result["token_norm_without_norms_rates"], strict=True))
        states = list(range(len(norms)))
        traces = [
            {"type": "scatter", "mode": "lines+markers" if name == "measured" else "lines", "name": name, "x": states,
             "y": plain(values), "line": {"color": f"model:{place}", "dash": "solid" if place == 0 else "dot"},
             "meta": {"model": None}}
            for place, (name, values) in enumerate(lines.items())
        ]  # fmt: skip
        rows = [[name, state, value] for name, values in lines.items() for state, value in enumerate(plain(values))]
        layout: dict[str, Any] = {"xaxis": {"title": {"text": "state: 0 is the embedding"}}}
        layout |= {"yaxis": {"title": {"text": "mean token norm"}, "type": "log", "exponentformat": "power"}}
        said = run.result.provenance["followed"]["token_norm_without_norms"]["scenario"]
        reading = f"{run.label} follows {said or 'none of the three rates'}."
        variants.append(Variant({"model": run.label}, traces, layout, ["line", "state", "norm"], rows, reading=reading))
    if not variants:
        return []
    text = (
        "Without norms at the stream, beside the fitted rates of the paper's scenarios: 1/√t, ln t, and a finite time."
    )
    title, words = "Which of the theory's rates do they follow?", "Token norm through depth beside three fitted curves."
    return [Figure("dynamics-rates", title, text, words, variants, models_toggle=False)]


def _sign_figure(runs: Sequence[StoredRun]) -> Figure:
    """Counts of eigenvalue signs by layer, one variant per model."""
    variants = []
    for run in runs:
        layers = [str(layer + 1) for layer in run.result.provenance["ssm_layers"]]
        traces = [
            {"type": "bar", "x": layers, "y": [float(v) for v in run.result[sign]], "name": f"{sign} eigenvalues",
             "marker": {"color": colour}, "meta": {"model": None}}
            for sign, colour in SIGNS.items()
        ]  # fmt: skip
        rows = [[layer, *(int(run.result[sign][i]) for sign in SIGNS)] for i, layer in enumerate(layers)]
        layout = {"barmode": "stack", "xaxis": {"title": {"text": "block"}, "type": "category"}}
        layout |= {"yaxis": {"title": {"text": "eigenvalues of S_CᵀS_B"}}}
        variants.append(Variant({"model": run.label}, traces, layout, ["block", *SIGNS], rows))
    return Figure(
        "dynamics-signs",
        "Eigenvalue signs of the Mamba layers",
        "By the paper's conjecture tokens grow where an eigenvalue is positive and shrink where all are negative; the "
        "conjecture is false in both directions, see the simulations.",
        "Stacked bars: negative, zero and positive eigenvalues of each Mamba layer.",
        variants,
        models_toggle=False,
    )


def _form_figure(runs: Sequence[StoredRun]) -> Figure:
    traces, rows = [], []
    for run in runs:
        band = band_of(run.result, "form_positive")
        blocks = run.result.provenance["ssm_layers"]
        whole = layer_depth(int(run.result.provenance["model"]["layers"]))
        depth = {name: [places[block] for block in blocks] for name, places in whole.items()}
        traces += band_traces(depth["absolute"], band, name=run.label, model=run.label, depth=depth)
        parts = zip(plain(band.mean), plain(band.low), plain(band.high), strict=True)
        rows += [[run.label, block + 1, *part] for block, part in zip(blocks, parts, strict=True)]
    layout = {"yaxis": {"title": {"text": "tokens with xᵀMx > 0"}, "tickformat": ".0%", "range": [0, 1]}}
    return Figure(
        "dynamics-form",
        "Share of tokens that their layer would lengthen",
        "xᵀMx is the quadratic form whose sign decides growth; above one half most tokens are lengthened.",
        "Share of tokens with a positive quadratic form, by Mamba layer.",
        [Variant({}, traces, layout, ["model", "block", "share", "low", "high"], rows)],
        depth_axis=True,
    )


def _said(runs: Sequence[StoredRun]) -> Text:
    return Text(
        "dynamics-applied",
        "What the checkpoints do",
        [f"{run.label}: {finding.message}." for run in runs for finding in run.result.findings],
    )
