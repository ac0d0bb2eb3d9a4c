"""Tables for the terminal: one model's states, and several models side by side."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.catalogue import METRICS
from repflow.core.intervals import NO_INTERVAL
from repflow.core.results import Result
from repflow.report.data.labels import label
from repflow.report.terminal.cell import ABSENT, DEPTHS, decimals, number, thinned
from repflow.report.terminal.fitted import FittedTable

SUMMARY = {
    "smoothness": "smoothness Sm",
    "stability": "stability St",
    "paper_smoothness": "Sm as printed",
    "paper_stability": "St as printed",
    "relative_smoothness": "relative Sm",
    "relative_stability": "relative St",
    "direction_smoothness": "direction Sm",
    "direction_stability": "direction St",
    "matched/smoothness": "matched Sm",
    "matched/stability": "matched St",
}
"""Values over depth, in the order of the table.

as printed: paper 1's Eq. 3 and 4; direction: of per-token normalised states; matched: on the grid.
"""

Column = tuple[str, Callable[[int], str]]


def view(result: Result) -> list[RenderableType]:
    """What the command line shows of one model: states, values over depth, findings."""
    parts: list[RenderableType] = []
    if columns := _columns(result):
        parts.append(_state_table(result, columns))
    if any(name in result for name in SUMMARY) or _asked(result, ("sample",)):
        parts.append(_summary_table(result))
    if "cka_pooled" in result:
        parts.append(_cka_line(result))
    printed = {"token_similarity", "token_similarity_excess", "layer_cosine", "token_norm", "common_share", *SUMMARY}
    printed |= {*_asked(result, ("state", "sample")), *_asked(result, ("sample",))}
    others = [name for name in result if name not in printed and "/" not in name]
    if others:
        parts.append(Text(f"also stored: {', '.join(others)}", style="dim"))
    parts += [_finding(finding.code, finding.message) for finding in result.findings]
    return parts


def side_by_side(results: Sequence[Result]) -> FittedTable:
    """Several models in one table, at equal relative depth."""
    headings = ["model", "blocks", *(f"{depth} %" for depth in DEPTHS), "Sm", "St"]
    rows = []
    for result in results:
        values = [str(_blocks(result)), *map(number, at_depths(result, "token_similarity"))]
        values += [_scalar(result, f"matched/{name}") for name in _DEPTH_NAMES]
        rows.append(dict(zip(headings, [label(result), *values], strict=True)))

    def build(names: Sequence[str], caption: Text) -> Table:
        title = "Token similarity at relative depth, smoothness and stability"
        table = Table(box=box.SIMPLE, title=title, min_width=60, caption=caption, caption_justify="left")
        for name in names:
            model = name == "model"
            table.add_column(name, justify="left" if model else "right", no_wrap=not model, overflow="fold")
        for row in rows:
            table.add_row(*(Text(row[name]) for name in names))
        return table

    return FittedTable(headings, 1, build, comparison_caption(results), folds=("model",))


_DEPTH_NAMES = ("smoothness", "stability")


def comparison_caption(results: Sequence[Result]) -> str:
    """What the reader must know to read the comparison rightly."""
    grids = {result.config.get("grid") for result in results}
    if len(grids) == 1 and None not in grids:
        text = (
            f"Sm and St on a matched grid of {grids.pop()} relative-depth steps: a Transformer block is two residual"
            " updates and a Mamba block one, so values per block do not compare."
        )
    else:
        text = "Sm and St are left out where the models have no common relative-depth grid (--grid)."
    prompts = {result.provenance.get("digests", {}).get("prompts") for result in results}
    if len(prompts) > 1:
        text += " The models read different token sequences (their tokenizers or vocabularies differ)."
    return text


def at_depths(result: Result, name: str) -> list[float]:
    """A state metric's mean over samples, interpolated at the relative depths of the table."""
    if name not in result:
        return [float("nan")] * len(DEPTHS)
    mean = result.mean(name)
    return [float(np.interp(depth / 100 * (len(mean) - 1), np.arange(len(mean)), mean)) for depth in DEPTHS]


def _blocks(result: Result) -> int | str:
    return result.provenance.get("model", {}).get("layers", ABSENT)


def _state_words(result: Result) -> str:
    """Kind of state; of a model with several residual streams, that it is their mixture."""
    kind, streams = str(result.config.get("states", "residual")), result.provenance.get("model", {}).get("streams")
    return f"{kind} (mixture of {streams['count']} streams)" if streams and kind == "residual" else kind


