"""Maps over tokens: the data-controlled matrix of a recurrent layer, the weights of an attention layer, and their rows.

Glossary: P map (unit, token, token), row t what token t takes from the tokens s ≤ t; unit, a channel or a head
(`repflow.models.recurrence.layer`).

| form | entry |
|---|---|
| signed | P_ts, so that y = P x for every unit |
| normalised | |P_ts| / Σ_s |P_ts| |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from repflow.models import Model, SsmQuantities, ssm_quantities
from repflow.models.attention_weights import attention_layers, attention_weights
from repflow.models.recurrence.layer import Recurrence
from repflow.models.recurrence.quantities import recurrent_layers

UNITS = 16
"""Units of a layer that are read by default, evenly spread."""
BLOCK = 2**25
"""Entries of the maps that exist at once while rows are reduced."""


class Rows(NamedTuple):
    """Means over the rows of maps.

    Attributes:
        entropy: −Σ_s p_ts ln p_ts (unit,), in nats.
        distance: Σ_s p_ts (t − s) (unit,), in tokens.
    """

    entropy: Tensor
    distance: Tensor


def normalised(maps: Tensor) -> Tensor:
    """Rows of |P| that sum to 1; NaN where a row is zero.

    >>> normalised(torch.tensor([[2.0, 0.0], [-1.0, 3.0]])).tolist()
    [[1.0, 0.0], [0.25, 0.75]]
    """
    size = maps.abs()
    return size / size.sum(-1, keepdim=True)


def row_statistics(maps: Tensor) -> Rows:
    """Entropy and mean distance of the normalised rows, averaged over rows that are not zero.

    >>> even = torch.full((1, 2, 2), 0.5).tril()
    >>> rows = row_statistics(even)  # a token alone, then two of equal weight: 0 and ln 2, 0 and 1/2
    >>> round(rows.entropy.item(), 4), rows.distance.item()
    (0.3466, 0.25)
    """
    weights = normalised(maps)
    size = weights.shape[-1]
    place = torch.arange(size, device=maps.device, dtype=weights.dtype)
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    distance = (weights * (place[:, None] - place)).sum(-1)
    return Rows(entropy.nanmean(-1), distance.nanmean(-1))


@dataclass
class LayerMaps:
    """What one layer does on one prompt.

    Attributes:
        part: recurrence or attention.
        unit: channel or head.
        units: Number of units that the layer has.
        indices: Those that were looked at.
        rows: Entropy and distance of each.
        maps: Their maps (unit, token, token), None where they are not kept.
        error: Largest |P x − y| by the largest |y|, y the layer's own; inf where either is not finite, None for
            attention.
    """

    part: str
    unit: str
    units: int
    indices: list[int]
    rows: Rows
    maps: Tensor | None = None
    error: float | None = None


Choose = Callable[[int, str, str, range], list[int] | None]
"""Units to read, from the layer's index, its part, its kind of unit and the units of this scan (zamba has several
in a layer); None passes the layer over."""


def spread_units(units: range, count: int = UNITS) -> list[int]:
    """At most `count` of the units, evenly spread.

    >>> spread_units(range(4)), spread_units(range(10, 20), 3)
    ([0, 1, 2, 3], [10, 14, 19])
    """
    places = torch.linspace(0, len(units) - 1, min(len(units), count)).tolist()
    return sorted({units[round(place)] for place in places})


@dataclass
class MapReader:
    """Reads maps during a pass of one prompt, layer after layer.

    Attributes:
        choose: Which units.
        keep: Layers whose maps are kept.
        found: Maps by layer, filled by the pass.
        totals: Units that each layer has.
    """

    choose: Choose
    keep: frozenset[int] = frozenset()
    found: dict[int, LayerMaps] = field(default_factory=dict)
    totals: dict[int, int] = field(default_factory=dict)

    def on_recurrence(self, layer: int, quantities: SsmQuantities) -> None:
        """Read the maps of a recurrent layer; a second scan of the same layer adds its units."""
        here = quantities.recurrence
        before = quantities.part * here.units
        chosen = self.choose(layer, "recurrence", here.unit, range(before, before + here.units))
        if chosen is not None:
            self.totals[layer] = before + here.units
        if not chosen:
            return
        inside = [index - before for index in chosen]
        maps = _recurrence_maps(here, inside, before, keep=layer in self.keep)
        self.found[layer] = _joined(self.found[layer], maps) if layer in self.found else maps

    def on_attention(self, layer: int, weights: Tensor) -> None:
        """Read the maps of an attention layer."""
        chosen = self.choose(layer, "attention", "head", range(weights.shape[1]))
        if chosen is not None:
            self.totals[layer] = weights.shape[1]
        if not chosen:
            return
        maps = weights[0, chosen].double()
        kept_maps = maps if layer in self.keep else None
        self.found[layer] = LayerMaps("attention", "head", weights.shape[1], chosen, row_statistics(maps), kept_maps)


def _recurrence_maps(here: Recurrence, inside: list[int], before: int, *, keep: bool) -> LayerMaps:
    rows, maps, off = [], [], []
    want = torch.unflatten(here.mixed()[0], 1, (here.units, here.dim)).double()
    top = float(want[:, inside].abs().max())
    block = max(1, BLOCK // (here.tokens**2))
    for first in range(0, len(inside), block):
        units = torch.tensor(inside[first : first + block], device=want.device)
        matrix = here.matrix(units, 0)
        rows.append(row_statistics(matrix))
        y = torch.einsum("uts,sud->tud", matrix, here.inputs(units)[0].double())
        off.append((y - want[:, units]).abs().max())
        if keep:
            maps.append(matrix)
    joined = Rows(torch.cat([row.entropy for row in rows]), torch.cat([row.distance for row in rows]))
    worst = float(torch.stack(off).max())  # NaN stays NaN
    error = (worst / top if top else worst) if math.isfinite(worst) else math.inf
    indices = [index + before for index in inside]
    whole = torch.cat(maps) if keep else None
    return LayerMaps("recurrence", here.unit, here.units + before, indices, joined, whole, error)


def _joined(first: LayerMaps, second: LayerMaps) -> LayerMaps:
    rows = Rows(*(torch.cat(pair) for pair in zip(first.rows, second.rows, strict=True)))
    maps = None if first.maps is None or second.maps is None else torch.cat([first.maps, second.maps])
    error = max(first.error or 0.0, second.error or 0.0)
    indices = [*first.indices, *second.indices]
    return LayerMaps(first.part, first.unit, second.units, indices, rows, maps, error)


def every_layer(model: Model, count: int = UNITS) -> Choose:
    """Some units of every layer; of one with both a recurrence and attention (Falcon-H1) the recurrence."""
    recurrent = recurrent_layers(model)

    def choose(layer: int, part: str, unit: str, units: range) -> list[int] | None:
        return None if part == "attention" and layer in recurrent else spread_units(units, count)

    return choose


@contextmanager
def reading_maps(model: Model, reader: MapReader) -> Iterator[None]:
    """Fill the reader during the passes of one prompt each inside the block."""
    with ExitStack() as stack:
        if recurrent_layers(model):
            stack.enter_context(ssm_quantities(model, reader.on_recurrence))
        if attention_layers(model):
            stack.enter_context(attention_weights(model, reader.on_attention))
        yield
