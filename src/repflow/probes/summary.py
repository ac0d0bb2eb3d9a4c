"""What the probes say: accuracy by state, the peak chosen on validation, and the drop from there to the last state.

The maximum over many equal states is above their common mean by luck alone. So the peak is chosen on validation rows
and its accuracy taken from test rows. Where seeds redraw the split of one set of prompts, a prompt tests one seed and
trains or validates another, so each seed has a peak of its own, from seeds that never saw its test rows: then itself
alone. The recipe is one for all seeds: a choice between two, on validation rows of all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repflow.errors import InputError, teach
from repflow.probes.bootstrap import DRAWS, SEED, bootstrap_accuracy, count_units, interval
from repflow.probes.chance import chance_level, corrected, prior_log_likelihood
from repflow.probes.fit import ProbeFit

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
        peak: State with the best mean validation accuracy.
        peaks: Each seed's own peak, chosen without its test rows, (seed,).
        last: Last state that could be fitted.
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
        last: State the drop is taken to; the last one that could be fitted if not given.
        draws: Of the bootstrap.
        seed: Of the bootstrap.
        level: Of the intervals.
    """
    every = _as_list(fits)
    valid = {fit.recipe: float(np.nanmax(_valid_mean(fit))) for fit in every}
    fit = max(every, key=lambda one: (valid[one.recipe], one.converged.mean()))  # a tie goes to what converged
    fitted = np.flatnonzero(np.isfinite(fit.accuracy_test).all(1))
    last = _check_last(last, fitted)
    peak = int(np.nanargmax(_valid_mean(fit)))
    peaks = _peaks(fit)
    drawn = bootstrap_accuracy(
        fit.correct_test, [split.test for split in fit.splits], groups=groups, draws=draws, seed=seed
    )
    units = count_units([split.test for split in fit.splits], groups)
    if units < LEAST_UNITS:  # resampling a few prompts gives intervals of no width
        drawn = np.full_like(drawn, np.nan)
    # (draw, state): how far each state lies below the peaks, on the same prompts
    below = _seed_mean(_at(drawn, peaks)[:, None] - drawn)
    low, high = _interval(below, fitted, level)
    peak_low, peak_high = interval(_seed_mean(_at(drawn, peaks)), level)
    accuracy = fit.accuracy_test.mean(1)
    accuracy_low, accuracy_high = _interval(_seed_mean(drawn), fitted, level)
    top = float(fit.accuracy_test[peaks, np.arange(len(peaks))].mean())
    chance = chance_level(fit)
    alike = [int(state) for state in fitted if not (low[state] > 0 or high[state] < 0) or state == peak]
    return ProbeSummary(
        recipe=fit.recipe,
        recipe_valid=valid,
        n_classes=fit.n_classes,
        chance=chance,
        accuracy=accuracy,
        accuracy_low=accuracy_low,
        accuracy_high=accuracy_high,
        corrected=corrected(accuracy, chance),
        information=(fit.log_likelihood_test - prior_log_likelihood(fit)).mean(1) / np.log(2),
        peak=peak,
        peaks=peaks,
        last=last,
        peak_accuracy=top,
        peak_low=float(peak_low),
        peak_high=float(peak_high),
        last_accuracy=float(accuracy[last]),
        drop=top - float(accuracy[last]),
        drop_low=float(low[last]),
        drop_high=float(high[last]),
        like_peak=tuple(alike),
        intermediate_beats_final=bool(peak < last and low[last] > 0),
        unconverged=float(1 - fit.converged[fitted].mean()),
        test_units=units,
    )


def _as_list(fits: ProbeFit | Sequence[ProbeFit] | Mapping[str, ProbeFit]) -> list[ProbeFit]:
    every = [fits] if isinstance(fits, ProbeFit) else list(fits.values() if isinstance(fits, Mapping) else fits)
    if not every:
        raise InputError(teach("at least one fit", "none", "call fit_probes first"))
    first = every[0]
    for fit in every:
        if not np.isfinite(fit.accuracy_test).all(1).any():
            raise InputError(
                teach(
                    "a state that could be fitted",
                    f"none of {fit.n_states}: {'; '.join(sorted(set(fit.reasons.values())))}",
                    "look for what makes the states NaN or Inf",
                )
            )
        same = fit.n_states == first.n_states and len(fit.splits) == len(first.splits)
        if not same or any(not np.array_equal(a.test, b.test) for a, b in zip(fit.splits, first.splits, strict=True)):
            raise InputError(
                teach("fits of the same states, seeds and splits", "different ones", "summarise them one by one")
            )
    return every


def _check_last(last: int | None, fitted: np.ndarray) -> int:
    if last is None:
        return int(fitted[-1])
    if last not in fitted:
        raise InputError(teach("a last state that could be fitted", f"state {last}", f"one of {fitted.tolist()}"))
    return last


def _valid_mean(fit: ProbeFit) -> np.ndarray:
    return fit.accuracy_valid.mean(1)


def _peaks(fit: ProbeFit) -> np.ndarray:
    """Each seed's peak, on the validation rows of the seeds that neither trained nor validated on its test rows."""
    peaks = []
    for split in fit.splits:
        clean = [not np.isin(split.test, np.concatenate([other.train, other.valid])).any() for other in fit.splits]
        scores = fit.accuracy_valid[:, clean].mean(1)
        peaks.append(np.where(np.isfinite(fit.accuracy_test).all(1), scores, -1.0).argmax())
    return np.array(peaks)


def _seed_mean(drawn: np.ndarray) -> np.ndarray:
    """Mean over seeds; NaN where no seed has a value."""
    return drawn.mean(-1) if np.isnan(drawn).all() else np.nanmean(drawn, axis=-1)


def _at(drawn: np.ndarray, peaks: np.ndarray) -> np.ndarray:
    """(draw, seed): accuracy at each seed's own peak."""
    return drawn[:, peaks, np.arange(len(peaks))]


def _interval(draws: np.ndarray, fitted: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    ends = np.full((2, draws.shape[1]), np.nan)
    ends[:, fitted] = interval(draws[:, fitted], level)
    return ends[0], ends[1]
