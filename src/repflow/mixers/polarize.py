"""Polarization (paper 2, section 6): one state that never forgets, one that holds the current token only.

Along the state axis the first decay is exactly 1 and the last exactly 0, all others stay free. The number of states is
that of the unpolarized model, so the polarized one has fewer free decays, not more memory. Differences from the
paper's public code: it adds the two states to those of the model, and its "zero" is exp(−100 Δ), .37 at Δ = .01.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.option import one_of

POLARIZATIONS = ("one", "zero", "both")


class Poles(NamedTuple):
    """Which states of the state axis are fixed.

    Attributes:
        one: The first state's decay is 1.
        zero: The last state's decay is 0.
    """

    one: bool
    zero: bool

    @property
    def fixed(self) -> int:
        """Number of fixed states."""
        return int(self.one) + int(self.zero)


def poles_of(polarize: str | None, state: int) -> Poles:
    """Read the option `polarize`, which must leave at least one state free.

    >>> poles_of("both", 16), poles_of(None, 16).fixed
    (Poles(one=True, zero=True), 0)
    """
    if polarize is None:
        return Poles(False, False)
    one_of("polarize", polarize, POLARIZATIONS)
    poles = Poles(polarize != "zero", polarize != "one")
    if state <= poles.fixed:
        expected = f"at least {poles.fixed + 1} states for polarize={polarize!r}"
        raise InputError(teach(expected, str(state), "give more states: the fixed ones replace free ones"))
    return poles


def with_poles(decay: Tensor, poles: Poles) -> Tensor:
    """Put the fixed decays around the free ones, on the last axis.

    >>> with_poles(torch.tensor([[0.5, 0.25]]), Poles(True, True)).tolist()
    [[1.0, 0.5, 0.25, 0.0]]
    """
    parts = [decay]
    if poles.one:
        parts.insert(0, torch.ones_like(decay[..., :1]))
    if poles.zero:
        parts.append(torch.zeros_like(decay[..., :1]))
    return torch.cat(parts, -1)
