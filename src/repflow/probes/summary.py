"""What the probes say: accuracy by state, the peak chosen on validation, and the drop from there to the last state.

The maximum over many equal states is above their common mean by luck alone. So the peak is chosen on validation rows
and its accuracy taken from test rows. Where seeds redraw the split of one set of prompts, a prompt tests one seed and
trains or validates another, so each seed has a peak of its own, from seeds that never saw its test rows: then itself
alone. The recipe is one for all seeds: a choice between two, on validation rows of all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.errors import InputError, teach
from repflow.probes.bootstrap import DRAWS, SEED, bootstrap_accuracy, count_units, interval
from repflow.probes.chance import chance_level, corrected, prior_log_likelihood
from repflow.probes.fit import ProbeFit
from repflow.seconds import timed

LEAST_UNITS = 10
"""Test prompts, or groups of them, that an interval needs."""


@dataclass(frozen=True)
class ProbeSummary:
    """Test results of the recipe that read best on validation. Intervals are 95 % paired bootstrap over prompts.

    Attributes:
        recipe: The chosen one.
        recipe_valid: Validation accuracy at the peak of each recipe.
        n_classes: Classes of the label.
        chance: Test share of the most frequent training class; at least 1 / classes.
        accuracy: Mean test accuracy over seeds, (state,).
        accuracy_low: Lower end, (state,).
        accuracy_high: Upper end, (state,).
        corrected: (accuracy - chance) / (1 - chance), (state,).
        information: Bits about the label over what its frequencies tell, (state,); below 0 for an overconfident probe.
        peak: State with the best mean validation accuracy; 0 where no state could be fitted, with accuracy NaN.
        peaks: Each seed's own peak, chosen without its test rows, (seed,).
        last: State that the drop is taken to; where it could not be fitted, `last_accuracy` and `drop` are NaN.
        peak_accuracy: Test accuracy at the seeds' own peaks; that of `peak` is too high where seeds share prompts.
        peak_low: Lower end of its interval.
        peak_high: Upper end.
        last_accuracy: Test accuracy of the last state.
        drop: peak_accuracy - last_accuracy, the paper's ↓.
        drop_low: Lower end of its interval.
        drop_high: Upper end.
        like_peak: States whose difference from the peak has an interval that includes 0; the peak among them.
        intermediate_beats_final: The peak lies before the last state and the drop's interval lies above 0.
        unconverged: (state, seed) pairs whose gradient is not small, as a share of all.
        test_units: Prompts, or groups of them, that test; under LEAST_UNITS intervals are NaN and nothing is claimed.
    """

    recipe: str
    recipe_valid: dict[str, float]
    n_classes: int
    chance: float
    accuracy: np.ndarray
    accuracy_low: np.ndarray
    accuracy_high: np.ndarray
    corrected: np.ndarray
    information: np.ndarray
    peak: int
    peaks: np.ndarray
    last: int
    peak_accuracy: float
    peak_low: float
    peak_high: float
    last_accuracy: float
    drop: float
    drop_low: float
    drop_high: float
    like_peak: tuple[int, ...]
    intermediate_beats_final: bool
    unconverged: float
    test_units: int


@timed("intervals")
def summarise(
    fits: ProbeFit | Sequence[ProbeFit] | Mapping[str, ProbeFit],
    *,
    groups: Sequence[Hashable] | np.ndarray | None = None,
    last: int | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
    level: float = 0.95,
) -> ProbeSummary:
    """Choose the recipe on validation and report its test results.

    Args:
        fits: One fit, or one per recipe on the same states, seeds and splits.
        groups: (sample,) prompts of a group are drawn together in the bootstrap.
        last: State the drop is taken to; the last one if not given. The drop is NaN where it could not be fitted.
        draws: Of the bootstrap.
        seed: Of the bootstrap.
        level: Of the intervals.
    """
    fit, valid = _chosen(_as_list(fits))
    last = _check_last(last, fit.n_states)
    peaks, chance = _peaks(fit), chance_level(fit)
    peak = int(np.where(_fitted(fit), fit.accuracy_valid.mean(1), -1.0).argmax())
    drawn, units = _drawn(fit, groups, draws, seed)
    low, high = _interval(_seed_mean(_at(drawn, peaks)[:, None] - drawn), level)
    accuracy = fit.accuracy_test.mean(1)
    top = float(fit.accuracy_test[peaks, np.arange(len(peaks))].mean())
    return ProbeSummary(
        recipe=fit.recipe,
        recipe_valid=valid,
        n_classes=fit.n_classes,
        chance=chance,
        accuracy=accuracy,
        corrected=corrected(accuracy, chance),
        information=information(fit),
        peak=peak,
        peaks=peaks,
        last=last,
        peak_accuracy=top,
        last_accuracy=float(accuracy[last]),
        drop=top - float(accuracy[last]),
        drop_low=float(low[last]),
        drop_high=float(high[last]),
        like_peak=_alike(fit, peak, low, high),
        intermediate_beats_final=bool(peak < last and low[last] > 0),
        unconverged=_unconverged(fit),
        test_units=units,
        **_ends(drawn, peaks, level),
    )


def _ends(drawn: np.ndarray, peaks: np.ndarray, level: float) -> dict[str, Any]:
    """Ends of the accuracies' intervals, (state,), and of that at the seeds' peaks."""
    low, high = _interval(_seed_mean(drawn), level)
    peak_low, peak_high = _interval(_seed_mean(_at(drawn, peaks))[:, None], level)
    at_peak = {"peak_low": float(peak_low[0]), "peak_high": float(peak_high[0])}
    return {"accuracy_low": low, "accuracy_high": high, **at_peak}


def information(fit: ProbeFit) -> np.ndarray:
    """Bits about the label over what its frequencies tell, mean over seeds, (state,)."""
    return (fit.log_likelihood_test - prior_log_likelihood(fit)).mean(1) / np.log(2)


def _chosen(every: Sequence[ProbeFit]) -> tuple[ProbeFit, dict[str, float]]:
    """The recipe with the best state on validation, a tie goes to what converged; and every recipe's best.

    One for all seeds: their validation rows together choose between two recipes.
    """
    best = {}
    for fit in every:
        scores = fit.accuracy_valid.mean(1)[_fitted(fit)]
        best[fit.recipe] = float(scores.max()) if scores.size else float("nan")
    fit = max(every, key=lambda one: (np.nan_to_num(best[one.recipe], nan=-1.0), one.converged.mean()))
    return fit, best


def _fitted(fit: ProbeFit) -> np.ndarray:
    """(state,) whether every seed could be fitted."""
    return np.asarray(np.isfinite(fit.accuracy_test).all(1))


def _drawn(
    fit: ProbeFit, groups: Sequence[Hashable] | np.ndarray | None, draws: int, seed: int
) -> tuple[np.ndarray, int]:
    """Accuracy on drawn prompts (draw, state, seed), NaN where there is none; and the units that were drawn from."""
    samples = [split.test for split in fit.splits]
    drawn = bootstrap_accuracy(fit.correct_test, samples, groups=groups, draws=draws, seed=seed)
    drawn[:, ~_fitted(fit)] = np.nan
    units = count_units(samples, groups)
    if units < LEAST_UNITS:  # resampling a few prompts gives intervals of no width
        drawn[:] = np.nan
    return drawn, units


def _alike(fit: ProbeFit, peak: int, low: np.ndarray, high: np.ndarray) -> tuple[int, ...]:
    """States that cannot be told from the peak."""
    fitted = np.flatnonzero(_fitted(fit))
    return tuple(int(state) for state in fitted if not (low[state] > 0 or high[state] < 0) or state == peak)


def _unconverged(fit: ProbeFit) -> float:
    fitted = _fitted(fit)
    return float(1 - fit.converged[fitted].mean()) if fitted.any() else float("nan")


def _as_list(fits: ProbeFit | Sequence[ProbeFit] | Mapping[str, ProbeFit]) -> list[ProbeFit]:
    every = [fits] if isinstance(fits, ProbeFit) else list(fits.values() if isinstance(fits, Mapping) else fits)
    if not every:
        raise InputError(teach("at least one fit", "none", "call fit_probes first"))
    first = every[0]
    for fit in every:
        same = fit.n_states == first.n_states and len(fit.splits) == len(first.splits)
        if not same or any(not np.array_equal(a.test, b.test) for a, b in zip(fit.splits, first.splits, strict=True)):
            raise InputError(
                teach("fits of the same states, seeds and splits", "different ones", "summarise them one by one")
            )
    return every


def _check_last(last: int | None, states: int) -> int:
    if last is None:
        return states - 1
    if not 0 <= last < states:
        raise InputError(teach(f"a last state from 0 to {states - 1}", f"state {last}", "leave it out for the last"))
    return last


def _peaks(fit: ProbeFit) -> np.ndarray:
    """Each seed's peak, on the validation rows of the seeds that neither trained nor validated on its test rows."""
    peaks = []
    for split in fit.splits:
        clean = [not np.isin(split.test, np.concatenate([other.train, other.valid])).any() for other in fit.splits]
        scores = fit.accuracy_valid[:, clean].mean(1)
        peaks.append(np.where(_fitted(fit), scores, -1.0).argmax())
    return np.array(peaks)


def _seed_mean(drawn: np.ndarray) -> np.ndarray:
    """Mean over seeds; NaN where no seed has a value."""
    known = ~np.isnan(drawn)
    count = known.sum(-1)
    return np.asarray(np.where(known, drawn, 0.0).sum(-1) / np.where(count, count, np.nan))


def _at(drawn: np.ndarray, peaks: np.ndarray) -> np.ndarray:
    """(draw, seed): accuracy at each seed's own peak."""
    return drawn[:, peaks, np.arange(len(peaks))]


def _interval(draws: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends over (draw, entry) values; NaN for an entry without any."""
    ends = np.full((2, draws.shape[1]), np.nan)
    known = ~np.isnan(draws).all(0)
    if known.any():
        ends[:, known] = interval(draws[:, known], level)
    return ends[0], ends[1]
