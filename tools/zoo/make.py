"""Train the built-in models: prepare the data, train, evaluate, probe, write the model card, package them.

    python -m tools.zoo.make prepare --corpus FOLDER --out DATA
    python -m tools.zoo.make train NAME... --data DATA --out MODELS [--evaluate]
    python -m tools.zoo.make evaluate FOLDER... --data DATA
    python -m tools.zoo.make probe FOLDER...
    python -m tools.zoo.make card FOLDER... --data DATA
    python -m tools.zoo.make digests MODELS
    python -m tools.zoo.make seeds FOLDER... --out MODELS/seeds.json

`prepare` needs the corpus and writes a folder of some 35 MB; the other steps need that folder alone. Each model goes to
MODELS/NAME. A model is trained in one piece: a run that was stopped is started again from its first step. `digests` and
`seeds` make what lies beside the packaged models: SHA-256 of their files, and measurements of further trainings, each
FOLDER a trained model with its tokenizer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from repflow.core.errors import RepflowError, command_line
from repflow.spec.zoo import DIGESTS, write_digests
from tools.zoo.arguments import check_file, check_folder, check_numbers
from tools.zoo.batches import BatchConfig
from tools.zoo.card import write_card
from tools.zoo.data import DataConfig, prepare
from tools.zoo.evaluate import evaluate
from tools.zoo.models import NAMES, SIZES
from tools.zoo.probe import probe_model
from tools.zoo.seeds import measure_seeds
from tools.zoo.train import TrainConfig, train

NUMBERS = {"int": int, "int | None": int, "float": float, "float | None": float}
SHARED = ("name", "data", "out", "corpus", "size", "device", "graph", "measure", "batches", "seed", "licences")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(prog="python -m tools.zoo.make", description=__doc__.split("\n")[0])
    steps = command.add_subparsers(dest="step", required=True)
    first = steps.add_parser("prepare", help="write tokenizer, ids and held-out prompts")
    first.add_argument("--corpus", required=True, help="folder with train.txt.xz and valid.txt.xz")
    first.add_argument("--out", required=True, help="folder to write")
    first.add_argument(
        "--licence", action="append", default=[], metavar="SOURCE=LICENCE", help="of a part of the corpus, for the card"
    )
    _numbers(first, DataConfig)
    second = steps.add_parser("train", help="train one or more models")
    second.add_argument("names", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    second.add_argument("--data", required=True)
    second.add_argument("--out", required=True, help="folder of models; each goes to OUT/NAME")
    second.add_argument("--size", default="4m", choices=sorted(SIZES))
    second.add_argument("--seed", type=int, default=0, help="of weights and batches")
    second.add_argument("--device")
    second.add_argument("--no-graph", action="store_true", help="do not record steps as a CUDA graph")
    second.add_argument("--no-measure", action="store_true", help="do not measure the flow on the way")
    second.add_argument("--evaluate", action="store_true", help="evaluate each model once it is trained")
    _numbers(second, TrainConfig)
    _numbers(second, BatchConfig)
    for name, help in (("evaluate", "retrieval and prose on held-out data"), ("card", "write README.md")):
        step = steps.add_parser(name, help=help)
        step.add_argument("folders", nargs="+")
        step.add_argument("--data", required=True)
        if name == "evaluate":
            step.add_argument("--device")
            step.add_argument("--limit", type=int, help="prompts of each set; default all")
    sealed = steps.add_parser("digests", help="write digests.json beside the models of a folder")
    sealed.add_argument("folder")
    seeds = steps.add_parser("seeds", help="measure trainings of several seeds for the demo; after card")
    seeds.add_argument("folders", nargs="+")
    seeds.add_argument("--out", required=True, help="file to write, or to add to")
    seeds.add_argument("--samples", type=int, default=1000, help="prompts of a probe")
    seeds.add_argument("--device")
    last = steps.add_parser("probe", help="linear probes by depth, for the card; after card, which puts the tokenizer")
    last.add_argument("folders", nargs="+")
    last.add_argument("--samples", type=int, default=1000)
    last.add_argument("--seeds", type=int, default=3)
    last.add_argument("--length", type=int, default=256)
    last.add_argument("--device")
    return command


def _numbers(step: argparse.ArgumentParser, config: Any) -> None:
    """Options for the numbers of a config, with its own defaults."""
    for entry in fields(config):
        if entry.name not in SHARED:
            option = f"--{entry.name.replace('_', '-')}"
            step.add_argument(option, type=NUMBERS[str(entry.type)], default=entry.default)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        _run(options)
    except RepflowError as error:
        with command_line():
            print(error, file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    check_numbers(options)
    if options.step == "prepare":
        check_folder(Path(options.out), "--out")
        facts = prepare(
            DataConfig(
                corpus=options.corpus, out=options.out, licences=tuple(options.licence), **_taken(options, DataConfig)
            )
        )
        print(json.dumps(facts, indent=1))
    elif options.step == "train":
        for name in options.names:  # all of them before the first is trained
            check_folder(Path(options.out) / name, "--out")
        for name in options.names:
            out = Path(options.out) / name
            train(_train_config(options, name, out), say=_say)
            if options.evaluate:
                _say(json.dumps(evaluate(out, options.data, device=options.device)))
    elif options.step == "digests":
        write_digests(Path(options.folder))
        _say(f"{options.folder}/{DIGESTS}")
    elif options.step == "seeds":
        check_file(Path(options.out), "--out")
        measure_seeds(options.folders, options.out, samples=options.samples, device=options.device, say=_say)
    else:
        for folder in options.folders:
            _finish(options, folder)


def _finish(options: argparse.Namespace, folder: str) -> None:
    if options.step == "evaluate":
        _say(json.dumps(evaluate(folder, options.data, device=options.device, limit=options.limit)))
    elif options.step == "probe":
        size = {"samples": options.samples, "seeds": options.seeds, "length": options.length}
        _say(json.dumps(probe_model(folder, device=options.device, **size)))
    else:
        write_card(folder, options.data)
        _say(f"{folder}/README.md")


def _train_config(options: argparse.Namespace, name: str, out: Path) -> TrainConfig:
    return TrainConfig(
        name=name,
        data=options.data,
        out=str(out),
        size=options.size,
        seed=options.seed,
        device=options.device,
        graph=not options.no_graph,
        measure=not options.no_measure,
        batches=BatchConfig(seed=options.seed, **_taken(options, BatchConfig)),
        **_taken(options, TrainConfig),
    )


def _taken(options: argparse.Namespace, config: Any) -> dict[str, Any]:
    return {entry.name: getattr(options, entry.name) for entry in fields(config) if entry.name not in SHARED}


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
