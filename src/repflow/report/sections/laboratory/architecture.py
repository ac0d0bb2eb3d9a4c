"""The page's part on grids of language models: perplexity on the way and at the end, leaks, token norms by depth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from repflow.report.data.context import Context
from repflow.report.data.laboratory import Line, best_lines, lines_of
from repflow.report.data.model import Block, Card, Content, Figure, Table, Text, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.number import plain
from repflow.report.sections.laboratory.curve import Mark, line_trace, marked, trained_words
from repflow.report.terminal.laboratory.architecture import fit_rows, row_words

FIT_TITLE = "What each factor does, all others held: linear fits with 95 % intervals"
FEW_LAYERS = 12
"""Up to here an axis has a tick for every state."""


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Figures of every grid of language models; None where there is none."""
    blocks: list[Block] = []
    trained = marked(runs, "architecture")
    for run, mark in trained:
        lines = best_lines(run.result, row_words, score="perplexity", lowest=True)
        figures = (build(run, lines, mark) for build in (_way_figure, _place_figure, _recall_figure, _norm_figure))
        blocks += [figure for figure in figures if figure]
        outcomes, rows = fit_rows(run.result)
        if rows:
            blocks.append(Table(f"architecture-fits{mark.id}", f"{FIT_TITLE}{mark.title}", ["factor", *outcomes], rows))
        blocks.append(_table(run, mark))
        if run.result.findings:
            said = [finding.message for finding in run.result.findings]
            blocks.append(Text(f"architecture-findings{mark.id}", f"What to know{mark.title}", said))
    if not blocks:
        return None
    lead = (
        "Language models trained on one text, each row at the learning rate that served it best. Perplexity is "
        "measured on documents that no model was trained on. A row with +leaky reads its own future: its perplexity "
        "is not that of a model that predicts."
    )
    return Content(lead, blocks, facts=_facts(*trained[0]))


def _ranked(run: StoredRun) -> list[tuple[float, str]]:
    """Held-out perplexity and words of every causal model, best first."""
    leaky = run.result.provenance["architecture"]["leaky"]
    lines = best_lines(run.result, row_words, score="perplexity", lowest=True)
    pairs = [(float(line.mean("perplexity")[0]), line.words) for line in lines if line.shared["row"] not in leaky]
    return sorted(pair for pair in pairs if np.isfinite(pair[0]))


def _basis(run: StoredRun) -> str:
    facts = run.result.provenance["architecture"]["data"]["held_out"]
    documents = f"{facts['documents']:,} held-out document{'' if facts['documents'] == 1 else 's'}"
    return f"{documents} with {facts['tokens']:,} tokens, {trained_words(run)}"


def _reading(run: StoredRun) -> str:
    ranked = _ranked(run)
    if not ranked:
        return ""
    if len(ranked) > 1 and f"{ranked[0][0]:.2f}" == f"{ranked[-1][0]:.2f}":
        return f"All {len(ranked)} models that predict have a perplexity of {ranked[0][0]:.2f}."
    text = f"Of the models that predict, {ranked[0][1]} has the lowest perplexity, {ranked[0][0]:.2f}"
    return f"{text}." if len(ranked) == 1 else f"{text}, and {ranked[-1][1]} the highest, {ranked[-1][0]:.2f}."


def _facts(run: StoredRun, mark: Mark) -> list[Card]:
    ranked = _ranked(run)
    ends = list(zip(("Lowest perplexity", "Highest perplexity"), [*ranked[:1], *ranked[1:][-1:]], strict=False))
    return [
        Card(title, f"{value:.1f}", words, _basis(run), f"architecture-rows{mark.id}") for title, (value, words) in ends
    ]


def _way_figure(run: StoredRun, lines: Sequence[Line], mark: Mark) -> Figure | None:
    """Perplexity while the models train."""
    steps = run.result.provenance["architecture"].get("watched")
    if not steps or "perplexity_on_the_way" not in run.result:
        return None
    traces, rows = [], []
    for place, line in enumerate(lines):
        values = line.mean("perplexity_on_the_way")
        traces.append(line_trace(line, place, steps, values))
        rows += [[line.words, *part] for part in zip(steps, plain(values), strict=True)]
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "steps"}},
        "yaxis": {"title": {"text": "held-out perplexity"}, "type": "log"},
    }
    variant = Variant(
        {}, traces, layout, ["model", "step", "perplexity"], rows, reading=_reading(run), basis=_basis(run)
    )
    return Figure(
        f"architecture-training{mark.id}",
        f"Perplexity while they train{mark.title}",
        "On the first held-out documents, after equal numbers of steps.",
        "Held-out perplexity by training step, a line per row.",
        [variant],
    )


