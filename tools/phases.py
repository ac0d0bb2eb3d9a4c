"""What the studies in carried parts share: one phase trained as far as the time allows, and the file of its numbers."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repflow.core.errors import PausedError
from repflow.studies.laboratory.config import LaboratoryConfig
from repflow.studies.laboratory.study import Laboratory
from tools.carry import pack, unpack


class Shown:
    """Prints what is being done."""

    def __call__(self, done: int, total: int, tokens: int) -> None:
        """Models that are done."""
        print(f"{done} of {total} models", flush=True)

    def phase(self, text: str, done: int, total: int | None) -> None:
        """What begins."""
        print(text, flush=True)


def run_phase(
    study: Laboratory[Any],
    config: LaboratoryConfig,
    name: str,
    options: argparse.Namespace,
    show: Callable[[], None],
) -> None:
    """Train, then show what is tested and pack it with `--keep`, also where the time was up or training failed.

    Args:
        study: laboratory that trains.
        config: models of the phase.
        name: of its run.
        options: of the command line: out, keep, parallel, seconds.
        show: prints the models that are tested.
    """
    try:
        if options.parallel > 1:
            spread(config, name, options)
        study.run(config, out=options.out, name=name, progress=Shown())
        print(f"{name} is done")
    except PausedError as error:
        print(error)
    finally:
        show()
        if options.keep is not None:
            print(pack(options.out, options.keep))


def spread(config: LaboratoryConfig, name: str, options: argparse.Namespace) -> None:
    """Train groups of models by several processes that share the GPU (or the CPU), by `repflow run`.

    Models that are too small for a GPU leave most of it idle; several at once fill it.

    Raises:
        PausedError: `--seconds` are over; the same command resumes.
    """
    import torch

    many = ["--workers", str(options.parallel), "--retry-failed"]  # the same command goes on, also after a failure
    many += ["--per-gpu", str(options.parallel)] if torch.cuda.is_available() and options.device != "cpu" else []
    words = shlex.split(config.command(*config.grid()))[1:]
    words += ["--checkpoint", str(config.checkpoint), *(["--keep-models"] if config.keep_models else [])]
    words += ["--out", str(options.out), "--name", name]
    words += ["--device", options.device] if options.device is not None else []
    command = [sys.executable, "-m", "repflow", "run", *many, "--", *words]
    with subprocess.Popen(command) as process:
        try:
            code = process.wait(options.seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            said = f"stopped after {options.seconds:g} s, as asked; the same command goes on"
            raise PausedError(said) from None
    if code:
        raise SystemExit(code)


def trained_cells(out: Path, name: str) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Words and arrays of the models of a run that are trained and tested, in the run's order, whether or not all are.

    Those of finished shares count too, which the run takes in when all are finished.

    Raises:
        SystemExit: the run is stored without the files of single models.
    """
    from safetensors.numpy import load_file

    from repflow.store import load_result, read_record
    from repflow.store.claims.attempt import OWN
    from repflow.studies.engine.spot import SHARES, is_share

    shares = [share for share in sorted((out / OWN / SHARES).glob(f"{name}.*-of-*")) if is_share(share)]
    runs = [run for run in (out / name, *shares) if (run / "run.json").exists()]
    shards = {shard.stem: shard for run in runs for shard in (run / "shards").glob("cell-*.safetensors")}
    if not shards and (out / name / "result.json").exists():
        said = f"{out / name} was stored without its models one by one"
        raise SystemExit(f"{said}: carry the run itself, or store it without --results")
    words = read_record(runs[0]).config["cells"] if runs else []
    if runs and not words:  # asked for by rows and numbers: a finished run says which cells these are
        words = [cell["cell"] for cell in load_result(runs[0]).provenance["cells"]]
    return [(words[int(stem.removeprefix("cell-"))], load_file(shards[stem])) for stem in sorted(shards)]


def carry_options(parser: argparse.ArgumentParser) -> None:
    """Options that all studies in carried parts have."""
    parser.add_argument("--seconds", type=float, help="stop after these; the same command goes on")
    parser.add_argument("--until", type=float, help="or at this time, in seconds since 1970: a program's start counts")
    parser.add_argument("--parallel", type=int, default=1, help="processes that share the machine's GPU")
    parser.add_argument("--device")
    parser.add_argument("--keep", type=Path, help="folder of packed runs and half-trained models")
    parser.add_argument("--from", dest="source", type=Path, help="such a folder, which is unpacked first")


def phase_or_table(
    options: argparse.Namespace,
    train: Callable[[argparse.Namespace], None],
    table: Callable[[Path], Mapping[str, Any]],
) -> None:
    """Unpack what `--from` names, then train a phase, or add the numbers of all of them to the file `--to`."""
    options.out.mkdir(parents=True, exist_ok=True)
    if options.until is not None:
        left = max(0.0, options.until - time.time())
        options.seconds = left if options.seconds is None else min(left, options.seconds)
    if options.source is not None:
        unpack(options.source, options.out)
    if options.phase != "table":
        train(options)
        return
    before = json.loads(options.to.read_text(encoding="utf-8")) if options.to.exists() else {}
    write_numbers({**before, **table(options.out)}, options.to)
    print(f"wrote {options.to}")


def exact_command(groups: Sequence[str], cell: str) -> str:
    """The command that trains a cell with those beside it, which gives its numbers bit by bit.

    >>> exact_command(["repflow recall --cells a:1,a:2 --steps 5", "repflow recall --cells b:1 --steps 5"], "b:1")
    'repflow recall --cells b:1 --steps 5'
    """
    return next(words for words in groups if cell in words.split()[3].split(","))


def write_numbers(numbers: Mapping[str, Any], target: Path) -> None:
    """One model a line; what is not a phase stands as it is."""
    lines = []
    for name, phase in sorted(numbers.items()):
        if isinstance(phase, dict) and "cells" in phase:
            head = json.dumps({key: value for key, value in phase.items() if key != "cells"})[1:-1]
            cells = ",\n".join(f"  {json.dumps(cell)}" for cell in phase["cells"])
            lines.append(f'"{name}": {{{head}{", " if head else ""}"cells": [\n{cells}]}}')
        else:
            lines.append(f'"{name}": {json.dumps(phase)}')
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
