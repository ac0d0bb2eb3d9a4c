"""ProbeTable: the named arrays, intervals and findings of a probe study.

| name | axes | meaning |
|---|---|---|
| `probe_accuracy` | state, seed | test accuracy of the recipe chosen on validation; its band is over prompts |
| `probe_valid_accuracy`, `probe_converged` | state, seed | of the same recipe |
| `probe/RECIPE/accuracy`, `.../train_accuracy`, `.../loss`, `.../gradient`, ... | state, seed | of each recipe |
| `probe_chance` | | accuracy of guessing |
| `probe_corrected`, `probe_information` | state | (accuracy - chance) / (1 - chance); bits about the label |
| `probe_drop`, `probe_drop_corrected` | | peak minus last, the paper's ↓, with its interval |
| `probe_step` | layer | accuracy behind a block minus that before it, with its paired interval |
| `probe_like_peak` | state | cannot be told from the peak |
| `probe_control_accuracy` | state, seed | of the control task, with its band |
| `probe_control_chance` | | accuracy of guessing it |
| `probe_control_corrected`, `probe_control_information` | state | its accuracy over that; bits |
| `probe_capacity` | state | training accuracy on shuffled labels |
| `probe_selectivity` | state | corrected accuracy minus the control's, the latter at least 0; paired interval |
| `final_norm/probe_accuracy`, `twin/probe_accuracy` | state, seed | behind the final norm; of the random twin |
| `twin/probe_valid_accuracy` | state, seed | chooses the twin's peak |
| `twin/probe_peak_accuracy` | | test accuracy there |
| `twin/probe_gain` | | accuracy at the model's peak minus that at the twin's, with its paired interval |
| `sweep/probe_accuracy` | position, state, seed | at other positions of the prompt, with its band |
| `sweep/probe_corrected`, `sweep/probe_information` | position, state | the same over chance; bits |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.results import Band, Finding, Result

if TYPE_CHECKING:
    from repflow.probes import ProbeFit, ProbeSummary
    from repflow.studies.probe_config import ProbeConfig
    from repflow.studies.probe_prompts import SeedPrompts
    from repflow.studies.probe_side import Side, Splits

STATE_SEED = ("state", "seed")
PER_RECIPE = {
    "accuracy": "accuracy_test",
    "valid_accuracy": "accuracy_valid",
    "train_accuracy": "accuracy_train",
    "loss": "loss",
    "gradient": "gradient",
    "converged": "converged",
    "penalty": "penalty",
    "log_likelihood": "log_likelihood_test",
}


class ProbeTable:
    """Collects what the study finds; `add_main` comes first, since it chooses the recipe."""

    def __init__(self, config: ProbeConfig, splits: Splits) -> None:
        self.config, self.splits = config, splits
        self.arrays: dict[str, np.ndarray] = {}
        self.axes: dict[str, tuple[str, ...]] = {}
        self.bands: dict[str, Band] = {}
        self.summary: ProbeSummary
        self._fits: list[ProbeFit] = []
        self._best: ProbeFit
        self._positions: dict[str, tuple[ProbeFit, ProbeSummary]] = {}

    @property
    def recipe(self) -> str:
        """Recipe chosen on validation."""
        return self.summary.recipe

    def add(self, name: str, axes: tuple[str, ...], array: Any) -> None:
        """Take one array."""
        self.arrays[name], self.axes[name] = np.asarray(array), axes

    def add_main(self, side: Side, fits: Sequence[ProbeFit]) -> None:
        """Take the model's fits: choose the recipe and the peak on validation, report from test."""
        self._fits = [side.states_of(fit) for fit in fits]
        self.summary = found = self._summarise(self._fits)
        for fit in self._fits:
            for name, attribute in PER_RECIPE.items():
                self.add(f"probe/{fit.recipe}/{name}", STATE_SEED, getattr(fit, attribute))
        chosen = next(place for place, fit in enumerate(self._fits) if fit.recipe == found.recipe)
        self._best = best = self._fits[chosen]
        self.add("probe_accuracy", STATE_SEED, best.accuracy_test)
        self.add("probe_valid_accuracy", STATE_SEED, best.accuracy_valid)
        self.add("probe_converged", STATE_SEED, best.converged)
        self.bands["probe_accuracy"] = Band(found.accuracy, found.accuracy_low, found.accuracy_high)
        self.add("probe_peak_accuracy", (), found.peak_accuracy)
        self.bands["probe_peak_accuracy"] = Band(
            *(np.asarray(value) for value in (found.peak_accuracy, found.peak_low, found.peak_high))
        )
        self.add("probe_chance", (), found.chance)
        self.add("probe_corrected", ("state",), found.corrected)
        self.add("probe_information", ("state",), found.information)
        drop = np.array([found.drop, found.drop_low, found.drop_high])
        for name, scale in (("probe_drop", 1.0), ("probe_drop_corrected", 1 - found.chance)):
            self.add(name, (), drop[0] / scale)
            self.bands[name] = Band(*(np.asarray(value) for value in drop / scale))
        self.add("probe_like_peak", ("state",), np.isin(np.arange(best.n_states), found.like_peak))
        if self.config.states == "residual":
            self._add_steps(found)
        if (final := side.final_of(fits[chosen])) is not None and np.isfinite(final.accuracy_test).all():
            self._add_other("final_norm/", [final])

    def _add_steps(self, found: ProbeSummary) -> None:
        """Accuracy behind every block minus that before it, on the same prompts."""
        from repflow.probes.summary import LEAST_UNITS

        change = np.diff(found.accuracy)
        self.add("probe_step", ("layer",), change)
        drawn = np.diff(np.nanmean(self._drawn(self._best), axis=-1), axis=1)
        if found.test_units < LEAST_UNITS:
            drawn[:] = np.nan
        drawn[:, ~np.isfinite(change)] = np.nan
        self.bands["probe_step"] = _band(change, drawn)

    def _summarise(self, fits: Sequence[ProbeFit]) -> ProbeSummary:
        from repflow.probes import summarise

        return summarise(list(fits), groups=self.splits.groups)

    def _add_other(self, prefix: str, fits: Sequence[ProbeFit]) -> tuple[ProbeSummary, ProbeFit]:
        found = self._summarise(fits)
        best = next(fit for fit in fits if fit.recipe == found.recipe)
        self.add(f"{prefix}probe_accuracy", STATE_SEED, best.accuracy_test)
        self.add(f"{prefix}probe_corrected", ("state",), found.corrected)
        self.add(f"{prefix}probe_information", ("state",), found.information)
        self.bands[f"{prefix}probe_accuracy"] = Band(found.accuracy, found.accuracy_low, found.accuracy_high)
        return found, best

    def _drawn(self, fit: ProbeFit) -> np.ndarray:
        """Accuracy on drawn test prompts (draw, state, seed); fits on the same splits get the same draws."""
        from repflow.probes.bootstrap import bootstrap_accuracy

        return bootstrap_accuracy(fit.correct_test, [split.test for split in fit.splits], groups=self.splits.groups)

    def add_control(self, fit: ProbeFit) -> None:
        """Take the control task's fit: selectivity is the task's corrected accuracy minus the control's.

        The two tasks differ in chance: (a - c) / (1 - c) - max(0, (a' - c') / (1 - c')). A probe that learnt the
        control task by heart falls below its chance on test prompts; without the bound that would count for the task.
        """
        from repflow.probes.chance import corrected

        found, own = self._summarise([fit]), self.summary.chance
        self.add("probe_control_accuracy", STATE_SEED, fit.accuracy_test)
        self.bands["probe_control_accuracy"] = Band(found.accuracy, found.accuracy_low, found.accuracy_high)
        self.add("probe_control_chance", (), found.chance)
        self.add("probe_control_corrected", ("state",), found.corrected)
        self.add("probe_control_information", ("state",), found.information)
        value = self.summary.corrected - np.maximum(found.corrected, 0.0)
        self.add("probe_selectivity", ("state",), value)
        task, control = (np.nanmean(self._drawn(one), axis=-1) for one in (self._best, fit))
        drawn = corrected(task, own) - np.maximum(corrected(control, found.chance), 0.0)
        self.bands["probe_selectivity"] = _band(value, drawn)

    def add_twin(self, fits: Sequence[ProbeFit]) -> None:
        """Take the random twin's fits; its recipe and its peaks are chosen on its own validation prompts."""
        found, best = self._add_other("twin/", fits)
        self.add("twin/probe_valid_accuracy", STATE_SEED, best.accuracy_valid)
        seeds = np.arange(len(found.peaks))
        twin, own = self._drawn(best)[:, found.peaks, seeds], self._drawn(self._best)[:, self.summary.peaks, seeds]
        top = np.asarray(found.peak_accuracy)
        for name, value, drawn in (
            ("twin/probe_peak_accuracy", top, twin),
            ("twin/probe_gain", self.summary.peak_accuracy - top, own - twin),
        ):
            self.add(name, (), value)
            self.bands[name] = _band(self.arrays[name], np.nanmean(drawn, axis=-1))

    def add_position(self, reading: str, fit: ProbeFit) -> None:
        """Take the fit at another position of the prompt."""
        self._positions[reading] = (fit, self._summarise([fit]))

    def result(self) -> Result:
        """Everything as a Result, without config and provenance."""
        if self._positions:
            self._add_sweep()
        return Result(self.arrays, self.axes, bands=self.bands)

    def _add_sweep(self) -> None:
        fits, found = zip(*self._positions.values(), strict=True)
        self.add("sweep/probe_accuracy", ("position", *STATE_SEED), np.stack([fit.accuracy_test for fit in fits]))
        parts = ("accuracy", "accuracy_low", "accuracy_high")
        self.bands["sweep/probe_accuracy"] = Band(*(np.stack([getattr(one, part) for one in found]) for part in parts))
        for name in ("corrected", "information"):
            self.add(f"sweep/probe_{name}", ("position", "state"), np.stack([getattr(one, name) for one in found]))

    def about(self, prompts: SeedPrompts) -> dict[str, Any]:
        """What the numbers rest on, for the provenance."""
        found = self.summary
        sizes = [[len(split.train), len(split.valid), len(split.test)] for split in self.splits.splits]
        return {
            "label": self._label(),
            "classes": found.n_classes,
            "class_names": list(prompts.classes),
            "chance": found.chance,
            "recipe": found.recipe,
            "recipe_valid": {recipe: _known(value) for recipe, value in found.recipe_valid.items()},
            "peak": found.peak,
            "peaks": found.peaks.tolist(),
            "last": found.last,
            "peak_accuracy": _known(found.peak_accuracy),
            "last_accuracy": _known(found.last_accuracy),
            "tied": list(found.like_peak),
            "intermediate_beats_final": found.intermediate_beats_final,
            "position": self.config.position,
            "sweep": list(self._positions),
            "split_sizes": sizes,
            "prompt_sets": prompts.n_parts,
        }

    def _label(self) -> str:
        if self.config.task in ("kvpr", "mdqa"):
            unit = "pair" if self.config.task == "kvpr" else "document"
            if self.config.label == "answer":
                return "first symbol of the answer"
            return f"index of the gold {unit}" if self.config.classes is None else f"position of the gold {unit}"
        return "label"

    def findings(self) -> list[Finding]:
        """What a reader should not miss."""
        from repflow.probes.summary import LEAST_UNITS

        found = self.summary
        items = []
        if found.test_units < LEAST_UNITS:
            text = f"{found.test_units} test prompts or groups: no interval, and nothing is claimed from fewer than"
            items.append(Finding("few_test_prompts", None, f"{text} {LEAST_UNITS}"))
        if found.intermediate_beats_final:
            text = (
                f"state {found.peak} beats the last state ({found.last}) by {100 * found.drop:.1f} points"
                f" [{100 * found.drop_low:.1f}, {100 * found.drop_high:.1f}] on test prompts"
            )
            items.append(Finding("intermediate_beats_final", found.peak, text))
        for fit in self._fits:
            lost = np.flatnonzero(~np.isfinite(fit.accuracy_test).all(1))
            if lost.size and fit is self._fits[0]:
                text = f"{lost.size} of {fit.n_states} states, the first of them {lost[0]}, are not finite"
                text += " and were not probed"
                text += ": there is nothing to compare with the last one" if found.last in lost else ""
                items.append(Finding("nonfinite_state", int(lost[0]), text))
            open_ = np.flatnonzero(~fit.converged.all(1) & np.isfinite(fit.accuracy_test).all(1))
            if open_.size:
                text = f"{open_.size} of {fit.n_states} states, the first of them {open_[0]}, did not converge"
                items.append(Finding("unconverged", int(open_[0]), f"recipe {fit.recipe}: {text}"))
        return items


def _known(value: float) -> float | None:
    """None for NaN, which JSON lacks."""
    return value if np.isfinite(value) else None


def _band(value: np.ndarray, draws: np.ndarray) -> Band:
    """The value with the interval of its draws (draw, ...); NaN bounds where it is NaN."""
    from repflow.probes.bootstrap import interval

    ends = np.full((2, *value.shape), np.nan)
    known = np.isfinite(value)
    if known.any():
        ends[:, known] = interval(draws[:, known])
    return Band(value, np.asarray(ends[0]), np.asarray(ends[1]))
