"""What every metric is: axes, range, direction, invariances and source. Data only; tests hold each metric to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from repflow.core.errors import InputError, nearest

PAPER_1 = "A Comparative Analysis of Contextual Representation Flow, arXiv 2510.06640"
PAPER_2 = (
    "Understanding and Mitigating Bottlenecks of State Space Models through the Lens of Recency and Over-smoothing, "
    "arXiv 2501.00658"
)

Invariance = Literal["rotation", "scale", "token_scale", "token_order", "depth_reversal", "shift"]
"""What may change without changing the metric.

rotation: one orthogonal map of all states; scale: one positive factor on all states; token_scale: a positive factor per
token and state; token_order: a permutation of tokens (per-token metrics permute along); depth_reversal: last state
first; shift: one vector added to every token of every state.
"""
Direction = Literal["higher is more alike", "lower is more alike", "higher is steadier", "lower is steadier", "none"]


@dataclass(frozen=True)
class Metric:
    """Facts about one metric.

    Attributes:
        name: Name of the pure function and of the entry in a Result.
        axes: Axes in a Result.
        low: Smallest value it can take (-inf where unbounded).
        high: Largest value.
        direction: How to read a larger value.
        invariances: Changes of the input that leave it as it is.
        source: Paper and equation, or "repflow".
        summary: One sentence.
        default: Measured unless asked otherwise.
        scales: Power with which it follows a common factor on all states, None where that is not a law.
        inputs: Sets of states it compares; 2 for metrics of `repflow compare` alone, whose invariances hold for a
            change of both sides together.
        home: Module of the pure function of its name.
        meter: `module:NAME` of the `repflow.metrics.meter.Meter` that computes it in `repflow.measure`; if empty the
            function is applied to each sample, at the price of holding all states of a batch.
        companions: Patterns of further values that come with it in a Result.
        states: States it needs.
        samples: Samples it needs; more than 1 means that a sample's value depends on the others.
        kept: Stored for the kept samples alone, as `kept/NAME`.
        differentiable: Whether the function has a gradient.
    """

    name: str
    axes: tuple[str, ...]
    low: float
    high: float
    direction: Direction
    invariances: frozenset[Invariance]
    source: str
    summary: str
    default: bool = True
    scales: int | None = 0
    inputs: int = 1
    home: str = ""
    meter: str = ""
    companions: tuple[str, ...] = ()
    states: int = 1
    samples: int = 1
    kept: bool = False
    differentiable: bool = True


FLOW = "repflow.metrics.flow:FlowMeter"
KEPT = "kept/"
"""Prefix of values that are stored for the kept samples alone."""


def _facts(
    name: str,
    axes: str,
    span: tuple[float | int, float | int],
    direction: Direction,
    invariances: str,
    source: str,
    summary: str,
    *,
    home: str,
    **more: Any,
) -> Metric:
    kinds: frozenset[Invariance] = frozenset(invariances.split())  # type: ignore[arg-type]  # checked by the tests
    low, high = float(span[0]), float(span[1])
    return Metric(
        name, tuple(axes.split()), low, high, direction, kinds, source, summary, home=f"repflow.metrics.{home}", **more
    )


_INF = math.inf

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _facts(
            "layer_cosine", "layer sample token", (-1, 1), "higher is steadier",
            "rotation scale token_scale token_order", f"{PAPER_1}, section 3.2",
            "cosine of a token between one state and the next", states=2, home="similarity", meter=FLOW,
        ),
        _facts(
            "token_norm", "state sample token", (0, _INF), "none", "rotation token_order", "repflow",
            "Euclidean norm of a token", scales=1, home="similarity", meter=FLOW,
        ),
        _facts(
            "token_similarity", "state sample", (-1, 1), "higher is more alike",
            "rotation scale token_scale token_order", f"{PAPER_1}, Eq. 2",
            "mean cosine between different tokens of a prompt", home="similarity", meter=FLOW,
        ),
        _facts(
            "token_similarity_by_token", "state sample token", (-1, 1), "higher is more alike",
            "rotation scale token_scale token_order", "repflow",
            "mean cosine of one token with the others of its prompt", kept=True, home="similarity", meter=FLOW,
        ),
        _facts(
            "token_similarity_excess", "state sample", (-2, 2), "higher is more alike",
            "rotation scale token_scale token_order", "repflow",
            "token_similarity beyond the cosine between tokens of different prompts", samples=2,
            home="similarity", meter=FLOW,
        ),
        _facts(
            "common_share", "state sample", (0, 1), "higher is more alike", "rotation scale token_order", "repflow",
            "share of the tokens' energy that is in their mean", home="similarity", meter=FLOW,
        ),
        _facts(
            "sharpness", "state sample", (0, 2), "lower is more alike", "rotation scale token_order",
            f"{PAPER_2}, section 4", "pairwise spread of the tokens relative to their energy",
            home="similarity", meter=FLOW,
        ),
        _facts(
            "smoothness", "sample", (0, _INF), "lower is steadier", "token_order depth_reversal shift",
            f"{PAPER_1}, Eq. 3", "mean absolute second difference over depth", scales=1, states=3,
            home="depth", meter=FLOW,
        ),
        _facts(
            "stability", "sample", (0, _INF), "lower is steadier", "token_order depth_reversal shift",
            f"{PAPER_1}, Eq. 4", "mean standard deviation over depth", scales=1, states=2, home="depth", meter=FLOW,
        ),
        _facts(
            "paper_smoothness", "sample", (0, _INF), "lower is steadier", "token_order depth_reversal shift",
            f"{PAPER_1}, Eq. 3 as printed", "second differences over depth, summed and divided by blocks - 2",
            default=False, scales=1, states=3, home="depth", meter=FLOW,
        ),
        _facts(
            "paper_stability", "sample", (0, _INF), "lower is steadier", "token_order shift",
            f"{PAPER_1}, Eq. 4 as printed", "mean standard deviation over the blocks' outputs, without the embedding",
            default=False, scales=1, states=2, home="depth", meter=FLOW,
        ),
        _facts(
            "relative_smoothness", "sample", (0, _INF), "lower is steadier", "scale token_order depth_reversal",
            "repflow", "smoothness over the median token's mean |hidden|", states=3, home="depth", meter=FLOW,
        ),
        _facts(
            "relative_stability", "sample", (0, _INF), "lower is steadier", "scale token_order depth_reversal",
            "repflow", "stability over the median token's mean |hidden|", states=2, home="depth", meter=FLOW,
        ),
        _facts(
            "direction_smoothness", "sample", (0, _INF), "lower is steadier",
            "scale token_scale token_order depth_reversal", "repflow",
            "smoothness of the per-token normalised states", default=False, states=3, home="depth", meter=FLOW,
        ),
        _facts(
            "direction_stability", "sample", (0, _INF), "lower is steadier",
            "scale token_scale token_order depth_reversal", "repflow",
            "stability of the per-token normalised states", default=False, states=2, home="depth", meter=FLOW,
        ),
        _facts(
            "depth_stability", "sample", (0, _INF), "lower is steadier", "rotation token_order depth_reversal shift",
            f"{PAPER_1}, A.3", "variance over depth, St_L²", scales=2, states=2, home="depth", meter=FLOW,
        ),
        _facts(
            "path_energy", "sample", (0, _INF), "lower is steadier", "rotation token_order depth_reversal shift",
            f"{PAPER_1}, A.3", "sum over depth of squared steps", scales=2, states=2, home="depth", meter=FLOW,
        ),
        _facts(
            "gram_share", "state sample", (0, 1), "none", "rotation scale token_order", "repflow",
            "share of the centred Gram matrix that involves the four largest tokens",
            companions=("gram_share_error", "top_tokens"), home="sinks", meter=FLOW,
        ),
        _facts(
            "channel_share", "state sample", (0, 1), "none", "scale token_order", "repflow",
            "share of the energy in the four largest channels", companions=("top_channels",), home="sinks", meter=FLOW,
        ),
        _facts(
            "cka_matrix", "state state sample", (-1, 1), "higher is more alike", "rotation scale token_order shift",
            f"{PAPER_1}, section 3.3; Kornblith et al. 2019; Song et al. 2012",
            "linear CKA of every pair of states", default=False, companions=("cka_*",),
            meter="repflow.metrics.streaming_cka:CkaMeter", home="cka",
        ),
        _facts(
            "effective_rank", "state sample", (1, _INF), "lower is more alike", "rotation scale token_order shift",
            "Roy and Vetterli 2007", "exponential entropy of the centred states' spectrum", default=False, home="rank",
        ),
        _facts(
            "mutual_neighbours", "state state", (0, 1), "higher is more alike",
            "rotation scale token_scale token_order", "Huh et al. 2024",
            "share of nearest-neighbour tokens that two states have in common", default=False, inputs=2,
            differentiable=False, home="neighbours",
        ),
    )
}  # fmt: skip

ALIASES = {"Vloc": "smoothness", "Vglob": "stability"}
"""Names of paper 1's second version, whose formulas we could not read: inferred, not confirmed."""

