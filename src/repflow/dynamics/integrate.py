"""Integration of a system in τ: explicit steps of order 8, implicit ones where it turns stiff, and a clear end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.integrate import DOP853, Radau
from scipy.optimize import brentq

from repflow.dynamics.system import LATEST, System, VectorSystem, along_curve, plain_in_log_time
from repflow.dynamics.trajectory import Event

BUDGET = 100_000
"""Evaluations of the right-hand side: a few seconds for ten tokens. A scenario of the paper takes about a thousand."""
TOLERANCE, RELATIVE = 1e-15, 1e-14
"""Of ln‖x‖ and θ per step; with it blow-up times carry 14 digits. Relative for t = 1e200, where θ itself is rounded."""
STIFF_TOLERANCE = 1e-10
STIFF_STEP, STIFF_STEPS = 0.01, 100
"""That many explicit steps in a row as short as that mean that stability, not accuracy, sets their length."""
UNRESOLVED = 1e-17
"""A growth whose time scale is this share of t happens at one time, as far as float64 can resolve."""
LARGEST_LOG = 220.0
"""ln‖x‖ beyond which the cubic right-hand side comes near the end of float64."""
LONGEST_STEP = 10.0
SUDDEN = 1e8
"""Growth per e-fold of t at which an implicit method that finds no further step has met a blow-up."""
FACTORED_FREE = 80
"""Entries up to which factoring an implicit step's two matrices costs no more than one evaluation; then cubic."""
LARGE = 1e3
"""Norm whose first passing is noted in more than one dimension."""


@dataclass
class Path:
    """What an integration gives.

    Attributes:
        states: (time, entry), NaN from the end on.
        events: what happened; the last may have ended it before the last time.
        evaluations: right-hand sides evaluated.
    """

    states: np.ndarray
    events: list[Event]
    evaluations: int

    @property
    def end(self) -> Event | None:
        """The event that ended it."""
        return self.events[-1] if self.events and self.events[-1].stops else None


class _Stepper:
    """Steps of one method, and of the other from where it turns stiff."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.stiff = False
        self.before = system.start
        self._spent = self._short = 0
        slope = partial(along_curve, system)
        self.solver: Any
        self.solver = DOP853(slope, 0.0, system.start, np.inf, rtol=1e-12, atol=TOLERANCE)
        self.solver.rtol = RELATIVE  # scipy's floor of 100 ulp is for values; these are logarithms

    @property
    def evaluations(self) -> int:
        return self._spent + int(self.solver.nfev)

    @property
    def cost(self) -> int:
        """Work in evaluations: an implicit step's Jacobians and factorings too, which scipy does not count."""
        if not self.stiff:
            return self.evaluations
        size = len(self.solver.y)
        factoring = int(self.solver.nlu * (size / FACTORED_FREE) ** 3)
        return self.evaluations + int(self.solver.njev) * size + factoring

    @property
    def state(self) -> np.ndarray:
        return self._state(self.solver.t, self.solver.y)

    @property
    def tolerance(self) -> float:
        return STIFF_TOLERANCE if self.stiff else TOLERANCE

    @property
    def ends(self) -> tuple[float, float]:
        """The last step, in the solver's own variable."""
        return float(self.solver.t_old), float(self.solver.t)

    def _state(self, place: float, raw: np.ndarray) -> np.ndarray:
        return self.system.as_state(place, raw) if isinstance(self.system, VectorSystem) and self.stiff else raw

    def step(self) -> bool:
        """One step; False where no step is short enough."""
        if not self.stiff and self._short >= STIFF_STEPS and isinstance(self.system, VectorSystem):
            self._turn_stiff(self.system)
        self.before = self.state
        with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
            try:
                self.solver.step()
            except ValueError:  # the implicit method's Jacobian is not finite
                return False
        self._short = self._short + 1 if self.solver.step_size < STIFF_STEP else 0
        if self.stiff:
            self.solver.atol = self._scale(self.solver.y)
        return self.solver.status != "failed"

    def between(self) -> Callable[[float], np.ndarray]:
        """States inside the last step, by the solver's own variable."""
        dense = self.solver.dense_output()
        return lambda place: self._state(place, dense(place))

    def at(self, thetas: np.ndarray) -> np.ndarray:
        """States inside the last step where θ has these values; θ grows with τ."""
        inside, (low, high) = self.between(), self.ends
        first, last = float(inside(low)[0]), float(inside(high)[0])
        states = []
        for theta in thetas:
            if theta <= first or theta >= last:
                place = low if theta <= first else high
            else:
                place = brentq(lambda tau, goal=theta: inside(tau)[0] - goal, low, high, xtol=1e-15, rtol=1e-15)
            states.append(inside(place))
        return np.stack(states)

    def _turn_stiff(self, system: VectorSystem) -> None:
        old = self.solver
        self._spent += int(old.nfev)
        tokens = system.values(old.y[None])[0].reshape(-1)
        tolerance: dict[str, Any] = {"rtol": STIFF_TOLERANCE, "atol": self._scale(tokens), "max_step": LONGEST_STEP}
        with np.errstate(over="ignore"):
            self.solver = Radau(partial(plain_in_log_time, system), float(old.y[0]), tokens, np.inf, **tolerance)
        self.stiff = True

    def _scale(self, flat: np.ndarray) -> np.ndarray:
        """Tolerance of each entry: a share of its token's norm."""
        x = flat.reshape(self.system.tokens, -1)
        return np.repeat(STIFF_TOLERANCE * np.linalg.norm(x, axis=1), x.shape[1])


