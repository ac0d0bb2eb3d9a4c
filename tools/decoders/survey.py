"""What repflow makes of every decoder of the installed transformers: `python -m tools.decoders.survey [MODEL_TYPE...]`.

A row per model type, from a tiny random model: kinds of its layers, compared with what the layers do
(`repflow.models.behaviour`), or why it is refused; and for the architectures in `repflow.models.families`, whether it
was measured, ablated and, where it has a memory, read. `--json FILE` keeps the rows; `--device cuda` runs on a GPU, in
float32. Exit code 1 if a row is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor

import repflow
from repflow.core.errors import RepflowError
from repflow.interventions import ablate
from repflow.models import Model, load
from repflow.models.anatomy import listed
from repflow.models.behaviour import observe
from repflow.models.families import EMBEDDING, LAST_BLOCK
from repflow.models.recurrence.quantities import recurrent_layers, ssm_quantities
from repflow.models.trace import close
from tools.decoders.tiny import decoders, tiny_model

UNBUILT = (StrictDataclassError, TypeError, ValueError, LookupError, AttributeError, ImportError, RuntimeError)
"""What building a model from a configuration may raise; asserts are transformers' own."""
TOKENS = 16
MEMORY = ("ssm", "recurrent")


@dataclass
class Row:
    """What was found of one model type.

    Attributes:
        model_type: As in its configuration.
        unbuilt: Why no tiny model could be built; all else is empty then.
        refused: Why repflow does not read it.
        kinds: Of its layers.
        wrong: Blocks whose kind is not what they do.
        streams: Residual streams.
        sublayers: Kinds of sublayer that can be read and taken out.
        memory: Layers with a recurrent state, and how many of them are read.
        lacks: What transformers' tuple of hidden states lacks; None where its entries hold several streams.
        tested: Whether the table of architectures lists it.
        done: What was done with it: measured, ablated, read.
        seconds: What all of it took.
    """

    model_type: str
    unbuilt: str | None = None
    refused: str | None = None
    kinds: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    streams: int = 1
    sublayers: list[str] = field(default_factory=list)
    memory: tuple[int, int] = (0, 0)
    lacks: str | None = None
    tested: bool = False
    done: list[str] = field(default_factory=list)
    seconds: float = 0.0


def survey(model_type: str, *, device: str = "cpu", exercised: bool = True) -> Row:
    """Row of one model type.

    Args:
        model_type: As in a configuration.
        device: Where the model runs; float64 on the CPU, in which no state fades below rounding, else float32.
        exercised: Whether a listed architecture is measured, ablated and read as well.
    """
    row, start = Row(model_type), time.perf_counter()
    try:
        network = tiny_model(model_type).to(device)
    except (*UNBUILT, AssertionError) as error:
        row.unbuilt = _first_line(error)
        return row
    try:
        model = _loaded(network)
    except RepflowError as error:
        row.refused = _first_line(error)
        return row
    _describe(row, model)
    if row.tested and exercised:
        row.done = exercise(load(network))
    row.seconds = round(time.perf_counter() - start, 2)
    return row


def _loaded(network: Any) -> Model:
    """In float64 where the device is a CPU and the architecture runs in it."""
    if network.device.type != "cpu":
        return load(network)
    try:
        return load(network, dtype="float64")
    except RepflowError:
        return load(network)


def _describe(row: Row, model: Model) -> None:
    row.kinds, row.tested = list(model.layer_kinds), listed(model.network.config)
    for number, (kind, does) in enumerate(zip(row.kinds, observe(model.reading, model.network.config), strict=True)):
        if not does.agrees(kind):
            row.wrong.append(f"block {number + 1} is called {kind}, and {does.words()}")
    row.streams = 1 if model.streams is None else model.streams.count
    if model.reading.ablation_problem is None:
        row.sublayers = sorted({part.kind for parts in model.reading.parts for part in parts})
    remembering = [i for i, kind in enumerate(row.kinds) if {*MEMORY} & {*kind.split("+")}]
    row.memory = (len(remembering), sum(layer in recurrent_layers(model) for layer in remembering))
    row.lacks = None if model.streams is not None else _lacks(model)


def _lacks(model: Model) -> str:
    """What transformers' own tuple leaves out of the states: the embedding, the raw last block, or nothing."""
    ids, states, entries = torch.arange(3, 3 + TOKENS)[None], list[Tensor](), list[Tensor]()
    normed: list[Tensor] = []
    model.stream(ids, on_state=lambda _, h: states.append(h.clone()), on_final_norm=normed.append)
    model.stream(ids, kind="hf-tuple", on_state=lambda _, h: entries.append(h.clone()))
    for name, whole in (
        ("nothing", states),
        (LAST_BLOCK, [*states[:-1], normed[0]]),
        (EMBEDDING, [*states[1:], normed[0]]),
    ):
        if len(entries) == len(whole) and all(close(a, b, 1e-4) for a, b in zip(entries, whole, strict=True)):
            return name
    return "unlike the states"


