"""What a simulation gives: tokens at the requested times, the hidden attention there, and what ended it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from repflow.core.errors import InputError, teach

ATTENTION_BYTES = 1 << 30
"""Largest `.attention` that is made in one piece."""


@dataclass(frozen=True)
class Event:
    """Something that happened on the way.

    Attributes:
        kind: `blow-up` (a token reaches infinity at a finite time), `overflow` (a token leaves float64 without a
            finite-time blow-up, or the time does: beyond 1e304 times what the tokens take at the start), `unresolved`
            (a token so long that rounding decides its step size), `budget` (the evaluations were spent), `stalled` (no
            step is short enough). These end the solution; `large` (a vector token's norm passes 1000 for the first
            time) and `paper_sign` (computed with the printed sign) do not.
        time: when; for `blow-up` the blow-up time.
        token: which, from 0; None where it concerns all.
        message: one sentence.
    """

    kind: str
    time: float
    token: int | None
    message: str

    @property
    def stops(self) -> bool:
        """Whether the solution is not known beyond it."""
        return self.kind not in ("paper_sign", "large")


@dataclass(frozen=True)
class Trajectory:
    """A solution of the token dynamics.

    Attributes:
        t: (time,), the requested times.
        tokens: (time, token), or (time, token, dim) in more dimensions; NaN from the event that ends the solution on.
        log_norms: (time, token), ln ‖x_l‖: also where a token is too small or too large for a float.
        events: what happened, in time; empty where all went well.
        evaluations: right-hand sides that were evaluated.
        score: hidden attention of one state of the tokens.
    """

    t: np.ndarray
    tokens: np.ndarray
    log_norms: np.ndarray
    events: list[Event]
    evaluations: int
    score: Callable[[np.ndarray], np.ndarray] = field(repr=False)

    @property
    def stopped(self) -> Event | None:
        """The event that ended the solution, None where it reaches the last time."""
        return next((event for event in self.events if event.stops), None)

    @cached_property
    def attention(self) -> np.ndarray:
        """Hidden attention P(t), made at its first use.

        Returns:
            (time, token, token), or (time, dim, token, token) in more dimensions; NaN where the tokens are.

        Raises:
            InputError: it would take more than 1 GiB; `attention_at` makes one time's.
        """
        dims = self.tokens.shape[2] if self.tokens.ndim == 3 else 1
        size = 8 * len(self.t) * dims * self.tokens.shape[1] ** 2
        if size > ATTENTION_BYTES:
            expected = f"attention of at most {ATTENTION_BYTES >> 30} GiB in one piece"
            raise InputError(teach(expected, f"{size / 2**30:.1f} GiB", "use attention_at(i), time by time"))
        return np.stack([self.attention_at(i) for i in range(len(self.t))])

    def attention_at(self, index: int | np.integer) -> np.ndarray:
        """P at one time, (token, token) or (dim, token, token)."""
        return self.score(self.tokens[index])
