"""Model card of a zoo model: README.md of its folder, with measured values alone.

Every number comes from training.json, evaluation.json or probe.json; what was not measured is not in the card.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, teach
from repflow.spec.zoo import SHAPES
from tools.zoo.data import FILES

NAMED = {"answer": "first symbol of the value", "index": "index of the pair"}
LIMITS = (
    "It is made to be measured, not used: it knows nothing of the world, writes no sensible text, and was never tuned "
    "to be safe. Its prose is English technical documentation. No training prompt asks for the index of a pair or "
    "document. Prompts longer than its training window are outside what it has seen."
)


def write_card(folder: str | Path, data: str | Path | None = None) -> str:
    """Write README.md of a trained model's folder and, with a data folder, put the tokenizer beside the weights."""
    path = Path(folder)
    training, evaluation = _read(path, "training.json"), _read(path, "evaluation.json")
    if training is None or evaluation is None:
        missing = "training.json" if training is None else "evaluation.json"
        raise InputError(teach(f"{missing} in {path}", "none", "run `tools.zoo.make` train and evaluate first"))
    if data is not None:
        for name in FILES:
            if not (Path(data) / name).is_file():
                raise InputError(
                    teach(f"{name} in {data}", "none", "name the folder that `tools.zoo.make prepare` wrote")
                )
            shutil.copyfile(Path(data) / name, path / name)
    parts = [
        _head(training),
        _data(training),
        _training(training),
        _results(evaluation),
        _probes(_read(path, "probe.json")),
        _flow(training),
        f"## What it is not good for\n{LIMITS}",
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    (path / "README.md").write_text(text, encoding="utf-8")
    return text


def _read(folder: Path, name: str) -> dict[str, Any] | None:
    file = folder / name
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _head(training: dict[str, Any]) -> str:
    name = training["name"]
    return (
        f"# {name}\n{SHAPES[name]}: {training['parameters']:,} parameters with tied embeddings, a vocabulary of "
        f"{training['vocabulary']:,}, weights in bfloat16. One of six models trained by repflow on the same data, with "
        "the same tokenizer, width and steps."
    )


def _data(training: dict[str, Any]) -> str:
    data, weight, windows = training["data"], training["config"]["batches"]["answer_weight"], training["windows"]
    rows = "\n".join(f"| {name} | {licence} |" for name, licence in data["licences"].items())
    return (
        f"## Data\n| source | licence |\n|---|---|\n{rows}\n\n"
        f"Of {sum(windows.values())} windows of {data['window']} tokens in a step {windows['prose']} are prose (the "
        f"corpus has {data['prose_tokens']:,} tokens), {windows['kvpr']} key-value pairs and {windows['mdqa']} "
        f"numbered documents, each with questions and answers. An answer's token weighs {weight:g} times "
        "a token of prose in the loss; random keys and values weigh nothing."
    )


def _training(training: dict[str, Any]) -> str:
    config = training["config"]
    early = " It was stopped early by its time limit." if training["stopped_early"] else ""
    return (
        f"## Training\n{training['steps']:,} of {config['steps']:,} steps of {config['batches']['batch']} windows, "
        f"{training['tokens']:,} tokens seen, seed {config['seed']}, AdamW at {config['rate']:g} with "
        f"{config['warmup']} steps of warm-up, {training['seconds']:.0f} s.{early}\n"
        f"SHA-256 of the weights: `{training['digest']}`."
    )


def _results(evaluation: dict[str, Any]) -> str:
    prose = evaluation["prose"]
    rows = "\n".join(
        f"| {name} | {entry['tokens']} | {entry['exact']} of {entry['of']} | {entry['exact'] / entry['of']:.1%} |"
        for name, entry in evaluation["retrieval"].items()
    )
    return (
        f"## Held-out results\nProse: {prose['nats_per_token']:.3f} nats per token, {prose['bits_per_byte']:.3f} bits "
        f"per byte, over {prose['tokens']:,} tokens.\n\nWhole answer right, greedy:\n\n"
        f"| prompts | longest, tokens | right | share |\n|---|---|---|---|\n{rows}"
    )


def _probes(probe: dict[str, Any] | None) -> str:
    """Accuracy of a linear probe by state."""
    if probe is None:
        return ""
    tables = []
    for label, entry in probe["labels"].items():
        cells = " ".join(f"{value:.2f}" for value in entry["accuracy"])
        tables.append(f"- {NAMED[label]}, by chance {entry['chance']:.2f}: {cells}")
    listed = "\n".join(tables)
    return (
        f"## Linear probes\nTest accuracy at the last token by state, from the embedding to the last block, on "
        f"{probe['samples']} kvpr prompts of at most {probe['length']} tokens, {probe['seeds']} seeds:\n\n{listed}"
    )


def _flow(training: dict[str, Any]) -> str:
    """Similarity between tokens by depth, over training."""
    rows = []
    for entry in training["flow"]:
        for kind in ("prose", "kvpr"):
            values = entry.get(kind, {}).get("token_similarity")
            if values:
                cells = " ".join(f"{value:.2f}" for value in values if value is not None)
                rows.append(f"| {entry['step']} | {kind} | {cells} |")
    if not rows:
        return ""
    listed = "\n".join(rows)
    return (
        "## Flow over training\nSimilarity between tokens by state, from the embedding to the last block:\n\n"
        f"| step | prompts | token_similarity |\n|---|---|---|\n{listed}"
    )
