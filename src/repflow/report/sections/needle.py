"""Needles on the page: what is found at each length and position, and how the position counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.core.results import Band
from repflow.report.data.model import Block, Card, Figure, Table, Text, Variant
from repflow.report.data.runs import StoredRun, called, colour_of
from repflow.report.data.summary import percent
from repflow.report.draw.curve import axis_names, band_of, band_traces, joined, small_multiples
from repflow.report.draw.number import plain

STUDY = "needle"
METRICS = {
    "answer_correct": "greedy answers that hold the planted word",
    "first": "planted word ranked first of the candidates",
    "log_odds": "log-odds of the planted word, nats",
    "gain": "what the needle adds to the log-odds, nats",
    "log_odds_true": "log-odds of the planted word against the true one, nats",
    "rank": "rank of the planted word, 1 is best",
}
"""Array → words."""
SAID = {
    "answer_correct": "answers with the planted word in {} of the cases",
    "first": "ranks the planted word first in {} of the cases",
    "log_odds": "gives the planted word log-odds of {} nats",
    "gain": "gains {} nats of log-odds from the needle",
    "log_odds_true": "gives the planted word log-odds of {} nats against the true one",
    "rank": "ranks the planted word {} on average",
}
"""Array → what a model does."""
SHARES = ("answer_correct", "first")
SIGNED = ("log_odds", "gain", "log_odds_true")
SLOPES = ("answer_correct", "first", "log_odds", "gain")


def needle_blocks(runs: Sequence[StoredRun]) -> list[Block]:
    """Heat maps, curves over position and slopes; none where no run looked for needles."""
    mine = [run for run in runs if run.study == STUDY and "lengths" in run.result.provenance]
    if not mine:
        return []
    return [_map_figure(mine), _position_figure(mine), _slope_table(mine), _said(mine)]


def _known(runs: Sequence[StoredRun]) -> list[str]:
    return [name for name in METRICS if any(name in run.result for run in runs)]


def _map_figure(runs: Sequence[StoredRun]) -> Figure:
    """Length by position, one panel per model, a variant per score."""
    variants = []
    for metric in _known(runs):
        present = [run for run in runs if metric in run.result]
        low, high = _span(metric, [run.result.mean(metric) for run in present])
        names = [called(run, present) for run in present]
        across = {"title": {"text": "position in the document"}, "type": "category"}
        up = {"title": {"text": "length, tokens"}, "type": "category"}
        layout = small_multiples(names, across, up, models=[run.label for run in present])
        traces: list[dict[str, Any]] = []
        rows: list[list[Any]] = []
        for place, run in enumerate(present):
            band = band_of(run.result, metric)
            traces.append(_map_trace(run, band, place, (low, high), metric))
            rows += _rows(run, names[place], band)
        columns = ["run", "length", "position", metric, "low", "high"]
        when, reading = {"score": METRICS[metric]}, _reading(present, metric)
        variants.append(Variant(when, traces, layout, columns, rows, reading=reading, basis=_basis(present)))
    return Figure(
        "needle-map",
        "Needle in a haystack",
        "A false statement is hidden at each position of a document of each length, and asked for. The first two "
        "scores are shares; log-odds give small models a signal: above 0 the planted word is likelier than all others "
        "together. Position 0 is the start of the document, far from the question.",
        "Heat maps of the chosen score over position and length, one panel per model.",
        variants,
    )


def _ranked(runs: Sequence[StoredRun], metric: str) -> list[tuple[float, str]]:
    """Mean over lengths, positions and needles of every model, the worst first."""
    means = [(float(np.nanmean(run.result[metric])), called(run, runs)) for run in runs if _some(run, metric)]
    return sorted(means, key=lambda pair: -pair[0] if metric == "rank" else pair[0])


def _some(run: StoredRun, metric: str) -> bool:
    return metric in run.result and bool(np.isfinite(run.result[metric]).any())


def _value(metric: str, value: float) -> str:
    return percent(value) if metric in SHARES else f"{value:.1f}" if metric == "rank" else f"{value:+.1f}"


def _reading(runs: Sequence[StoredRun], metric: str) -> str:
    """The best and the worst model, over all lengths and positions."""
    ranked = _ranked(runs, metric)
    if not ranked:
        return ""
    (best, name), (worst, other) = ranked[-1], ranked[0]
    text = f"Over all lengths and positions {name} {SAID[metric].format(_value(metric, best))}"
    return f"{text}." if len(ranked) == 1 else f"{text}, {other} {_value(metric, worst)}."


def _basis(runs: Sequence[StoredRun]) -> str:
    """What the needles were hidden in, and how many."""
    lengths = sorted({int(length) for run in runs for length in run.result.provenance["lengths"]})
    places = sorted({len(run.result.provenance["positions"]) for run in runs})
    counts = sorted({int(run.result.config["samples"]) for run in runs})
    tokens, positions, needles = (" or ".join(f"{one:,}" for one in own) for own in (lengths, places, counts))
    return f"needles in documents of {tokens} tokens, {positions} positions, {needles} needles at each"


def needle_facts(runs: Sequence[StoredRun]) -> list[Card]:
    """How many needles the best model finds by itself."""
    mine = [run for run in runs if run.study == STUDY and "lengths" in run.result.provenance]
    ranked = _ranked(mine, "answer_correct")
    if not ranked:
        return []
    share, name = ranked[-1]
    others = f"; {ranked[0][1]} {percent(ranked[0][0])}" if len(ranked) > 1 else ""
    text = f"of the planted words are in the greedy answers of {name}{others}"
    return [Card("Needles found", percent(share), text, _basis(mine), "needle-map")]


def _span(metric: str, maps: Sequence[np.ndarray]) -> tuple[float, float]:
    finite = np.concatenate([values[np.isfinite(values)] for values in maps] or [np.zeros(0)])
    if metric in SHARES:
        return 0.0, 1.0
    if not finite.size:
        return (-1.0, 1.0) if metric in SIGNED else (0.0, 1.0)
    if metric in SIGNED:
        most = max(float(np.abs(finite).max()), 1e-9)
        return -most, most
    return float(finite.min()), max(float(finite.max()), float(finite.min()) + 1e-9)


def _map_trace(run: StoredRun, band: Band, place: int, span: tuple[float, float], metric: str) -> dict[str, Any]:
    x, y = axis_names(place)
    about = run.result.provenance
    return {
        "type": "heatmap", "z": plain(band.mean), "x": [f"{p:.4g}" for p in about["positions"]],
        "y": [str(length) for length in about["lengths"]], "xaxis": x, "yaxis": y, "zmin": span[0], "zmax": span[1],
        "colorscale": "diverging" if metric in SIGNED else "sequential", "showscale": place == 0,
        "colorbar": {"title": {"text": "share" if metric in SHARES else "rank" if metric == "rank" else "nats"}},
        "customdata": [
            [[low, high] for low, high in zip(*pair, strict=True)]
            for pair in zip(plain(band.low), plain(band.high), strict=True)
        ],
        "hovertemplate": "%{y} tokens, position %{x}<br>%{z:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}]"
        "<extra></extra>",
        "meta": {"model": run.label},
    }  # fmt: skip


def _rows(run: StoredRun, name: str, band: Band) -> list[list[Any]]:
    about = run.result.provenance
    parts = [plain(part) for part in (band.mean, band.low, band.high)]
    return [
        [name, length, position, *(part[i][j] for part in parts)]
        for i, length in enumerate(about["lengths"])
        for j, position in enumerate(about["positions"])
    ]


def _position_figure(runs: Sequence[StoredRun]) -> Figure:
    """Score over position with intervals, a variant per length and score."""
    variants = []
    lengths = dict.fromkeys(str(length) for run in runs for length in run.result.provenance["lengths"])
    for metric in _known(runs):
        for length in lengths:
            traces: list[dict[str, Any]] = []
            rows: list[list[Any]] = []
            for run in runs:
                own = [str(one) for one in run.result.provenance["lengths"]]
                if metric not in run.result or length not in own:
                    continue
                band, row = band_of(run.result, metric), own.index(length)
                part = Band(*(np.asarray(p)[row] for p in (band.mean, band.low, band.high)))
                name, at = called(run, runs), run.result.provenance["positions"]
                traces += band_traces(at, part, name=name, model=run.label, colour=colour_of(run, runs))
                rows += [
                    [name, length, *cells]
                    for cells in zip(at, *map(plain, (part.mean, part.low, part.high)), strict=True)
                ]
            span = {"range": [0, 1.02], "tickformat": ".0%"} if metric in SHARES else {}
            layout = {
                "xaxis": {"title": {"text": "position in the document"}, "tickformat": ".0%"},
                "yaxis": {"title": {"text": METRICS[metric].replace(" that", "\nthat").split(", nats")[0]}, **span},
            }
            columns = ["run", "length", "position", metric, "low", "high"]
            when = {"score": METRICS[metric], "length": length}
            variants.append(Variant(when, traces, layout, columns, rows, basis=_basis(runs)))
    return Figure(
        "needle-position",
        "Does the position count?",
        "The same scores over the position of the needle, with 95 % intervals: a line that rises to the right favours "
        "what was read last (recency), one that falls favours the beginning (primacy).",
        "Lines of the chosen score over the position of the needle.",
        variants,
    )


def _slope_table(runs: Sequence[StoredRun]) -> Table:
    rows: list[list[Any]] = []
    for run in runs:
        for name in SLOPES:
            if f"slope_all/{name}" not in run.result:
                continue
            band = band_of(run.result, f"slope_all/{name}")
            low, high = float(band.low), float(band.high)
            decided = "later is better" if low > 0 else "earlier is better" if high < 0 else "open"
            rows.append([called(run, runs), METRICS[name], float(band.mean), low, high, decided])
    columns = ["model", "score", "slope over position", "low", "high", "verdict"]
    caption = "Least-squares slope from the start (0) to the end (1) of the document, mean over lengths and needles."
    return Table("needle-slopes", "Positional bias", columns, rows, caption)


def _said(runs: Sequence[StoredRun]) -> Text:
    sentences = [joined(f"{called(run, runs)}: {finding.message}.") for run in runs for finding in run.result.findings]
    return Text("needle-said", "What the needle runs found", sentences or ["Nothing out of the ordinary."])
