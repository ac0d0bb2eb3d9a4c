"""Scheme: the grammar of `--init`, which names how random weights are drawn.

    NAME[:NUMBER][+SWITCH[:NUMBER]]...

| name | standard deviation of a redrawn parameter |
|---|---|
| gaussian, gaussian:STD | STD, 0.02 if not given |
| xavier, xavier:GAIN | GAIN · sqrt(2 / (fan in + fan out)), GAIN 1 if not given |
| he, he:GAIN | GAIN · sqrt(2 / fan in), GAIN 1 if not given |
| default | nothing is redrawn: the architecture's own rule, as transformers has it |

| switch | what it does |
|---|---|
| residual | output projections of the residual branches times 1 / sqrt(branches): GPT-2's 1 / sqrt(2 L) |
| residual:F | the same projections times F |
| keep-embeddings, keep-convolutions, keep-matrices | this group keeps the architecture's own rule |
| norms[:STD], biases[:STD], recurrence[:STD] | this group's own value plus normal noise, STD 0.02 if not given |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from repflow.core.errors import InputError, nearest, teach

NAMES = ("trained", "default", "gaussian", "xavier", "he")
GAUSSIAN_STD = 0.02
NOISE_STD = 0.02
REDRAWN = ("embeddings", "convolutions", "matrices")
"""Groups of parameters that gaussian, xavier and he redraw, unless they are kept."""
KEPT = ("norms", "biases", "recurrence")
"""Groups of parameters that keep the architecture's own rule, unless noise is added."""
SWITCHES = ("residual", *(f"keep-{group}" for group in REDRAWN), *KEPT)


@dataclass(frozen=True)
class Scheme:
    """A parsed init.

    Attributes:
        name: trained, default, gaussian, xavier or he.
        number: Standard deviation of gaussian, gain of xavier and he, None for the others.
        residual: Factor of the residual branches' output projections; `depth` for 1 / sqrt(branches), None for none.
        keep: Groups that are not redrawn.
        noise: Standard deviation of the noise added to a group.
    """

    name: str
    number: float | None = None
    residual: float | str | None = None
    keep: frozenset[str] = frozenset()
    noise: dict[str, float] = field(default_factory=dict)

    @property
    def redraws(self) -> bool:
        """Whether weights are redrawn after the architecture's own rule was applied."""
        return self.name not in ("trained", "default")


def parse_scheme(init: str) -> Scheme:
    """Read an init.

    >>> parse_scheme("gaussian:0.1").number, parse_scheme("he").number
    (0.1, 1.0)
    >>> scheme = parse_scheme("xavier:0.5+residual+norms:0.1+keep-embeddings")
    >>> scheme.residual, scheme.noise, sorted(scheme.keep)
    ('depth', {'norms': 0.1}, ['embeddings'])
    """
    head, *switches = _split(init)
    name, colon, number = head.partition(":")
    if name not in NAMES or (colon and name in ("trained", "default")):
        raise InputError(
            teach("an init", repr(init), nearest(name, [*NAMES, "gaussian:STD", "xavier:GAIN", "he:GAIN"]))
        )
    if name == "trained" and switches:
        raise InputError(teach("trained weights as they are", repr(init), "switches need a random scheme"))
    value = {"gaussian": GAUSSIAN_STD, "xavier": 1.0, "he": 1.0}.get(name)
    if colon:
        value = _number(number, init, "write gaussian:0.02 or xavier:0.5, for example")
    return _with_switches(init, Scheme(name, value), switches)


def _split(init: str) -> list[str]:
    """Split at + but not inside a number such as 1e+2."""
    parts: list[str] = []
    for part in init.split("+"):
        if parts and parts[-1][-1:] == "e" and parts[-1][-2:-1].isdigit() and part[:1].isdigit():
            parts[-1] += f"+{part}"
        else:
            parts.append(part)
    return parts


def _with_switches(init: str, scheme: Scheme, switches: list[str]) -> Scheme:
    residual: float | str | None = None
    keep, noise = set(), {}
    seen: set[str] = set()
    for switch in switches:
        name, colon, number = switch.partition(":")
        if name not in SWITCHES or (colon and name.startswith("keep-")):
            raise InputError(teach("a switch of an init", repr(switch), nearest(name, SWITCHES)))
        if name in seen:
            raise InputError(teach("each switch once", f"{name} twice in {init!r}", "write it once"))
        seen.add(name)
        if name == "residual":
            residual = _number(number, init, "write residual:0.5, or residual alone", zero=True) if colon else "depth"
        elif name in KEPT:
            noise[name] = _number(number, init, f"write {name}:0.02, for example") if colon else NOISE_STD
        elif scheme.redraws:
            keep.add(name.removeprefix("keep-"))
        else:
            raise InputError(teach(f"{name} with a scheme that redraws", repr(init), "default redraws nothing"))
    return Scheme(scheme.name, scheme.number, residual, frozenset(keep), noise)


def _number(text: str, init: str, remedy: str, *, zero: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        raise InputError(teach("a positive number in an init", repr(init), remedy))
    return value