def _state_table(result: Result, columns: list[Column]) -> FittedTable:
    count = _state_count(result)
    rows = thinned(count)
    config = result.config
    title = f"{label(result)}: {_state_words(result)} states on task {config.get('task', '')}"
    blocks = result.provenance.get("branch_layers")  # a branch belongs to a block, and not every block has one
    cells = dict(columns)
    final = "final_norm/token_similarity"

    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(box=box.SIMPLE, title=Text(title), title_justify="left", caption=caption, caption_justify="left")
        for name in ("block" if blocks else "state", *names):
            table.add_column(name, justify="right", no_wrap=True)
        for state in rows:
            table.add_row(str(blocks[state] + 1 if blocks else state), *(cells[name](state) for name in names))
        if final in result:
            table.add_row("norm", *(_with_band(result, final)(0) if name == "similarity" else "" for name in names))
        return table

    notes = [f"{len(rows)} of {count} states shown"] if len(rows) < count else []
    if "token_similarity" in result:
        banded = bool(np.isfinite(result.band("token_similarity").low).any())
        notes.append("[ ]: Student's 95 % over prompts" if banded else NO_INTERVAL)
    return FittedTable(list(cells), 1, build, "; ".join(notes))


def _state_count(result: Result) -> int:
    by_state = ("token_similarity", "token_norm", "common_share", "token_similarity_excess")
    for name in (*by_state, *_asked(result, ("state", "sample"))):
        if name in result:
            return result[name].shape[0]
    return result["layer_cosine"].shape[0] + 1


def _columns(result: Result) -> list[Column]:
    """Columns for the state metrics that the result has."""
    columns: list[Column] = []
    if "token_similarity" in result:
        columns.append(("similarity", _with_band(result, "token_similarity")))
    if "token_similarity_excess" in result:
        columns.append(("excess", _curve(result.mean("token_similarity_excess"))))
    if "layer_cosine" in result:
        cosine = result.token_mean("layer_cosine", pooled=True)
        columns.append(("layer cosine", _curve(np.concatenate([[np.nan], cosine]))))
    if "token_norm" in result:
        norms = _reduce(np.nanmedian, result["token_norm"])
        columns.append(("norm (median)", _curve(norms, decimals(norms))))
    if "common_share" in result:
        columns.append(("common share", _curve(result.mean("common_share"))))
    columns += [(name, _curve(result.mean(name))) for name in _asked(result, ("state", "sample"))]
    return columns


def _asked(result: Result, axes: tuple[str, ...]) -> list[str]:
    """Metrics with these axes that are there because somebody asked for them: opt-in, calibrated or their own."""
    variants = ("final_norm/", "float32_change/", "matched/", f"{result.config.get('drop', '')}/")
    names = [name for name in result if result.axes[name] == axes and not name.startswith(variants)]
    companions = ("gram_share_error", "cka_")
    names = [name for name in names if not name.startswith(companions) and name not in SUMMARY]
    return [name for name in names if name not in METRICS or not METRICS[name].default]


def _cka_line(result: Result) -> Text:
    """CKA in one line: neighbours in depth, first with last, and what chance gives."""
    cka = result["cka_pooled"]
    beside = float(np.nanmean(np.diagonal(cka, 1))) if len(cka) > 1 else float("nan")
    ends = number(float(cka[0, -1]))
    text = f"CKA pooled over prompts: {number(beside)} between neighbouring states, {ends} from first to last"
    if "cka_null_sd" in result:
        text += f"; chance sd {number(float(np.nanmean(result['cka_null_sd'])), 4)} per prompt"
    return Text(text)


def _reduce(function: Callable[..., np.ndarray], array: np.ndarray) -> np.ndarray:
    """Mean or median over samples and tokens, NaN where there is nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all-NaN states are findings, not worth a second message
        return np.asarray(function(array.reshape(array.shape[0], -1), axis=1))


def _curve(values: np.ndarray, digits: int = 3) -> Callable[[int], str]:
    return lambda state: number(float(values[state]), digits) if state < len(values) else ABSENT


def _with_band(result: Result, name: str) -> Callable[[int], str]:
    band = result.band(name)

    def cell(state: int) -> str:
        mean, low, high = (number(float(part[state])) for part in band)
        return f"{mean} [{low}, {high}]" if np.isfinite(band.low[state]) else mean

    return cell


def _summary_table(result: Result) -> Table:
    table = Table(box=box.SIMPLE, show_header=True, title_justify="left")
    table.add_column("over depth")
    table.add_column("mean", justify="right")
    table.add_column("95 %", justify="right")
    for name, title in {**SUMMARY, **{name: name for name in _asked(result, ("sample",))}}.items():
        if name in result:
            band = result.band(name)
            span = f"{band.low:.4g} to {band.high:.4g}" if np.isfinite(band.low) else ABSENT
            table.add_row(title, _scalar(result, name), span)
    return table


def _scalar(result: Result, name: str) -> str:
    if name not in result:
        return ABSENT
    value = float(result.mean(name))
    return f"{value:.4g}" if np.isfinite(value) else ABSENT


def _finding(code: str, message: str) -> Text:
    return Text.assemble((f"finding {code}: ", "yellow"), message)
