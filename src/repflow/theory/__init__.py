"""Closed forms of the papers' theorems, as printed and corrected, beside a simulation.

Every function takes `form="corrected"` (the default) or `form="printed"`, lists, NumPy arrays or torch tensors, and
works in float64. Weights are in the column convention: a matrix acts on a column vector from the left. Traces are
totals over tokens in every form. A hypothesis that fails is a `HypothesisWarning`; where the formula has no meaning
without it, a ValueError names it. `hypotheses(name, ...)` lists all of them; `simulate(name, ...)` is the Monte-Carlo
twin.
"""

from typing import Any

from repflow.theory import statements
from repflow.theory.depth import (
    DepthOrdering,
    PoincareBounds,
    UniformGap,
    depth_ordering,
    expected_depth_stability,
    poincare_bounds,
    uniform_gap,
)
from repflow.theory.gelu import GeluMoments, gelu_moments
from repflow.theory.hypotheses import Hypotheses, Hypothesis, HypothesisWarning
from repflow.theory.mamba import mamba_mean, mamba_trace, selective_mamba_mean
from repflow.theory.ordering import (
    Contractivity,
    MambaConstants,
    StabilityOrdering,
    contractivity,
    guaranteed_sigma2,
    mamba_constants,
    stability_ordering,
    transformer_energy,
)
from repflow.theory.recency import frequency_response, influence_bound, low_pass_cutoff, lti_influence, operator_norm
from repflow.theory.simulate import FORMS, Simulation, hypotheses, simulate
from repflow.theory.smoothing import MemoryContraction, memory_contraction, smoothing_rate
from repflow.theory.transformer import (
    TransformerConstants,
    transformer_constants,
    transformer_mean,
    transformer_trace,
)

statements.register()
CLOSED_FORMS = tuple(sorted(FORMS))
"""Functions that `hypotheses` knows."""

__all__ = [
    "CLOSED_FORMS",
    "Contractivity",
    "DepthOrdering",
    "GeluMoments",
    "Hypotheses",
    "Hypothesis",
    "HypothesisWarning",
    "MambaConstants",
    "MemoryContraction",
    "PoincareBounds",
    "Simulation",
    "StabilityOrdering",
    "TransformerConstants",
    "UniformGap",
    "contractivity",
    "depth_ordering",
    "expected_depth_stability",
    "frequency_response",
    "gelu_moments",
    "guaranteed_sigma2",
    "hypotheses",
    "influence_bound",
    "low_pass_cutoff",
    "lti_influence",
    "mamba_constants",
    "mamba_mean",
    "mamba_trace",
    "memory_contraction",
    "operator_norm",
    "poincare_bounds",
    "selective_mamba_mean",
    "simulate",
    "smoothing_rate",
    "stability_ordering",
    "transformer_constants",
    "transformer_energy",
    "transformer_mean",
    "transformer_trace",
    "uniform_gap",
]


def __getattr__(name: str) -> Any:
    """A closed form of `repflow.theory.statements` that is not listed above."""
    if name not in FORMS:
        raise AttributeError(f"module 'repflow.theory' has no attribute {name!r}")
    return FORMS[name]
