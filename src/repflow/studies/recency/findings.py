"""What a recency run says in words: fit, bound, twin, and what went wrong with the numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from repflow.core.catalogue import EXPONENTIAL_R2, span_of
from repflow.core.intervals import bracketed
from repflow.core.results import sample_band, sample_mean

if TYPE_CHECKING:
    from repflow.core.results import Finding
    from repflow.studies.recency.config import RecencyConfig
    from repflow.studies.recency.measured import Measured, Side
    from repflow.theory.influence_curve import ExponentialFit

SHARP = 2.0
"""Fitted κ over the theorem's below which the bound counts as sharp."""
NEXT_TO_ONE = 1e-4
"""1 − A below which A is given by its distance from one."""
SLOWER = "the theorem bounds one layer up to a constant, and a stack's curve rises before it falls"


def findings(
    config: RecencyConfig, main: Measured, side: Side, twin: Measured | None, other: Side | None
) -> list[Finding]:
    """Everything worth saying about a model and its twin."""
    from repflow.core.results import Finding

    entries: list[tuple[str, int | None, str]] = [("influence", None, _reach(side))]
    fit = side.fits[0]
    if fit is not None:
        entries.append(("exponential_fit", None, _exponential(fit, side)))
        if main.hidden is None:
            entries.append(_bound(main, side, fit))
    if twin is not None and other is not None and fit is not None and other.fits[0] is not None:
        entries.append(("twin_recency", None, _twin(str(config.twin), fit, other.fits[0])))
    for words, measured, part in (("", main, side), ("the twin: ", twin, other)):
        if measured is not None and part is not None:
            entries += [(code, layer, words + text) for code, layer, text in _warnings(measured, part)]
    return [Finding(*entry) for entry in entries]


def _mean(side: Side, name: str) -> np.ndarray:
    axes, values = side.table[name]
    return sample_mean(values, axes)


def _reach(side: Side) -> str:
    from repflow.theory.influence_curve import WINDOWS

    shares = _mean(side, "recent_share")
    shares_text = [f"{100 * share:.0f} % in the last {window}" for window, share in zip(WINDOWS, shares, strict=True)
            if window > 1 and np.isfinite(share)]  # fmt: skip
    middle = float(_mean(side, "lost_in_the_middle"))
    text = f"half of the influence comes from the last {_half_reach(side)} tokens"
    text += f" ({', '.join(shares_text)})" if shares_text else ""
    if math.isfinite(middle):
        shape = "both ends count more than the middle" if middle > 0 else "no U-shape"
        text += f"; lost-in-the-middle index {middle:+.2f}: {shape}"
    return text


def _half_reach(side: Side) -> str:
    axes, values = side.table["half_reach"]
    band = sample_band(values, axes, span=span_of("half_reach"), whole=True)
    mean, ends = f"{float(band.mean):.1f}", bracketed(band.low, band.high, ".1f")  # as in the table: 2.5 is not 2
    return f"{mean}{ends}" if ends else mean.removesuffix(".0")


def _exponential(fit: ExponentialFit, side: Side) -> str:
    """The fit in words: a half-life where the decay is exponential, else how far half of the influence reaches."""
    slope = f"κ = {fit.kappa:.4g}{bracketed(fit.kappa_low, fit.kappa_high, '.4g')} per token"
    slope += f" over distances {fit.first} to {fit.last}"
    share = f"R² {fit.r2:.3f}, a power law of exponent {fit.power:.2f} has {fit.power_r2:.3f}"
    if fit.exponential:
        life, low, high = fit.half_life
        ends = f" [{low:.3g}, ∞]" if math.isinf(high) else bracketed(low, high, ".3g")
        return f"{slope}, half-life {life:.3g} tokens{ends}; {share}: an exponential"
    if not fit.kappa > 0:
        return f"{slope}: no decay; {share}"
    why = f"R² below {EXPONENTIAL_R2}" if fit.r2 < EXPONENTIAL_R2 else "a power law fits better"
    text = f"{slope}; {share}: the decay is not exponential ({why}), so it has no half-life"
    text += f"; half of the influence comes from the last {_half_reach(side)} tokens"
    return f"{text}; the curve peaks at distance {fit.peak}" if fit.peak > 1 else text


