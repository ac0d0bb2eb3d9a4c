"""What the probes say: accuracy by state, the peak chosen on validation, and the drop from there to the last state.

The maximum over many equal states is above their common mean by luck alone. So the peak is chosen on validation rows
and its accuracy taken from test rows. Where seeds redraw the split of one set of prompts, a prompt tests one seed and
trains or validates another, so each seed has a peak of its own, from seeds that never saw its test rows: then itself
alone. The recipe is one for all seeds: a choice between two, on validation rows of all of them.

Accuracies below chance count as chance in every loss and gain. "Lost" is said only where the interval covers refitting
(`spread`) and where it is still so with probes fitted on half the training rows (`claims`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.intervals import LEVEL
from repflow.core.seconds import timed
from repflow.probes.chance import chance_level, corrected, floored_change, prior_log_likelihood
from repflow.probes.fit import ProbeFit
from repflow.probes.spread import SHARE, Spread, spread


@dataclass(frozen=True)
class ProbeSummary:
    """Test results of the recipe that read best on validation. Intervals are the wider of prompts and refits.

    Attributes:
        recipe: The chosen one.
        recipe_valid: Validation accuracy at the peak of each recipe.
        n_classes: Classes of the label.
        chance: Test share of the most frequent training class; at least 1 / classes.
        accuracy: Mean test accuracy over seeds, (state,).
        accuracy_low: Lower end, (state,).
        accuracy_high: Upper end, (state,).
        corrected: (accuracy - chance) / (1 - chance), (state,).
        information: Bits about the label beyond what its frequencies give, (state,); below 0 for an overconfident
            probe.
        peak: State with the best mean validation accuracy; 0 where no state could be fitted, with accuracy NaN.
        peaks: Each seed's own peak, chosen without its test rows, (seed,).
        last: State that the drop is taken to; where it could not be fitted, `last_accuracy` and `drop` are NaN.
        peak_accuracy: Test accuracy at the seeds' own peaks; that of `peak` is too high where seeds share prompts.
        peak_low: Lower end of its interval.
        peak_high: Upper end.
        last_accuracy: Test accuracy of the last state.
        drop: peak_accuracy - last_accuracy, the paper's ↓, an accuracy below chance counted as chance.
        drop_low: Lower end of its interval.
        drop_high: Upper end.
        like_peak: States whose difference from the peak has an interval that includes 0; the peak among them.
        beats: The peak lies before the last state and the drop's interval, which covers refitting, lies above 0. A
            claim (`claims.peak_loss`) needs a fit on half the training rows besides.
        covers_refits: Whether the intervals hold for other training rows too; else they are over test rows alone.
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
    beats: bool
    covers_refits: bool
    unconverged: float
    test_units: int


@timed("intervals")
def summarise(
    fits: ProbeFit | Sequence[ProbeFit] | Mapping[str, ProbeFit],
    *,
    groups: Sequence[Hashable] | np.ndarray | None = None,
    last: int | None = None,
    level: float = LEVEL,
) -> ProbeSummary:
    """Choose the recipe on validation and report its test results.

    Args:
        fits: One fit, or one per recipe on the same states, seeds and splits.
        groups: (sample,) prompts of a group count as one in the intervals.
        last: State the drop is taken to; the last one if not given. The drop is NaN where it could not be fitted.
        level: Of the intervals.
    """
    fit, valid = _chosen(_as_list(fits))
    last = _check_last(last, fit.n_states)
    peaks, chance = _peaks(fit), chance_level(fit)
    peak = int(np.where(_fitted(fit), fit.accuracy_valid.mean(1), -1.0).argmax())
    below = below_peak(fit, peaks, groups)
    low, high = below.interval(level)
    accuracy = spread(correctness(fit), fit.splits, groups=groups, made_up=SHARE)
    top = float(fit.accuracy_test[peaks, np.arange(len(peaks))].mean())
    drop, drop_low, drop_high = peak_drop(fit, peaks, below, last, chance, level=level)
    accuracy_low, accuracy_high = accuracy.interval(level)
    at_peak = spread(correctness(fit, peaks), fit.splits, groups=groups, made_up=SHARE).interval(level)
    return ProbeSummary(
        recipe=fit.recipe,
        recipe_valid=valid,
        n_classes=fit.n_classes,
        chance=chance,
        accuracy=accuracy.mean,
        accuracy_low=accuracy_low,
        accuracy_high=accuracy_high,
        corrected=corrected(accuracy.mean, chance),
        information=information(fit),
        peak=peak,
        peaks=peaks,
        last=last,
        peak_accuracy=top,
        peak_low=float(at_peak[0][0]),
        peak_high=float(at_peak[1][0]),
        last_accuracy=float(accuracy.mean[last]),
        drop=drop,
        drop_low=drop_low,
        drop_high=drop_high,
        like_peak=_alike(fit, peak, low, high),
        beats=bool(peak < last and below.covers_refits and drop_low > 0),
        covers_refits=below.covers_refits,
        unconverged=_unconverged(fit),
        test_units=below.units,
    )


def correctness(fit: ProbeFit, peaks: np.ndarray | None = None) -> list[np.ndarray]:
    """Per seed, right (1) or wrong (0) on test rows, (state, test); NaN for states that could not be fitted.

    With `peaks` only each seed's own peak, (1, test).
    """
    out = []
    for seed, right in enumerate(fit.correct_test):
        known = np.isfinite(fit.accuracy_test[:, seed])
        rows = np.where(known[:, None], right, np.nan).astype(np.float64)
        out.append(rows if peaks is None else rows[[peaks[seed]]])
    return out


def below_peak(fit: ProbeFit, peaks: np.ndarray, groups: Sequence[Hashable] | np.ndarray | None) -> Spread:
    """Accuracy at each seed's peak minus that of every state, on the same test rows."""
    every, top = correctness(fit), correctness(fit, peaks)
    return spread([peak - rows for peak, rows in zip(top, every, strict=True)], fit.splits, groups=groups)


def peak_drop(
    fit: ProbeFit, peaks: np.ndarray, below: Spread, last: int, chance: float, *, level: float = LEVEL
) -> tuple[float, float, float]:
    """Drop from the seeds' peaks to the last state and its interval, accuracies below chance counted as chance."""
    low, high = (np.asarray(end[last]) for end in below.interval(level))
    top = np.asarray(fit.accuracy_test[peaks, np.arange(len(peaks))].mean())
    drop = floored_change(np.asarray(fit.accuracy_test[last].mean()), top, (low, high), chance)
    return float(drop[0]), float(drop[1]), float(drop[2])


def information(fit: ProbeFit) -> np.ndarray:
    """Bits about the label beyond what its frequencies give, mean over seeds, (state,)."""
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


def _alike(fit: ProbeFit, peak: int, low: np.ndarray, high: np.ndarray) -> tuple[int, ...]:
    """States that cannot be distinguished from the peak."""
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
