"""What each factor of a grid does: linear fits of loss, recall, onset of similarity, Sm and St against all that varies.

Every model is taken at the rate that served it best. Depth, width, state and window count by their logarithm to base 2,
so that an effect is that of doubling; order, remedies and other parts of a row are 0 or 1. Effects are those of
`repflow.studies.laboratory.effect`: intervals over seeds from three on, else from the scatter about the fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repflow.core.errors import InputError
from repflow.core.intervals import LEAST_VALUES
from repflow.core.results import Result
from repflow.spec.architecture import MODELS, STATE, STATES, Architecture, parse_architecture
from repflow.studies.laboratory.effect import INTERCEPT, effects, log_odds, pooled_effects

LEAST_RISE = 0.05
"""Rise of similarity from one state to a later one below which there is no onset."""
OUTCOMES = {
    "loss": "held-out loss (nats)",
    "recall": "recall, most pairs (log-odds)",
    "onset_depth": "onset of similarity (share of depth)",
    "smoothness": "ln Sm",
    "stability": "ln St",
    "last_similarity": "similarity behind the last block",
    "half_reach": "ln half reach of influence",
}
"""What is fitted, in words."""
DEPTH, WINDOW = "layers doubled", "window doubled"


def onset_depth(similarity: np.ndarray) -> float:
    """Share of depth at which half of the greatest rise of token similarity is reached, linear between states.

    The rise begins at any state: tied embeddings are often the most alike of all, and what blocks do begins behind a
    fall from there.

    Args:
        similarity: behind the embedding and every block (state,); NaN behind the model's last block.

    >>> onset_depth(np.array([0.0, 0.2, 0.6, 0.8, 0.8])), onset_depth(np.array([0.5, 0.1, 0.1, 0.1, 0.3]))
    (0.375, 0.875)
    >>> onset_depth(np.array([0.3, 0.2, 0.1]))
    nan
    """
    known = similarity[np.isfinite(similarity)]
    rises = known - np.minimum.accumulate(known)
    if len(known) < 2 or rises.max() < LEAST_RISE:
        return float("nan")
    top = int(np.argmax(rises))
    start = int(np.argmin(known[:top]))
    half = (known[start] + known[top]) / 2
    above = start + int(np.argmax(known[start:] >= half))
    before = known[above - 1]
    return float((above - 1 + (half - before) / (known[above] - before)) / (len(known) - 1))


def outcomes(result: Result, recall_rows: int) -> dict[str, np.ndarray]:
    """Values to be fitted, one per cell (cell,), of those that were read.

    Args:
        result: of a grid.
        recall_rows: test rows of each number of pairs.
    """
    values: dict[str, np.ndarray] = {"loss": np.log(result["perplexity"][:, 0])}
    if "recall" in result:
        facts, cells = result.provenance["architecture"]["pairs"], result.provenance["cells"]
        counts = np.array([recall_rows * facts[str(cell["length"])][-1] for cell in cells])
        values["recall"] = log_odds(result["recall"][:, -1], counts)
    values |= {name: result[name] for name in ("onset_depth",) if name in result}
    with np.errstate(divide="ignore", invalid="ignore"):
        values |= {n: np.log(result[n]) for n in ("smoothness", "stability", "half_reach") if n in result}
    if "token_similarity" in result:
        depths = [int(cell["layers"]) for cell in result.provenance["cells"]]
        values["last_similarity"] = np.array(
            [row[at] for row, at in zip(result["token_similarity"], depths, strict=True)]
        )
    return values


def factors(cells: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Everything in which cells may differ, one number per cell (cell,).

    >>> rows, shape = ("mamba", "mamba+poles"), {"width": 8, "length": 16}
    >>> cells = [{"row": row, "layers": depth, **shape} for row in rows for depth in (2, 4)]
    >>> {name: column.tolist() for name, column in independent(factors(cells)).items()}
    {'layers doubled': [1.0, 2.0, 1.0, 2.0], '+poles': [0.0, 0.0, 1.0, 1.0]}
    """
    rows = [parse_architecture(cell["row"]) for cell in cells]
    columns: dict[str, np.ndarray] = {}
    for name, field in ((DEPTH, "layers"), (WINDOW, "length"), ("width doubled", "width")):
        columns[name] = np.log2([float(cell[field]) for cell in cells])
    columns["states doubled"] = np.log2([_states(row) for row in rows])
    places = [
        (row.attention_at(int(cell["layers"])), int(cell["layers"])) for row, cell in zip(rows, cells, strict=True)
    ]
    columns["attention in all layers"] = np.array([len(at) / layers for at, layers in places])
    columns["attention from first to last"] = np.array([_later(at, layers) for at, layers in places])
    for part in dict.fromkeys(part for row in rows for part in _parts(row)):
        columns[part] = np.array([float(part in _parts(row)) for row in rows])
    kinds = [_recurrent(row) for row in rows]
    for kind in list(dict.fromkeys(kind for kind in kinds if kind))[1:]:
        columns[kind] = np.array([float(own == kind) for own in kinds])
    columns["layers and window doubled"] = _crossed(columns[DEPTH], columns[WINDOW])
    return columns