DEFAULT_METRICS: tuple[str, ...] = tuple(name for name, metric in METRICS.items() if metric.default)


def metric(name: str) -> Metric:
    """Look a metric up by the last part of its Result name.

    >>> metric("final_norm/token_similarity").axes
    ('state', 'sample')
    """
    base = name.rsplit("/", 1)[-1]
    base = ALIASES.get(base, base)
    if base not in METRICS:
        raise InputError(f"unknown metric {name!r}; {nearest(base, METRICS)}")
    return METRICS[base]


def metric_of(name: str) -> str:
    """Metric that a value of a Result belongs to, by the last part of its name; the name itself where it is its own.

    >>> metric_of("final_norm/top_tokens"), metric_of("cka_pooled"), metric_of("kept/token_norm"), metric_of("mine")
    ('gram_share', 'cka_matrix', 'token_norm', 'mine')
    """
    base = name.rsplit("/", 1)[-1]
    if base in METRICS:
        return base
    owners = (owner for owner, facts in METRICS.items() if any(fnmatchcase(base, each) for each in facts.companions))
    return next(owners, base)


EXPONENTIAL_R2 = 0.97
"""R² of a straight line in logarithms from which a decay counts as exponential, and has a half-life.

A line plus a parabola, the least way of not being straight: the slopes of the nearer and the farther half are κ(1 ± e)
with 1 / R² = 1 + 4 e² / 15, and e = 1/3, where one half-life is twice the other, is at R² = 0.971. At R² = 0.9 it would
be 4.6 times the other, and the fit's half-life that of neither.
"""


