"""What architecture decides: short trainings of variants of the zoo's models, several seeds each.

    python -m repflow.studies.zoo_architecture run --data DATA --to CELLS [--seconds 500]     # resumes
    python -m repflow.studies.zoo_architecture table CELLS
    python -m repflow.studies.zoo_architecture seeds CELLS --out seeds.json                   # for the demo
    python -m repflow.studies.zoo_architecture summary CELLS --out architecture.json          # for the docs

`run` trains every variant with every seed (`repflow.studies.zoo_variants`), all on the same batches of the same seed,
and writes one JSON file a cell: flow of representations before and after, retrieval, loss on prose, and for the zoo's
own models flow and probes at the demo's settings. Cells that are there are skipped, so that several runs add up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from repflow.errors import InputError, RepflowError, teach
from repflow.studies.zoo_variants import VARIANTS

SEEDS = 3
STEPS = 2000
READ = ("gpt-neox", "mamba2", "hybrid", "hybrid-mirror")
"""Variants whose flow and probes are read as the demo reads them: its further trainings."""
PROBE_PROMPTS = 1000


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m repflow.studies.zoo_architecture", description=__doc__.split("\n")[0]
    )
    steps = made.add_subparsers(dest="step", required=True)
    run = steps.add_parser("run", help="train and measure the cells that are missing")
    run.add_argument("--data", required=True, help="folder that train_zoo prepare wrote")
    run.add_argument("--to", required=True, help="folder of the cells")
    run.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="VARIANT")
    run.add_argument("--seeds", type=int, nargs="+", default=list(range(SEEDS)))
    run.add_argument("--steps", type=int, default=STEPS)
    run.add_argument("--batch", type=int, default=96)
    run.add_argument("--size", default="4m")
    run.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell after so many")
    run.add_argument("--prompts", type=int, default=PROBE_PROMPTS, help="of the probes; 0 for none")
    run.add_argument("--limit", type=int, help="held-out prompts of each set; default all")
    run.add_argument("--device")
    table = steps.add_parser("table", help="means and intervals over seeds, as Markdown")
    table.add_argument("cells", help="folder of the cells, or a summary of them")
    seeds = steps.add_parser("seeds", help="write the readings of the cells as further trainings of the demo")
    seeds.add_argument("cells")
    seeds.add_argument("--out", required=True)
    summary = steps.add_parser("summary", help="write what the tables need into one file")
    summary.add_argument("cells")
    summary.add_argument("--out", required=True)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; returns the exit code."""
    given = parser().parse_args(arguments)
    try:
        if given.step == "run":
            run_cells(given)
        elif given.step == "seeds":
            print(f"{write_seeds(Path(given.cells), Path(given.out))} readings in {given.out}")
        elif given.step == "summary":
            print(f"{write_summary(Path(given.cells), Path(given.out))} cells in {given.out}")
        else:
            from repflow.studies.zoo_architecture_table import table

            print(table(Path(given.cells)))
    except RepflowError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def run_cells(given: argparse.Namespace, say: Callable[[str], None] = print) -> None:
    """Train and measure what is missing, seed by seed, so that a stop leaves whole seeds."""
    from repflow.studies.zoo_save import write_json

    folder = Path(given.to)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    for seed in given.seeds:
        for variant in given.variants:
            file = folder / f"{variant}_{seed}.json"
            if file.exists():
                continue
            if time.perf_counter() - began > given.seconds:
                say("out of time; run again with the same folder to go on")
                return
            part = file.with_suffix(".part")
            write_json(part, measure_cell(variant, seed, given))
            part.replace(file)
            say(f"{variant} seed {seed}: at {time.perf_counter() - began:.0f} s")


def measure_cell(variant: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train one variant with one seed and measure it."""
    from repflow.studies.zoo_batches import BatchConfig
    from repflow.studies.zoo_data import open_data
    from repflow.studies.zoo_evaluate import judge
    from repflow.studies.zoo_train import TrainConfig, train_network
    from repflow.studies.zoo_variants import build_variant

    data = open_data(given.data)
    config = TrainConfig(
        name=variant, data=given.data, out="", size=given.size, steps=given.steps, seed=seed,
        warmup=given.steps // 20, device=given.device, batches=BatchConfig(seed=seed, batch=given.batch),
    )  # fmt: skip
    network = build_variant(variant, given.size, data.vocabulary, data.window, seed)
    record = train_network(network, config, data, say=lambda _: None)
    device = next(network.parameters()).device
    cell = {"variant": variant, "factor": VARIANTS[variant].factor, "seed": seed, "record": record}
    cell["evaluation"] = judge(network, data, device, given.limit)
    if variant in READ and given.prompts:
        cell |= {"prompts": given.prompts, "reading": _read(network, record, given)}
    return cell


def _read(network: Any, record: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """Flow and probes of a saved copy at the demo's settings; the network is turned to bfloat16 on the way."""
    from repflow.studies.zoo_data import FILES
    from repflow.studies.zoo_save import save_model
    from repflow.studies.zoo_seeds import measure_training

    with tempfile.TemporaryDirectory() as folder:
        save_model(network, Path(folder), record)
        for name in FILES:
            shutil.copyfile(Path(given.data) / name, Path(folder) / name)
        return measure_training(folder, samples=given.prompts, device=given.device).to_json()


def write_seeds(cells: Path, out: Path) -> int:
    """Put the readings of the cells into a file of readings; returns how many."""
    from repflow.paper_reading import Reading, training_of
    from repflow.studies.zoo_seeds import write_readings

    found = [cell for cell in read_cells(cells) if "reading" in cell]
    prompts = {cell["prompts"] for cell in found}
    if len(prompts) != 1:
        got = f"{len(found)} readings with {sorted(prompts)} prompts"
        raise InputError(teach("cells with readings of one number of prompts", got, "run the cells alike"))
    readings = [replace(Reading.from_json(cell["reading"]), **training_of(cell["record"])._asdict()) for cell in found]
    write_readings(out, readings, samples=prompts.pop())
    return len(found)


def write_summary(cells: Path, out: Path) -> int:
    """Put what the tables need of all cells into one file; returns how many cells."""
    from repflow.studies.zoo_architecture_table import compact

    made = [json.dumps(compact(cell), separators=(",", ":")) for cell in read_cells(cells)]
    out.write_text("[\n" + ",\n".join(made) + "\n]\n", encoding="utf-8")  # a cell a line
    return len(made)


def read_cells(folder: Path) -> list[dict[str, Any]]:
    """All cells of a folder, or of a summary."""
    if folder.is_file():
        made: list[dict[str, Any]] = json.loads(folder.read_text(encoding="utf-8"))
        return made
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]


if __name__ == "__main__":
    sys.exit(main())
