"""From one layer to many: St_L² and the path energy (paper 1, A.3: Lemma 1, Lemma 2 and Theorem 6).

St_L² = 1/(n d (L+1)) Σ_l ‖h^(l) - mean‖², path energy E = Σ_l ‖h^(l+1) - h^(l)‖², θ = π/(2(L+1)), L layers, L+1 states.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.theory.arguments import ArrayLike, Number, count, is_printed, not_negative, numbers
from repflow.theory.hypotheses import Hypothesis, report

ROUNDING = 1e-12  # equal ratios must not fail by the last bit of a cosine


class PoincareBounds(NamedTuple):
    """St_L² between its bounds; `value` is `repflow.metrics.depth_stability`."""

    lower: float
    value: float
    upper: float


class DepthOrdering(NamedTuple):
    """What path energies say about St_L².

    Attributes:
        path_ordered: whether the Transformer's path energy is at least the Mamba's.
        stability_guaranteed: whether St_L² is then ordered the same way whatever the paths look like.
        needed_ratio: ratio of path energies from which it is.
    """

    path_ordered: bool
    stability_guaranteed: bool
    needed_ratio: float


class UniformGap(NamedTuple):
    """Assumption 8 on two models.

    Attributes:
        delta: largest δ with E‖F_l(h)‖² of the Transformer at least (1 + δ) times the Mamba's at every depth.
        depth: relative depth, 0 to 1, where the two are closest.
        holds: whether δ is above 0.
    """

    delta: float
    depth: float
    holds: bool


def uniform_gap(transformer: ArrayLike, mamba: ArrayLike) -> UniformGap:
    """Largest δ of Assumption 8 (paper 1, A.3) from the blocks' output energies of two models.

    Blocks are matched by relative depth; where one model has more, the other's energies are interpolated on the log
    scale.

    Args:
        transformer: E‖F_l(h^(l))‖² of each block, first to last.
        mamba: the same; both per token and channel, or of models of one width.

    >>> uniform_gap([2.0, 3.0], [1.0, 2.0])
    UniformGap(delta=0.5, depth=1.0, holds=True)
    """
    first, second = numbers(transformer, "transformer"), numbers(mamba, "mamba")
    for name, energies in (("transformer", first), ("mamba", second)):
        if energies.ndim != 1 or len(energies) == 0 or not (energies > 0).all():
            got = f"shape {energies.shape}, least {energies.min() if energies.size else 'none'}"
            raise InputError(teach(f"{name}: energies of blocks, above 0", got, "pass result['block/energy']"))
    depths = np.linspace(0, 1, max(len(first), len(second))) if max(len(first), len(second)) > 1 else np.ones(1)
    logs = [np.interp(depths, np.linspace(0, 1, len(part)), np.log(part)) for part in (first, second)]
    ratios = np.exp(logs[0] - logs[1])
    least = int(ratios.argmin())
    delta = round(float(ratios[least]) - 1, 12)
    return UniformGap(delta, float(depths[least]), delta > 0)


def poincare_bounds(hidden: ArrayLike, *, form: str = "corrected") -> PoincareBounds:
    """St_L² of states and its bounds by the path energy (paper 1, Lemma 1 and its corollary).

    corrected: E/(4nd(L+1) cos²θ) ≤ St_L² ≤ E/(4nd(L+1) sin²θ); both are attained.
    printed: the upper bound without 1/(L+1); the paper has no lower one, so it is 0.

    Args:
        hidden: (state, token, width), the embedding output first.
        form: `corrected` or `printed`.

    >>> found = poincare_bounds([[[1.0]], [[3.0]]])
    >>> [round(value, 12) for value in found]
    [1.0, 1.0, 1.0]
    """
    states = numbers(hidden, "hidden")
    if states.ndim != 3 or states.shape[0] < 2 or 0 in states.shape:
        expected = "hidden of shape (state, token, width) with at least 2 states"
        raise InputError(teach(expected, f"shape {states.shape}", "stack the embedding output and every block's"))
    s, n, d = states.shape
    value = float(states.var(0).mean())
    energy = float((np.diff(states, axis=0) ** 2).sum())
    theta, size = math.pi / (2 * s), 4 * n * d
    report("Lemma 1", ())
    if is_printed(form):
        return PoincareBounds(0.0, value, energy / (size * math.sin(theta) ** 2))
    return PoincareBounds(energy / (size * s * math.cos(theta) ** 2), value, energy / (size * s * math.sin(theta) ** 2))


def depth_ordering(
    path_energy_T: Number, path_energy_M: Number, *, n_layers: Number, form: str = "corrected"
) -> DepthOrdering:
    """Does a larger path energy mean a larger St_L² (paper 1, Theorem 6)?

    corrected: only from a ratio of cot²(π/(2(L+1))) on, since the lower bound of one must pass the upper bound of the
        other; below that St_L² may be ordered the other way (a zig-zag against a straight path).
    printed: always, ratio 1.

    For increments that are uncorrelated use `expected_depth_stability`: there Assumption 8 suffices.

    >>> round(depth_ordering(15, 10, n_layers=10).needed_ratio, 1), depth_ordering(15, 10, n_layers=10)[:2]
    (48.4, (True, False))
    """
    why = "a sum of squares"
    t, m = not_negative(path_energy_T, "path_energy_T", why), not_negative(path_energy_M, "path_energy_M", why)
    layers = count(n_layers, "n_layers")
    needed = 1.0 if is_printed(form) else 1 / math.tan(math.pi / (2 * (layers + 1))) ** 2
    ordered = t >= m
    ratio = math.inf if m == 0 else t / m
    # the path's own ordering is part of the result, so that it is reported without a warning
    report("Theorem 6", [Hypothesis("E_path of T ≥ that of M", ordered, f"ratio {ratio:.4g}")], warn=False)
    return DepthOrdering(ordered, bool(t >= needed * m * (1 - ROUNDING)), needed)


def expected_depth_stability(increment_energy: ArrayLike, *, n: Number, d: Number, form: str = "corrected") -> float:
    """E[St_L²] of a path with uncorrelated zero-mean increments (paper 1, Theorem 6, corrected).

    1/(n d (L+1)) Σ_l (l+1)(L-l)/(L+1) E‖Δ_l‖². Larger increments in every layer then do give a larger St_L².

    Args:
        increment_energy: E‖Δ_l‖² of each of the L layers, summed over tokens and channels.
        n: tokens.
        d: width.
        form: `corrected`; there is no printed form.

    >>> expected_depth_stability([4.0], n=1, d=1)
    1.0
    """
    if is_printed(form):
        raise InputError(teach("form='corrected'", "form='printed'", "poincare_bounds has the printed bound"))
    energy = numbers(increment_energy, "increment_energy")
    if energy.ndim != 1 or not energy.size or (energy < 0).any():
        expected = "increment_energy (layer,) of numbers ≥ 0"
        raise InputError(teach(expected, f"shape {energy.shape}", "pass E‖Δ_l‖² of every layer"))
    layers = len(energy)
    index = np.arange(layers)
    weight = (index + 1) * (layers - index) / (layers + 1)
    report("Theorem 6", ())
    return float((weight * energy).sum() / (count(n, "n") * count(d, "d") * (layers + 1)))
