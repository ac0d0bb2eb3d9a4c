"""Simulation of the token dynamics in one dimension and in more."""

from __future__ import annotations

from functools import partial

import numpy as np

from repflow.dynamics.attention import hidden_attention, hidden_attention_nd
from repflow.dynamics.inputs import (
    check_budget,
    check_decay,
    check_matrix,
    check_number,
    check_times,
    check_tokens,
    check_tokens_nd,
)
from repflow.dynamics.integrate import BUDGET, integrate
from repflow.dynamics.step_size import Numbers
from repflow.dynamics.system import ScalarSystem, System, VectorSystem
from repflow.dynamics.trajectory import Event, Trajectory


def simulate(
    x0: Numbers,
    *,
    mu: Numbers,
    s_delta: Numbers,
    a: Numbers,
    t: Numbers,
    paper_sign: bool = False,
    budget: int = BUDGET,
) -> Trajectory:
    """Follow the tokens of the one-dimensional system (paper 3, Eq. 9 to 11).

        dx_l/dt = Σ_{j≤l} P_lj x_j,    P_lj = μ x_l x_j Δ(x_j) exp(-a Σ_{k=j+1}^{l} Δ(x_k)),    Δ(u) = ln(1 + e^{S_Δ u})

    A blow-up ends the solution of the whole system: tokens are NaN from that time on, and `events` says when and
    which. The tokens before it do not depend on it; `simulate(x0[:token], ...)` follows them further.

    Args:
        x0: (token,), at t = 0, none of them zero.
        mu: input-output product S_Cᵀ S_B.
        s_delta: step-size weight S_Δ.
        a: decay, positive.
        t: (time,), strictly increasing, from 0.
        paper_sign: take a negative `a` as Figures 3 and 4 print it; an event explains what that means.
        budget: evaluations of the right-hand side; where they are spent, the rest is NaN and an event says so.

    Returns:
        Trajectory: `tokens[i]` (token,) belongs to `t[i]`. Tokens are accurate to about 1e-12, relatively.

    Raises:
        InputError: an assumption of the paper is broken; the message names it.

    >>> simulate([1.0], mu=-1.0, s_delta=0.0, a=1.0, t=[0.0, 1.0]).tokens.round(6).tolist()
    [[1.0], [0.647348]]
    """
    tokens, times = check_tokens(x0), check_times(t)
    rate, weight = check_number(mu, "mu"), check_number(s_delta, "s_delta")
    decay = float(check_decay(a, paper_sign=paper_sign))
    system = ScalarSystem(tokens, rate, weight, decay)
    score = partial(hidden_attention, mu=rate, s_delta=weight, a=decay)
    return _follow(system, times, check_budget(budget), score, _sign_events(decay))


def simulate_nd(
    x0: Numbers,
    *,
    io_matrix: Numbers,
    s_delta: Numbers,
    a: Numbers,
    t: Numbers,
    paper_sign: bool = False,
    budget: int = BUDGET,
) -> Trajectory:
    """Follow the tokens of the system in D ≥ 1 dimensions (paper 3, Eq. 7 and 8).

        dx_dl/dt = Σ_{j≤l} x_lᵀ M x_j Δ_d(x_j) exp(-a_d Σ_{k=j+1}^{l} Δ_d(x_k)) x_dj,    Δ_d(u) = ln(1 + e^{S_Δ,d u})

    Args:
        x0: (token, dim), at t = 0, none of them the zero vector.
        io_matrix: M = S_Cᵀ S_B, (dim, dim).
        s_delta: (dim, dim), row d is S_Δ,d.
        a: decay, one positive number or one per channel (dim,).
        t: (time,), strictly increasing, from 0.
        paper_sign: take negative `a` as they are.
        budget: evaluations of the right-hand side.

    Returns:
        Trajectory: tokens (time, token, dim), attention (time, dim, token, token); NaN as in `simulate`. Tokens are
        accurate to about 1e-12 of their norm, and 1e-8 where the system turned stiff (near an equilibrium).

    >>> path = simulate_nd([[1.0, 0.0]], io_matrix=-np.eye(2), s_delta=np.zeros((2, 2)), a=1.0, t=[0.0, 1.0])
    >>> path.tokens[1].round(6).tolist()
    [[0.647348, 0.0]]
    """
    matrix = check_matrix(io_matrix, "io_matrix")
    tokens, times = check_tokens_nd(x0, len(matrix)), check_times(t)
    weights = check_matrix(s_delta, "s_delta", len(matrix))
    decay = check_decay(a, paper_sign=paper_sign, dim=len(matrix))
    system = VectorSystem(tokens, matrix, weights, decay)
    score = partial(hidden_attention_nd, io_matrix=matrix, s_delta=weights, a=decay)
    return _follow(system, times, check_budget(budget), score, _sign_events(float(decay.min())))


def _follow(system: System, times: np.ndarray, budget: int, score: partial, events: list[Event]) -> Trajectory:
    path = integrate(system, times, budget=budget)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        tokens = system.values(path.states)
    logs = path.states[:, 1 : 1 + system.tokens]
    return Trajectory(times, tokens, logs, events + path.events, path.evaluations, score)


def _sign_events(decay: float) -> list[Event]:
    if decay > 0:
        return []
    message = (
        f"a = {decay:g} is taken as printed: the past grows by e^({-decay:g} Δ) from token to token. "
        "The paper assumes a > 0, and its Figure 5 uses a > 0; Figures 3 and 4 most likely print the eigenvalue of A"
    )
    return [Event("paper_sign", 0.0, None, message)]
