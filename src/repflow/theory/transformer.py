"""Mean and covariance of one Transformer block's update (paper 1, Theorems 1 and 2).

| letter | is | shape |
|---|---|---|
| h_t | token t, N(0, σ² I) | (d,) |
| W_Q, W_K, W_V | single-head attention, a matrix acts from the left: v_j = W_V h_j | (d_k, d), (d_k, d), (d, d) |
| W1, b1, W2, b2 | feed-forward part W2 GELU(W1 h + b1) + b2 | (d_ff, d), (d_ff,), (d, d_ff), (d,) |
| F_t | Attn_t + FFN(h_t + Attn_t), what the block adds | (d,) |
| T1, T2, G | I + ½ W2 W1, ½ W2 W1, T1 W_V | (d, d) |

Does not include: several heads, norms, rotary positions, biases of Q, K and V (paper 1 leaves them out too).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.theory.arguments import ArrayLike, Number, Shapes, count, is_printed, variance, word
from repflow.theory.gelu import linear_gelu, moments, read_out_trace
from repflow.theory.hypotheses import Hypothesis, report
from repflow.theory.softmax import mean_field_trace

ATTENTIONS = ("uniform", "causal", "softmax")
ACTIVATIONS = ("linear", "gelu")
SUPPORTED = (("uniform", "linear"), ("causal", "linear"), ("softmax", "linear"), ("uniform", "gelu"))
ORTHOGONAL = 1e-6  # largest |W_V W_Vᵀ - I| that counts as none


class TransformerConstants(NamedTuple):
    """Constants of Theorem 5: E‖F‖² = n α_T + σ² (n β_T / 4 + γ_T)."""

    alpha_T: float
    beta_T: float
    gamma_T: float


def transformer_mean(
    W1: ArrayLike,
    W2: ArrayLike,
    b1: ArrayLike,
    b2: ArrayLike,
    *,
    sigma2: Number,
    W_V: ArrayLike,
    n: Number,
    form: str = "corrected",
) -> np.ndarray:
    """Mean of one token's update (paper 1, Theorem 1, Eq. 11).

    corrected: μ = W2 E[GELU(a)] + b2, a ~ N(b1, diag(W1 Cov(h̃) W1ᵀ)), Cov(h̃) = σ² [I + (W_V + W_Vᵀ + W_V W_Vᵀ)/n];
        exact for uniform attention over n tokens.
    printed: ½ W2 b1 + b2.

    Returns:
        (d,), the same for every token.

    >>> transformer_mean([[1.0]], [[2.0]], [0.5], [0.1], sigma2=1.0, W_V=[[0.0]], n=1).round(6)
    array([1.26817])
    """
    shapes = Shapes()
    w1, w2 = shapes.take(W1, "W1", "d_ff d"), shapes.take(W2, "W2", "d d_ff")
    bias1, bias2 = _bias(shapes, b1, "b1", "d_ff"), _bias(shapes, b2, "b2", "d")
    wv, s2, tokens = shapes.take(W_V, "W_V", "d d"), variance(sigma2), count(n, "n")
    spread = np.einsum("ij,jk,ik->i", w1, _mixed_covariance(wv, s2, tokens), w1)
    if is_printed(form):
        report("Theorem 1 as printed (Eq. 11)", linear_gelu(bias1, spread))
        return np.asarray(0.5 * w2 @ bias1 + bias2)
    report("Theorem 1", ())
    return np.asarray(w2 @ moments(bias1, spread)[0] + bias2)


def transformer_trace(
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
    form: str = "corrected",
) -> float:
    """Trace of the covariance of one block's update, summed over the n tokens (paper 1, Theorem 2, Eq. 12).

    corrected, by attention and activation:
        uniform, linear: σ²‖G‖² + nσ²‖T2‖² + 2σ² Tr(G T2ᵀ)
        causal, linear: the first and third term times H_n = 1 + 1/2 + ... + 1/n
        softmax, linear: mean field to O(1/n), see `repflow.theory.softmax`; needs W_Q and W_K
        uniform, gelu: the true GELU with any b1, by its exact covariance
    printed: σ² Tr(T1 T1ᵀ) + nσ² Tr(T2 T2ᵀ) + 2σ² Tr(T1 W_V T2ᵀ), whatever attention and activation are.

    Linear means GELU(x) = x/2; biases then have no part in the covariance.

    >>> eye = np.eye(2)
    >>> transformer_trace(eye, eye, 2 * eye, sigma2=1.0, n=3)
    25.5
    >>> import warnings
    >>> with warnings.catch_warnings():  # W_V W_Vᵀ = I fails
    ...     warnings.simplefilter("ignore")
    ...     transformer_trace(eye, eye, 2 * eye, sigma2=1.0, n=3, form="printed")
    12.0
    """
    shapes = Shapes()
    w1, w2 = shapes.take(W1, "W1", "d_ff d"), shapes.take(W2, "W2", "d d_ff")
    wv, bias = shapes.take(W_V, "W_V", "d d"), _bias(shapes, b1, "b1", "d_ff")
    s2, tokens = variance(sigma2), count(n, "n")
    word(attention, "attention", ATTENTIONS)
    word(activation, "activation", ACTIVATIONS)
    if is_printed(form):
        report("Theorem 2 as printed (Eq. 12)", _printed_hypotheses(wv, attention, activation))
        return printed_trace(w1, w2, wv, s2, tokens)
    if (attention, activation) not in SUPPORTED:
        known = ", ".join(f"{a} with {b}" for a, b in SUPPORTED)
        got = f"attention={attention!r} with activation={activation!r}"
        remedy = "theory.simulate('transformer_trace', ...) has every combination"
        raise InputError(teach(f"a combination with a closed form ({known})", got, remedy))
    if attention == "softmax":
        query, key = _query_key(shapes, W_Q, W_K)
        field = mean_field_trace(w1, w2, wv, query, key, s2, tokens)
        report("Theorem 2, mean field", field.hypotheses)
        return field.trace
    report("Theorem 2", ())
    if activation == "gelu":
        return tokens * gelu_token_trace(w1, w2, wv, bias, s2, tokens)
    harmonic = sum(1 / t for t in range(1, tokens + 1)) if attention == "causal" else 1.0
    return linear_trace(w1, w2, wv, s2, tokens, harmonic)


class UpdateSums(NamedTuple):
    """Sums over the entries of a block's matrices, T2 = ½ W2 W1 and G = W_V + T2 W_V, that all its traces are made of.

    Attributes:
        own: ‖T2‖².
        mixed: ‖G‖².
        cross: Tr(G T2ᵀ).
        trace: Tr T2.
        width: d.
    """

    own: float
    mixed: float
    cross: float
    trace: float
    width: int


def update_sums(w1: Any, w2: Any, wv: Any) -> UpdateSums:
    """The sums, once for all prompts; of NumPy arrays or of tensors, on whose device the products are taken."""
    t2 = 0.5 * (w2 @ w1)
    g = wv + t2 @ wv
    own, mixed, cross = (float(part.sum()) for part in (t2 * t2, g * g, g * t2))
    return UpdateSums(own, mixed, cross, float(t2.trace()), len(t2))


def linear_trace(w1: Any, w2: Any, wv: Any, s2: float, n: int, weight: float = 1.0) -> float:
    """σ² w ‖G‖² + nσ²‖T2‖² + 2σ² w Tr(G T2ᵀ); the weight w is 1 for uniform attention and H_n for causal."""
    return linear_trace_of(update_sums(w1, w2, wv), s2, n, weight)


def linear_trace_of(sums: UpdateSums, s2: float, n: int, weight: float = 1.0) -> float:
    """`linear_trace` where the sums are known."""
    return s2 * (weight * sums.mixed + n * sums.own + 2 * weight * sums.cross)


def printed_trace(w1: Any, w2: Any, wv: Any, s2: float, n: int) -> float:
    """Eq. 12 (and 45) as printed."""
    return printed_trace_of(update_sums(w1, w2, wv), s2, n)


def printed_trace_of(sums: UpdateSums, s2: float, n: int) -> float:
    """`printed_trace` where the sums are known: ‖I + T2‖² = d + 2 Tr T2 + ‖T2‖²."""
    return s2 * (sums.width + 2 * sums.trace + sums.own + n * sums.own + 2 * sums.cross)


def constants_of(sums: UpdateSums, mean: float) -> TransformerConstants:
    """Theorem 5's corrected constants where the sums and the mean's square are known."""
    return TransformerConstants(mean, 4 * sums.own, linear_trace_of(sums, 1.0, 1) - sums.own)


def gelu_token_trace(w1: np.ndarray, w2: np.ndarray, wv: np.ndarray, b1: np.ndarray, s2: float, seen: int) -> float:
    """Trace of one token's covariance with the true GELU, for a token that attends uniformly to `seen` tokens.

    Tr Σ_A + Tr(W2 K W2ᵀ) + 2 Tr(W2 diag(E GELU') W1 Cov(h̃, A)), Cov(h̃, A) = σ²/n (W_Vᵀ + W_V W_Vᵀ).
    """
    covariance = w1 @ _mixed_covariance(wv, s2, seen) @ w1.T
    gain = moments(b1, np.diag(covariance))[1]
    cross = s2 / seen * (wv.T + wv @ wv.T)
    attention = s2 / seen * (wv * wv).sum()
    return float(attention + read_out_trace(w2, b1, covariance) + 2 * np.trace((w2 * gain) @ w1 @ cross))


def transformer_constants(
    W1: ArrayLike, W2: ArrayLike, W_V: ArrayLike, b1: ArrayLike = None, b2: ArrayLike = None, *, form: str = "corrected"
) -> TransformerConstants:
    """α_T, β_T and γ_T of Theorem 5 for given weights (GELU = x/2, uniform attention).

    α_T = ‖½ W2 b1 + b2‖², β_T = ‖W2 W1‖²; corrected γ_T = ‖G‖² + 2 Tr(G T2ᵀ), printed γ_T = d + Tr(W2 W1) + ¼‖W2 W1‖²
    (the printed one drops W_V by averaging over centred weights and takes W_V W_Vᵀ = I).

    >>> import math
    >>> found = transformer_constants(math.sqrt(0.05) * np.eye(4), math.sqrt(0.05) * np.eye(4), np.eye(4))
    >>> [round(value, 6) for value in found]
    [0.0, 0.01, 4.4075]
    """
    shapes = Shapes()
    w1, w2 = shapes.take(W1, "W1", "d_ff d"), shapes.take(W2, "W2", "d d_ff")
    wv = shapes.take(W_V, "W_V", "d d")
    mean = 0.5 * w2 @ _bias(shapes, b1, "b1", "d_ff") + _bias(shapes, b2, "b2", "d")
    product = w2 @ w1
    beta = float((product * product).sum())
    if is_printed(form):
        gamma = shapes["d"] + float(np.trace(product)) + beta / 4
    else:
        gamma = linear_trace(w1, w2, wv, 1.0, 1) - beta / 4
    report("Theorem 5", ())
    return TransformerConstants(float(mean @ mean), beta, gamma)


def _mixed_covariance(wv: np.ndarray, s2: float, n: int) -> np.ndarray:
    """Cov(h̃) of a token after uniform attention over n tokens, itself among them."""
    return np.asarray(s2 * (np.eye(len(wv)) + (wv + wv.T + wv @ wv.T) / n))


def _bias(shapes: Shapes, value: ArrayLike, name: str, axis: str) -> np.ndarray:
    return np.zeros(shapes[axis]) if value is None else shapes.take(value, name, axis)


def _query_key(shapes: Shapes, W_Q: ArrayLike, W_K: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    if W_Q is None or W_K is None:
        missing = "W_Q" if W_Q is None else "W_K"
        raise InputError(teach("W_Q and W_K for attention='softmax'", f"no {missing}", "pass both, (d_k, d)"))
    return shapes.take(W_Q, "W_Q", "d_k d"), shapes.take(W_K, "W_K", "d_k d")


def _printed_hypotheses(wv: np.ndarray, attention: str, activation: str) -> list[Hypothesis]:
    off = float(np.abs(wv @ wv.T - np.eye(len(wv))).max())
    return [
        Hypothesis("uniform attention over all n tokens", attention == "uniform", f"attention is {attention}"),
        Hypothesis("W_V W_Vᵀ = I", off <= ORTHOGONAL, f"largest entry of W_V W_Vᵀ - I is {off:.3g}"),
        Hypothesis("GELU = x/2", activation == "linear", f"activation is {activation}"),
    ]
