"""Fit the probes of all seeds, part by part, and keep each fit, so that a killed run does not fit it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.studies.engine.phase import steps_of, tell

if TYPE_CHECKING:
    from torch import Tensor

    from repflow.probes import Features, ProbeFit, Split
    from repflow.studies.engine.feature_sink import Keeper
    from repflow.studies.probe.config import ProbeConfig

TABLES = (
    *("accuracy_train", "accuracy_valid", "accuracy_test", "loss", "gradient", "converged"),
    *("penalty", "log_likelihood_test"),
)
SMALL_BYTES = 64 << 20
WORDS = {
    "model-fit": "probes",
    "model-half": "probes on half the training prompts",
    "twin-fit": "the twin's probes",
    "model-control": "the control task",
}
"""What the phases of the work are called."""
PER_SEED = ("correct_valid", "correct_test")


@dataclass(frozen=True)
class Problem:
    """One set of prompts with the seeds that probe it.

    Attributes:
        part: number of the set.
        seeds: numbers of the seeds, from 0.
        features: of every state, and the final norm's last.
        labels: (sample,).
        splits: one per seed.
    """

    part: int
    seeds: tuple[int, ...]
    features: Features
    labels: np.ndarray
    splits: tuple[Split, ...]


@dataclass(frozen=True)
class Fitter:
    """Fits probes as a config says, and keeps what it fitted.

    Attributes:
        config: recipes' settings and the first seed.
        keeper: where fits are kept.
        n_classes: classes of the label.
        device: where to compute.
        progress: receives what is fitted.
    """

    config: ProbeConfig
    keeper: Keeper
    n_classes: int
    device: str
    progress: Any = None

    def options(self, features: Features) -> dict[str, Any]:
        """Settings of a fit. On a CPU small problems may take more than their share of the features; a GPU has room."""
        small = not self.device.startswith("cuda")
        small &= features.n_states * features.n_samples * features.width * 4 < SMALL_BYTES
        settings = {"epochs": self.config.epochs, "lr": self.config.rate, "device": self.device}
        return settings | ({"memory": SMALL_BYTES} if small else {})

    def fit(self, name: str, problems: Sequence[Problem], recipe: str) -> ProbeFit:
        """Fits of all parts as one, its seeds in their order; prompts of different parts are different samples."""
        fits = []
        for number, problem in enumerate(problems, start=1):
            text = f"fitting {WORDS.get(name, name)}, {recipe}"
            text += f", prompts {number} of {len(problems)}" if len(problems) > 1 else ""
            fits.append(self._part(f"{name}-{recipe}-{problem.part}", problem, recipe, text))
        return joined(fits, problems)

    def _part(self, name: str, problem: Problem, recipe: str, text: str) -> ProbeFit:
        from repflow.probes import fit_probes

        if self.keeper.has(name):
            return _restored(self.keeper.load(name), problem, recipe, self.n_classes, self._seeds(problem))
        tell(self.progress, text, 0, problem.features.n_states)
        fit = fit_probes(
            problem.features,
            problem.labels,
            list(problem.splits),
            n_classes=self.n_classes,
            recipe=recipe,
            seeds=self._seeds(problem),
            progress=steps_of(self.progress, text),
            **self.options(problem.features),
        )
        self.keeper.keep(name, _arrays(fit))
        return fit

    def _seeds(self, problem: Problem) -> tuple[int, ...]:
        return tuple(self.config.seed + seed for seed in problem.seeds)


def _arrays(fit: ProbeFit) -> dict[str, np.ndarray]:
    arrays = {name: np.asarray(getattr(fit, name)) for name in TABLES}
    for name in PER_SEED:
        arrays |= {f"{name}:{seed}": rows for seed, rows in enumerate(getattr(fit, name))}
    return arrays


def _restored(
    stored: dict[str, np.ndarray], problem: Problem, recipe: str, n_classes: int, seeds: tuple[int, ...]
) -> ProbeFit:
    from repflow.probes import ProbeFit

    tables: dict[str, Any] = {name: stored[name] for name in TABLES}
    tables |= {name: [stored[f"{name}:{seed}"] for seed in range(len(seeds))] for name in PER_SEED}
    labels = np.broadcast_to(problem.labels, (len(seeds), len(problem.labels)))
    return ProbeFit(recipe, n_classes, seeds, list(problem.splits), labels, **tables)


def joined(fits: Sequence[ProbeFit], problems: Sequence[Problem]) -> ProbeFit:
    """Several parts' fits as one: seeds in their order, the parts' prompts concatenated as samples."""
    from repflow.probes import ProbeFit, Split

    if len(fits) == 1:
        return fits[0]
    total = sum(len(problem.labels) for problem in problems)
    order = np.argsort([seed for problem in problems for seed in problem.seeds])
    splits, rows, start = [], [], 0
    for problem in problems:
        for split in problem.splits:
            splits.append(Split(split.train + start, split.valid + start, split.test + start))
            line = np.zeros(total, dtype=np.int64)
            line[start : start + len(problem.labels)] = problem.labels
            rows.append(line)
        start += len(problem.labels)
    tables: dict[str, Any] = {
        name: np.concatenate([getattr(fit, name) for fit in fits], axis=1)[:, order] for name in TABLES
    }
    for name in PER_SEED:
        whole = [entry for fit in fits for entry in getattr(fit, name)]
        tables[name] = [whole[place] for place in order]
    seeds = [seed for fit in fits for seed in fit.seeds]
    return ProbeFit(
        fits[0].recipe,
        fits[0].n_classes,
        tuple(seeds[place] for place in order),
        [splits[place] for place in order],
        np.stack([rows[place] for place in order]),
        **tables,
    )


def chosen_states(fit: ProbeFit, states: slice) -> ProbeFit:
    """The fit of some states only."""
    from dataclasses import replace

    tables: dict[str, Any] = {name: getattr(fit, name)[states] for name in TABLES}
    tables |= {name: [rows[states] for rows in getattr(fit, name)] for name in PER_SEED}
    return replace(fit, **tables, reasons={})


class ChosenStates:
    """Some states of features, as features themselves.

    Attributes:
        n_states: how many were chosen.
        n_samples: rows of each state.
        width: columns of each state.
    """

    def __init__(self, features: Features, states: Sequence[int]) -> None:
        self.features, self.states = features, list(states)
        self.n_states, self.n_samples, self.width = len(self.states), features.n_samples, features.width

    def state(self, index: int) -> Tensor:
        """Features of the chosen state of that place."""
        return self.features.state(self.states[index])


def spread_out(fit: ProbeFit, states: Sequence[int], count: int) -> ProbeFit:
    """A fit of some states as one of `count` states, NaN (False for what is counted) at those that were not fitted."""
    from dataclasses import replace

    def placed(rows: np.ndarray) -> np.ndarray:
        out = np.full((count, *rows.shape[1:]), False if rows.dtype == bool else np.nan, dtype=rows.dtype)
        out[list(states)] = rows
        return out

    tables: dict[str, Any] = {name: placed(getattr(fit, name)) for name in TABLES}
    tables |= {name: [placed(rows) for rows in getattr(fit, name)] for name in PER_SEED}
    return replace(fit, **tables, reasons={})
