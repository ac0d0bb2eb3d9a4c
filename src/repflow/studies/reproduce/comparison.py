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

Each of ours comes with its standard error over prompts (over test prompts for probes). A printed value is shown to hold
where the 95 % interval lies within the tolerance, shown not to where it lies outside, and open otherwise: also below
three prompts, which give no interval, and for a model that was not trained, where the paper speaks of trained ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repflow.core.intervals import LEAST_VALUES, normal_quantile
from repflow.core.results import Result
from repflow.core.verdict import Part, decide
from repflow.papers import values as papers
from repflow.studies.reproduce.row import PRINTED, PROBED, Key, Row
from repflow.studies.reproduce.statement import Ours

POINTS = 10.0
PROBE_POINTS = 5.0
RATIO = 1.1
DEPTH_SHARE = 0.1
TIE = 0.1
"""Mean scores this close cannot distinguish two kinds."""
UNSEEN = "the authors' code was not seen"


@dataclass(frozen=True)
class Verdict:
    """Whether the printed values of a model come out, in the kind of state that lies nearest them.

    Attributes:
        model: the paper's name.
        word: holds, partly holds, does not hold or open.
        nearest: kind with the smallest mean score, None where nothing could be compared.
        scores: mean score by kind: distances in units of the tolerance.
        held: values of the nearest kind that are shown to be within the tolerance.
        failed: values of it that are shown to be outside.
        total: values compared.
        label: what was measured, `MODEL → STAND-IN, SIZE`; the name alone for the paper's own checkpoint.
        random: the stand-in was not trained.
    """

    model: str
    word: str
    nearest: str | None
    scores: dict[str, float]
    held: int
    failed: int
    total: int
    label: str = ""
    random: bool = False

    @property
    def tied(self) -> tuple[str, ...]:
        """Kinds whose mean score is within `TIE` of the nearest one's, that one included."""
        best = min(self.scores.values(), default=0.0)
        return tuple(kind for kind, mean in self.scores.items() if mean <= best + TIE)

    @property
    def message(self) -> str:
        """One sentence."""
        who = self.label or self.model
        if self.nearest is None:
            return f"{who}: {self.word}: none of the printed values can be compared"
        kind = self.nearest
        others = [other for other in self.scores if other != kind]
        tied = " and ".join(other for other in self.tied if other != kind)
        near = f"{kind} states lie nearest" if others else f"{kind} states alone were run"
        near += f", not to be distinguished from {tied}" if tied else ""
        scores = ", ".join(f"{name} {self.scores[name]:.2f}" for name in [kind, *others])
        left = self.total - self.held - self.failed
        counts = (
            f"{self.held} of {self.total} printed values shown within tolerance, {self.failed} outside, {left} open"
        )
        why = "; random weights say nothing of a trained model" if self.random else ""
        return f"{who}: {self.word}: {counts}{why}; {near} (mean score {scores}); {UNSEEN}"


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


def limits(row: Row) -> tuple[float, float]:
    """Smallest and largest value within the tolerance of a printed one."""
    if row.quantity in ("smoothness", "stability"):
        return row.low / RATIO, row.high * RATIO
    return row.low - tolerance(row), row.high + tolerance(row)


def ours(row: Row, kind: str, results: Mapping[Key, Result], tasks: Sequence[str], inits: Sequence[str]) -> Ours:
    """Our value for a row: the mean over tasks, and over random schemes where it speaks of random weights."""
    wanted_tasks = tasks if row.task == "mean" else [row.task]
    wanted_inits = [init for init in inits if (init == "trained") == (row.init == "trained")]
    probed = row.quantity in PROBED
    keys = [Key(row.model, task, row.length, init, kind, probed) for task in wanted_tasks for init in wanted_inits]
    measured = [results.get(key) for key in keys]
    if not measured or any(result is None for result in measured):
        return Ours(math.nan)
    return _mean_of([with_error(row, kind, result) for result in measured if result is not None])


def _mean_of(parts: Sequence[Ours]) -> Ours:
    """Mean of independent runs, with Welch and Satterthwaite's degrees of freedom."""
    squares = np.array([part.error**2 for part in parts])
    value, total = float(np.mean([part.value for part in parts])), float(squares.sum())
    weights = sum(square**2 / part.freedom for square, part in zip(squares, parts, strict=True))
    freedom = total**2 / weights if weights > 0 else math.inf
    return Ours(value, math.sqrt(total) / len(parts), freedom)


def with_error(row: Row, kind: str, result: Result) -> Ours:
    """Value of one Result at the layers of a row, with its standard error."""
    value = read(row, kind, result)
    if row.quantity in PROBED:
        return Ours(value, _probe_error(row, kind, result))
    each = np.array([read(row, kind, one) for one in _prompts(row.quantity, result)])
    each = each[np.isfinite(each)]
    if len(each) < LEAST_VALUES:
        return Ours(value)
    return Ours(value, float(each.std(ddof=1)) / math.sqrt(len(each)), len(each) - 1)


