"""Checks of paper 2's bounds: draws of systems that meet the hypotheses, and how many break each inequality."""

from __future__ import annotations

import numpy as np

from repflow.theory.check import Check, Session, bound_check
from repflow.theory.recency import frequency_response, influence_bound, low_pass_cutoff, lti_influence
from repflow.theory.smoothing import memory_contraction, memory_states

ROUNDING = 1e-9
TOKENS = 40


def recency_checks(session: Session) -> list[Check]:
    """Theorem 3.1 and Proposition D.4."""
    broken, largest = influence_ratio(session.seed)
    rng = np.random.default_rng(session.seed + 6)
    count, over = min(2000, session.samples // 10), 0
    for _ in range(count):
        size = rng.integers(1, 6)
        a = -rng.exponential(size=size) - 1e-3 + 1j * rng.standard_normal(size) * 5
        b, c = (rng.standard_normal(size) + 1j * rng.standard_normal(size) for _ in range(2))
        cut = low_pass_cutoff(a, b, c, 0.05)
        answer = np.abs(frequency_response(a, b, c, cut * np.array([-4.0, -1.0, 1.0, 1.5, 10.0])))
        over += int(answer.max() > 0.05 * (1 + ROUNDING))
    rises = [_rises([0.9, 0.8], [1.0, -1.2]), _rises([0.9], [1.0]) + _rises([0.8], [-1.2])]
    return [
        bound_check(2, "Theorem 3.1", f"autograd, T = {TOKENS}, 3 biases", broken, broken, 3 * TOKENS,
                    f"upper bound only; largest ratio {largest:.2f}"),
        bound_check(2, "Lemma D.1", "remark: nearer tokens count more", rises[0], rises[1], 1,
                    "true of each state alone"),
        bound_check(2, "Proposition D.4", "complex systems, eps = 0.05", over, over, count, ""),
    ]  # fmt: skip


def _rises(a: list[float], c: list[float]) -> int:
    """Whether influence grows with the lag somewhere."""
    return int((np.diff(lti_influence(a, np.ones(len(a)), c, range(8))) > 0).any())


def influence_ratio(seed: int) -> tuple[int, float]:
    """Autograd influence of a selective recurrence over Theorem 3.1's bound: violations and the largest ratio.

    x_t scalar, N = 4 states, Δ_t = softplus(w x_t + bias), A_t = exp(-n Δ_t), b_t = w_b x_t, c_t = w_c x_t; the suprema
    are taken over the tokens drawn.
    """
    import torch

    generator = torch.Generator().manual_seed(seed + 600)
    w, w_b, w_c, x = (torch.randn(s, generator=generator, dtype=torch.float64) for s in (1, 4, 4, TOKENS))
    rates = torch.arange(1, 5, dtype=torch.float64)
    broken, largest = 0, 0.0
    for bias in (-4.0, -2.0, 0.0):
        inputs = x.clone().requires_grad_(True)
        step = torch.nn.functional.softplus(w * inputs + bias)
        decay = torch.exp(-rates * step[:, None])
        added, output = step[:, None] * inputs[:, None] * w_b * inputs[:, None], inputs[:, None] * w_c
        state = torch.zeros(4, dtype=torch.float64)
        for t in range(TOKENS):
            state = decay[t] * state + added[t]
        row = torch.autograd.grad((output[-1] * state).sum(), inputs)[0][:-1].abs().numpy()
        with torch.no_grad():
            slope = w * torch.sigmoid(w * x + bias)
            added_slope = (slope * x**2 + 2 * step * x)[:, None] * w_b
            decay_slope = (-rates * slope[:, None] * decay).norm(dim=1).max()
            a_max = float(decay.max())
            memory = float(added.norm(dim=1).max()) / (1 - a_max)
            constant = float(output.norm(dim=1).max() * (added_slope.norm(dim=1).max() + decay_slope * memory))
        # x_s enters at s and is carried by A_{s+1} .. A_t: t - s decays
        bound = influence_bound(a_max, constant, np.arange(TOKENS - 1, 0, -1))
        broken += int((row > bound * (1 + ROUNDING)).sum())
        largest = max(largest, float((row / bound).max()))
    return broken, largest


def smoothing_checks(session: Session) -> list[Check]:
    """Theorem 4.2, D.5 and Lemma D.6 on random systems; without A + Δ ≤ 1 the bound is void."""
    count = min(20_000, session.samples // 5)
    rng = np.random.default_rng(session.seed + 7)
    forms = ("", "fixed ", "lemma ", "started ")
    broken = dict.fromkeys([f"{form}{case}" for form in forms for case in ("i", "ii")], 0)
    for _ in range(count):
        tokens, states = rng.integers(2, 7), rng.integers(1, 4)
        decay, b = rng.uniform(0.05, 0.99, (tokens, states)), rng.standard_normal((tokens, states))
        step = 1 - decay
        _count_broken(broken, "i", decay, step, b)
        b[0], b[1] = -np.abs(b[0]), np.abs(b[1])
        _count_broken(broken, "ii", decay, step * rng.uniform(0, 1, (tokens, 1)), b)
    inputs = np.ones((20, 1))
    inputs[1] = -1
    large = memory_contraction(np.full((20, 1), 0.9), np.ones(20), inputs)
    small = memory_contraction(np.full((20, 1), 0.9), np.full(20, 0.1), inputs)
    return [
        bound_check(2, "Theorem 4.2", "A + Δ ≤ 1, centred (ii)", broken["ii"], broken["fixed ii"], count, ""),
        bound_check(2, "Theorem D.5 (i)", "A + Δ = 1, not centred", broken["i"], broken["fixed i"], count,
                    "0 belongs to the range, for h_0 = 0"),
        bound_check(2, "Lemma D.6", "(i) A + Δ = 1", broken["lemma i"], broken["started i"], count,
                    "s_1 is Δ_1 z_1, not z_1; true with h_1 = b_1"),
        bound_check(2, "Lemma D.6", "(ii) A + Δ < 1", broken["lemma ii"], broken["started ii"], count,
                    "s_1 is Δ_1 z_1, not z_1; true with h_1 = b_1"),
        bound_check(2, "Theorem 4.2", "A = 0.9, Δ = 1 (corrected: 0.1)", int(large.lhs > large.rhs),
                    int(small.lhs > small.rhs), 1, "A + Δ ≤ 1 is needed"),
    ]  # fmt: skip


def _count_broken(broken: dict[str, int], case: str, decay: np.ndarray, step: np.ndarray, b: np.ndarray) -> None:
    printed = memory_contraction(decay, step, b, form="printed")
    fixed = memory_contraction(decay, step, b)
    broken[case] += int(printed.lhs > printed.rhs + ROUNDING)
    broken[f"fixed {case}"] += int(fixed.lhs > fixed.rhs + ROUNDING)
    broken[f"lemma {case}"] += int(lemma_broken(decay[:, 0], step[:, 0], b[:, 0]))
    started = np.concatenate([[1.0], step[1:, 0]])  # h_1 = b_1
    broken[f"started {case}"] += int(lemma_broken(decay[:, 0], started, b[:, 0]))


def lemma_broken(decay: np.ndarray, step: np.ndarray, z: np.ndarray) -> bool:
    """Whether one channel leaves the bracket of Lemma D.6.

    (1 - a q) m + a q M ≤ s_t ≤ a p m + (1 - a p) M with a = A_min^(t-1), z_1 = p m + q M, p + q = 1.
    """
    low, high = float(z.min()), float(z.max())
    if high == low:
        return False
    p = (high - float(z[0])) / (high - low)
    power = float(decay.min()) ** np.arange(len(z))
    states = memory_states(decay[:, None], step[:, None], z[:, None])[:, 0]
    under = (1 - power * (1 - p)) * low + power * (1 - p) * high
    above = power * p * low + (1 - power * p) * high
    return bool((states < under - ROUNDING).any() or (states > above + ROUNDING).any())


CHECKS = {"recency": recency_checks, "smoothing": smoothing_checks}
"""Parts of the paper and their checks."""