def _crossed(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Product of two factors about their means, so that the effect of each is that at the other's mean."""
    return np.asarray((one - one.mean()) * (other - other.mean()))


def independent(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns that those before them and a constant do not make up."""
    kept: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        table = np.stack([np.ones(len(column)), *kept.values(), column], 1)
        if np.linalg.matrix_rank(table) == table.shape[1]:
            kept[name] = column
    return kept


def _states(row: Architecture) -> int:
    named = [STATE if state is None else state for name, state in row.mixers if MODELS[name] in STATES]
    return max(named, default=STATE)


def _later(at: Sequence[int], layers: int) -> float:
    """Mean place of attention from −1/2, first, to 1/2, last; 0 where no layer or every one has it."""
    if not 0 < len(at) < layers:
        return 0.0
    free = (layers - len(at)) / layers  # how far its mean place can move
    return (float(np.mean(at)) + 0.5 - layers / 2) / layers / free


def _parts(row: Architecture) -> list[str]:
    strong = dict(row.strengths)
    added = [f"+{part}" + (f"@{strong[part]:g}" if part in strong else "") for part in sorted(row.parts)]
    return [*added, *(f"-{part}" for part in sorted(row.without))]


def _recurrent(row: Architecture) -> str:
    """Its mixers other than attention, without order and numbers of states."""
    return ".".join(sorted({name for name, _ in row.mixers if MODELS[name] != "softmax_attention"}))


def best_cells(result: Result) -> list[int]:
    """Of every model but for rate and seed the cells at the rate of the lowest mean loss."""
    groups: dict[tuple[Any, ...], dict[float, list[int]]] = {}
    for place, cell in enumerate(result.provenance["cells"]):
        key = tuple(cell[name] for name in ("row", "layers", "width", "length"))
        groups.setdefault(key, {}).setdefault(float(cell["rate"]), []).append(place)
    loss = np.log(result["perplexity"][:, 0])

    def mean(places: list[int]) -> float:
        return float(np.mean(loss[places])) if np.isfinite(loss[places]).all() else np.inf

    return sorted(place for by_rate in groups.values() for place in min(by_rate.values(), key=mean))


def fits(result: Result, recall_rows: int) -> dict[str, Any]:
    """Effects of all factors on each outcome, with counts, or why there are none.

    Args:
        result: of a grid.
        recall_rows: test rows of each number of pairs.

    Returns:
        By outcome its words, the number of models and seeds, `effects` by factor with mean, low and high, `left_out`:
        kinds of models without a finite value, and `confounded`: factors that vary with others alone, so that these
        stand for them too; or `reason` where nothing could be fitted.
    """
    chosen = best_cells(result)
    cells = [result.provenance["cells"][place] for place in chosen]
    read = outcomes(result, recall_rows)
    return {name: {"of": OUTCOMES[name], **_fit(values[chosen], cells)} for name, values in read.items()}


def _fit(values: np.ndarray, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kinds = [tuple(cell[name] for name in ("row", "layers", "width", "length")) for cell in cells]
    lost = {kind for kind, value in zip(kinds, values, strict=True) if not np.isfinite(value)}
    mine = [place for place, kind in enumerate(kinds) if kind not in lost]
    every = factors([cells[place] for place in mine]) if mine else {}
    columns = independent(every)
    seeds = [int(cells[place]["seed"]) for place in mine]
    facts: dict[str, Any] = {"models": len(mine), "seeds": len(set(seeds)), "left_out": len(lost)}
    facts["confounded"] = [name for name in every if name not in columns and np.ptp(every[name]) > 0]
    if not columns:
        return {**facts, "reason": "no factor varies" if mine else "no model has a value"}
    if np.ptp(values[mine]) == 0:  # such as recall of models that have not learned it: without scatter nothing is shown
        return {**facts, "reason": "all models have the same value"}
    fit = effects if facts["seeds"] >= LEAST_VALUES else pooled_effects
    try:
        fitted = fit(values[mine], {name: column.tolist() for name, column in columns.items()}, seeds)
    except InputError as error:
        return {**facts, "reason": str(error)}
    ends = [end for name in columns for end in (fitted[name].low, fitted[name].high)]
    if not np.isfinite(ends).all():
        some = f"{len(columns)} factor{'s' * (len(columns) > 1)}"
        reason = f"{len(mine)} models for {some} leave no scatter to judge by: add seeds or models"
        return {**facts, "reason": reason, "too_few": True}
    shown = {name: effect.to_json() for name, effect in fitted.items() if name != INTERCEPT}
    return {**facts, "intervals": "seeds" if fit is effects else "scatter", "effects": shown}
