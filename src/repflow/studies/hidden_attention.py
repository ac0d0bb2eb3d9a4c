"""Hidden attention: the map over tokens that a layer applies (paper 3, Eq. 4 to 6), or its attention weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, nearest, teach
from repflow.studies.engine.opening import once

if TYPE_CHECKING:
    import numpy as np

    from repflow.capture.maps import Choose, LayerMaps
    from repflow.core.results import Finding, Result
    from repflow.models import Model
    from repflow.tasks import Prompts

FORMS = ("signed", "normalised")
PARTS = ("recurrence", "attention")
MOST_BYTES = 2**31
"""Of the maps that are kept."""
EXACT = 1e-3
"""Error of P x against the layer's own term from which on it is a finding."""

Units = int | Sequence[int] | None


def hidden_attention(
    model: Any,
    layer: int | Sequence[int],
    tokens: Any,
    *,
    channels: Units = None,
    heads: Units = None,
    part: str | None = None,
    forms: Sequence[str] = FORMS,
    curves: bool = True,
    bos: str = "model",
    out: str | Path | None = None,
    name: str | None = None,
) -> Result:
    """Maps over tokens of chosen layers, and entropy and mean distance of their rows through depth.

    In a recurrent layer the map of a unit is its data-controlled matrix P, y = P x: of a channel in Mamba (paper 3,
    Eq. 6), RWKV and Griffin, of a head in Mamba-2, in linear attention and its kin, and in the delta rule, where it is
    made of products of operators. P x is compared with the layer's own state-space term, without skip and gate. In an
    attention layer the map of a head is its attention weights.

    Args:
        model: a loaded Model, a spec, or a live transformers model.
        layer: block whose maps are returned, from 0, or several.
        tokens: a text, a list of texts, or token ids (batch, token), nested or as a tensor.
        channels: channels of those layers; at most 16, evenly spread, if left out.
        heads: heads of those layers, likewise.
        part: `recurrence` or `attention` where a layer has both (Falcon-H1); the recurrence if left out.
        forms: `signed` (P) and `normalised` (|P| by its row sums).
        curves: whether all other layers are read too, for the curves through depth.
        bos: first token of texts: `model`, `always` or `never`.
        out: folder of runs to store the result in.
        name: name of the stored run.

    Returns:
        Result: `L/signed` and `L/normalised` (sample, unit, token, token) for each chosen layer L, NaN after a shorter
        prompt; `row_entropy` (nats) and `mean_distance` (tokens), means over rows (layer, sample, unit), NaN for layers
        without a map; `error` (layer, sample), the largest |P x - y| by the largest |y|, inf where that is not finite.
    """
    from repflow.capture.given import given_prompts
    from repflow.models import Model, load

    forms, units = _forms(forms), _asked(channels, heads)
    if part is not None and part not in PARTS:
        raise InputError(teach(f"part {' or '.join(PARTS)}", repr(part), nearest(part, PARTS)))
    loaded = model if isinstance(model, Model) else load(model)
    prompts = given_prompts(loaded, tokens, bos=bos)
    return map_prompts(loaded, layer, prompts, units=units, part=part, forms=forms, curves=curves, out=out, name=name)


def map_prompts(
    model: Model,
    layer: int | Sequence[int],
    prompts: Prompts,
    *,
    units: tuple[str, list[int]] | None = None,
    count: int | None = None,
    part: str | None = None,
    forms: Sequence[str] = FORMS,
    curves: bool = True,
    out: str | Path | None = None,
    name: str | None = None,
) -> Result:
    """`hidden_attention` of ready prompts.

    Args:
        model: a loaded model.
        layer: block or blocks whose maps are returned.
        prompts: what it reads.
        units: kind and indices of units.
        count: most units if none are named.
        part: recurrence or attention.
        forms: forms of the maps.
        curves: whether all other layers are read too.
        out: folder of runs.
        name: name of the stored run.
    """
    from repflow.capture.maps import UNITS
    from repflow.tasks import check_fit

    check_fit(prompts, model.max_length, model.vocab_size)
    layers = _layers(model, layer, part)
    count = UNITS if count is None else count
    _check_size(prompts, len(layers), len(units[1]) if units else count, forms)
    choose = _chooser(model, layers, units, part, count, curves=curves)
    maps = [_read(model, prompt.ids, layers, units, choose) for prompt in prompts]
    result = _result(model, prompts, layers, maps, forms)
    return result if out is None else _store(result, model, prompts, out, name)


