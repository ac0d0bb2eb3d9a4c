"""Trajectories as arrays of a Result: times that show what happens, tokens over them, P at a few moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from repflow.dynamics import Trajectory

MOMENTS = 4
"""Times at which P is kept."""
LINEAR_UP_TO = 10.0
NEAREST = 1e-9
"""Share of the blow-up time by which the last time stops short of it."""


def follow(parameters: dict[str, Any], until: float, points: int, *, paper_sign: bool = False) -> Trajectory:
    """Simulate to `until`, or to just before what ends the solution, at times that show it.

    Args:
        parameters: of `simulate` (with `mu`) or `simulate_nd` (with `io_matrix`).
        until: last time wanted.
        points: number of times.
        paper_sign: take a negative `a` as printed.
    """
    from repflow.dynamics import simulate, simulate_nd

    run = simulate if "mu" in parameters else simulate_nd
    first = run(**parameters, t=times(until, points), paper_sign=paper_sign)
    if first.stopped is None:
        return first
    path = run(**parameters, t=times(until, points, first.stopped.time), paper_sign=paper_sign)
    seen = {event.kind for event in path.events}
    path.events.extend(event for event in first.events if event.kind not in seen)
    return path


def times(until: float, points: int, end: float | None = None) -> np.ndarray:
    """Times from 0: even up to 10, even in ln t beyond, and ever denser towards an end.

    >>> times(4.0, 5).tolist(), times(1e4, 3).round(2).tolist()
    ([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 99.0, 10000.0])
    >>> times(4.0, 4, end=1.0).round(6).tolist()
    [0.0, 0.999, 0.999999, 1.0]
    """
    if end is not None:
        return np.unique(np.concatenate([[0.0], end * (1 - np.geomspace(1, NEAREST, points))]))
    if until <= LINEAR_UP_TO:
        return np.linspace(0.0, until, points)
    return np.expm1(np.linspace(0.0, np.log1p(until), points))


def path_arrays(path: Trajectory, prefix: str = "") -> tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
    """Arrays and axes of a trajectory: t, tokens, log_norms, attention at some moments and their times."""
    keep = np.unique(np.linspace(0, len(path.t) - 1, MOMENTS).round().astype(int))
    vectors = path.tokens.ndim == 3
    scores = ("moment", "dim", "token", "token") if vectors else ("moment", "token", "token")
    entries: dict[str, tuple[np.ndarray, tuple[str, ...]]] = {
        "t": (path.t, ("time",)),
        "tokens": (path.tokens, ("time", "token", "dim")[: path.tokens.ndim]),
        "log_norms": (path.log_norms, ("time", "token")),
        "moments": (path.t[keep], ("moment",)),
        "attention": (np.stack([path.attention_at(i) for i in keep]), scores),
    }
    return {prefix + name: array for name, (array, _) in entries.items()}, {
        prefix + name: axes for name, (_, axes) in entries.items()
    }


def path_facts(path: Trajectory) -> dict[str, Any]:
    """What a Result says of a trajectory beside its arrays."""
    from dataclasses import asdict

    return {"events": [asdict(event) for event in path.events], "evaluations": path.evaluations}
