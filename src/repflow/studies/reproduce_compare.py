"""Ours beside the printed value: reading a Result at the layers a row speaks of, and how far apart the two are.

| quantity | ours | tolerance |
|---|---|---|
| layer_cosine, token_similarity, cka | percent at the named layers; mean of a span, median of most layers | 10 points |
| accuracy, drop | last state's test accuracy, and what it loses against the peak, percent | 5 points |
| peak_layer | state of the best validation accuracy, in layers of the paper's model | a tenth of the depth |
| smoothness, stability | paper_smoothness, paper_stability (Eq. 3 and 4 as printed), prompts' mean | a factor of 1.1 |

The distance is that from the printed interval, for smoothness and stability the absolute logarithm of the ratio. The
text rounds what it reads off figures to tens.
A model of another depth is read at the same relative depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repflow import papers
from repflow.results import Result
from repflow.studies.reproduce_recipes import PRINTED, Row

POINTS = 10.0
PROBE_POINTS = 5.0
RATIO = 1.1
DEPTH_SHARE = 0.1
PROBED = ("accuracy", "drop", "peak_layer")
"""Quantities that come from probes."""
TIE = 0.1
"""Mean scores this close cannot tell two kinds apart."""
UNSEEN = "the authors' code was not seen"


@dataclass(frozen=True)
class Key:
    """Which run a Result is of.

    Attributes:
        model: the paper's name.
        task: task.
        length: the paper's length.
        init: weights.
        kind: kind of state.
    """

    model: str
    task: str
    length: int
    init: str
    kind: str


@dataclass(frozen=True)
class Verdict:
    """Which kind of state lies nearest the printed values of a model.

    Attributes:
        model: the paper's name.
        nearest: kind with the smallest mean score, None where nothing could be compared.
        scores: mean score by kind: distances in units of the tolerance.
        within: rows within the tolerance by kind.
        total: rows compared by kind.
        consistent: every row of the nearest kind is within its tolerance.
        spec: what was measured for it, "" for the paper's own checkpoint.
    """

    model: str
    nearest: str | None
    scores: dict[str, float]
    within: dict[str, int]
    total: dict[str, int]
    consistent: bool
    spec: str = ""

    @property
    def tied(self) -> tuple[str, ...]:
        """Kinds whose mean score is within `TIE` of the nearest one's, that one included."""
        best = min(self.scores.values(), default=0.0)
        return tuple(kind for kind, mean in self.scores.items() if mean <= best + TIE)

    @property
    def message(self) -> str:
        """One sentence."""
        who = f"{self.spec} for {self.model}" if self.spec else self.model
        if self.nearest is None:
            return f"{who}: nothing to compare"
        kind = self.nearest
        others = [other for other in self.scores if other != kind]
        tied = " and ".join(other for other in self.tied if other != kind)
        near = f"{kind} states lie nearest" if others else f"{kind} states alone were run"
        near += f", not to be told from {tied}" if tied else ""
        scores = ", ".join(f"{name} {self.scores[name]:.2f}" for name in [kind, *others])
        word = "consistent" if self.consistent else "not consistent"
        count = f"{self.within[kind]} of {self.total[kind]} values within tolerance"
        return f"{who}: {near} (mean score {scores}); {word} with the printed values: {count}; {UNSEEN}"


def tolerance(row: Row) -> float:
    """Distance up to which ours counts as the printed value."""
    if row.quantity in ("smoothness", "stability"):
        return math.log(RATIO)
    if row.quantity == "peak_layer":
        return DEPTH_SHARE * papers.layers_of(row.model)
    return PROBE_POINTS if row.quantity in PROBED else POINTS


def score(row: Row, value: float) -> float:
    """Distance from the printed interval in units of the tolerance; NaN where ours is.

    >>> row = Row("Mamba-2.8B", "", "layer_cosine", "mean", 2000, "trained", (1, 1), 30.0, 40.0, "")
    >>> score(row, 35.0), score(row, 45.0)
    (0.0, 0.5)
    """
    if not math.isfinite(value):
        return math.nan
    if row.quantity in ("smoothness", "stability"):
        return abs(math.log(value / row.low)) / tolerance(row) if value > 0 else math.inf
    return max(row.low - value, value - row.high, 0.0) / tolerance(row)


def ours(row: Row, kind: str, results: Mapping[Key, Result], tasks: Sequence[str], inits: Sequence[str]) -> float:
    """Our value for a row: the mean over tasks, and over random schemes where it speaks of random weights."""
    wanted_tasks = tasks if row.task == "mean" else [row.task]
    wanted_inits = [init for init in inits if (init == "trained") == (row.init == "trained")]
    found = [
        results.get(Key(row.model, task, row.length, init, kind)) for task in wanted_tasks for init in wanted_inits
    ]
    if not found or any(result is None for result in found):
        return math.nan
    return float(np.mean([read(row, kind, result) for result in found if result is not None]))


