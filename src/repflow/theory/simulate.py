"""Monte-Carlo twins of the closed forms: draw the Gaussian tokens, run the block, look.

The simulated block takes nothing from the closed form: attention is computed, the recurrence is run token by token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from repflow.core.errors import InputError, nearest, teach
from repflow.core.progress import Steps
from repflow.theory.arguments import ArrayLike, Number, Shapes, count, numbers, variance, word
from repflow.theory.depth import depth_ordering, expected_depth_stability, poincare_bounds
from repflow.theory.gelu import gelu, gelu_moments
from repflow.theory.hypotheses import Hypotheses, collecting
from repflow.theory.mamba import mamba_mean, mamba_parts, mamba_trace, selective_mamba_mean
from repflow.theory.ordering import guaranteed_sigma2, mamba_constants, stability_ordering
from repflow.theory.recency import frequency_response, influence_bound, low_pass_cutoff, lti_influence
from repflow.theory.sampling import Draw, Moments, sample_moments
from repflow.theory.smoothing import memory_contraction, smoothing_rate
from repflow.theory.transformer import (
    ACTIVATIONS,
    ATTENTIONS,
    SUPPORTED,
    _bias,
    _query_key,
    transformer_constants,
    transformer_mean,
    transformer_trace,
)

CHUNK_NUMBERS = 1 << 21  # numbers of one chunk's largest array: 16 MiB


class Simulation(NamedTuple):
    """A Monte-Carlo estimate beside its closed form.

    Attributes:
        estimate: of the same shape as the closed form.
        standard_error: of the estimate, entry by entry.
        gap: (closed form - estimate) / estimate; for a vector ‖closed form - estimate‖ / ‖estimate‖.
        closed_form: what the function gives for the same arguments; NaN for a combination without a closed form.
        samples: number of draws.
    """

    estimate: float | np.ndarray
    standard_error: float | np.ndarray
    gap: float
    closed_form: float | np.ndarray
    samples: int


def simulate(
    name: str,
    *args: Any,
    samples: Number = 100_000,
    seed: int = 0,
    chunk: int | None = None,
    progress: Steps | None = None,
    **kwargs: Any,
) -> Simulation:
    """Monte-Carlo twin of a function of this package, for the same arguments.

    Args:
        name: gelu_moments (gives the mean), transformer_mean, transformer_trace, mamba_mean, mamba_trace,
            selective_mamba_mean or expected_depth_stability.
        *args: arguments of the function.
        samples: draws.
        seed: of the draws.
        chunk: draws at a time; by default so that a chunk takes some 16 MiB. It is part of what a seed means.
        progress: called with draws done and draws in total after each chunk.
        **kwargs: keywords of the function. `form` chooses the closed form it is set against. The Transformer's twins
            take every attention and activation (transformer_mean: attention="uniform", activation="gelu" unless
            given), the Mamba's take activation="silu" for the true SiLU.

    Returns:
        Simulation: estimate, standard_error, gap, closed_form, samples.

    >>> eye = np.eye(2)
    >>> found = simulate("transformer_trace", eye, eye, eye, sigma2=1.0, n=3, samples=20_000)
    >>> found.closed_form, abs(found.gap) < 0.03, found.standard_error < 0.1
    (9.0, True, True)
    """
    if name not in TWINS:
        raise InputError(f"no Monte-Carlo twin of {name!r}; {nearest(str(name), TWINS)}")
    twin = TWINS[name]
    draw, size = twin.block(*args, **{key: value for key, value in kwargs.items() if key != "form"})
    total = count(samples, "samples")
    if total < 2:
        raise InputError(teach("at least 2 samples", f"{total}", "an error needs more than one draw"))
    per = chunk if chunk is not None else max(1, min(total, CHUNK_NUMBERS // size))
    sampled_moments = sample_moments(draw, samples=total, seed=seed, chunk=count(per, "chunk"), progress=progress)
    estimate, error = twin.read(sampled_moments)
    closed = _closed_form(name, estimate, args, {k: v for k, v in kwargs.items() if k not in twin.own})
    return Simulation(estimate, error, relative_gap(closed, estimate), closed, total)


def hypotheses(name: str, *args: Any, **kwargs: Any) -> Hypotheses:
    """Conditions of the theorem behind a function, for the same arguments, and which of them hold.

    The functions themselves warn (`HypothesisWarning`) of those that fail and raise where the formula has no meaning.

    >>> eye = np.eye(2)
    >>> found = hypotheses("transformer_trace", eye, eye, 2 * eye, sigma2=1.0, n=3, form="printed")
    >>> found.failed, found.all_hold
    (('W_V W_Vᵀ = I',), False)
    """
    if name not in FORMS:
        raise InputError(f"no closed form {name!r}; {nearest(name, FORMS)}")
    with collecting() as reports:
        FORMS[name](*args, **kwargs)
    return Hypotheses(reports)


def relative_gap(closed: float | np.ndarray, estimate: float | np.ndarray) -> float:
    """Signed for numbers, a ratio of norms for vectors.

    >>> relative_gap(1.01, 1.0).__round__(6), relative_gap(np.array([3.0, 4.0]), np.array([3.0, 5.0])).__round__(6)
    (0.01, 0.171499)
    """
    if isinstance(estimate, float):
        return (float(closed) - estimate) / estimate if estimate else float("nan")
    if np.shape(closed) != estimate.shape:  # Theorem 3 as printed: the average of the rows, held against every row
        closed = np.broadcast_to(closed, estimate.shape)
    norm = float(np.linalg.norm(estimate))
    return float(np.linalg.norm(closed - estimate)) / norm if norm else float("nan")


def _closed_form(name: str, estimate: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | np.ndarray:
    pair = (kwargs.get("attention", "uniform"), kwargs.get("activation", "linear"))
    if name == "transformer_trace" and kwargs.get("form") != "printed" and pair not in SUPPORTED:
        return float("nan")
    with collecting():  # the gap itself shows what a broken hypothesis does
        value = FORMS[name](*args, **kwargs)
    return value.mean if name == "gelu_moments" else value


def _gelu_block(mean: ArrayLike, variance: ArrayLike) -> tuple[Draw, int]:
    m, s2 = np.broadcast_arrays(numbers(mean, "mean"), numbers(variance, "variance"))
    return lambda rng, k: gelu(m + np.sqrt(s2) * rng.standard_normal((k, *m.shape))), m.size


def _mean_block(
    W1: ArrayLike,
    W2: ArrayLike,
    b1: ArrayLike,
    b2: ArrayLike,
    *,
    sigma2: Number,
    W_V: ArrayLike,
    n: Number,
    **options: Any,
) -> tuple[Draw, int]:
    options = {"activation": "gelu", **options}
    return _transformer_block(W1, W2, W_V, sigma2=sigma2, n=n, b1=b1, b2=b2, **options)


def _transformer_block(
    W1: ArrayLike,
    W2: ArrayLike,
    W_V: ArrayLike,
    *,
    sigma2: Number,
    n: Number,
    attention: str = "uniform",
    W_Q: ArrayLike = None,
    W_K: ArrayLike = None,
    activation: str = "linear",
    b1: ArrayLike = None,
    b2: ArrayLike = None,
) -> tuple[Draw, int]:
    shapes = Shapes()
    w1, w2 = shapes.take(W1, "W1", "d_ff d"), shapes.take(W2, "W2", "d d_ff")
    wv, bias1 = shapes.take(W_V, "W_V", "d d"), _bias(shapes, b1, "b1", "d_ff")
    bias2, scale, tokens = _bias(shapes, b2, "b2", "d"), np.sqrt(variance(sigma2)), count(n, "n")
    word(attention, "attention", ATTENTIONS)
    linear = word(activation, "activation", ACTIVATIONS) == "linear"
    matrices = _query_key(shapes, W_Q, W_K) if attention == "softmax" else None

    def draw(rng: np.random.Generator, k: int) -> np.ndarray:
        h = scale * rng.standard_normal((k, tokens, len(wv)))
        attended = attend(h, h @ wv.T, attention, matrices)
        inner = (h + attended) @ w1.T + bias1
        return np.asarray(attended + (inner / 2 if linear else gelu(inner)) @ w2.T + bias2)

    return draw, tokens * max(len(w1), tokens)


def attend(
    h: np.ndarray, values: np.ndarray, attention: str, matrices: tuple[np.ndarray, np.ndarray] | None = None
) -> np.ndarray:
    """Single-head attention of (sample, token, width): uniform, uniform over the past (causal), or softmax."""
    if attention == "uniform":
        return np.broadcast_to(values.mean(1, keepdims=True), values.shape)
    if attention == "causal":
        return np.asarray(values.cumsum(1) / np.arange(1, values.shape[1] + 1)[:, None])
    assert matrices is not None
    query, key = matrices
    logits = (h @ query.T) @ (h @ key.T).swapaxes(1, 2) / np.sqrt(len(query))
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray((weights / weights.sum(-1, keepdims=True)) @ values)


def _mamba_block(
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    W_c: ArrayLike,
    W_h: ArrayLike,
    W_z: ArrayLike,
    *,
    sigma2: Number,
    activation: str = "linear",
) -> tuple[Draw, int]:
    parts, scale = mamba_parts(A, B, C, W_c, W_h, W_z), np.sqrt(variance(sigma2))
    linear = word(activation, "activation", ("linear", "silu")) == "linear"
    n, size, width = parts.B.shape

    def draw(rng: np.random.Generator, k: int) -> np.ndarray:
        x = scale * rng.standard_normal((k, n, parts.W_z.shape[1]))
        convolved = np.zeros((k, n, width))
        for lag, kernel in enumerate(parts.kernels[:n]):
            convolved[:, lag:] += x[:, : n - lag] @ kernel.T
        inputs, gate = (_silu(part, linear) for part in (convolved, x @ parts.W_z.T))
        state, out = np.zeros((k, size)), np.empty((k, n, width))
        for t in range(n):
            carried = state * parts.decay[t] if parts.decay.ndim == 2 else state @ parts.decay[t].T
            state = carried + inputs[:, t] @ parts.B[t].T
            out[:, t] = state @ parts.C[t].T
        return np.asarray(out * gate)

    return draw, n * max(width, size, parts.W_z.shape[1])


def _selective_block(
    W_B: ArrayLike,
    W_C: ArrayLike,
    W_h: ArrayLike,
    W_z: ArrayLike,
    *,
    sigma2: Number,
    n: Number,
    step: Number = 1.0,
    decay: Number,
    activation: str = "linear",
) -> tuple[Draw, int]:
    w_b, w_c, w_h, w_z = (numbers(v, k) for k, v in (("W_B", W_B), ("W_C", W_C), ("W_h", W_h), ("W_z", W_z)))
    scale, tokens = np.sqrt(variance(sigma2)), count(n, "n")
    linear = word(activation, "activation", ("linear", "silu")) == "linear"

    def draw(rng: np.random.Generator, k: int) -> np.ndarray:
        x = scale * rng.standard_normal((k, tokens, w_h.shape[1]))
        inputs, gate = (_silu(part, linear) for part in (x @ w_h.T, x @ w_z.T))
        state, out = np.zeros((k, len(w_h), len(w_b))), np.empty_like(gate)
        for t in range(tokens):
            selected = inputs[:, t] @ w_b.T
            state = float(decay) * state + float(step) * inputs[:, t, :, None] * selected[:, None, :]
            out[:, t] = np.einsum("krs,ks->kr", state, inputs[:, t] @ w_c.T)
        return np.asarray(out * gate)

    return draw, tokens * len(w_h) * len(w_b)


def _depth_block(increment_energy: ArrayLike, *, n: Number, d: Number) -> tuple[Draw, int]:
    energy = numbers(increment_energy, "increment_energy")
    entries = count(n, "n") * count(d, "d")

    def draw(rng: np.random.Generator, k: int) -> np.ndarray:
        steps = rng.standard_normal((k, len(energy), entries)) * np.sqrt(energy / entries)[:, None]
        path = np.concatenate([np.zeros((k, 1, entries)), steps.cumsum(1)], axis=1)
        return np.asarray(path.var(1).mean(1))

    return draw, len(energy) * entries


def _silu(x: np.ndarray, linear: bool) -> np.ndarray:
    return x / 2 if linear else np.asarray(x * expit(x))


class Twin(NamedTuple):
    """How one function is simulated: its block, what is read off the samples, keywords that only the twin has."""

    block: Callable[..., tuple[Draw, int]]
    read: Callable[[Moments], tuple[Any, Any]]
    own: tuple[str, ...] = ()


def _trace(moments: Moments) -> tuple[float, float]:
    return moments.trace, moments.trace_error


def _mean(moments: Moments) -> tuple[Any, Any]:
    return (moments.mean, moments.mean_error) if moments.mean.ndim else (float(moments.mean), float(moments.mean_error))


def _token_mean(moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Every token has the same mean; their errors are taken for independent, as far apart tokens' are."""
    return moments.mean.mean(0), np.sqrt((moments.mean_error**2).mean(0))


