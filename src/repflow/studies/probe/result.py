"""ProbeTable: the named arrays, intervals and findings of a probe study.

| name | axes | meaning |
|---|---|---|
| `probe_accuracy` | state, seed | test accuracy of the recipe chosen on validation |
| `probe_valid_accuracy`, `probe_converged` | state, seed | of the same recipe |
| `probe/RECIPE/accuracy`, `.../train_accuracy`, `.../loss`, `.../gradient`, ... | state, seed | of each recipe |
| `probe_chance` | | accuracy of guessing |
| `probe_corrected`, `probe_information` | state | (accuracy - chance) / (1 - chance); bits about the label |
| `probe_drop`, `probe_drop_corrected` | | peak minus last, the paper's ↓; below chance counts as chance |
| `probe_step` | layer | accuracy behind a block minus that before it; below chance counts as chance |
| `probe_step_claim` | layer | -1: the block is said to lose the label, +1: to gain it, 0: neither is shown |
| `half/probe_drop`, `half/probe_step` | , layer | the same with half the training prompts; NaN where not needed |
| `probe_like_peak` | state | cannot be distinguished from the peak |
| `probe_control_accuracy` | state, seed | of the control task, with its band |
| `probe_control_chance` | | accuracy of guessing it |
| `probe_control_corrected`, `probe_control_information` | state | its accuracy over that; bits |
| `probe_capacity` | state | training accuracy on shuffled labels |
| `probe_selectivity` | state | corrected accuracy minus the control's, the latter at least 0; paired interval |
| `final_norm/probe_accuracy`, `twin/probe_accuracy` | state, seed | behind the final norm; of the random twin |
| `twin/probe_valid_accuracy` | state, seed | chooses the twin's peak |
| `twin/probe_peak_accuracy` | | test accuracy there |
| `twin/probe_gain` | | accuracy at the model's peak minus that at the twin's, with its paired interval |
| `sweep/probe_accuracy` | position, state, seed | at other positions of the prompt |
| `sweep/probe_corrected`, `sweep/probe_information` | position, state | the same over chance; bits |
| `sweep/probe_peak_accuracy` | position | test accuracy there, at the state that validation chose |

Bands are the wider of two intervals, over test prompts and over refits (`repflow.probes.spread`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.readout import Number, ReadOut
from repflow.core.results import Band, Finding, Result
from repflow.core.tasks import task_row

if TYPE_CHECKING:
    from repflow.probes import Changes, ProbeFit, ProbeSummary, Spread
    from repflow.probes.claims import Loss
    from repflow.studies.probe.config import ProbeConfig
    from repflow.studies.probe.prompts import SeedPrompts
    from repflow.studies.probe.side import Side, Splits

NO_REFITS = (
    "intervals are over test prompts alone, and no loss or gain is claimed: fewer than 3 seeds, or seeds with the same "
    "training prompts, say nothing about refitting; --seeds 5 --seeds-vary split covers it with the same forward pass"
)
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
        self._changes: Changes | None = None
        self._loss: Loss
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
        from repflow.probes import block_changes, peak_loss

        self._fits = [side.states_of(fit) for fit in fits]
        self.summary = summary = self._summarise(self._fits)
        for fit in self._fits:
            for name, attribute in PER_RECIPE.items():
                self.add(f"probe/{fit.recipe}/{name}", STATE_SEED, getattr(fit, attribute))
        chosen = next(place for place, fit in enumerate(self._fits) if fit.recipe == summary.recipe)
        self._best = best = self._fits[chosen]
        self.add("probe_accuracy", STATE_SEED, best.accuracy_test)
        self.add("probe_valid_accuracy", STATE_SEED, best.accuracy_valid)
        self.add("probe_converged", STATE_SEED, best.converged)
        self.bands["probe_accuracy"] = Band(summary.accuracy, summary.accuracy_low, summary.accuracy_high)
        self.add("probe_peak_accuracy", (), summary.peak_accuracy)
        self.bands["probe_peak_accuracy"] = Band(
            *(np.asarray(value) for value in (summary.peak_accuracy, summary.peak_low, summary.peak_high))
        )
        self.add("probe_chance", (), summary.chance)
        self.add("probe_corrected", ("state",), summary.corrected)
        self.add("probe_information", ("state",), summary.information)
        drop = np.array([summary.drop, summary.drop_low, summary.drop_high])
        self._add_number("probe_drop", drop)
        self._add_number("probe_drop_corrected", drop / (1 - summary.chance))
        self.add("probe_like_peak", ("state",), np.isin(np.arange(best.n_states), summary.like_peak))
        if self.config.states == "residual":
            self._changes = block_changes(best, self.splits.groups)
            self._add_steps("", self._changes)
            self.add("probe_step_claim", ("layer",), np.zeros(best.n_states - 1, dtype=np.int64))
        self._loss = peak_loss(summary, None)
        if (final := side.final_of(fits[chosen])) is not None and np.isfinite(final.accuracy_test).all():
            self._add_other("final_norm/", [final])

    def _add_steps(self, prefix: str, changes: Changes) -> None:
        """Accuracy after every block minus that before it, on the same prompts."""
        self.add(f"{prefix}probe_step", ("layer",), changes.change)
        self.bands[f"{prefix}probe_step"] = Band(changes.change, changes.low, changes.high)

    def _add_number(self, name: str, value: Sequence[float] | np.ndarray) -> None:
        """Take a number with the ends of its interval."""
        self.add(name, (), value[0])
        self.bands[name] = Band(*(np.asarray(part) for part in value))

    @property
    def states_to_refit(self) -> list[int]:
        """States that a claimed loss or gain would rest on."""
        from repflow.probes import states_to_refit

        return states_to_refit(self.summary, self._changes)

    def add_half(self, half: ProbeFit) -> None:
        """Take the fit on half the training prompts: what does not survive it is not claimed."""
        from repflow.probes import block_changes, block_claims, peak_loss

        self._loss = peak_loss(self.summary, half, self.splits.groups)
        self._add_number("half/probe_drop", (self._loss.half, self._loss.half_low, self._loss.half_high))
        if self._changes is not None:
            changes = block_changes(half, self.splits.groups)
            self._add_steps("half/", changes)
            self.add("probe_step_claim", ("layer",), block_claims(self._changes, changes))

    def _summarise(self, fits: Sequence[ProbeFit]) -> ProbeSummary:
        from repflow.probes import summarise

        return summarise(list(fits), groups=self.splits.groups)

    def _add_other(self, prefix: str, fits: Sequence[ProbeFit]) -> tuple[ProbeSummary, ProbeFit]:
        summary = self._summarise(fits)
        best = next(fit for fit in fits if fit.recipe == summary.recipe)
        self.add(f"{prefix}probe_accuracy", STATE_SEED, best.accuracy_test)
        self.add(f"{prefix}probe_corrected", ("state",), summary.corrected)
        self.add(f"{prefix}probe_information", ("state",), summary.information)
        self.bands[f"{prefix}probe_accuracy"] = Band(summary.accuracy, summary.accuracy_low, summary.accuracy_high)
        return summary, best

    def _spread(self, values: Sequence[np.ndarray]) -> Spread:
        """Intervals of values per seed (entry, test prompt)."""
        from repflow.probes import spread

        return spread(values, self._best.splits, groups=self.splits.groups)

    def add_control(self, fit: ProbeFit) -> None:
        """Take the control task's fit: selectivity is the task's corrected accuracy minus the control's.

        The two tasks differ in chance: (a - c) / (1 - c) - max(0, (a' - c') / (1 - c')). A probe that learnt the
        control task by heart falls below its chance on test prompts; without the bound that would count for the task.
        """
        from repflow.probes.chance import corrected
        from repflow.probes.summary import correctness

        control, own = self._summarise([fit]), self.summary.chance
        self.add("probe_control_accuracy", STATE_SEED, fit.accuracy_test)
        self.bands["probe_control_accuracy"] = Band(control.accuracy, control.accuracy_low, control.accuracy_high)
        self.add("probe_control_chance", (), control.chance)
        self.add("probe_control_corrected", ("state",), control.corrected)
        self.add("probe_control_information", ("state",), control.information)
        value = self.summary.corrected - np.maximum(control.corrected, 0.0)
        self.add("probe_selectivity", ("state",), value)
        counted = (control.corrected > 0).astype(float)[:, None]  # below chance the control counts for nothing
        rows = zip(correctness(self._best), correctness(fit), strict=True)
        spread = self._spread([corrected(t, own) - counted * corrected(c, control.chance) for t, c in rows])
        low, high = spread.unbounded.interval()
        self.bands["probe_selectivity"] = Band(value, low, high)

    def add_twin(self, fits: Sequence[ProbeFit]) -> None:
        """Take the random twin's fits; its recipe and its peaks are chosen on its own validation prompts."""
        from repflow.probes.summary import correctness

        summary, best = self._add_other("twin/", fits)
        self.add("twin/probe_valid_accuracy", STATE_SEED, best.accuracy_valid)
        top = (summary.peak_accuracy, summary.peak_low, summary.peak_high)
        self._add_number("twin/probe_peak_accuracy", top)
        pairs = zip(correctness(self._best, self.summary.peaks), correctness(best, summary.peaks), strict=True)
        ends = self._spread([own - twin for own, twin in pairs]).interval()
        gain = self.summary.peak_accuracy - summary.peak_accuracy
        self._add_number("twin/probe_gain", (gain, float(ends[0][0]), float(ends[1][0])))

    def add_position(self, reading: str, fit: ProbeFit) -> None:
        """Take the fit at another position of the prompt."""
        self._positions[reading] = (fit, self._summarise([fit]))

    def result(self) -> Result:
        """Everything as a Result, without config and provenance."""
        if self._positions:
            self._add_sweep()
        return Result(self.arrays, self.axes, bands=self.bands)

    def _add_sweep(self) -> None:
        fits, summaries = zip(*self._positions.values(), strict=True)
        self.add("sweep/probe_accuracy", ("position", *STATE_SEED), np.stack([fit.accuracy_test for fit in fits]))
        parts = ("accuracy", "accuracy_low", "accuracy_high")
        self.bands["sweep/probe_accuracy"] = Band(
            *(np.stack([getattr(one, part) for one in summaries]) for part in parts)
        )
        self.add("sweep/probe_peak_accuracy", ("position",), [one.peak_accuracy for one in summaries])
        ends = ([one.peak_low for one in summaries], [one.peak_high for one in summaries])
        self.bands["sweep/probe_peak_accuracy"] = Band(
            self.arrays["sweep/probe_peak_accuracy"], *(np.asarray(end) for end in ends)
        )
        for name in ("corrected", "information"):
            self.add(f"sweep/probe_{name}", ("position", "state"), np.stack([getattr(one, name) for one in summaries]))

    def about(self, prompts: SeedPrompts) -> dict[str, Any]:
        """What the numbers rest on, for the provenance."""
        summary = self.summary
        sizes = [[len(split.train), len(split.valid), len(split.test)] for split in self.splits.splits]
        return {
            "label": self._label(),
            "classes": summary.n_classes,
            "class_names": list(prompts.classes),
            "chance": summary.chance,
            "recipe": summary.recipe,
            "recipe_valid": {recipe: _known(value) for recipe, value in summary.recipe_valid.items()},
            "peak": summary.peak,
            "peaks": summary.peaks.tolist(),
            "last": summary.last,
            "peak_accuracy": _known(summary.peak_accuracy),
            "last_accuracy": _known(summary.last_accuracy),
            "tied": list(summary.like_peak),
            "intermediate_beats_final": self._loss.shown,
            "covers_refits": summary.covers_refits,
            "seeds_vary": self._vary(prompts),
            "position": self.config.position,
            "sweep": list(self._positions),
            "sweep_peaks": [one.peaks.tolist() for _, one in self._positions.values()],
            "split_sizes": sizes,
            "prompt_sets": prompts.n_parts,
        }

    def _vary(self, prompts: SeedPrompts) -> str:
        """What seeds differ in: prompts of their own where there are as many sets, else the split, or nothing."""
        if prompts.n_parts > 1:
            return "all"
        trained = {tuple(split.train.tolist()) for split in self.splits.splits}
        return "split" if len(trained) > 1 else "init"

    def _label(self) -> str:
        row = task_row(self.config.task)
        if row is None or not row.item:
            return "label"
        if self.config.label == "answer":
            return "first symbol of the answer"
        return f"{'index' if self.config.classes is None else 'position'} of the gold {row.item}"

    def findings(self, read_out: ReadOut) -> list[Finding]:
        """What a reader should not miss."""
        from repflow.probes.spread import LEAST_UNITS

        summary = self.summary
        items = []
        if summary.test_units < LEAST_UNITS:
            text = f"{summary.test_units} test prompts or groups: no interval, and nothing is claimed from fewer than"
            items.append(Finding("few_test_prompts", None, f"{text} {LEAST_UNITS}"))
        elif not summary.covers_refits:
            items.append(Finding("no_refits", None, NO_REFITS))
        nonfinite = np.flatnonzero(~np.isfinite(self._fits[0].accuracy_test).all(1))
        if nonfinite.size:
            first = read_out.place(int(nonfinite[0]))
            text = f"{nonfinite.size} of {len(summary.accuracy)} states, the first of them {first}, are not"
            text += " finite and were not probed"
            text += ": there is nothing to compare with the last one" if summary.last in nonfinite else ""
            items.append(Finding("nonfinite_state", int(nonfinite[0]), text))
        return items + [item for fit in self._fits for item in self._unconverged(fit, read_out)]

    def _unconverged(self, fit: ProbeFit, read_out: ReadOut) -> list[Finding]:
        """States short of their minimum: of the robust recipe always, of the paper's where its numbers are reported.

        Adam with a fixed number of epochs on raw features ends wherever their scale lets it: as published, not a
        failure.
        """
        open_ = np.flatnonzero(~fit.converged.all(1) & np.isfinite(fit.accuracy_test).all(1))
        fixed = fit.recipe == "paper"
        if not open_.size or (fixed and fit.recipe != self.recipe):
            return []
        how = f"ended after its {self.config.epochs} epochs, short of a minimum," if fixed else "did not converge"
        text = f"recipe {fit.recipe} {how} at {open_.size} of {fit.n_states} states, the first of them"
        return [Finding("unconverged", int(open_[0]), f"{text} {read_out.place(int(open_[0]))}")]


def loss_findings(result: Result, read_out: ReadOut) -> list[Finding]:
    """Losses and gains that are claimed, each with its numbers and the prompts behind it."""
    items = []
    if read_out.shown:
        items.append(Finding("intermediate_beats_final", read_out.peak, f"{read_out.statement}{read_out.beside}"))
    for block in np.flatnonzero(result.get("probe_step_claim", np.zeros(0))).tolist():
        step = block_words(result, block)
        code = "lost_in_block" if result["probe_step_claim"][block] < 0 else "gained_in_block"
        items.append(Finding(code, block, f"{step}{read_out.beside}"))
    return items


def block_words(result: Result, block: int) -> str:
    """Accuracy before and after a block, and the change between them."""
    before, after = result["probe_accuracy"].mean(1)[block : block + 2]
    change = Number.of(result.bands["probe_step"], block)
    verb = "lost" if change.value < 0 else "gained"
    text = f"{verb} in block {block + 1}: accuracy {before:.3f} before it, {after:.3f} after, a change of"
    chance = float(result["probe_chance"])
    floor = " (below chance counts as chance)" if min(before, after) < chance else ""
    half = Number.of(result.bands["half/probe_step"], block)
    return f"{text} {change.text()} points{floor}, {half.text()} with half the training prompts"


def _known(value: float) -> float | None:
    """None for NaN, which JSON lacks."""
    return value if np.isfinite(value) else None