def read(row: Row, kind: str, result: Result) -> float:
    """Value of one Result at the layers of a row."""
    return READERS[row.quantity](row, kind, result)


def curve(result: Result, quantity: str) -> np.ndarray:
    """A quantity over depth, averaged over prompts and tokens."""
    if quantity == "cka":
        return result["cka_pooled"]
    array = result[quantity]
    if "token" in result.axes[quantity]:
        return result.token_mean(quantity, pooled=True)
    present = np.isfinite(array)
    axes = tuple(range(1, array.ndim))
    total = np.where(present, array, 0.0).sum(axes, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(total / present.sum(axes))


def at_layers(values: np.ndarray, layers: tuple[int, int], depth: int, *, steps: bool) -> float:
    """Mean of a curve over layers first … last of a model of `depth` layers, at the same relative depth.

    Args:
        values: the curve; its first entry is layer 1 with `steps`, else the embedding (layer 0).
        layers: first and last layer, from 1.
        depth: layers of the model they are counted in.
        steps: whether the curve has an entry per layer rather than per state.

    >>> at_layers(np.array([0.0, 1.0, 2.0, 3.0]), (2, 3), 4, steps=True)
    1.5
    """
    wanted = np.arange(layers[0], layers[1] + 1, dtype=np.float64)
    share = (wanted - 1) / max(depth - 1, 1) if steps else wanted / depth
    return float(np.mean(np.interp(share * (len(values) - 1), np.arange(len(values)), values)))


def _cosine(row: Row, kind: str, result: Result) -> float:
    values = 100 * curve(result, row.quantity)
    if row.layers is None:
        return float(np.nanmedian(values))
    # branch outputs have no embedding: their first state is the first block's
    steps = row.quantity == "layer_cosine" or kind == "branch"
    return at_layers(values, row.layers, papers.layers_of(row.model), steps=steps)


def _cka(row: Row, kind: str, result: Result) -> float:
    assert row.layers is not None
    matrix = curve(result, "cka")
    depth, last = papers.layers_of(row.model), len(matrix) - 1
    shares = [(layer - 1) / (depth - 1) if kind == "branch" else layer / depth for layer in row.layers]
    first, second = (round(share * last) for share in shares)
    if first == second:  # a shallower model: both layers fall on one state, whose CKA with itself says nothing
        return math.nan
    return 100 * float(matrix[first, second])


def _mean(row: Row, kind: str, result: Result) -> float:
    return float(result.mean(PRINTED[row.quantity]))


def _peak(result: Result) -> int:
    """State of the best validation accuracy over seeds: choosing it on the test prompts would flatter it."""
    return int(np.argmax(curve(result, "probe_valid_accuracy")))


def _accuracy(row: Row, kind: str, result: Result) -> float:
    return 100 * float(curve(result, "probe/paper/accuracy")[-1])


def _drop(row: Row, kind: str, result: Result) -> float:
    test = curve(result, "probe/paper/accuracy")
    return 100 * float(test[_peak(result)] - test[-1])


def _peak_layer(row: Row, kind: str, result: Result) -> float:
    last, depth = len(result["probe/paper/accuracy"]) - 1, papers.layers_of(row.model)
    share = _peak(result) / max(last, 1)
    return 1 + share * (depth - 1) if kind == "branch" else share * depth


READERS: dict[str, Callable[[Row, str, Result], float]] = {
    "layer_cosine": _cosine,
    "token_similarity": _cosine,
    "cka": _cka,
    "accuracy": _accuracy,
    "drop": _drop,
    "peak_layer": _peak_layer,
    "smoothness": _mean,
    "stability": _mean,
}


def verdicts(
    rows: Sequence[Row], values: np.ndarray, kinds: Sequence[str], specs: Mapping[str, str] | None = None
) -> list[Verdict]:
    """Nearest kind of state per model.

    Args:
        rows: printed values.
        values: ours, (row, kind).
        kinds: kinds of state.
        specs: what stands for a model, where that is not the paper's checkpoint.
    """
    found = []
    for model in dict.fromkeys(row.model for row in rows):
        spec = (specs or {}).get(model, "")
        mine = [i for i, row in enumerate(rows) if row.model == model]
        scores = np.array([[score(rows[i], float(values[i, k])) for k in range(len(kinds))] for i in mine])
        # a row counts for all kinds or for none, so that they are judged by the same values
        whole = scores[np.isfinite(scores).all(1)]
        if not len(whole):
            found.append(Verdict(model, None, {}, {}, {}, consistent=False, spec=spec))
            continue
        means = {kind: float(whole[:, k].mean()) for k, kind in enumerate(kinds)}
        within = {kind: int((whole[:, k] <= 1).sum()) for k, kind in enumerate(kinds)}
        nearest = min(means, key=lambda kind: means[kind])
        total = dict.fromkeys(kinds, len(whole))
        consistent = within[nearest] == len(whole)
        found.append(Verdict(model, nearest, means, within, total, consistent, spec))
    return found
