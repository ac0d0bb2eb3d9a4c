"""Memory statistics of a model's layers: decays by unit, Theorem 4.2's hypothesis, sharpness through depth.

One pass over the prompts; of each layer's recurrence extremes and sums are kept (`repflow.capture.memory.sums`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repflow.capture.maps import MapReader, every_layer, reading_maps
from repflow.capture.memory.sums import PARTS, LayerSums, half_life, layer_sums, sharpness_of
from repflow.capture.plan import make_plan
from repflow.capture.run import Progress, Sink, batch_name, run_plan
from repflow.metrics import sharpness
from repflow.metrics.meter import BatchInfo, Meter, Record, Table
from repflow.models import Model, SsmQuantities, ssm_quantities
from repflow.models.reading import hidden_of
from repflow.models.recurrence.quantities import recurrent_layers
from repflow.tasks import Prompts

THRESHOLDS = np.round(np.linspace(0, 1, 51), 2)
"""Of the cumulative histogram."""
UNIT_WISE = ("A_max", "A_min", "rate_slow", "rate_fast")
DELTA_WISE = ("write_strength", "trace_half_life")
"""Of each unit of a layer with the delta rule; only where a model has such layers."""


@dataclass
class MemoryMeter(Meter):
    """Collects the statistics of every layer.

    Attributes:
        layers: Blocks of the model.
        bad: First block whose states are made with non-finite weights, None if there is none.
    """

    layers: int
    bad: int | None = None

    def begin(self, batch: BatchInfo) -> None:
        """Start a batch."""
        self._batch = batch
        self._lengths = torch.tensor(batch.lengths)
        self._sums: dict[int, LayerSums] = {}
        self._sharp: dict[tuple[str, int], Tensor] = {}

    def on_layer(self, layer: int, quantities: SsmQuantities) -> None:
        """Take a layer's recurrence."""
        if self.bad is not None and layer >= self.bad:
            return
        sums = layer_sums(quantities, self._lengths)
        self._sums[layer] = self._sums[layer].beside(sums) if quantities.part else sums

    def on_mixer(self, layer: int, added: Tensor) -> None:
        """Take what the mixer of a layer adds to the stream."""
        if self.bad is None or layer < self.bad:
            self._sharp["mixer", layer] = self._sharpness(added)

    def update(self, state: int, hidden: Tensor) -> None:
        """Take the embedding output and the blocks' outputs."""
        self._sharp[("embedding", 0) if state == 0 else ("block", state - 1)] = self._sharpness(hidden)

    def _sharpness(self, hidden: Tensor) -> Tensor:
        mask = self._batch.mask(hidden.shape[1], hidden.device)
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        return sharpness(wide[None], mask=mask)[0].double().cpu()

    def end(self) -> None:
        """One record per sample."""
        units = max((sums.most.shape[1] for sums in self._sums.values()), default=0)
        for row, sample in enumerate(self._batch.samples):
            self.records[sample] = self._record(row, units)

    def _record(self, row: int, units: int) -> Record:
        def blank(*shape: int) -> np.ndarray:
            return np.full((self.layers, *shape), np.nan)

        record: Record = {name: blank(units) for name in UNIT_WISE}
        names = ("contractive_share", "never_contractive", "spread_state", "spread_bound")
        record |= {name: blank() for name in names}
        record |= {f"sharpness/{part}": blank() for part in (*PARTS, "mixer", "block")}
        if any(sums.strength is not None for sums in self._sums.values()):
            record |= {name: blank(units) for name in DELTA_WISE}
        record["tokens"] = np.array(self._batch.lengths[row])
        record["facts"] = np.zeros((self.layers, 2), dtype=np.int64)
        for layer, here in self._sums.items():
            count = here.most.shape[1]
            for name, part in zip(UNIT_WISE, (here.most, here.least, here.slow, here.fast), strict=True):
                record[name][layer, :count] = part[row].cpu().numpy()
            if here.strength is not None and here.trace is not None:
                record["write_strength"][layer, :count] = here.strength[row].cpu().numpy()
                record["trace_half_life"][layer, :count] = here.trace[row].cpu().numpy()
            scalars = [float(here.met[row]), here.never, float(here.spread_state[row]), float(here.spread_bound[row])]
            for name, scalar in zip(names, scalars, strict=True):
                record[name][layer] = scalar
            for signal in PARTS:
                square, joint = (sums[row].cpu() for sums in here.energy[signal])
                record[f"sharpness/{signal}"][layer] = float(sharpness_of(square, joint, self._lengths[row]))
            record["facts"][layer] = count, here.states
        for (signal, layer), by_row in self._sharp.items():
            if signal == "embedding":
                record["sharpness/embedding"] = by_row[row].numpy()
            else:
                record[f"sharpness/{signal}"][layer] = float(by_row[row])
        return record

    def compute(self) -> Table:
        """Statistics over all samples."""
        records = self.ordered()
        stacked = {name: np.stack([record[name] for record in records]) for name in records[0]}
        table: Table = {}
        for name, values in stacked.items():
            if name not in (*UNIT_WISE, *DELTA_WISE, "tokens", "facts", "sharpness/embedding", "never_contractive"):
                table[name] = (("layer", "sample"), values.T)
        table["sharpness/embedding"] = (("sample",), stacked["sharpness/embedding"])
        table["never_contractive"] = (("layer",), stacked["never_contractive"][0])
        if stacked["A_max"].shape[2]:
            table |= _unit_table(stacked)
        return table


