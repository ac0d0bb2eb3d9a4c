"""The right-hand sides, in variables in which they stay smooth from t = 0 to blow-up and to t = 1e200.

A token is carried as ρ_l = ln ‖x_l‖ and, in more than one dimension, its direction v_l, so that an absolute error of
ρ is a relative error of the token. Time is carried as θ = ln(1 + t/unit). The independent variable τ is the length of
the curve (θ, ρ, v):

    dθ/dτ = 1 / w,    dρ_l/dτ = e^θ rate_l / w,    w = sqrt(1 + ‖e^θ rates‖²)

It is log-time where the tokens move slowly, and runs off to infinity at a blow-up, where tokens grow like e^τ and t
stands still. All rates in τ are at most 1: explicit steps of a few tenths and more do, up to a blow-up or any t.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from repflow.dynamics.step_size import causal_sum, softplus

LATEST = 700.0
"""Largest θ whose e^θ is a float: t = 1e304 units."""
LARGEST_ERROR = 0.01
"""Of S_Δ x, from the tolerance of a long token's direction; beyond it a step size near zero is noise."""
NEAR = 1e3
"""Times the tolerance: angles this near to a right one with S_Δ,d count as near."""


class System(ABC):
    """What the integrator asks of a right-hand side.

    Attributes:
        tokens: number of tokens.
        unit: time scale at the start.
        start: first state [θ, ρ, v].
        vectors: whether tokens have more than one dimension.
    """

    tokens: int
    unit: float
    start: np.ndarray
    vectors: bool

    @abstractmethod
    def rates(self, state: np.ndarray) -> np.ndarray:
        """Derivatives of ρ, then of v, by t/unit."""

    @abstractmethod
    def resolved(self, state: np.ndarray, tolerance: float) -> bool:
        """Whether every step size is known, if directions are known to a tolerance."""

    @abstractmethod
    def leader(self, state: np.ndarray) -> int:
        """Token that drives the growth by its own term."""

    @abstractmethod
    def values(self, states: np.ndarray) -> np.ndarray:
        """Tokens of states (time, entry)."""