def _place_figure(run: StoredRun, lines: Sequence[Line], mark: Mark) -> Figure | None:
    """Loss by place in a window: whether a model makes use of what stands further back."""
    if "loss_by_place" not in run.result:
        return None
    traces, rows = [], []
    ticks: set[int] = set()
    for place, line in enumerate(lines):
        values = line.mean("loss_by_place")
        values = values[: int(np.isfinite(values).sum())]
        edges = _edges(len(values))
        means = np.exp([values[a:b].mean() for a, b in pairwise(edges)])
        ticks |= set(edges[1:])
        traces.append(line_trace(line, place, edges[1:], means))
        rows += [[line.words, *part] for part in zip(edges[1:], plain(means), strict=True)]
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "place in the window"}, "type": "log", "tickvals": sorted(ticks)},
        "yaxis": {"title": {"text": "held-out perplexity"}, "type": "log"},
    }
    variant = Variant({}, traces, layout, ["model", "up to place", "perplexity"], rows, basis=_basis(run))
    return Figure(
        f"architecture-places{mark.id}",
        f"Does more context help?{mark.title}",
        "Perplexity by place in the window, of the mean loss up to each place from the one before it.",
        "Held-out perplexity by place in the window, a line per row.",
        [variant],
    )


def _edges(count: int) -> list[int]:
    """Bounds of spans that double: 0, 1, 2, 4, ... and the last place.

    >>> _edges(12)
    [0, 1, 2, 4, 8, 12]
    """
    edges = [0, 1]
    while 2 * edges[-1] < count:
        edges.append(2 * edges[-1])
    return [edge for edge in edges if edge < count] + [count]


def _recall_figure(run: StoredRun, lines: Sequence[Line], mark: Mark) -> Figure | None:
    """Right answers by number of pairs."""
    if "recall" not in run.result:
        return None
    traces, rows = [], []
    ticks: set[int] = set()
    for place, line in enumerate(lines):
        pairs = run.result.provenance["architecture"]["pairs"][str(line.shared["length"])]
        values = line.mean("recall")[: len(pairs)]
        ticks |= set(pairs)
        traces.append(line_trace(line, place, pairs, values))
        rows += [[line.words, *part] for part in zip(pairs, plain(values), strict=True)]
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "pairs in a row"}, "type": "log", "tickvals": sorted(ticks)},
        "yaxis": {"title": {"text": "right answers (share)"}, "range": [0, 1]},
    }
    variant = Variant({}, traces, layout, ["model", "pairs", "right answers"], rows, basis=_basis(run))
    return Figure(
        f"architecture-recall{mark.id}",
        f"What do they recall?{mark.title}",
        "Share of right answers on fresh rows of key-value pairs as long as the models' windows.",
        "Right answers by number of pairs, a line per row.",
        [variant],
    )


def _norm_figure(run: StoredRun, lines: Sequence[Line], mark: Mark) -> Figure | None:
    """Mean token norm behind every block, of trained models and before training."""
    if "token_norm" not in run.result:
        return None
    variants = []
    whole = {"dtick": 1} if max(line.shared["layers"] for line in lines) <= FEW_LAYERS else {}
    for words, name in (("trained", "token_norm"), ("before training", "start_token_norm")):
        traces, rows = [], []
        for place, line in enumerate(lines):
            values = line.mean(name)
            values = values[: int(np.isfinite(values).sum())]
            traces.append(line_trace(line, place, range(len(values)), values))
            rows += [[line.words, *part] for part in zip(range(len(values)), plain(values), strict=True)]
        layout: dict[str, Any] = {
            "xaxis": {"title": {"text": "state: 0 is the embedding"}, "tickformat": "d", **whole},
            "yaxis": {"title": {"text": "mean norm of a token"}, "type": "log"},
        }
        variants.append(
            Variant({"weights": words}, traces, layout, ["model", "state", "norm"], rows, basis=_basis(run))
        )
    return Figure(
        f"architecture-norms{mark.id}",
        f"How long do tokens become?{mark.title}",
        "Mean norm of a token behind the embedding and behind every block, on held-out windows.",
        "Token norm by depth, a line per row.",
        variants,
    )


def _table(run: StoredRun, mark: Mark) -> Table:
    """All rates, with sizes, leaks and spectra."""
    texts = run.result.provenance["architecture"]["texts"]
    columns = ["model", "rate", "seeds", *(f"perplexity, {name.replace('_', ' ')}" for name in texts), "bits/byte"]
    columns += [
        "leak (nats)",
        "loss on the prefix alone",
        "parameters",
        "width",
        "spectral norm at the start",
        "and now",
    ]
    rows = []
    for line in lines_of(run.result, row_words):
        known = [name in run.result for name in ("leak", "prefix_loss")]
        leaks = [
            float(line.mean(name)) if there else None
            for name, there in zip(("leak", "prefix_loss"), known, strict=True)
        ]
        norms = [_mean(line, name) for name in ("start_norm", "spectral_norm")]
        rows.append(
            [
                line.words,
                line.shared["rate"],
                len(line.cells),
                *plain(line.mean("perplexity")),
                *plain(line.mean("bits_per_byte")[:1]),
                *plain(np.array(leaks)),
                int(line.mean("parameters")),
                int(line.mean("own_width")),
                *plain(np.array(norms)),
            ]
        )
    return Table(f"architecture-rows{mark.id}", f"All rows and rates{mark.title}", columns, rows)


def _mean(line: Line, name: str) -> float:
    """Mean over layers where there are some; NaN where it was not read."""
    if name not in line.result:
        return float("nan")
    values = line.mean(name)
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
