"""What trained weights and random twins have in common: the sign of late minus early token similarity, cell by cell.

Paper 1, F 3.2.3, reads Figure 3 as: a Transformer's tokens are alike whatever its weights (75–100 %), Mamba-2's are so
only once trained (0–25 % before). Levels depend on the scale of the weights and on the prompt. What we judge is the
shape, late minus early, on raw similarity as published and on its excess over tokens of other prompts. The break
conditions are those of a published summary of paper 1: without norms, or with local attention, early similarity of a
Transformer should fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.intervals import LEAST_VALUES, bracketed, student_quantile

TRAINED = "trained"
SCHEMES = ("default", "gaussian", "xavier", "he")
SCALED = "residual"
"""Switch that a whole grid has in one of its schemes."""
SPAN = (128, 2000)
"""Lengths that a grid must reach down and up to before anything is called architectural."""
LEAST_SEEDS = 3
"""Seeds of every twin before anything is called architectural: with two, t is 12.7 and few intervals have a sign."""
UNCHANGED = 1e-6
"""A change below float32's resolution of a cosine: resetting norms that are identities, as in most twins."""
WORDS = {1: "positive", -1: "negative", 0: "undetermined"}


def depth_ends(similarity: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the first and the last blocks of (block, sample) values.

    early = mean of the first k blocks, late = mean of the last k, k = floor(share · blocks), at least 1.

    >>> early, late = depth_ends(np.array([[0.1], [0.2], [0.6], [0.4]]), 0.5)
    >>> (late - early).round(2)
    array([0.35])
    """
    blocks = len(similarity)
    if blocks < 2:
        raise InputError(teach("at least two blocks for early and late", f"{blocks}", "use a deeper model"))
    count = min(max(1, int(blocks * share + 1e-9)), blocks // 2)
    return similarity[:count].mean(0), similarity[-count:].mean(0)


def crossed_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean of (seed, sample) values and its 95 % interval over seeds and prompts.

    mean ± sqrt(t²(S - 1) · v_seeds / S + t²(P - 1) · v_prompts / P), with v the variance of the S seed means and of the
    P prompt means, t(d) Student's 97.5 % point at d degrees of freedom. Every seed reads the same prompts, so both are
    counted, each by itself. If the true mean is zero, the interval excludes it in 5 % of the cases where only seeds or
    only prompts differ, in fewer where both do. Quantiles of a bootstrap would exclude it in 27 % at three seeds.

    With one seed, as trained weights have, the interval is over prompts alone and covers these weights only. NaN
    entries are left out; no interval with fewer than three prompts.

    >>> mean, low, high = crossed_interval(np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]))
    >>> round(mean, 3), low, high
    (0.35, nan, nan)
    >>> mean, low, high = crossed_interval(np.array([[0.1, 0.2, 0.3], [0.3, 0.4, 0.5], [0.5, 0.6, 0.7]]))
    >>> round(mean, 3), round(low, 3), round(high, 3)
    (0.4, -0.155, 0.955)
    """
    present = ~np.isnan(values)
    values = values[present.any(1)][:, present.any(0)]
    if not values.size:
        return np.nan, np.nan, np.nan
    mean = float(np.nanmean(values))
    if values.shape[1] < LEAST_VALUES:
        return mean, np.nan, np.nan
    square = 0.0
    for means in (np.nanmean(values, axis=1), np.nanmean(values, axis=0)):
        if len(means) > 1:
            square += float(student_quantile(len(means) - 1)) ** 2 * means.var(ddof=1) / len(means)
    half = float(np.sqrt(square))
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class CellSign:
    """Late minus early of one kind of weights at one length, over seeds and prompts."""

    weights: str
    length: int
    mean: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 where the interval excludes zero, else 0."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def __str__(self) -> str:
        return f"{self.weights} n={self.length} ({self.mean:+.3f}{bracketed(self.low, self.high, '+.3f')})"


@dataclass(frozen=True)
class Verdict:
    """What the sign does over the grid.

    Attributes:
        measure: `raw` or `excess`.
        code: `architectural` (one sign in every cell of a whole grid), `holds` (one sign in every cell measured, but
            the grid is not whole), `training` (the twins agree, the trained model has the other sign in some cell),
            `trained_undetermined` (the twins agree, the trained model has no other sign, but none in some cell),
            `depends` (cells have opposite signs, and not only the trained ones against the twins), `undetermined` (no
            cell has the opposite sign of another, but some twin has none), `none` (no twin was measured).
        sign: The common sign, or the one that the breaking cells lack.
        cells: Cells judged.
        breaks: Cells with another sign, or none.
        gaps: Why the grid is not whole.
        statement: One sentence with the numbers behind it.
    """

    measure: str
    code: str
    sign: int
    cells: int
    breaks: list[CellSign] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    statement: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def judge(measure: str, cells: Sequence[CellSign], gaps: Sequence[str]) -> Verdict:
    """Say whether the sign of late minus early is the architecture's.

    >>> cells = [CellSign("trained", 128, .2, .1, .3), CellSign("he", 128, .3, .2, .4)]
    >>> judge("raw", cells, []).code, judge("raw", cells, ["no xavier"]).code
    ('architectural', 'holds')
    """
    known = [cell for cell in cells if np.isfinite(cell.mean)]
    twins = [cell for cell in known if cell.weights != TRAINED]
    if not twins:
        return Verdict(measure, "none", 0, 0, [], list(gaps), f"{measure}: not judged: no random twin was measured")
    if not any(cell.sign for cell in known):
        most = max(known, key=lambda cell: abs(cell.mean))
        text = (
            f"{measure}: not architectural: late minus early has no sign in any of {len(known)} cells; at most {most}"
        )
        return Verdict(measure, "undetermined", 0, len(known), known, list(gaps), text)
    sign = twins[0].sign
    if sign != 0 and all(cell.sign == sign for cell in twins):
        breaks = [cell for cell in known if cell.sign != sign]
        if breaks:
            code = "training" if any(cell.sign for cell in breaks) else "trained_undetermined"
        else:
            code = "holds" if gaps else "architectural"
    else:
        sign = _asked_sign(known)
        breaks = [cell for cell in known if cell.sign != sign]
        code = "depends" if any(cell.sign == -sign for cell in known) else "undetermined"
    text = f"{measure}: {_statement(code, sign, known, breaks, gaps)}"
    return Verdict(measure, code, sign, len(known), breaks, list(gaps), text)


def _asked_sign(cells: Sequence[CellSign]) -> int:
    """Sign to compare the cells with: the trained model's where it has one, else that of most cells."""
    trained = {cell.sign for cell in cells if cell.weights == TRAINED}
    if len(trained) == 1 and 0 not in trained:
        return trained.pop()
    total = sum(cell.sign for cell in cells)
    return 1 if total >= 0 else -1


def _statement(code: str, sign: int, cells: Sequence[CellSign], breaks: Sequence[CellSign], gaps: Sequence[str]) -> str:
    twins = sum(cell.weights != TRAINED for cell in cells)
    where = f"{twins} cells of random weights" + (f" and {len(cells) - twins} of trained" if twins < len(cells) else "")
    least = min(min(abs(cell.low), abs(cell.high)) for cell in cells)
    named = "; ".join(f"{cell}{', undetermined' if cell.sign == 0 else ''}" for cell in breaks)
    if code == "architectural":
        bound = f"no interval nearer to 0 than {least:.3f}"
        bound += "" if twins < len(cells) else "; there were no trained weights to compare them with"
        return f"architectural: late minus early is {WORDS[sign]} in all {where}, {bound}"
    if code == "holds":
        return f"late minus early is {WORDS[sign]} in all {where}, but not called architectural: {'; '.join(gaps)}"
    if code == "training":
        return (
            f"not architectural: late minus early is {WORDS[sign]} in all {twins} cells of random weights, "
            f"but not in the trained model: {named}"
        )
    if code == "trained_undetermined":
        return (
            f"not called architectural: late minus early is {WORDS[sign]} in all {twins} cells of random weights, "
            f"but the trained model leaves it open: {named}"
        )
    count = len(cells) - len(breaks)
    if code == "undetermined":
        return (
            f"not called architectural: late minus early is {WORDS[sign]} in {count} of {len(cells)} cells, "
            f"none has the other sign, but these leave it open: {named}"
        )
    return (
        f"not architectural: late minus early is {WORDS[sign]} in {count} of {len(cells)} cells and breaks in: {named}"
    )


def grid_gaps(inits: Sequence[str], lengths: Sequence[int], seeds: int, missing: Sequence[str]) -> list[str]:
    """Why a grid is not whole; empty for one that is.

    >>> grid_gaps(["default", "gaussian:0.1+residual", "xavier", "he"], [128, 2000], 3, [])
    []
    """
    names = {init.partition("+")[0].partition(":")[0] for init in inits}
    gaps = []
    if absent := [scheme for scheme in SCHEMES if scheme not in names]:
        gaps.append(f"no twin by {', '.join(absent)}")
    if not any(SCALED in init.split("+")[1:] or f"+{SCALED}:" in init for init in inits):
        gaps.append("no twin with scaled residual branches")
    if min(lengths) > SPAN[0] or max(lengths) < SPAN[1]:
        span = f"n = {min(lengths)} … {max(lengths)}" if len(lengths) > 1 else f"n = {lengths[0]}"
        gaps.append(f"{span} does not span {SPAN[0]} … {SPAN[1]}")
    if seeds < LEAST_SEEDS:
        gaps.append(f"{seeds} seed{'s' * (seeds > 1)} of each twin, fewer than {LEAST_SEEDS}")
    if missing:
        gaps.append(f"{len(missing)} cells were not measured: {'; '.join(missing)}")
    return gaps


def break_statement(ablation: str, changes: Sequence[CellSign]) -> str:
    """What an ablation does to early similarity, counted over cells; paired by seed and prompt."""
    known = [change for change in changes if np.isfinite(change.mean)]
    same = [change for change in known if max(abs(change.low), abs(change.high)) < UNCHANGED]
    counts = [sum(change.sign == sign for change in known if change not in same) for sign in (-1, 1, 0)]
    text = f"without {ablation}: early raw similarity falls in {counts[0]} of {len(known)} cells, rises in {counts[1]}"
    text += f", undetermined in {counts[2]}, the same in {len(same)}"
    if known:
        low, high = min(known, key=lambda c: c.mean), max(known, key=lambda c: c.mean)
        text += f"; from {low} to {high}" if low is not high else f"; {low}"
    return text
