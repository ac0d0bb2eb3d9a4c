"""Checks of what paper 2's bounds become where the transition is not diagonal: the delta rule.

    h_t = M_t h_{t−1} + β_t v_t k_t        M_t = (I − β_t k_t k_tᵀ) diag(A_t)

one value of a head, so that h is a vector of its keys. Theorem 3.1 holds with ‖M‖ in place of A; Theorem 4.2, which
compares entries of h one by one, does not: an operator can move what many entries hold into one.
"""

from __future__ import annotations

import numpy as np

from repflow.theory.check import Check, Session, bound_check
from repflow.theory.recency import operator_norm

ROUNDING = 1e-9
KEYS = 256
"""Keys at which mixing outweighs the decay that A + β ≤ 1 asks for."""


def delta_checks(session: Session) -> list[Check]:
    """Both theorems for the delta rule."""
    rng = np.random.default_rng(session.seed + 8)
    count = min(2000, session.samples // 10)
    printed = corrected = 0
    for _ in range(count):
        tokens, keys = rng.integers(3, 8), rng.integers(2, 5)
        decay, beta = rng.uniform(0.3, 0.95, (tokens, keys)), rng.uniform(0, 1, tokens)
        k = rng.standard_normal((tokens, keys))
        k *= (rng.uniform(0.5, 2.0, tokens) / np.linalg.norm(k, axis=1))[:, None]
        lengths = entry_lengths(decay, beta, k)
        lags = np.arange(len(lengths))
        norms = operator_norm(decay[1:].max(1), beta[1:], np.linalg.norm(k[1:], axis=1))
        printed += int((lengths > decay[1:].max() ** lags * (1 + ROUNDING)).any())
        corrected += int((lengths > norms.max() ** lags * (1 + ROUNDING)).any())
    mixed, apart = (int(spread_broken(erasing=erasing)) for erasing in (True, False))
    return [
        bound_check(2, "Theorem 3.1", "delta rule, keys of length .5 to 2", printed, corrected, count,
                    "A is not diagonal here; holds with the operator's norm for A_max"),
        bound_check(2, "Theorem 4.2", f"delta rule, A + β = 1, {KEYS} keys", mixed, apart, 1,
                    "A is not diagonal here, and nothing replaces it; holds without erasing"),
    ]  # fmt: skip


def entry_lengths(decay: np.ndarray, beta: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Length of what is left of the first token's entry, by its length, token by token.

    >>> entry_lengths(np.ones((2, 1)), np.array([1.0, 0.5]), np.ones((2, 1))).tolist()
    [1.0, 0.5]
    """
    left, lengths = k[0] / np.linalg.norm(k[0]), [1.0]
    for a, b, key in zip(decay[1:], beta[1:], k[1:], strict=True):
        left = a * left
        left = left - b * key * (key @ left)
        lengths.append(float(np.linalg.norm(left)))
    return np.array(lengths)


def spread_broken(*, erasing: bool) -> bool:
    """Whether states spread further than Theorem 4.2 allows, in a system that meets A + β = 1.

    One key is written again and again until every entry of h holds the same; a key that looks at all of them then
    moves them into one entry, and nothing enters.

    Args:
        erasing: With the delta rule; without it the state decays and nothing else.
    """
    even = np.full(KEYS, KEYS**-0.5)
    odd = np.full(KEYS, -((2 * (KEYS - 1)) ** -0.5))
    odd[0] = 2**-0.5
    decay, beta = 0.6, 0.4
    h, states, inputs = np.zeros(KEYS), [], []
    for key, v in [(even, 1.0)] * 12 + [(odd, 0.0)]:
        h = decay * h
        h = h + beta * key * (v - (key @ h if erasing else 0.0))
        states.append(h)
        inputs.append(v * key)
    ranges = np.maximum(np.max(inputs, 0), 0) - np.minimum(np.min(inputs, 0), 0)
    allowed = ranges.max() * (1 - decay ** (len(states) - 1))
    return bool(np.ptp(states, axis=0).max() > allowed + ROUNDING)


CHECKS = {"delta rule": delta_checks}
"""Parts of `theory verify` and their checks."""
