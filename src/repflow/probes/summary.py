"""What the probes say: accuracy by state, the peak chosen on validation, and the drop from there to the last state.

The maximum over many equal states is above their common mean by luck alone. So the peak is chosen on validation rows
and its accuracy taken from test rows. Where seeds redraw the split, a prompt may test one seed and validate another:
for each seed the peak is chosen on all seeds' validation prompts that this seed does not test on.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repflow.errors import InputError, teach
from repflow.probes.bootstrap import DRAWS, SEED, bootstrap_accuracy, interval
from repflow.probes.chance import chance_level, corrected, prior_log_likelihood
from repflow.probes.fit import ProbeFit


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
        peaks: Peak used for each seed's test rows, (seed,).
        last: Last state that could be fitted.
        peak_accuracy: Test accuracy at the peaks.
        last_accuracy: Test accuracy of the last state.
        drop: peak_accuracy - last_accuracy, the paper's ↓.
        drop_low: Lower end of its interval.
        drop_high: Upper end.
        like_peak: States whose difference from the peak has an interval that includes 0; the peak among them.
        intermediate_beats_final: The peak lies before the last state and the drop's interval lies above 0.
        unconverged: (state, seed) pairs whose gradient is not small, as a share of all.
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
    last_accuracy: float
    drop: float
    drop_low: float
    drop_high: float
    like_peak: tuple[int, ...]
    intermediate_beats_final: bool
    unconverged: float


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
    fit = max(every, key=lambda one: valid[one.recipe])
    fitted = np.flatnonzero(np.isfinite(fit.accuracy_test).all(1))
    last = _check_last(last, fitted)
    peak = int(np.nanargmax(_valid_mean(fit)))
    peaks = _peaks(fit)
    drawn = bootstrap_accuracy(
        fit.correct_test, [split.test for split in fit.splits], groups=groups, draws=draws, seed=seed
    )
    # (draw, state): how far each state lies below the peaks, on the same prompts
    below = np.nanmean(_at(drawn, peaks)[:, None] - drawn, axis=-1)
    low, high = _interval(below, fitted, level)
    accuracy = fit.accuracy_test.mean(1)
    accuracy_low, accuracy_high = _interval(np.nanmean(drawn, axis=-1), fitted, level)
    top = float(fit.accuracy_test[peaks, np.arange(len(peaks))].mean())
    chance = chance_level(fit)
    alike = [int(state) for state in fitted if low[state] <= 0 <= high[state] or state == peak]
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
        last_accuracy=float(accuracy[last]),
        drop=top - float(accuracy[last]),
        drop_low=float(low[last]),
        drop_high=float(high[last]),
        like_peak=tuple(alike),
        intermediate_beats_final=bool(peak < last and low[last] > 0),
        unconverged=float(1 - fit.converged[fitted].mean()),
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
    """Peak for each seed's test rows, from validation prompts that are not among them."""
    peaks = []
    for split in fit.splits:
        scores = np.zeros(fit.n_states)
        for other, right in zip(fit.splits, fit.correct_valid, strict=True):
            clean = ~np.isin(other.valid, split.test)
            if clean.any():
                scores += right[:, clean].mean(1)
        scores[~np.isfinite(fit.accuracy_test).all(1)] = -1
        peaks.append(int(scores.argmax()))
    return np.array(peaks)


def _at(drawn: np.ndarray, peaks: np.ndarray) -> np.ndarray:
    """(draw, seed): accuracy at each seed's own peak."""
    return drawn[:, peaks, np.arange(len(peaks))]


def _interval(draws: np.ndarray, fitted: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    ends = np.full((2, draws.shape[1]), np.nan)
    ends[:, fitted] = interval(draws[:, fitted], level)
    return ends[0], ends[1]