TWINS: dict[str, Twin] = {
    "gelu_moments": Twin(_gelu_block, _mean),
    "transformer_mean": Twin(_mean_block, _token_mean, ("attention", "activation", "W_Q", "W_K")),
    "transformer_trace": Twin(_transformer_block, _trace),
    "mamba_mean": Twin(_mamba_block, _mean, ("activation",)),
    "mamba_trace": Twin(_mamba_block, _trace, ("activation",)),
    "selective_mamba_mean": Twin(_selective_block, _mean, ("activation",)),
    "expected_depth_stability": Twin(_depth_block, _mean),
}
"""Simulations by the name of the closed form."""
FORMS: dict[str, Callable[..., Any]] = {
    form.__name__: form
    for form in (
        depth_ordering,
        expected_depth_stability,
        frequency_response,
        gelu_moments,
        guaranteed_sigma2,
        influence_bound,
        low_pass_cutoff,
        lti_influence,
        mamba_constants,
        mamba_mean,
        mamba_trace,
        memory_contraction,
        poincare_bounds,
        selective_mamba_mean,
        smoothing_rate,
        stability_ordering,
        transformer_constants,
        transformer_mean,
        transformer_trace,
    )
}
"""Closed forms by name, which `hypotheses` takes; `repflow.theory.statements` adds those of its modules."""