def _unit_table(stacked: Record) -> Table:
    """Extremes over all prompts, half-lives of the mean rate, cumulative histograms."""
    most, least = np.fmax.reduce(stacked["A_max"]), np.fmin.reduce(stacked["A_min"])
    # each prompt counts by its tokens but the first, whose decay multiplies nothing
    weight = np.where(np.isnan(stacked["rate_slow"]), 0.0, (stacked["tokens"] - 1)[:, None, None])
    per_unit = ("layer", "unit")
    table: Table = {"A_max": (per_unit, most), "A_min": (per_unit, least), "A_range": (per_unit, most - least)}
    for name, rate in (("half_life", "rate_slow"), ("half_life_fastest", "rate_fast")):
        known = np.where(weight > 0, stacked[rate], 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = (known * weight).sum(0) / weight.sum(0)
        table[name] = (per_unit, half_life(torch.from_numpy(mean)).numpy())
    if "write_strength" in stacked:
        table["write_strength"] = (per_unit, stacked["write_strength"].mean(0))
        table["trace_half_life"] = (per_unit, np.median(stacked["trace_half_life"], 0))
    whole = most - least
    table["range_cumulative"] = (("threshold",), cumulative(whole.reshape(-1)))
    table["range_cumulative_layer"] = (("layer", "threshold"), np.stack([cumulative(row) for row in whole]))
    each = stacked["A_max"] - stacked["A_min"]
    table["range_cumulative_sample"] = (
        ("sample", "threshold"),
        np.stack([cumulative(sample.reshape(-1)) for sample in each]),
    )
    return table


def cumulative(values: np.ndarray, thresholds: np.ndarray = THRESHOLDS) -> np.ndarray:
    """Share of values that are at most each threshold; NaN where there is no value.

    >>> cumulative(np.array([0.1, 0.4, 0.9, np.nan]), np.array([0.0, 0.4, 1.0])).round(3).tolist()
    [0.0, 0.667, 1.0]
    """
    known = values[np.isfinite(values)]
    if not known.size:
        return np.full(len(thresholds), np.nan)
    return np.asarray((known[:, None] <= thresholds).mean(0))


def measure_memory(
    model: Model,
    prompts: Prompts,
    sink: Sink,
    *,
    batch_size: int | None = None,
    attention: int = 0,
    progress: Progress | None = None,
) -> tuple[Table, list[dict[str, Any]]]:
    """Run the model over the prompts once, and once more prompt by prompt if maps are requested.

    Args:
        model: A loaded model, with or without recurrent layers.
        prompts: What it reads.
        sink: Keeps the records of finished batches.
        batch_size: Prompts per pass; by length if left out.
        attention: Units of every layer whose maps over tokens are read; 0 for none.
        progress: Called after each batch.

    Returns:
        The table, and per layer its transition: kind, units, states, None where it has none.
    """
    fresh = make_plan(prompts.lengths, width=model.width, itemsize=4, batch_size=batch_size)
    plan = sink.plan(lambda: fresh)
    bad = None if model.first_bad_state is None else max(0, model.first_bad_state - 1)
    meters: list[MemoryMeter] = []

    def make() -> Sequence[Meter]:
        meters[:] = [MemoryMeter(model.n_layers, bad)]
        return meters

    with _watching(model, meters):
        plan = run_plan(model, prompts, plan, make, sink, progress=progress)
    whole = MemoryMeter(model.n_layers, bad)
    for batch in plan.batches:
        for sample, records in sink.read(batch_name(batch)).items():
            whole.records[sample] = records[0]
    table = whole.compute()
    if attention:
        table |= _map_curves(model, prompts, sink, attention)
    return table, _transitions(model, whole)


@contextmanager
def _watching(model: Model, meters: list[MemoryMeter]) -> Iterator[None]:
    """Hand the recurrences and what mixers add to the meter of the running batch."""
    with ExitStack() as stack:
        if recurrent_layers(model):
            stack.enter_context(ssm_quantities(model, lambda layer, quantities: meters[-1].on_layer(layer, quantities)))
        if model.reading.sublayer_problem is None:
            for layer, parts in enumerate(model.reading.parts):
                mixing = [part for part in parts if part.kind != "mlp"]
                added: list[Tensor] = []
                for part in mixing:
                    hook = _collect(added, part.scale)
                    stack.callback(part.module.register_forward_hook(hook).remove)
                if mixing:
                    block = model.blocks[layer]
                    stack.callback(block.register_forward_pre_hook(_forget(added)).remove)
                    stack.callback(block.register_forward_hook(_finish(added, layer, meters)).remove)
        yield


def _collect(added: list[Tensor], scale: float) -> Callable[..., None]:
    def hook(_: nn.Module, __: Any, output: Any) -> None:
        added.append(hidden_of(output) * scale)

    return hook


def _forget(added: list[Tensor]) -> Callable[..., None]:
    """What a pass that ran out of memory left behind must not be added to the next one's."""

    def hook(*_: Any) -> None:
        added.clear()

    return hook


def _finish(added: list[Tensor], layer: int, meters: list[MemoryMeter]) -> Callable[..., None]:
    def hook(_: nn.Module, __: Any, output: Any) -> None:
        shape = hidden_of(output).shape
        meters[-1].on_mixer(layer, torch.stack([part.reshape(shape) for part in added]).sum(0))
        added.clear()

    return hook


def _map_curves(model: Model, prompts: Prompts, sink: Sink, units: int) -> Table:
    """Entropy and distance of the rows of maps over tokens, prompt by prompt: a map is of one prompt's length."""
    curves: dict[str, list[np.ndarray]] = {"row_entropy": [], "mean_distance": []}
    for sample, prompt in enumerate(prompts):
        name = f"maps-{sample:06d}"
        if not sink.has(name):
            reader = MapReader(every_layer(model, units))
            with reading_maps(model, reader):
                model.stream(torch.tensor([prompt.ids]), on_state=lambda *_: None)
            record = {key: np.full(model.n_layers, np.nan) for key in curves}
            for layer, maps in reader.found.items():
                record["row_entropy"][layer] = float(maps.rows.entropy.nanmean())
                record["mean_distance"][layer] = float(maps.rows.distance.nanmean())
            sink.write(name, {sample: [record]})
        stored = sink.read(name)[sample][0]
        for key, values in curves.items():
            values.append(stored[key])
    return {f"attention/{key}": (("layer", "sample"), np.stack(values, 1)) for key, values in curves.items()}


def _transitions(model: Model, meter: MemoryMeter) -> list[dict[str, Any]]:
    """Per layer what its recurrence is."""
    facts = meter.ordered()[0]["facts"]
    kinds = transition_kinds(model)
    return [
        {"layer": layer, **kinds.get(layer, {"kind": None, "unit": None}), "units": int(units), "states": int(states)}
        for layer, (units, states) in enumerate(facts)
    ]


def transition_kinds(model: Model) -> dict[int, dict[str, str]]:
    """Kind of recurrence and of its units, by layer, for layers whose recurrence can be read."""
    from repflow.mixers.base import Mixer
    from repflow.mixers.delta.rule import DeltaMixer
    from repflow.models.recurrence.own import MATRIX

    kinds = {}
    for layer, kind in recurrent_layers(model).items():
        unit = "head" if kind in ("ssd", "delta", "lightning", "mlstm") else "channel"
        if kind == "own":
            mixer = next(m for m in model.blocks[layer].modules() if isinstance(m, Mixer) and m.recurrent)
            of_heads = mixer.family in ("ssd", *MATRIX) or isinstance(mixer, DeltaMixer)
            kind, unit = f"own:{mixer.family}", "head" if of_heads else "channel"
        kinds[layer] = {"kind": kind, "unit": unit}
    return kinds