def _forms(forms: Sequence[str]) -> list[str]:
    listed = [forms] if isinstance(forms, str) else list(forms)
    for form in listed:
        if form not in FORMS:
            raise InputError(teach(f"forms {' and '.join(FORMS)}", repr(form), nearest(form, FORMS)))
    return [form for form in FORMS if form in listed]


def _layers(model: Model, layer: int | Sequence[int], part: str | None) -> list[int]:
    """Chosen layers, each of which must be there and have a map."""
    from repflow.models.attention_weights import attention_layers
    from repflow.models.recurrence.quantities import recurrent_layers

    recurrent, attending = recurrent_layers(model), attention_layers(model)
    having = {"recurrence": list(recurrent), "attention": attending}
    readable = having[part] if part is not None else sorted({*recurrent, *attending})
    chosen = _indices(layer, "layer")
    for index in chosen:
        if not 0 <= index < model.n_layers:
            expected = f"a layer from 0 to {model.n_layers - 1}"
            raise InputError(teach(expected, f"{index}", f"{model.name} has {model.n_layers} blocks, counted from 0"))
        if index not in readable:
            expected = f"a layer with {_what(part)}"
            got = f"layer {index} (from 0) of {model.name}, whose kind is {model.layer_kinds[index]}"
            listed = ", ".join(map(str, readable[:8])) + (", ..." if len(readable) > 8 else "")
            remedy = f"choose one of {listed}" if readable else "this model has none; choose another"
            raise InputError(teach(expected, got, remedy))
    return sorted(set(chosen))


def _indices(value: Any, kind: str) -> list[int]:
    """One number or several as a list; 1.5 or a word is a mistake, not an index."""
    listed = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if not all(isinstance(index, Integral) and not isinstance(index, bool) for index in listed):
        expected = f"the number of a {kind}, or a list of them"
        raise InputError(teach(expected, f"{value!r}", f"{kind}s are counted from 0"))
    return [int(index) for index in listed]


def _what(part: str | None) -> str:
    return {
        None: "attention or a transition that can be read",
        "recurrence": "a transition that can be read",
        "attention": "attention",
    }[part]


def _asked(channels: Units, heads: Units) -> tuple[str, list[int]] | None:
    if channels is not None and heads is not None:
        raise InputError(teach("channels or heads", "both", "a layer's units are one or the other: name those"))
    for kind, units in (("channel", channels), ("head", heads)):
        if units is not None:
            listed = _indices(units, kind)
            if not listed:
                raise InputError(teach(f"at least one {kind}", "none", f"leave {kind}s out for an even choice"))
            return kind, sorted(set(listed))
    return None


def _check_size(prompts: Prompts, layers: int, units: int, forms: Sequence[str]) -> None:
    # kept as they are made, and once more in each form, as long as the longest prompt
    need = 8 * units * layers * (1 + len(forms)) * max(prompts.lengths) ** 2 * len(prompts)
    if need > MOST_BYTES:
        got = f"{need / 2**30:.1f} GiB for {len(prompts)} prompts of up to {max(prompts.lengths)} tokens"
        remedy = "choose fewer layers, channels or heads, one form, or a shorter prompt"
        raise InputError(teach(f"maps of at most {MOST_BYTES >> 30} GiB together", got, remedy))


def _read(
    model: Model, ids: Sequence[int], layers: list[int], units: tuple[str, list[int]] | None, choose: Choose
) -> dict[int, LayerMaps]:
    import torch

    from repflow.capture.maps import MapReader, reading_maps

    reader = MapReader(choose, frozenset(layers))
    with reading_maps(model, reader):
        model.stream(torch.tensor([list(ids)]), on_state=lambda *_: None)
    for layer in layers:
        if units is not None:
            total = reader.totals[layer]
            if beyond := [index for index in units[1] if not 0 <= index < total]:
                expected = f"{units[0]}s of block {layer + 1} from 0 to {total - 1}"
                raise InputError(teach(expected, f"{beyond[0]}", "name others, counted from 0"))
    return reader.found


def _chooser(
    model: Model, layers: list[int], chosen: tuple[str, list[int]] | None, part: str | None, count: int, *, curves: bool
) -> Choose:
    from repflow.capture.maps import every_layer, spread_units
    from repflow.models.recurrence.quantities import recurrent_layers

    recurrent, usual = recurrent_layers(model), every_layer(model, count)

    def choose(layer: int, kind: str, unit: str, units: range) -> list[int] | None:
        if layer not in layers:
            return usual(layer, kind, unit, units) if curves else None
        wanted = part or ("recurrence" if layer in recurrent else "attention")
        if kind != wanted:
            return None
        if chosen is None:
            return spread_units(units, count)
        if chosen[0] != unit:
            got = f"{chosen[0]}s"
            why = "all channels of a head share one map" if unit == "head" else "each channel has a map of its own"
            expected = f"{unit}s of block {layer + 1}, whose units they are"
            raise InputError(teach(expected, got, f"pass {unit}s=...: {why}"))
        return [index for index in chosen[1] if index in units]

    return choose


