"""Polarization (paper 2, section 6): one state that never forgets, one that holds the current token only.

Along the state axis the first decay is exactly 1 and the last exactly 0, all others stay free. By default the poles
replace free states: the number of states is that of the unpolarized model, so the polarized one has fewer free decays,
not more memory. S6 also has the paper's own forms and its missing control:

| form | states | first and last rate A, decay exp(Δ A) |
|---|---|---|
| `polarize="both"` | N, of them N − 2 free | 0 and −∞: exactly 1 and 0 |
| `pole_states="added"` | N + 2, of them N free | as above |
| `zero_rate=-1000`, as the paper prints | | 0 and −1000: .37 at Δ = .001 |
| `zero_rate=-100`, as its code has | | 0 and −100: .37 at Δ = .01 |
| `placebo=True` | as without | first and last of the unpolarized model at initialisation, frozen there |
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers.option import one_of

POLARIZATIONS = ("one", "zero", "both")
POLE_STATES = ("replaced", "added")


class Poles(NamedTuple):
    """Which states of the state axis are fixed, and at what rate.

    Attributes:
        one: The first state's decay is fixed.
        zero: The last state's decay is fixed.
        first: Its rate A where it is; 0 is a decay of 1.
        last: Its rate A where it is; −∞ is a decay of 0.
    """

    one: bool
    zero: bool
    first: float = 0.0
    last: float = -math.inf

    @property
    def fixed(self) -> int:
        """Number of fixed states."""
        return int(self.one) + int(self.zero)

    @property
    def unscanned(self) -> bool:
        """Whether the last state has a decay of exactly 0, which needs no scan."""
        return self.zero and self.last == -math.inf


def poles_of(polarize: str | None, state: int) -> Poles:
    """Read the option `polarize`, which must leave at least one state free.

    >>> poles_of("both", 16)[:2], poles_of(None, 16).fixed
    ((True, True), 0)
    """
    if polarize is None:
        return Poles(False, False)
    one_of("polarize", polarize, POLARIZATIONS)
    poles = Poles(polarize != "zero", polarize != "one")
    if state <= poles.fixed:
        expected = f"at least {poles.fixed + 1} states for polarize={polarize!r}"
        raise InputError(teach(expected, str(state), "give more states: the fixed ones replace free ones"))
    return poles


def free_and_fixed(
    polarize: str | None,
    state: int,
    *,
    pole_states: str = "replaced",
    zero_rate: float | None = None,
    placebo: bool = False,
) -> tuple[Tensor, Poles]:
    """Rates −A (free state,) of Mamba at initialisation, and the poles around them.

    >>> free_and_fixed("both", 4, pole_states="added")[0].tolist(), free_and_fixed("both", 4)[0].tolist()
    ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0])
    >>> free_and_fixed("both", 4, placebo=True)
    (tensor([2., 3.]), Poles(one=True, zero=True, first=-1.0, last=-4.0))
    """
    one_of("pole_states", pole_states, POLE_STATES)
    changed = {"pole_states": pole_states != "replaced", "zero_rate": zero_rate is not None, "placebo": placebo}
    if polarize is None and any(changed.values()):
        name = next(name for name, value in changed.items() if value)
        raise InputError(teach(f"polarize with {name}", "none", f"leave {name} out, or pass polarize='both'"))
    added = pole_states == "added"
    poles = poles_of(polarize, state + 2 if added else state)
    total = state + poles.fixed if added else state
    if zero_rate is not None and (not poles.zero or placebo or not -math.inf < zero_rate < 0):
        got = f"{zero_rate} with polarize={polarize!r}{' and placebo' if placebo else ''}"
        remedy = "the paper prints -1000, its code has -100; leave it out for a decay of exactly 0"
        raise InputError(teach("a finite zero_rate below 0 of a pole at 0", got, remedy))
    start = torch.arange(1, total + 1, dtype=torch.float32)
    if placebo:
        poles = poles._replace(first=-1.0, last=-float(total))
        return start[int(poles.one) : total - int(poles.zero)], poles
    return start[: total - poles.fixed], poles if zero_rate is None else poles._replace(last=zero_rate)


def scanned_rates(free: Tensor, poles: Poles) -> Tensor:
    """Rates A (channel, scanned state): the free ones with the fixed ones around them, but for a decay of exactly 0."""
    if poles.one:
        free = functional.pad(free, (1, 0), value=poles.first)
    return functional.pad(free, (0, 1), value=poles.last) if poles.zero and not poles.unscanned else free


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