def is_exponential(fit: Mapping[str, Any] | None) -> bool:
    """Whether a stored fit is of an exponential decay: it falls, straight enough, and no power law fits better.

    >>> is_exponential({"kappa": 0.1, "r2": 0.99, "power_r2": 0.8}), is_exponential({"kappa": 0.1, "r2": 0.13})
    (True, False)
    """
    if not fit or fit.get("kappa") is None or fit.get("r2") is None:
        return False
    return bool(fit["kappa"] > 0 and fit["r2"] >= max(EXPONENTIAL_R2, fit.get("power_r2") or 0.0))


SPANS: dict[str, tuple[float, float]] = {
    "recent_share": (0.0, 1.0), "half_reach": (1.0, _INF), "theorem_kappa": (0.0, _INF), "decay_max": (0.0, 1.0),
}  # fmt: skip
"""Ranges of what other studies store beside these metrics, where an interval should know them."""
WHOLE = frozenset({"half_reach"})
"""Whole numbers of tokens among these, on which all prompts may agree."""


def span_of(name: str) -> tuple[float, float]:
    """Least and largest value of an entry of a Result; infinite where nothing is declared.

    >>> span_of("norm>10/token_norm"), span_of("kappa")
    ((0.0, inf), (-inf, inf))
    """
    base = name.rsplit("/", 1)[-1]
    base = ALIASES.get(base, base)
    if base in METRICS:
        return METRICS[base].low, METRICS[base].high
    return SPANS.get(base, (-_INF, _INF))


def is_counted(name: str) -> bool:
    """Whether an entry of a Result is a whole number for each prompt.

    >>> is_counted("depth/half_reach"), is_counted("kappa")
    (True, False)
    """
    return name.rsplit("/", 1)[-1] in WHOLE


def described(name: str) -> dict[str, str]:
    """What a value of a Result is, in words: of a metric, or of a variant such as `final_norm/NAME`.

    >>> described("final_norm/token_norm")["source"], described("my_own")
    ('repflow', {})
    """
    metric = METRICS.get(ALIASES.get(name.rpartition("/")[2], name.rpartition("/")[2]))
    if metric is None:
        return {}
    return {"long_name": metric.summary, "direction": metric.direction, "source": metric.source}
