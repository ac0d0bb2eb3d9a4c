"""What `repflow reproduce` stored: statements beside ours, and curves with the paper's printed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repflow.core.recipes import RECIPES
from repflow.core.verdict import DOES_NOT, HOLDS, OPEN
from repflow.papers import values as papers
from repflow.report.data.model import Block, Figure, Table, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.number import exact, short
from repflow.report.terminal.reproduce import WORDS

METRICS = {"layer_cosine": "layer_cosine", "token_similarity": "token_similarity", "probe_accuracy": "accuracy"}
COLUMNS = ("model", "whose", "weights", "layer", "relative depth", "value or low, %", "high, %")
PERCENT = 100.0
VERDICTS = {True: HOLDS, False: DOES_NOT, None: OPEN}


def statement_tables(runs: Sequence[StoredRun], study: str, id: str) -> list[Block]:
    """What a paper states beside ours, a table for every reproduction.

    Args:
        runs: of the page.
        study: under which the reproductions are stored.
        id: beginning of the tables' anchors.
    """
    papers_of = {row.name: row.paper for row in RECIPES}
    blocks: list[Block] = []
    for place, run in enumerate((run for run in runs if run.study == study), 1):
        about = run.result.provenance
        rows = [
            [line.get("of", line["what"]), line["stated"], line["ours"], VERDICTS[line["holds"]]]
            for line in about["lines"]
        ]
        sentences = [str(about.get("note") or ""), *(finding.message for finding in run.result.findings)]
        recipe = str(run.result.config.get("recipe", run.name))
        title = f"Paper {papers_of.get(recipe, 2)}, {recipe}: {about['title']}"
        caption = " ".join(f"{text[0].upper()}{text[1:].rstrip('.')}." for text in sentences if text)
        blocks.append(Table(f"{id}-{place}", title, ["of", "the paper", "ours", "verdict"], rows, caption))
    return blocks


def reproduce_figure(runs: Sequence[StoredRun]) -> Figure | None:
    """Our curves by depth with printed values beside them; None where no recipe stored curves over depth."""
    variants = []
    for run in runs:
        if run.study != "reproduce":
            continue
        keys = [name.split("/") for name in run.result if name.count("/") == 5 and run.result[name].ndim == 1]
        places = dict.fromkeys((task, length, kind, metric) for _, task, length, _, kind, metric in keys)
        variants += [_variant(run, place) for place in places if place[3] in METRICS]
    if not variants:
        return None
    caption = (
        "Ours by relative depth in percent, one line per model and weights; markers with bars: what the paper's text "
        "says of these layers. Where other models stand for the paper's, nothing here speaks for or against it."
    )
    alt = "Lines of our values over depth with the paper's printed values as markers."
    return Figure("reproduce-curves", "Reproduced curves", caption, alt, variants, models_toggle=False)


def _variant(run: StoredRun, place: tuple[str, str, str, str]) -> Variant:
    task, length, kind, metric = place
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    models = list(dict.fromkeys(name.split("/")[0] for name in run.result if name.count("/") == 5))
    for name in run.result:
        parts = name.split("/")
        if len(parts) == 6 and (parts[1], parts[2], parts[4], parts[5]) == place:
            model, init = parts[0], parts[3]
            x, values = _curve(run.result[name], metric, kind)
            traces.append(_line(model, init, models.index(model), x, values))
            rows += [[model, "ours", init, i, x[i], exact(values[i]), None] for i in range(len(values))]
    for row in run.result.provenance["rows"]:
        if row["quantity"] == METRICS[metric] and row["layers"] is not None and row["model"] in models:
            traces.append(_printed(row, models.index(row["model"])))
            rows.append([row["model"], "paper", row["init"], str(row["layers"]), None, row["low"], row["high"]])
    when = {"recipe": str(run.result.config["recipe"]), "task": task, "length": length, "states": kind}
    when |= {"metric": WORDS[METRICS[metric]]}
    layout = {
        "xaxis": {"title": {"text": "relative depth"}, "range": [-0.02, 1.04]},
        "yaxis": {"title": {"text": WORDS[METRICS[metric]]}},
    }
    return Variant(when, traces, layout, COLUMNS, rows)


def _curve(values: np.ndarray, metric: str, kind: str) -> tuple[list[float], np.ndarray]:
    count = len(values)
    blocks = count if metric == "layer_cosine" or kind.startswith("branch") else count - 1
    first = count - blocks
    at = np.arange(count) if first else np.arange(1, count + 1)
    return short(at / max(blocks, 1)), PERCENT * np.asarray(values, dtype=np.float64)


def _line(model: str, init: str, place: int, x: list[float], values: np.ndarray) -> dict[str, Any]:
    dash = "solid" if init == "trained" else "dash"
    look = {"color": f"model:{place}", "dash": dash}
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{model}, {init}, ours",
        "x": x,
        "y": short(values),
        "line": look,
    }


def _printed(row: Mapping[str, Any], place: int) -> dict[str, Any]:
    """A printed value or range over the layers that it speaks of, as a marker with bars."""
    depth = papers.layers_of(row["model"])
    first, last = (layer if layer > 0 else depth for layer in row["layers"])
    low, high = max(row["low"], 0.0), row["high"]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{row['model']}, {row['init']}, printed",
        "showlegend": False,
        "x": short([(first + last) / 2 / depth]),
        "y": short([(low + high) / 2]),
        "error_x": {"type": "data", "array": short([(last - first) / 2 / depth])},
        "error_y": {"type": "data", "array": short([(high - low) / 2])},
        "marker": {"symbol": "diamond-open", "size": 11, "color": f"model:{place}", "line": {"width": 2}},
        "text": [str(row["what"])],
    }
