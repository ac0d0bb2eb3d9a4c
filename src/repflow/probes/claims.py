"""What may be called a loss: across a block, and from the peak to the last state.

With few prompts a probe's accuracy moves by tens of points when it is fitted again. A block is said to lose (or to
gain) the label only where all of this holds:

1. the change's interval excludes 0, over refits and, widened for the number of blocks, over test prompts;
2. the accuracy on the better side is above chance, and only what lies above chance counts as lost;
3. with probes fitted on half of each seed's training rows the 95 % interval excludes 0 too;
4. the change does not shrink on the way from half to all of the rows as it would if more rows made it vanish:
   an error that falls with the root of the rows would give √2 times the change with half of them.

The same, without the number of blocks, for the loss from the peak to the last state. No rule can see what too few
training rows cannot show: a state that takes more rows to read than there are. So the counts are given with each claim.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from repflow.core.intervals import LEVEL
from repflow.probes.chance import chance_level, floored_change
from repflow.probes.fit import ProbeFit
from repflow.probes.spread import SHARE, spread
from repflow.probes.summary import ProbeSummary, below_peak, correctness, peak_drop

SHRINKS = 2**0.5
"""Change with half the rows over that with all of them, from which on more rows may make it vanish."""

Groups = Sequence[Hashable] | np.ndarray | None


@dataclass(frozen=True)
class Changes:
    """Change of accuracy across every block, below chance counted as chance.

    Attributes:
        change: After minus before, (block,).
        low: Lower end of its 95 % interval, (block,).
        high: Upper end, (block,).
        sign: -1 where it is a fall and +1 where it is a rise by rules 1 and 2, else 0, (block,).
    """

    change: np.ndarray
    low: np.ndarray
    high: np.ndarray
    sign: np.ndarray


def block_changes(fit: ProbeFit, groups: Groups = None, *, level: float = LEVEL) -> Changes:
    """Accuracy of each state minus that of the state before it, on the same test rows."""
    rows, chance = correctness(fit), chance_level(fit)
    moved = spread([np.diff(part, axis=0) for part in rows], fit.splits, groups=groups)
    accuracy = spread(rows, fit.splits, groups=groups, made_up=SHARE)
    least = accuracy.interval(level)[0] > chance
    before, after = accuracy.mean[:-1], accuracy.mean[1:]
    change, low, high = floored_change(before, after, moved.interval(level), chance)
    _, wide_low, wide_high = floored_change(before, after, moved.interval(level, comparisons=len(change)), chance)
    fell, rose = (wide_high < 0) & least[:-1], (wide_low > 0) & least[1:]
    sign = np.where(fell, -1, np.where(rose, 1, 0)) if moved.covers_refits else np.zeros(len(change), int)
    return Changes(change, low, high, sign)


def survives(whole: np.ndarray, half: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Rules 3 and 4: the change with half the rows has the same sign, shown, and is not that much larger.

    Args:
        whole: Change with all training rows.
        half: With half of them; NaN, as where nothing was fitted, does not survive.
        low: Lower end of its interval.
        high: Upper end.

    >>> survives(np.array([-0.5, -0.2]), np.array([-0.4, -0.4]), np.array([-0.6, -0.6]), np.array([-0.2, -0.2]))
    array([ True, False])
    """
    significant = ((whole < 0) & (high < 0)) | ((whole > 0) & (low > 0))
    return np.asarray(significant & (np.abs(half) < SHRINKS * np.abs(whole)))


def block_claims(whole: Changes, half: Changes) -> np.ndarray:
    """-1 for blocks that lose the label, +1 for those that gain it, else 0, (block,)."""
    return np.where(survives(whole.change, half.change, half.low, half.high), whole.sign, 0)


def states_to_refit(summary: ProbeSummary, changes: Changes | None) -> list[int]:
    """States that a claim would rest on, to be fitted again on half the training rows; most often none."""
    wanted: set[int] = set()
    if summary.beats:
        wanted |= {*summary.peaks.tolist(), summary.last}
    if changes is not None:
        for block in np.flatnonzero(changes.sign).tolist():
            wanted |= {block, block + 1}
    return sorted(wanted)


@dataclass(frozen=True)
class Loss:
    """The loss from the peak to the last state with half of the training rows, and what may be said.

    Attributes:
        half: The drop with probes fitted on half the training rows; NaN where none were.
        half_low: Lower end of its 95 % interval.
        half_high: Upper end.
        shown: Whether an earlier state may be said to beat the last one.
    """

    half: float
    half_low: float
    half_high: float
    shown: bool


def peak_loss(summary: ProbeSummary, half: ProbeFit | None, groups: Groups = None, *, level: float = LEVEL) -> Loss:
    """Compare the summary's drop with the fit on half the training rows, at the same peaks."""
    if half is None or not summary.beats:
        return Loss(np.nan, np.nan, np.nan, False)
    below = below_peak(half, summary.peaks, groups)
    ends = peak_drop(half, summary.peaks, below, summary.last, summary.chance, level=level)
    return Loss(*ends, bool(survives(np.asarray(summary.drop), *(np.asarray(end) for end in ends))))