class ScalarSystem(System):
    """D = 1, Eq. 9 to 11: d ln|x_l| / dt = μ h_l with h_l = e^{-a Δ_l} h_{l-1} + Δ_l x_l²."""

    vectors = False

    def __init__(self, x0: np.ndarray, mu: float, s_delta: float, a: float) -> None:
        self.tokens = len(x0)
        self.signs = np.sign(x0)
        self.mu, self.s_delta, self.a = mu, s_delta, a
        logs = np.log(np.abs(x0))
        self.unit = 1.0
        natural = float(np.abs(self._rates(logs)[0]).max())
        self.unit = 1.0 / natural if natural > 0 else np.inf
        self.start = np.concatenate([[0.0], logs])

    def _rates(self, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rates d ln|x_l| per unit of time, and each token's own term in them."""
        step = softplus(self.s_delta * self.signs * np.exp(logs))
        own = self.mu * self.unit * step * np.exp(2 * logs)
        return causal_sum(np.exp(-self.a * step), own), own

    def rates(self, state: np.ndarray) -> np.ndarray:
        """Derivative of ρ by t/unit."""
        return self._rates(state[1:])[0]

    def resolved(self, state: np.ndarray, tolerance: float) -> bool:
        """A sign has no error."""
        return True

    def leader(self, state: np.ndarray) -> int:
        """Token with the largest own term: one that is only carried along has a small one."""
        return int(np.abs(self._rates(state[1:])[1]).argmax())

    def values(self, states: np.ndarray) -> np.ndarray:
        """Tokens (time, token)."""
        return self.signs * np.exp(states[:, 1:])


class VectorSystem(System):
    """D ≥ 1, Eq. 7 and 8: dx_dl/dt = x_lᵀ M H_dl with H_dl = e^{-a_d Δ_d(x_l)} H_d,l-1 + Δ_d(x_l) x_dl x_l."""

    def __init__(self, x0: np.ndarray, io_matrix: np.ndarray, s_delta: np.ndarray, a: np.ndarray) -> None:
        self.tokens, self.dim = x0.shape
        self.io_matrix, self.s_delta, self.a = io_matrix, s_delta, a
        self.vectors = self.dim > 1
        norms = np.linalg.norm(x0, axis=1)
        # not the rate itself: that is zero at an equilibrium, however fast the tokens move beside it
        steps = softplus(x0 @ s_delta.T).max(axis=1)
        natural = float(np.linalg.norm(io_matrix, 2) * (steps * norms**2).max())
        self.unit = 1.0 / natural if natural > 0 else np.inf
        self.start = np.concatenate([[0.0], np.log(norms), (x0 / norms[:, None]).reshape(-1)])

    def as_state(self, theta: float, flat: np.ndarray) -> np.ndarray:
        """State [θ, ρ, v] of tokens (token · dim,)."""
        x = flat.reshape(self.tokens, self.dim)
        norms = np.linalg.norm(x, axis=1)
        return np.concatenate([[theta], np.log(norms), (x / norms[:, None]).reshape(-1)])

    def split(self, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ρ and v of a state."""
        directions = state[1 + self.tokens :].reshape(self.tokens, self.dim)
        return state[1 : 1 + self.tokens], directions / np.linalg.norm(directions, axis=1, keepdims=True)

    def pulls(self, logs: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """(token, dim): (dx_l/dt) / ‖x_l‖, per unit of time."""
        x = np.exp(logs)[:, None] * directions
        step = softplus(x @ self.s_delta.T)
        decay = np.exp(-self.a * step)
        decay[0] = 0.0  # one chain of all channels, cut where each begins
        own = (step * x).T[:, :, None] * x
        memory = causal_sum(decay.T.reshape(-1), own.reshape(-1, self.dim)).reshape(own.shape)
        return self.unit * (memory * (directions @ self.io_matrix)).sum(axis=2).T

    def rates(self, state: np.ndarray) -> np.ndarray:
        """Derivatives of ρ and v by t/unit."""
        logs, directions = self.split(state)
        pulls = self.pulls(logs, directions)
        radial = np.einsum("ld,ld->l", directions, pulls)
        across = pulls - radial[:, None] * directions
        return np.concatenate([radial, across.reshape(-1)])

    def resolved(self, state: np.ndarray, tolerance: float) -> bool:
        """Not where S_Δ,d x is a small difference of large numbers, which rounding of the direction moves."""
        logs, directions = self.split(state)
        near = np.abs(directions @ self.s_delta.T) < NEAR * tolerance * np.linalg.norm(self.s_delta, axis=1)
        moved = np.exp(logs)[:, None] * np.linalg.norm(self.s_delta, axis=1) * tolerance > LARGEST_ERROR
        return not bool((near & moved).any())

    def leader(self, state: np.ndarray) -> int:
        """Token with the largest own term."""
        logs, directions = self.split(state)
        x = np.exp(logs)[:, None] * directions
        form = np.einsum("ld,de,le->l", directions, self.io_matrix, x)
        return int(np.linalg.norm(form[:, None] * softplus(x @ self.s_delta.T) * x, axis=1).argmax())

    def values(self, states: np.ndarray) -> np.ndarray:
        """Tokens (time, token, dim)."""
        split = [self.split(state) for state in states]
        return np.stack([np.exp(logs)[:, None] * directions for logs, directions in split])


def along_curve(system: System, tau: float, state: np.ndarray) -> np.ndarray:
    """Derivative of the state by τ: a unit vector.

    Rates are multiplied by e^θ before their norm is taken: their squares would underflow at t = 1e150.
    """
    tangent = in_log_time(system, state)
    return tangent / np.linalg.norm(tangent)


def in_log_time(system: System, state: np.ndarray) -> np.ndarray:
    """Derivative of the state by θ."""
    return np.concatenate([[1.0], np.exp(min(state[0], LATEST)) * system.rates(state)])


def plain_in_log_time(system: VectorSystem, theta: float, flat: np.ndarray) -> np.ndarray:
    """Derivative by θ of the tokens themselves, (token · dim,): where they are stiff.

    Near an equilibrium the rates are rounding noise, which τ would follow; and a component that is driven to zero is
    small by itself here, not as an angle.
    """
    state = system.as_state(theta, flat)
    logs, directions = system.split(state)
    pulls = np.exp(min(theta, LATEST)) * system.pulls(logs, directions)
    return (np.exp(logs)[:, None] * pulls).reshape(-1)