def _result(
    model: Model, prompts: Prompts, layers: list[int], samples: list[dict[int, LayerMaps]], forms: Sequence[str]
) -> Result:
    import numpy as np

    from repflow.capture.provenance import machine, model_facts
    from repflow.core.results import Result

    most = max(len(maps.indices) for sample in samples for maps in sample.values())
    shape = (model.n_layers, len(prompts))
    arrays = {name: np.full((*shape, most), np.nan) for name in ("row_entropy", "mean_distance")}
    arrays["error"] = np.full(shape, np.nan)
    for sample, by_layer in enumerate(samples):
        for layer, maps in by_layer.items():
            count = len(maps.indices)
            arrays["row_entropy"][layer, sample, :count] = maps.rows.entropy.cpu().numpy()
            arrays["mean_distance"][layer, sample, :count] = maps.rows.distance.cpu().numpy()
            arrays["error"][layer, sample] = np.nan if maps.error is None else maps.error
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(arrays, ("layer", "sample", "unit"))
    axes["error"] = ("layer", "sample")
    for layer in layers:
        for form, array in _maps(samples, layer, max(prompts.lengths), forms).items():
            arrays[f"{layer}/{form}"] = array
            axes[f"{layer}/{form}"] = ("sample", "unit", "token", "token")
    config = {
        "study": "hidden_attention", "model": model.spec, "task": prompts.task, "layers": layers, "forms": list(forms),
        "samples": len(prompts), "length": max(prompts.lengths), "init": model.init, "ablate": list(model.ablations),
    }  # fmt: skip
    provenance = {
        **machine(str(model.device)),
        "dtype": str(model.dtype).removeprefix("torch."),
        "model": model_facts(model),
        "maps": layers,
        "lengths": list(prompts.lengths),
        "tokens": [list(prompt.tokens) for prompt in prompts],
        "units": {
            str(layer): {"part": maps.part, "kind": maps.unit, "indices": maps.indices, "of": maps.units}
            for layer, maps in sorted(samples[0].items())
        },
    }
    return Result(arrays, axes, config, provenance, [*model.findings, *_findings(arrays["error"])])


def _maps(samples: list[dict[int, LayerMaps]], layer: int, tokens: int, forms: Sequence[str]) -> dict[str, np.ndarray]:
    """Maps of one layer, in the requested forms, filled with NaN after shorter prompts."""
    import numpy as np

    from repflow.capture.maps import normalised

    units = len(samples[0][layer].indices)
    arrays = {form: np.full((len(samples), units, tokens, tokens), np.nan) for form in forms}
    for sample, by_layer in enumerate(samples):
        maps = by_layer[layer].maps
        assert maps is not None
        size = maps.shape[-1]
        for form in forms:
            view = maps if form == "signed" else normalised(maps)
            arrays[form][sample, :, :size, :size] = view.cpu().numpy()
    return arrays


def _findings(error: np.ndarray) -> list[Finding]:
    import numpy as np

    from repflow.core.results import Finding

    worst = np.nanmax(error, axis=1, initial=0.0)
    if not (worst > EXACT).any():
        return []
    layer = int(worst.argmax())
    text = f"P x differs from the layer's own term by up to {worst[layer]:.1e} of its largest value"
    text = text if np.isfinite(worst[layer]) else "P x, or the layer's own term, is not finite"
    return [Finding("map_error", layer, f"block {layer + 1}: {text}")]


def _store(result: Result, model: Model, prompts: Prompts, out: str | Path, name: str | None) -> Result:
    from repflow.store import safe_name

    listed = "-".join(map(str, result.config["layers"]))
    called = name or safe_name(f"{model.name}-{model.init}-attention-{listed}-{result.config['length']}")
    digests = {"weights": model.digest(), "prompts": prompts.digest()}
    result.provenance["digests"] = digests
    fixed = {key: result.provenance[key] for key in ("repflow", "python", "packages", "device", "dtype", "digests")}
    models = {"model": model}
    with once(Path(out), called, lambda _: result, config=result.config, provenance=fixed, models=models) as (_, kept):
        return kept