def _prompts(quantity: str, result: Result) -> list[Result]:
    """The part of a Result that a quantity is read from, for one prompt at a time."""
    name = "cka_matrix" if quantity == "cka" else PRINTED.get(quantity, quantity)
    axis = result.axes[name].index("sample")
    shown_name = "cka_pooled" if quantity == "cka" else name
    cuts = [result[name].take([sample], axis) for sample in range(result[name].shape[axis])]
    if quantity == "cka":
        return [Result({shown_name: cut[..., 0]}, {shown_name: ("state", "state")}) for cut in cuts]
    return [Result({shown_name: cut}, {shown_name: result.axes[name]}) for cut in cuts]


def _probe_error(row: Row, kind: str, result: Result) -> float:
    """Standard error over test prompts. The two accuracies of a drop are taken as independent, which widens it."""
    valid, test = result.provenance["probe"]["split_sizes"][0][1:]
    if row.quantity == "peak_layer":
        return _peak_error(row, kind, result, valid)
    accuracy = curve(result, "probe/paper/accuracy")
    last = _share_error(float(accuracy[-1]), test)
    peak = _share_error(float(accuracy[_peak(result)]), test) if row.quantity == "drop" else 0.0
    return 100 * math.hypot(last, peak)


def _peak_error(row: Row, kind: str, result: Result, valid: int) -> float:
    """How far away states are whose validation accuracy cannot be distinguished from the best one's."""
    accuracy = curve(result, "probe_valid_accuracy")
    best, z = float(accuracy.max()), normal_quantile()
    noise = z * math.sqrt(2) * _share_error(best, valid)
    layers = [_layer_of(row, kind, state, len(accuracy)) for state in np.flatnonzero(accuracy >= best - noise).tolist()]
    here = _layer_of(row, kind, _peak(result), len(accuracy))
    return max(abs(layer - here) for layer in layers) / z


def _share_error(share: float, count: int) -> float:
    """Standard error of a share of prompts; two right and two wrong ones are added, or it would be 0 at 0 and 1."""
    adjusted = (share * count + 2) / (count + 4)
    return math.sqrt(adjusted * (1 - adjusted) / (count + 4))


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
    return _layer_of(row, kind, _peak(result), len(result["probe/paper/accuracy"]))


def _layer_of(row: Row, kind: str, state: int, states: int) -> float:
    """A state as a layer of the paper's model, at the same relative depth."""
    share, depth = state / max(states - 1, 1), papers.layers_of(row.model)
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


def judge(row: Row, value: Ours, *, untrained: Collection[str] = ()) -> tuple[bool | None, float]:
    """Whether ours is shown to be the printed value, shown not to be, or neither; and the error of saying so.

    Args:
        row: the printed value.
        value: ours.
        untrained: models whose stand-in is random: what the paper says of trained ones stays open.
    """
    if row.init == "trained" and row.model in untrained:
        return None, 1.0
    return value.within(*limits(row))


def verdicts(
    rows: Sequence[Row],
    values: Sequence[Sequence[Ours]],
    kinds: Sequence[str],
    labels: Mapping[str, str] | None = None,
    untrained: Collection[str] = (),
) -> list[Verdict]:
    """Nearest kind of state per model, and whether the printed values come out in it.

    Args:
        rows: printed values.
        values: ours, (row, kind).
        kinds: kinds of state.
        labels: what stands for a model, where that is not the paper's checkpoint.
        untrained: models whose stand-in is random.
    """
    judged = []
    for model in dict.fromkeys(row.model for row in rows):
        mine = [i for i, row in enumerate(rows) if row.model == model]
        scores = np.array([[score(rows[i], value.value) for value in values[i]] for i in mine])
        # a row counts for all kinds or for none, so that they are judged by the same values
        whole = np.isfinite(scores).all(1)
        means = {kind: float(scores[whole, k].mean()) for k, kind in enumerate(kinds)} if whole.any() else {}
        nearest = min(means, key=lambda kind: means[kind]) if means else None
        parts = []
        if nearest is not None:
            at = kinds.index(nearest)
            counted = [i for i, use in zip(mine, whole, strict=True) if use]
            parts = [Part(rows[i].what, *judge(rows[i], values[i][at], untrained=untrained)) for i in counted]
        verdict = decide(parts)
        label, random = (labels or {}).get(model, model), model in untrained
        judged.append(
            Verdict(model, verdict.word, nearest, means, verdict.held, verdict.failed, len(parts), label, random)
        )
    return judged