def exercise(model: Model) -> list[str]:
    """Measure a model, take every kind of its sublayers out (or a block), and read its memory; says what was done.

    Raises:
        RuntimeError: Something came out wrong.
    """
    ids = torch.randint(3, model.vocab_size, (2, TOKENS), generator=torch.Generator().manual_seed(7))
    result = repflow.measure(model, ids, metrics=["token_similarity", "layer_cosine", "token_norm"])
    _check(len(result["token_similarity"]) == model.n_states, "as many values as states")
    _check(bool(torch.isfinite(torch.as_tensor(result["token_similarity"])).all()), "finite values")
    done, last = ["measured"], _last(model, ids)
    parts = {part.kind for parts in model.reading.parts for part in parts}
    ways = ["block:2"] if model.reading.ablation_problem else [f"branch:{kind}" for kind in sorted(parts)]
    for way in ways:
        changed = _last(ablate(model, way), ids)
        _check(bool((changed - last).abs().max() > 1e-6 * last.abs().max()), f"another output with {way}")
    done.append("ablated")
    if recurrent_layers(model):
        _read(model, ids)
        done.append("read")
    return done


def _read(model: Model, ids: Tensor) -> None:
    """Every recurrence that can be read gives what its layer computes from it."""
    layers = set()

    def look(layer: int, quantities: Any) -> None:
        ours, theirs = quantities.output(), quantities.recurrence.mixed()
        _check(bool(torch.isfinite(ours).all()), f"finite states in block {layer + 1}")
        gap = (ours.double() - theirs.double()).abs().max() / theirs.double().abs().max().clamp_min(1e-30)
        _check(bool(gap < 1e-3), f"what the layer computes from its states in block {layer + 1}, {gap:.1e} off")
        layers.add(layer)

    with ssm_quantities(model, look):
        model.stream(ids, on_state=lambda *_: None)
    _check(layers == set(recurrent_layers(model)), "every recurrent layer")


def _last(model: Model, ids: Tensor) -> Tensor:
    normed: list[Tensor] = []
    model.stream(ids, on_state=lambda *_: None, on_final_norm=normed.append)
    return normed[0].float().cpu()


def _check(holds: bool, expected: str) -> None:
    if not holds:
        raise RuntimeError(f"expected {expected}")


def _first_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, RepflowError) else f"{type(error).__name__}: {text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Survey some or all model types and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_type", nargs="*", help="all decoders unless given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--named", action="store_true", help="only the architectures that the tests name")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no model type begins later")
    parser.add_argument("--json", type=Path, help="file for the rows")
    options = parser.parse_args(arguments)
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    rows: list[Row] = []
    asked = options.model_type or (named() if options.named else decoders())
    start = time.perf_counter()
    for model_type in asked:
        if time.perf_counter() - start > options.seconds:
            break
        try:
            row = survey(model_type, device=options.device)
        except Exception as error:  # noqa: BLE001  one broken row, a compiler's fault too, must not hide the others
            row = Row(model_type, wrong=[_first_line(error)])
        rows.append(row)
        said = row.unbuilt or row.refused or "; ".join(row.wrong) or f"{', '.join(row.kinds)}; {', '.join(row.done)}"
        print(f"{model_type:24} {'WRONG' if row.wrong else 'ok':5} {said[:160]}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(_record(rows, options.device), indent=1) + "\n", encoding="utf-8")
    print("\n".join(summary(rows, asked)))
    return int(any(row.wrong for row in rows))


def summary(rows: Sequence[Row], asked: Sequence[str]) -> list[str]:
    """Counts, then what is wrong, refused or was not reached."""
    does = [step for row in rows for step in row.done]
    loaded = [row.model_type for row in rows if row.kinds]
    lines = [
        f"transformers {transformers.__version__}, torch {torch.__version__}: {len(rows)} of {len(asked)} model types",
        f"loaded {len(loaded)}, by name {len({*loaded} & {*named()})}; "
        f"measured {does.count('measured')}, ablated {does.count('ablated')}, memory read {does.count('read')}",
    ]
    for word in ("wrong", "refused", "unbuilt"):
        names = [row.model_type for row in rows if getattr(row, word)]
        lines.append(f"{word} {len(names)}: {', '.join(names)}" if names else f"{word} 0")
    return lines + ([f"not reached: {', '.join(asked[len(rows) :])}"] if len(rows) < len(asked) else [])


def _record(rows: Sequence[Row], device: str) -> dict[str, Any]:
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    return {"device": device, **versions, "rows": [asdict(row) for row in rows]}


def named() -> list[str]:
    """Decoders of the installed transformers that the table of architectures lists."""
    from repflow.models.families import FAMILIES

    return [model_type for model_type in decoders() if model_type in FAMILIES]


if __name__ == "__main__":
    sys.exit(main())
