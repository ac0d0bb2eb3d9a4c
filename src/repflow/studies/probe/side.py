"""One side of a probe study: the model, or its random twin, with the features and fits of every seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from repflow.studies.engine.phase import tell
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.probe.fits import ChosenStates, Fitter, Problem, chosen_states, spread_out
from repflow.studies.probe.groups import Groups
from repflow.studies.probe.part import extract, key_tokens, labels_of, readings, run_features

if TYPE_CHECKING:
    from repflow.capture.features import FeatureShard, StoredFeatures
    from repflow.capture.run import Progress
    from repflow.models import Model
    from repflow.probes import ProbeFit, Split
    from repflow.probes.features import Features
    from repflow.studies.engine.feature_sink import Keeper
    from repflow.studies.probe.prompts import SeedPrompts

FINAL = "final_norm/"
KEPT_SHARE = 0.25
"""Of a GPU's free memory, for features that several fits read; the fits themselves take at most 0.6 of what is left."""


@dataclass(frozen=True)
class Side:
    """A model with every seed's prompts.

    Attributes:
        name: `model` or `twin`; begins the names of what is kept.
        config: what was requested.
        model: the model.
        prompts: of every seed.
        keeper: where features and fits are kept.
        progress: called after each batch.
    """

    name: str
    config: ProbeConfig
    model: Model
    prompts: SeedPrompts
    keeper: Keeper
    progress: Progress | None = None

    @property
    def n_states(self) -> int:
        """States, without the final norm's."""
        return self.model.state_count(self.config.states)

    def read(self) -> None:
        """Run the model where states are not there yet, and where they are this share's."""
        for number in range(self.prompts.n_parts):
            sink = self.keeper.features(f"{self.name}-{number}")
            run_features(self.model, self.prompts.part(number), self.config, sink, self.progress)

    @cached_property
    def shards(self) -> list[list[FeatureShard]]:
        """Features of each part; runs the model where they are not there yet."""
        by_part = []
        tell(self.progress, "reading states" if self.name == "model" else f"reading the {self.name}'s states")
        for number in range(self.prompts.n_parts):
            sink = self.keeper.features(f"{self.name}-{number}")
            by_part.append(extract(self.model, self.prompts.part(number), self.config, sink, self.progress))
        return by_part

    def features(self, part: int, reading: str | None = None) -> StoredFeatures:
        """Features of one part at one reading; the main one also has the final norm's after the states."""
        from repflow.capture.features import StoredFeatures

        main = readings(self.config)[0]
        names = [main if reading is None else reading]
        if reading is None and self.config.states == "residual":
            names.append(FINAL + main)
        return StoredFeatures(self.shards[part], names)

    @cached_property
    def _kept(self) -> dict[int, Features]:
        """Features of every part that stay on a GPU with room for all of them: fits and controls read the same ones."""
        from repflow.models.room import free_bytes
        from repflow.probes.features import KeptFeatures, feature_bytes

        device = self.model.device
        free = free_bytes(device) if device.type == "cuda" else None
        by_part = {part: self.features(part) for part in range(self.prompts.n_parts)}
        if free is None or sum(map(feature_bytes, by_part.values())) > KEPT_SHARE * free:
            return dict(by_part)
        return {part: KeptFeatures(features, device) for part, features in by_part.items()}

    def problems(self, splits: Splits, reading: str | None = None, *, keys: bool = False) -> list[Problem]:
        """What is to be fitted: one problem per part.

        Args:
            splits: of every seed.
            reading: a position of the sweep; None for the main one.
            keys: fit the control task's labels instead.
        """
        tasks = []
        for number in range(self.prompts.n_parts):
            seeds = tuple(self.prompts.seeds_of(number))
            labels = splits.control[number] if keys else splits.labels[number]
            mine = tuple(splits.splits[seed] for seed in seeds)
            features = self._kept[number] if reading is None else self.features(number, reading)
            tasks.append(Problem(number, seeds, features, labels, mine))
        return tasks

    def fits(self, splits: Splits, recipes: Sequence[str]) -> list[ProbeFit]:
        """Fits of every recipe on all states, the final norm's last."""
        problems = self.problems(splits)
        return [self.fitter.fit(f"{self.name}-fit", problems, recipe) for recipe in recipes]

    def half_fit(self, splits: Splits, recipe: str, states: Sequence[int]) -> ProbeFit:
        """Fits of some states on half of every seed's training prompts; all other states are NaN."""
        halved = splits.halved(self.config.seed)
        problems = [replace(p, features=ChosenStates(p.features, states)) for p in self.problems(halved)]
        return spread_out(self.fitter.fit(f"{self.name}-half", problems, recipe), states, self.n_states)

    def capacity(self, splits: Splits, recipe: str) -> np.ndarray:
        """Training accuracy on shuffled labels (state,)."""
        from repflow.probes import shuffled_capacity

        rows = []
        for problem in self.problems(splits):
            name = f"{self.name}-capacity-{recipe}-{problem.part}"
            if not self.keeper.has(name):
                tell(self.progress, "fitting shuffled labels")
                fitter = self.fitter
                options = fitter.options(problem.features)
                seed = self.config.seed + problem.part
                value = shuffled_capacity(
                    problem.features, fitter.n_classes, list(problem.splits), recipe=recipe, seed=seed, **options
                )
                self.keeper.keep(name, {"capacity": value})
            rows += [self.keeper.load(name)["capacity"]] * len(problem.seeds)
        return np.mean(rows, axis=0)[: self.n_states]

    @cached_property
    def fitter(self) -> Fitter:
        """Fits on the model's own device."""
        classes, device = len(self.prompts.classes), str(self.model.device)
        return Fitter(self.config, self.keeper, classes, device, self.progress)

    def states_of(self, fit: ProbeFit) -> ProbeFit:
        """The fit without the final norm's entry."""
        return chosen_states(fit, slice(0, self.n_states))

    def final_of(self, fit: ProbeFit) -> ProbeFit | None:
        """The final norm's entry of a fit, None where there is none."""
        if fit.n_states == self.n_states:
            return None
        return chosen_states(fit, slice(self.n_states, None))


