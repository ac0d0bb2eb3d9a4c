"""Checks of paper 1's propositions and theorems: closed form, printed and corrected, beside a simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from repflow.theory.check import Check, Session, bound_check, form_check, value_check
from repflow.theory.depth import depth_ordering, poincare_bounds
from repflow.theory.hypotheses import collecting
from repflow.theory.mamba import mamba_mean
from repflow.theory.ordering import mamba_constants, stability_ordering, transformer_energy
from repflow.theory.sampling import sample_moments
from repflow.theory.simulate import attend
from repflow.theory.transformer import transformer_constants

WIDTH, INNER = 8, 16
LARGE_N = 128  # of the mean-field check
PATHS = 2000
ROUNDING = 1e-12


def attention_checks(session: Session) -> list[Check]:
    """Propositions 1 to 3."""
    rng = np.random.default_rng(session.seed)
    x = rng.standard_normal((64, 8, WIDTH))
    query, key, value = session.weights(*[(WIDTH, WIDTH)] * 3)

    def odd(bias: float) -> int:
        out = [attend(h, h @ value.T + bias, "softmax", (query, key)) for h in (x, -x)]
        return int((np.abs(out[0] + out[1]).reshape(64, -1).max(1) > 1e-9).sum())

    def shift(rng: np.random.Generator, count: int, *, symmetric: bool) -> np.ndarray:
        h = rng.standard_normal((count, 4, 1)) if symmetric else rng.exponential(size=(count, 4, 1)) - 1
        return attend(h, h, "softmax", (np.ones((1, 1)), np.ones((1, 1)))).mean((1, 2))

    seed = session.seed
    many: dict[str, Any] = {"samples": 4 * session.samples, "chunk": 20_000}
    skewed = sample_moments(lambda r, k: shift(r, k, symmetric=False), seed=seed, **many)
    even = sample_moments(lambda r, k: shift(r, k, symmetric=True), seed=seed, **many)
    entries = 64
    step = sample_moments(lambda r, k: np.abs(r.standard_normal((k, entries))).mean(1) ** 2, seed=seed, **many)
    ratio = 2 / math.pi + (1 - 2 / math.pi) / entries
    return [
        value_check("Proposition 1", f"St² over St_1², {entries} entries", 1.0, ratio, float(step.mean),
                    float(step.mean_error), "theory is about St_L² (A.3), not St (Eq. 4)"),
        bound_check(1, "Proposition 2", "value bias 1 (corrected: none)", odd(1.0), odd(0.0), 64,
                    "odd only without biases in Q, K, V"),
        value_check("Proposition 3", "E[Attn], Exp(1) - 1", 0.0, None, float(skewed.mean), float(skewed.mean_error),
                    "zero mean is not enough, the law must be symmetric"),
        value_check("Proposition 3", "E[Attn], Gaussian", 0.0, 0.0, float(even.mean), float(even.mean_error), ""),
    ]  # fmt: skip


def transformer_checks(session: Session) -> list[Check]:
    """Theorems 1 and 2."""
    w1, w2, wv, query, key = session.weights((INNER, WIDTH), (WIDTH, INNER), *[(WIDTH, WIDTH)] * 3)
    rng = np.random.default_rng(session.seed + 2)
    b1, b2 = 0.5 * rng.standard_normal(INNER), 0.1 * rng.standard_normal(WIDTH)
    checks = []
    for sigma in (0.05, 0.25, 1.0):
        setting, say = f"‖μ‖², n = 8, σ = {sigma}", "GELU(b) is not b/2"
        kwargs: dict[str, Any] = {"sigma2": sigma**2, "W_V": wv, "n": 8}
        checks.append(form_check(session, "Theorem 1", setting, say, "transformer_mean", w1, w2, b1, b2, **kwargs))
    cases: list[tuple[str, str, float, dict[str, Any]]] = [
        ("uniform attention, n = 8", "needs W_V W_Vᵀ = I", 1.0, {"n": 8}),
        ("causal attention, n = 32", "harmonic number H_n missing", 0.5, {"n": 32, "attention": "causal"}),
        ("true GELU, n = 8", "GELU adds variance of its own", 1.0, {"n": 8, "activation": "gelu", "b1": b1}),
    ]
    for setting, say, share, kwargs in cases:
        form = form_check(session, "Theorem 2", setting, say, "transformer_trace", w1, w2, wv, sigma2=0.36, share=share,
                      **kwargs)  # fmt: skip
        checks.append(form)
    for sigma in (0.3, 0.8):
        kwargs = {"sigma2": sigma**2, "n": LARGE_N, "attention": "softmax", "W_Q": query, "W_K": key, "share": 0.06}
        setting, say = f"softmax, n = {LARGE_N}, σ = {sigma}", "cross terms do not vanish"
        checks.append(form_check(session, "Theorem 2", setting, say, "transformer_trace", w1, w2, wv, **kwargs))
    return checks


def mamba_weights(session: Session, n: int, lags: int) -> list[np.ndarray]:
    """A, B, C, W_c, W_h, W_z of a small block with a state of 3."""
    rng = np.random.default_rng(session.seed + 3)
    state, inner, width = 3, 5, 4
    shapes = ((n, state, inner), (n, inner, state), (lags, inner, inner), (inner, width), (inner, width))
    return [rng.uniform(0.3, 0.95, (n, state)), *(rng.standard_normal(s) / math.sqrt(s[-1]) for s in shapes)]


def mamba_checks(session: Session) -> list[Check]:
    """Theorems 3 and 4."""
    checks = []
    for lags in (1, 3):
        weights, setting = mamba_weights(session, 8, lags), f"n = 8, K = {lags}"
        checks.append(
            form_check(session, "Theorem 3", f"‖μ_F‖², {setting}", "the average over tokens is not μ_F", "mamba_mean",
                   *weights, sigma2=1.0, share=4.0)
        )  # fmt: skip
        say = "factor 4, token t itself missing" + (", lags mixed up" if lags > 1 else "")
        checks.append(form_check(session, "Theorem 4", setting, say, "mamba_trace", *weights, sigma2=1.0, share=4.0))
    rng = np.random.default_rng(session.seed + 4)
    w_b, w_c, w_h, w_z = (rng.standard_normal(shape) / 2 for shape in ((3, 5), (3, 5), (5, 4), (5, 4)))
    options: dict[str, Any] = {"sigma2": 1.0, "n": 6, "step": 0.7, "decay": 0.8}
    seen = session.simulate("selective_mamba_mean", w_b, w_c, w_h, w_z, share=4.0, **options)
    noise, squares = np.asarray(seen.standard_error) ** 2, np.asarray(seen.estimate) ** 2
    square = float(squares.sum() - noise.sum())
    error = 2 * math.sqrt(float((squares * noise).sum()))
    exact = float(np.sum(np.square(seen.closed_form)))
    setting, say = "‖μ_F‖², B and C from the input", "order σ⁴, the past counts"
    return [*checks, value_check("Theorem 3", setting, None, exact, square, error, say)]


def ordering_checks(session: Session) -> list[Check]:
    """Theorem 5 on its counter-example: every hypothesis met, Q(n) > 0 for all n, and the ordering fails."""
    eye, small = np.eye(4), math.sqrt(0.05) * np.eye(4)
    sigma2, constants = 0.5, mamba_constants(0.9, 1, 1, 1, 2)
    transformer = transformer_constants(small, small, eye)
    with collecting():
        cubic = stability_ordering(*transformer, constants.alpha_M, constants.beta_M, sigma2=sigma2)
    checks = []
    for n in (4, 64):
        block = [np.full((n, 4), 0.9), *[np.tile(eye, (n, 1, 1))] * 2, np.ones((1, 4)), eye, eye]
        seen = session.simulate("transformer_trace", small, small, eye, sigma2=sigma2, n=n, share=64 / n)
        trace = session.simulate("mamba_trace", *block, sigma2=sigma2, share=32 / n)
        mean = float((mamba_mean(*block, sigma2=sigma2) ** 2).sum())
        e_t = transformer_energy(transformer, sigma2=sigma2, n=n)
        e_m = float(trace.closed_form) + mean
        bound = n * sigma2**2 / 16 * constants.beta_prime
        ordered = "E_T > E_M" if e_t > e_m else "E_T < E_M although Q > 0"
        setting = f"counter-example, n = {n}: "
        checks.append(value_check("Theorem 5", setting + "E_T", None, e_t, float(seen.estimate),
                                 float(seen.standard_error), f"{ordered}, Q(n) = {cubic.q(n):.3g}"))  # fmt: skip
        checks.append(value_check("Theorem 5", setting + "E_M", None, e_m, float(trace.estimate) + mean,
                                 float(trace.standard_error), f"bound n σ⁴β'/16 is {bound:.3g}"))  # fmt: skip
    printed_bound = sigma2**2 / 16 / 64**2 * constants.alpha_M + sigma2**2 / 4 * constants.beta_M
    broken = int(e_m > printed_bound)
    say = "n is lost: the bound does not grow with n"
    return [*checks, bound_check(1, "Theorem 5", "bound on E_M, n = 64", broken, int(e_m > bound), 1, say)]


def depth_checks(session: Session) -> list[Check]:
    """Lemmas 1 and 2, Theorem 6."""
    rng = np.random.default_rng(session.seed + 5)
    paths = [rng.standard_normal((rng.integers(2, 12), 3, 2)).cumsum(0) for _ in range(PATHS)]
    walk = session.simulate("expected_depth_stability", rng.uniform(0.5, 2.0, 6), n=4, d=8)
    signs = math.sqrt(1.5) * (-1.0) ** np.arange(10)
    zigzag, straight = (np.concatenate([[0.0], steps]).cumsum() for steps in (signs, np.ones(10)))
    reversed_order = zigzag.var() < straight.var()
    ordering = depth_ordering(float((signs**2).sum()), 10, n_layers=10)
    needed = f"path ratio must reach {ordering.needed_ratio:.1f}, not 1"
    outside = [_outside(paths, form) for form in ("printed", "corrected")]
    return [
        bound_check(1, "Lemma 1", f"both bounds, {PATHS} paths", outside[0], outside[1], PATHS, ""),
        _remark(),
        _propagation(),
        bound_check(1, "Theorem 6", "zig-zag and straight, L = 10", int(ordering.path_ordered and reversed_order),
                    int(ordering.stability_guaranteed and reversed_order), 1, needed),
        value_check("Theorem 6", "uncorrelated increments, L = 6", None, float(walk.closed_form), float(walk.estimate),
                    float(walk.standard_error), "ordered by Assumption 8 in this case"),
    ]  # fmt: skip


def _outside(paths: list[np.ndarray], form: str) -> int:
    """Paths whose St_L² lies outside its bounds."""
    bounds = [poincare_bounds(path, form=form) for path in paths]
    return sum(not b.lower * (1 - ROUNDING) <= b.value <= b.upper * (1 + ROUNDING) for b in bounds)


def _remark() -> Check:
    """The constant (L+1)²/π² of the remark, against 1/(4 sin²θ), on the paths that attain the bound."""
    printed = corrected = 0
    for states in range(2, 12):
        path = np.cos(math.pi * (np.arange(states) + 0.5) / states)
        spread, energy = ((path - path.mean()) ** 2).sum(), (np.diff(path) ** 2).sum()
        printed += int(spread > states**2 / math.pi**2 * energy * (1 + ROUNDING))
        corrected += int(spread > energy / (4 * math.sin(math.pi / (2 * states)) ** 2) * (1 + ROUNDING))
    say = "too small, true only as L grows"
    return bound_check(1, "Lemma 1", "remark: constant (L+1)²/π²", printed, corrected, 10, say)


def _propagation() -> Check:
    """Lemma 2 with F = h/2, L = 5 and l = 0; corrected: h + F, where the increment is F itself."""
    h, layers, rate = 1.0, 5, 0.5
    block = rate * h
    printed = abs(block - h) > rate**layers * abs(block)  # Λ_1 ... Λ_5 = ½⁵
    corrected = abs((h + block) - h) > abs(block)
    say = "F is the block here and its update in section 4"
    return bound_check(1, "Lemma 2", "F = h/2, L = 5, l = 0", int(printed), int(corrected), 1, say)


CHECKS = {
    "attention": attention_checks,
    "transformer": transformer_checks,
    "mamba": mamba_checks,
    "ordering": ordering_checks,
    "depth": depth_checks,
}
"""Parts of the paper and their checks."""