def _bound(main: Measured, side: Side, fit: ExponentialFit) -> tuple[str, int | None, str]:
    """Theorem 3.1's κ beside the fitted one; a stack decays no faster than its slowest layer allows."""
    values = side.table["theorem_kappa"][1]
    least = np.nanmin(np.where(np.isfinite(values), values, np.inf), axis=1)
    layer = int(np.argmin(least))
    kappa = float(least[layer]) + 0.0  # −0 of an A of one
    largest = f"1 − {-math.expm1(-kappa):.2g}" if 0 < kappa < NEXT_TO_ONE else f"{math.exp(-kappa):.6g}"
    text = f"Theorem 3.1 allows κ ≥ {kappa:.3g} (layer {layer + 1} has the largest A, {largest})"
    if kappa <= 0:
        return "loose_bound", layer, f"{text}: no decay is promised"
    if fit.kappa <= 0 or fit.kappa_low <= 0:
        return "loose_bound", layer, f"{text}; the fitted curve is not shown to decay at all"
    times = fit.kappa / kappa
    text += f"; the curve falls {times:.3g} times as fast"
    if times < 1:
        attends = any("attention" in kind for kind in main.layer_kinds)
        why = "attention layers, which the theorem does not bind, carry further" if attends else SLOWER
        return "loose_bound", layer, f"{text}: {why}"
    return "loose_bound", layer, f"{text}, so the bound is {'sharp' if times < SHARP else 'loose'}"


def _twin(init: str, fit: ExponentialFit, other: ExponentialFit) -> str:
    text = f"trained κ = {fit.kappa:.4g}, random twin ({init}) κ = {other.kappa:.4g}"
    if fit.kappa <= 0 or other.kappa <= 0:
        return text
    apart = math.isfinite(fit.kappa_low) and (fit.kappa_low > other.kappa_high or fit.kappa_high < other.kappa_low)
    if not apart:
        return f"{text}: training is not shown to change the decay"
    ratio = fit.kappa / other.kappa
    how = f"training makes the decay {max(ratio, 1 / ratio):.2f} times {'faster' if ratio > 1 else 'slower'}"
    return f"{text}: {how}, the intervals do not overlap"


def _warnings(measured: Measured, side: Side) -> list[tuple[str, int | None, str]]:
    from repflow.capture.influence.check import FUTURE, TOLERANCE

    warnings: list[tuple[str, int | None, str]] = []
    future = np.append(side.table["future_influence"][1], measured.check.future)
    worst = float(np.nanmax(future))
    if worst > FUTURE:
        text = f"later tokens have influence, up to {worst:.2g} of the largest: the model is not causal"
        warnings.append(("future_influence", None, text))
    if side.underflowed:
        text = (
            f"{side.underflowed} influences are zero and left out of the averages: out of reach, or too small for the"
        )
        warnings.append(("underflow", None, f"{text} dtype (--dtype float64 shows which)"))
    if side.nonfinite:
        text = f"{side.nonfinite} influences are NaN or infinite and left out of every number: the gradient overflowed"
        warnings.append(("nonfinite_influence", None, f"{text} (--dtype float32 shows whether)"))
    if measured.hidden:
        text = f"no κ of Theorem 3.1 beside the curve, as the layers' decays cannot be read: {measured.hidden}"
        warnings.append(("hidden_transition", None, text))
    if measured.check.difference is None:
        warnings.append(
            ("gradient_unchecked", None, "half precision: gradients were not compared with finite differences")
        )
    elif measured.check.difference > TOLERANCE:
        text = (
            f"gradients are {measured.check.difference:.0%} off finite differences, which do not agree "
            "with one another either: the model is too curved to decide in this dtype (--dtype float64)"
        )
        warnings.append(("gradient_unsettled", None, text))
    return warnings