@dataclass(frozen=True)
class Splits:
    """How every seed's prompts are split, and their labels by part.

    Attributes:
        splits: one per seed.
        labels: one array (sample,) per part.
        groups: group of each sample, all parts concatenated; None where each prompt is its own group.
        control: labels of the control task per part; empty where prompts have no keys, or all ask alike.
        repeated: prompts that occur earlier in their part.
        parts: part of each seed.
        part_groups: group of each sample, by part.
    """

    splits: list[Split]
    labels: list[np.ndarray]
    groups: list[int] | None
    control: list[np.ndarray]
    repeated: int = 0
    parts: list[int] = field(default_factory=list)
    part_groups: list[list[int]] = field(default_factory=list)

    def halved(self, seed: int) -> Splits:
        """The same with half of every seed's training prompts.

        Args:
            seed: first seed of the study.
        """
        from repflow.probes import half_training

        halves = [
            half_training(split, self.labels[part], self.part_groups[part], seed=seed + number)
            for number, (split, part) in enumerate(zip(self.splits, self.parts, strict=True))
        ]
        return replace(self, splits=halves)


def make_splits(config: ProbeConfig, prompts: SeedPrompts, model: Model) -> Splits:
    """Split every seed's prompts by group; a seed draws its own split unless only the initialisation varies."""
    from repflow.probes import three_way_split

    labels, keys, found_groups = [], [], Groups()
    for number in range(prompts.n_parts):
        members = prompts.part(number)
        labels.append(labels_of(members))
        found_groups.add(members)
        if "task" in config.controls and (tokens := key_tokens(members, model)) is not None:
            keys.append(tokens)
    splits, groups = [], found_groups.parts()
    for seed, part in enumerate(prompts.parts):
        own = 0 if config.seeds_vary == "init" else seed
        splits.append(three_way_split(labels[part], groups[part], seed=config.seed + own, fractions=config.fractions))
    control = control_tasks(keys, len(prompts.classes), config.seed) if len(keys) == prompts.n_parts else []
    if any(
        len(set(control[part][split.train])) < 2 for split, part in zip(splits, prompts.parts, strict=True) if control
    ):
        control = []  # all keys begin alike
    whole = [group for part in groups for group in part]
    alone = len(set(whole)) == len(whole)
    return Splits(splits, labels, None if alone else whole, control, found_groups.repeated, list(prompts.parts), groups)


def control_tasks(keys: Sequence[Sequence[int]], n_classes: int, seed: int) -> list[np.ndarray]:
    """Labels of the control task for every part: one fixed random map of the key's token, with equal classes.

    Tokens differ much in frequency, and classes drawn at random would let guessing beat the task's own chance: the most
    frequent token goes first, each to the class that has least so far; draws break ties.

    >>> [labels.tolist() for labels in control_tasks([[7, 7, 7], [5, 9, 7]], 2, seed=0)]
    [[0, 0, 0], [1, 1, 0]]
    """
    from repflow.probes import control_labels

    names, counts = np.unique(np.concatenate([np.asarray(part) for part in keys]), return_counts=True)
    draws = control_labels(names, 1 << 30, seed)
    totals = np.zeros(n_classes, dtype=np.int64)
    ties = np.random.default_rng(seed).permutation(n_classes)
    label = {}
    for place in np.lexsort((draws, -counts)):
        best = min(range(n_classes), key=lambda one: (totals[one], ties[one]))
        label[int(names[place])] = best
        totals[best] += counts[place]
    return [np.array([label[int(key)] for key in part], dtype=np.int64) for part in keys]


def twin_config(config: ProbeConfig) -> ProbeConfig:
    """The same study of the random twin."""
    assert config.twin is not None
    return replace(config, init=config.twin, twin=None, answers=0, lens=0, controls=["none"], sweep=[])
