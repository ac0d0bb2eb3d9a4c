"""Fit linear probes on all states and seeds as one batched problem, a group of states at a time.

States are read once each, in groups that fit the memory budget; all seeds of a group are one batched product. The
result of a state does not depend on its group. A seed may train on other rows than its neighbour (its split), on other
labels, or on prompts of its own: then put all seeds' prompts on one sample axis and let each split name its own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from repflow.core.errors import InputError, nearest, teach
from repflow.core.progress import Steps
from repflow.core.seconds import timed
from repflow.probes.budget import plan_groups
from repflow.probes.features import Features
from repflow.probes.objective import Objective, gradient_norm
from repflow.probes.paper import EPOCHS, RATE, fit_paper, initial
from repflow.probes.product import PRECISIONS, RowMatrix, tf32_products
from repflow.probes.robust import PENALTIES, TOLERANCE, Probes, SharedRows, fit_robust, masks, seed_scales, standardise
from repflow.probes.rows import RowPlan, plan_rows
from repflow.probes.span import Span, fits_span
from repflow.probes.split import PARTS, Split

RECIPES = ("paper", "robust")
CHUNK_ROWS = {"cpu": 1024, "cuda": 8192}
"""Rows of a chunk: on a CPU its features and logits stay in the cache between the two products."""


@dataclass
class ProbeFit:
    """How well each state's probe reads the label, for each seed. NaN where a state could not be fitted.

    Attributes:
        recipe: `paper` or `robust`.
        n_classes: Classes of the label.
        seeds: Of the initialisation.
        splits: One per seed.
        labels: (seed, sample).
        accuracy_train: (state, seed).
        accuracy_valid: (state, seed).
        accuracy_test: (state, seed).
        loss: Final mean cross-entropy on training rows, without penalty, nats, (state, seed).
        gradient: 2-norm of the objective's gradient at the end, (state, seed).
        converged: Gradient at most the tolerance, at unit scale of the features, (state, seed).
        penalty: λ of the L2 term, 0 for `paper`, (state, seed).
        log_likelihood_test: Mean log-probability of the label on test rows, nats, (state, seed).
        correct_valid: Per seed, (state, validation sample).
        correct_test: Per seed, (state, test sample).
        reasons: Why a state is NaN.
    """

    recipe: str
    n_classes: int
    seeds: tuple[int, ...]
    splits: list[Split]
    labels: np.ndarray
    accuracy_train: np.ndarray
    accuracy_valid: np.ndarray
    accuracy_test: np.ndarray
    loss: np.ndarray
    gradient: np.ndarray
    converged: np.ndarray
    penalty: np.ndarray
    log_likelihood_test: np.ndarray
    correct_valid: list[np.ndarray]
    correct_test: list[np.ndarray]
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def n_states(self) -> int:
        """States, those that could not be fitted included."""
        return self.accuracy_test.shape[0]


@dataclass(frozen=True)
class _Options:
    recipe: str
    epochs: int
    lr: float
    penalties: tuple[float, ...]
    tolerance: float
    precision: str
    n_classes: int
    seeds: tuple[int, ...]


@timed("fits")
def fit_probes(
    features: Features,
    labels: Sequence[int] | np.ndarray,
    splits: Sequence[Split],
    *,
    n_classes: int,
    recipe: str = "paper",
    seeds: Sequence[int] | None = None,
    epochs: int = EPOCHS,
    lr: float = RATE,
    penalties: Sequence[float] = PENALTIES,
    tolerance: float = TOLERANCE,
    device: str | torch.device | None = None,
    memory: int | None = None,
    precision: str = "tf32",
    progress: Steps | None = None,
) -> ProbeFit:
    """Fit one linear probe per state and seed.

    Args:
        features: One state at a time; `ArrayFeatures` wraps an array (state, sample, width).
        labels: (sample,) or (seed, sample), class numbers below `n_classes`.
        splits: One per seed; the same one for all seeds leaves only the initialisation to vary.
        n_classes: Classes of the label.
        recipe: `paper` (raw features, Adam) or `robust` (z-scored, L2 by validation, L-BFGS from 0: it is convex).
        seeds: Of the initialisation; 0, 1, ... if not given.
        epochs: Of `paper`.
        lr: Of `paper`.
        penalties: λ of `robust`.
        tolerance: Gradient's 2-norm at unit scale of the features that counts as converged; `robust` stops there.
        device: Where to compute; the features' own if not given.
        memory: Bytes for working copies; 0.4 of the features' size if not given, on a GPU 4 GiB if that is more, and
            one state at least.
        precision: On a GPU `tf32` (one product on the matrix units, exact for features captured in bfloat16), `float32`
            (three, twice the time) or `ieee` (no matrix units); a CPU computes in float32 whatever it says.
        progress: Called after each group.

    >>> x = np.concatenate([np.full((1, 10, 2), -1.0), np.full((1, 10, 2), 1.0)], 1)
    >>> y = np.repeat([0, 1], 10)
    >>> split = Split(np.arange(0, 20, 2), np.arange(1, 20, 4), np.arange(3, 20, 4))
    >>> from repflow.probes import ArrayFeatures
    >>> fit_probes(ArrayFeatures(x), y, [split], n_classes=2).accuracy_test
    array([[1.]])
    """
    seeds = tuple(range(len(splits)) if seeds is None else seeds)
    options = _Options(recipe, epochs, lr, tuple(penalties), tolerance, precision, n_classes, seeds)
    _check_options(options)
    labels = check_labels(labels, splits, n_classes, features.n_samples)
    _check_features(features, len(seeds), len(splits))
    fit = _empty(features.n_states, list(splits), labels, options)
    _fit_all(fit, features, options, device, memory, progress)
    return fit


def _fit_all(
    fit: ProbeFit,
    features: Features,
    options: _Options,
    device: str | torch.device | None,
    memory: int | None,
    progress: Steps | None,
) -> None:
    """Fill a fit, a group of states at a time."""
    first = features.state(0)
    dtype = torch.promote_types(first.dtype, torch.float32)
    where = torch.device(device) if device is not None else first.device
    plan = plan_rows(fit.splits, fit.labels, max_rows=CHUNK_ROWS.get(where.type, 8192), device=where, dtype=dtype)
    size, workers = plan_groups(
        features,
        plan,
        n_classes=options.n_classes,
        recipe=options.recipe,
        split=_splits(options.precision, where),
        device=where,
        memory=memory,
    )
    groups = [list(range(start, min(start + size, features.n_states))) for start in range(0, features.n_states, size)]
    job = _Job(fit, features, plan, options, dtype, progress)
    with tf32_products(options.precision != "ieee" and where.type == "cuda"):
        job.run(groups, workers)


def _check_features(features: Features, seeds: int, splits: int) -> None:
    if seeds != splits:
        raise InputError(teach("one seed per split", f"{seeds} and {splits}", "repeat the split"))
    if not features.n_states or not features.width:
        got = f"{features.n_states} x {features.width}"
        raise InputError(teach("features of some states and columns", got, "check them"))


def check_labels(
    labels: Sequence[int] | np.ndarray, splits: Sequence[Split], n_classes: int, n_samples: int
) -> np.ndarray:
    """Broadcast labels to (seed, sample) and check them against splits, classes and samples."""
    if not len(splits):
        raise InputError(teach("one split per seed", "none", "pass [three_way_split(labels, groups, seed=0)]"))
    array = np.asarray(labels)
    if array.dtype.kind not in "iu" or array.shape not in ((n_samples,), (len(splits), n_samples)):
        raise InputError(
            teach(
                f"class numbers of shape ({n_samples},) or ({len(splits)}, {n_samples})",
                f"{array.dtype} of shape {array.shape}",
                "pass one label per row of the features",
            )
        )
    array = np.broadcast_to(array.astype(np.int64), (len(splits), n_samples))
    if array.min() < 0 or array.max() >= n_classes:
        raise InputError(
            teach(f"labels from 0 to {n_classes - 1}", f"{array.min()} to {array.max()}", "set n_classes to fit them")
        )
    for mine, split in zip(array, splits, strict=True):
        if max(getattr(split, part).max() for part in PARTS) >= n_samples:
            raise InputError(teach(f"splits of rows below {n_samples}", "a larger row", "split these samples"))
        if mine[split.train].min() == mine[split.train].max():
            raise InputError(
                teach(
                    "training labels of at least two classes",
                    f"only class {mine[split.train[0]]}",
                    "vary what the label stands for, or split with three_way_split",
                )
            )
    return array


def _check_options(options: _Options) -> None:
    if options.recipe not in RECIPES:
        raise InputError(teach("a recipe", repr(options.recipe), nearest(options.recipe, RECIPES)))
    if options.precision not in PRECISIONS:
        raise InputError(teach("a precision", repr(options.precision), nearest(options.precision, PRECISIONS)))
    if options.epochs < 1 or not 0 < options.lr < math.inf or not options.tolerance > 0:
        raise InputError(
            teach(
                "at least one epoch, a finite positive rate and tolerance",
                f"{options.epochs}, {options.lr} and {options.tolerance}",
                "leave them out for the defaults",
            )
        )
    if not options.penalties or min(options.penalties) <= 0:
        raise InputError(
            teach("positive penalties", f"{options.penalties}", "without one separable data has no finite optimum")
        )


def _splits(precision: str, device: torch.device) -> bool:
    return precision == "float32" and device.type == "cuda"


def _empty(n_states: int, splits: list[Split], labels: np.ndarray, options: _Options) -> ProbeFit:
    shape = (n_states, len(splits))
    return ProbeFit(
        recipe=options.recipe,
        n_classes=options.n_classes,
        seeds=options.seeds,
        splits=splits,
        labels=labels,
        accuracy_train=np.full(shape, np.nan),
        accuracy_valid=np.full(shape, np.nan),
        accuracy_test=np.full(shape, np.nan),
        loss=np.full(shape, np.nan),
        gradient=np.full(shape, np.nan),
        converged=np.zeros(shape, bool),
        penalty=np.full(shape, np.nan),
        log_likelihood_test=np.full(shape, np.nan),
        correct_valid=[np.zeros((n_states, len(split.valid)), bool) for split in splits],
        correct_test=[np.zeros((n_states, len(split.test)), bool) for split in splits],
    )


class _Job:
    """The groups of one call, fitted one after the other or by several workers."""

    def __init__(
        self,
        fit: ProbeFit,
        features: Features,
        plan: RowPlan,
        options: _Options,
        dtype: torch.dtype,
        progress: Steps | None,
    ) -> None:
        self.fit, self.features, self.plan, self.options, self.dtype = fit, features, plan, options, dtype
        self.progress, self.done = progress, 0
        self.lock = threading.Lock()

    def run(self, groups: list[list[int]], workers: int) -> None:
        if workers == 1:
            for states in groups:
                self.group(states)
            return
        threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                for finished in [pool.submit(self.group, states) for states in groups]:
                    finished.result()
        finally:
            torch.set_num_threads(threads)

    def group(self, states: list[int]) -> None:
        with torch.no_grad():  # a setting of the thread, not of the process
            with self.lock:  # the user's own code, which need not know of threads
                rows, loaded = _load(self.fit, self.features, states, self.plan, self.dtype)
            if loaded:
                _fit_group(self.fit, rows, loaded, self.plan, self.options)
        with self.lock:
            self.done += len(states)
            if self.progress is not None:
                self.progress(self.done, self.fit.n_states)


def _fit_group(fit: ProbeFit, rows: Tensor, places: list[int], plan: RowPlan, options: _Options) -> None:
    device = plan.order.device
    targets = torch.as_tensor(np.ascontiguousarray(fit.labels[:, plan.order.cpu().numpy()].T)).to(device)
    robust = options.recipe == "robust"
    if robust:
        standardise(rows, plan.n_train_rows)
    # the gradient's natural size: 1 for z-scored features, the features' root mean square for raw ones
    size = (plan.n_train_rows * rows.shape[2]) ** 0.5
    unit = torch.linalg.vector_norm(rows[:, : plan.n_train_rows], dim=(1, 2))[:, None].clamp_min(1e-30) / size
    small = robust and fits_span(plan, rows.shape[2], device)
    split = _splits(options.precision, device) and rows.dtype == torch.float32 and not small
    objective = Objective(RowMatrix(rows, split=split), plan, options.n_classes)
    if robust:
        valid = masks(plan, [torch.as_tensor(split.valid) for split in fit.splits])
        probes: Probes = _small(objective, targets) if small else SharedRows(objective, targets)
        outcome = fit_robust(probes, valid, penalties=options.penalties, tolerance=options.tolerance)
        reading, norm, penalty, _ = outcome
        unit = torch.ones_like(unit)
    else:
        start = initial(options.seeds, options.n_classes, rows.shape[2], rows.dtype)
        weight, bias = fit_paper(objective, *(part.to(device) for part in start), epochs=options.epochs, lr=options.lr)
        penalty = torch.zeros_like(bias[..., 0])
        end = objective.gradient(weight, bias)
        norm = gradient_norm(end.weight, end.bias)
        reading = objective.read(weight, bias, targets)
    fit.gradient[places] = norm.cpu().numpy()
    fit.penalty[places] = penalty.cpu().numpy()
    fit.converged[places] = (norm <= options.tolerance * unit).cpu().numpy()
    _score(fit, places, plan, reading.correct.cpu().numpy(), reading.log_likelihood.double().cpu().numpy())


def _small(objective: Objective, targets: Tensor) -> Span:
    return Span(objective.rows.high, objective.plan, targets, seed_scales(objective), objective.n_classes)


def _load(
    fit: ProbeFit, features: Features, states: list[int], plan: RowPlan, dtype: torch.dtype
) -> tuple[Tensor, list[int]]:
    """Used rows of a group of states in the plan's order; states with NaN or Inf are left out, with a reason."""
    rows = torch.empty(len(states), len(plan.order), features.width, dtype=dtype, device=plan.order.device)
    for slot, state in zip(rows, states, strict=True):
        mine = features.state(state)
        if tuple(mine.shape) != (features.n_samples, features.width):
            raise InputError(
                teach(
                    f"state {state} of shape ({features.n_samples}, {features.width})",
                    f"{tuple(mine.shape)}",
                    "give every state one row per sample",
                )
            )
        mine = mine.to(plan.order.device)
        if mine.dtype == dtype:
            torch.index_select(mine, 0, plan.order, out=slot)
        else:
            slot.copy_(mine.index_select(0, plan.order))
    places: list[int] = []
    for place, bad in enumerate(_nonfinite_rows(rows)):
        if bad:
            fit.reasons[states[place]] = f"{bad} of {rows.shape[1]} samples hold NaN or Inf"
            continue
        if place > len(places):  # close the gap in place: another copy of the group may not fit
            rows[len(places)].copy_(rows[place])
        places.append(states[place])
    return rows[: len(places)], places


def _nonfinite_rows(rows: Tensor) -> list[int]:
    """Rows of each state that hold NaN or Inf."""
    # 0 x = 0 unless x is NaN or Inf, so one product finds them without a mask of the features' size
    return [int(count) for count in (rows @ rows.new_zeros(rows.shape[2])).isnan().sum(1).tolist()]


def _score(fit: ProbeFit, states: list[int], plan: RowPlan, correct: np.ndarray, likely: np.ndarray) -> None:
    """Put the rows' readings, (state, row, seed), into the fit's tables."""
    for seed, split in enumerate(fit.splits):
        for part in PARTS:
            mine = correct[:, plan.place[getattr(split, part)], seed]
            getattr(fit, f"accuracy_{part}")[states, seed] = mine.mean(1)
            if part != "train":
                getattr(fit, f"correct_{part}")[seed][states] = mine
        fit.loss[states, seed] = -likely[:, plan.place[split.train], seed].mean(1)
        fit.log_likelihood_test[states, seed] = likely[:, plan.place[split.test], seed].mean(1)