def integrate(system: System, times: np.ndarray, *, budget: int = BUDGET) -> Path:
    """Follow a system to the last of the times, or to what ends it.

    Args:
        system: right-hand side and start.
        times: increasing, from 0; infinity as the last follows it to its end.
        budget: evaluations that may be spent; implicit steps also pay for their Jacobians and factorings.
    """
    states = np.full((len(times), len(system.start)), np.nan)
    if not np.isfinite(system.unit):  # no rate that float64 can tell from zero
        states[:] = system.start
        return Path(states, [], 0)
    with np.errstate(over="ignore"):
        thetas = np.log1p(times / system.unit)
    states[thetas == 0] = system.start
    filled = int((thetas == 0).sum())
    stepper = _Stepper(system)
    events: list[Event] = []
    large = system.start[1 : 1 + system.tokens].max() > np.log(LARGE) or not system.vectors
    while filled < len(times):
        end = _spent(stepper, budget) if stepper.step() else _stalled(stepper)
        end = _ended(stepper) or end
        if not large and (passed := _passed(stepper)) is not None and (end is None or end.kind == "blow-up"):
            large = True
            events.append(passed)
        if end is not None:
            if end.kind == "overflow" and end.token is None:  # of time: the tokens are known up to there
                _fill(states, thetas, filled, stepper)
            events.append(end)
            break
        filled = _fill(states, thetas, filled, stepper)
    return Path(states, events, stepper.evaluations)


def _fill(states: np.ndarray, thetas: np.ndarray, filled: int, stepper: _Stepper) -> int:
    """Write the states at the times inside the last step; how many are known now."""
    upto = int(np.searchsorted(thetas, min(stepper.state[0], LATEST), side="right"))
    if upto > filled:
        states[filled:upto] = stepper.at(thetas[filled:upto])
    return max(filled, upto)


def _time(stepper: _Stepper) -> float:
    with np.errstate(over="ignore"):
        return float(stepper.system.unit * np.expm1(stepper.state[0]))


def _ended(stepper: _Stepper) -> Event | None:
    """A blow-up, or a token or the time that leaves float64."""
    system, state = stepper.system, stepper.state
    if not np.isfinite(state).all():
        return _stalled(stepper)
    time = _time(stepper)
    if state[0] > LATEST:
        unit = f"{system.unit:.3g}"
        message = f"times beyond 1e304 units of {unit}, the tokens' time at the start, leave the range of float64"
        return Event("overflow", float(system.unit * np.exp(LATEST)), None, message)
    growth = _growth(stepper)
    if growth > 1 / UNRESOLVED or (growth > SUDDEN and stepper.solver.status == "failed"):
        token = system.leader(state)
        return Event("blow-up", time, token, f"token {token} (from 0) reaches infinity at t = {time:.12g}")
    logs = state[1 : 1 + system.tokens]
    token = int(logs.argmax())
    if logs[token] > LARGEST_LOG:
        message = f"token {token} (from 0) leaves the range of float64 at t = {time:g}, without a blow-up until then"
        return Event("overflow", time, token, message)
    if not system.resolved(state, stepper.tolerance):
        message = (
            f"token {token} (from 0) is {np.exp(logs[token]):.1g} long at t = {time:g}, with no blow-up until then: a "
            "step size, the softplus of a small difference of numbers that large, is no longer resolved"
        )
        return Event("unresolved", time, token, message)
    return None


def _growth(stepper: _Stepper) -> float:
    """Largest d ln‖x_l‖ / d ln t; over the last step where it is implicit: rates there are those of its error too."""
    if stepper.stiff:
        change = stepper.state - stepper.before
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.nan_to_num(change[1 : 1 + stepper.system.tokens].max() / change[0], nan=0.0))
    rates = stepper.system.rates(stepper.state)[: stepper.system.tokens]
    return float(rates.max() * np.expm1(stepper.state[0]))


def _passed(stepper: _Stepper) -> Event | None:
    """The first time at which a token is `LARGE`, where it is inside the last step."""
    goal, last = np.log(LARGE), slice(1, 1 + stepper.system.tokens)
    token = int(stepper.state[last].argmax())
    if stepper.state[1 + token] <= goal:
        return None
    inside, ends = stepper.between(), stepper.ends
    if inside(ends[0])[1 + token] >= goal:
        return None
    theta = inside(brentq(lambda tau: inside(tau)[1 + token] - goal, *ends))[0]
    time = float(stepper.system.unit * np.expm1(theta))
    return Event("large", time, token, f"the norm of token {token} (from 0) passes {LARGE:g} at t = {time:.8g}")


def _spent(stepper: _Stepper, budget: int) -> Event | None:
    if stepper.cost < budget:
        return None
    time = _time(stepper)
    return Event("budget", time, None, f"{budget} evaluations are spent at t = {time:g}; pass a larger budget")


def _stalled(stepper: _Stepper) -> Event:
    time = _time(stepper)
    return Event("stalled", time, None, f"no step is short enough at t = {time:g}: the right-hand side is not smooth")
