"""What architecture decides: short trainings of variants of the zoo's models, several seeds each.

    python -m tools.zoo.architecture run --data DATA --to CELLS [--seconds 500]     # resumes
    python -m tools.zoo.architecture table CELLS
    python -m tools.zoo.architecture seeds CELLS --out seeds.json [--add]           # for the demo
    python -m tools.zoo.architecture summary CELLS --out architecture.json [--add]  # for the docs

`run` trains every variant with every seed (`tools.zoo.variants`), all on the same batches of the same seed,
and writes one JSON file a cell: flow of representations before and after, retrieval, loss on prose, and for the zoo's
own models flow and probes at the demo's settings. Cells that are there are skipped, so that several runs add up; all
have to share steps, batch, size, data and prompts, as a table has no column for them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, RepflowError, command_line, teach
from repflow.spec.request import check_least, check_seed
from repflow.store.disk import make_folder, write_atomic
from tools.zoo.arguments import check_file, check_folder, check_numbers
from tools.zoo.effects import compact, fault, prompt_counts, settings, table
from tools.zoo.models import SIZES
from tools.zoo.variants import VARIANTS

if TYPE_CHECKING:
    from repflow.papers.reading import Reading
    from tools.zoo.data import ZooData

SEEDS = 3
STEPS = 2000
SIZED = ("gpt-neox-narrow", "mamba2-narrow")
"""Other sizes of the zoo's models, probed alike, so that a finding about size can be asked."""
READ = ("gpt-neox", "mamba2", "hybrid", "hybrid-mirror", *SIZED)
"""Variants whose flow and probes are read as the demo reads them: its further trainings."""
PROBE_PROMPTS, LEAST_PROMPTS = 1000, 10
REMEDY = "take the file away, and make what is missing with `python -m tools.zoo.architecture run`"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(prog="python -m tools.zoo.architecture", description=__doc__.split("\n")[0])
    steps = command.add_subparsers(dest="step", required=True)
    run = steps.add_parser("run", help="train and measure the cells that are missing")
    run.add_argument("--data", required=True, help="folder that `tools.zoo.make prepare` wrote")
    run.add_argument("--to", required=True, help="folder of the cells")
    run.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="VARIANT")
    run.add_argument("--seeds", type=int, nargs="+", default=list(range(SEEDS)), help="of weights and batches")
    run.add_argument("--steps", type=int, default=STEPS)
    run.add_argument("--batch", type=int, default=96, help="windows of a step")
    run.add_argument("--size", default="4m", choices=sorted(SIZES))
    run.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell after this many seconds")
    run.add_argument(
        "--prompts", type=int, default=PROBE_PROMPTS, help=f"of the probes, at least {LEAST_PROMPTS}; 0 for none"
    )
    run.add_argument("--limit", type=int, help="held-out prompts of each set; default all")
    run.add_argument("--device")
    tables = steps.add_parser("table", help="means and intervals over seeds, as Markdown")
    tables.add_argument("cells", help="folder of the cells, or a summary of them")
    seeds = steps.add_parser("seeds", help="write the readings of the cells as further trainings of the demo")
    seeds.add_argument("cells", help="folder of the cells")
    seeds.add_argument("--out", required=True, help="file to write")
    seeds.add_argument("--add", action="store_true", help="keep the other readings of that file")
    summary = steps.add_parser("summary", help="write what the tables need into one file")
    summary.add_argument("cells", help="folder of the cells")
    summary.add_argument("--out", required=True, help="file to write")
    summary.add_argument("--add", action="store_true", help="keep the other cells of that file")
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        if options.step == "run":
            run_cells(options)
        elif options.step == "seeds":
            print(f"{write_seeds(Path(options.cells), Path(options.out), add=options.add)} readings in {options.out}")
        elif options.step == "summary":
            print(f"{write_summary(Path(options.cells), Path(options.out), add=options.add)} cells in {options.out}")
        else:
            print(table(read_cells(Path(options.cells))))
    except RepflowError as error:
        with command_line():
            print(error, file=sys.stderr)
        return 2
    return 0


def run_cells(options: argparse.Namespace, say: Callable[[str], None] = print) -> None:
    """Train and measure what is missing, seed by seed, so that a stop leaves whole seeds."""
    from repflow.models.devices import resolve_device
    from tools.zoo.data import open_data
    from tools.zoo.save import write_json

    check_numbers(options)
    check_least([("--prompts", options.prompts or None, LEAST_PROMPTS)])
    for seed in options.seeds:
        check_seed(seed, "--seeds")
    folder = Path(options.to)
    check_folder(folder, "--to")
    resolve_device(options.device)
    data = open_data(options.data)
    if any(folder.glob("*.json")):
        own = [("this run", _asked(options, data)), *map(settings, read_cells(folder))]
        _check_alike(own, folder, "run with the settings of the cells, or choose another --to")
    if options.prompts and any(variant in READ for variant in options.variants):
        _check_prompts(options, data)
    make_folder(folder)
    began = time.perf_counter()
    for seed in options.seeds:
        for variant in options.variants:
            file = folder / f"{variant}_{seed}.json"
            if file.exists():
                continue
            if time.perf_counter() - began > options.seconds:
                say("out of time; run again with the same folder to go on")
                return
            write_json(file, measure_cell(variant, seed, options, data))
            say(f"{variant} seed {seed}: at {time.perf_counter() - began:.0f} s")


def _check_prompts(options: argparse.Namespace, data: ZooData) -> None:
    """Refuse now what the probes would refuse once a model is trained; prompts are made by the tokenizer alone."""
    from tools.zoo.seeds import check_prompts
    from tools.zoo.variants import build_variant

    network = build_variant(READ[0], "tiny", data.vocabulary, data.window, 0)
    with _beside_tokenizer(network, {}, options.data) as folder:
        check_prompts(folder, options.prompts)


def measure_cell(variant: str, seed: int, options: argparse.Namespace, data: ZooData) -> dict[str, Any]:
    """Train one variant with one seed and measure it."""
    from tools.zoo.batches import BatchConfig
    from tools.zoo.evaluate import judge
    from tools.zoo.train import TrainConfig, train_network
    from tools.zoo.variants import build_variant

    config = TrainConfig(
        name=variant, data=options.data, out="", size=options.size, steps=options.steps, seed=seed,
        warmup=options.steps // 20, device=options.device, batches=BatchConfig(seed=seed, batch=options.batch),
    )  # fmt: skip
    network = build_variant(variant, options.size, data.vocabulary, data.window, seed)
    record = train_network(network, config, data, say=lambda _: None)
    device = next(network.parameters()).device
    cell = {"variant": variant, "factor": VARIANTS[variant].factor, "seed": seed, "record": record}
    cell["evaluation"] = judge(network, data, device, options.limit)
    if variant in READ and options.prompts:
        cell |= {"prompts": options.prompts, "reading": _read(network, record, options)}
    return cell


def _read(network: Any, record: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Flow and probes of a saved copy at the demo's settings; the network is turned to bfloat16 on the way."""
    from tools.zoo.seeds import measure_training

    with _beside_tokenizer(network, record, options.data) as folder:
        return measure_training(folder, samples=options.prompts, device=options.device).to_json()


@contextmanager
def _beside_tokenizer(network: Any, record: dict[str, Any], data: str) -> Iterator[str]:
    """A folder with a network, for a while, and the tokenizer of the data."""
    from tools.zoo.data import FILES
    from tools.zoo.save import save_model

    with tempfile.TemporaryDirectory() as folder:
        save_model(network, Path(folder), record)
        for name in FILES:
            shutil.copyfile(Path(data) / name, Path(folder) / name)
        yield folder


def write_seeds(cells: Path, out: Path, *, add: bool = False) -> int:
    """Put the readings of the cells into a file of readings, beside those it has where asked for; returns how many."""
    from tools.zoo.seeds import stored_readings, write_readings

    with_reading = [cell for cell in read_cells(cells) if "reading" in cell]
    if cells.is_file() or any("prompts" not in cell for cell in with_reading):
        got = f"{cells}, a summary, which keeps none"
        raise InputError(teach("a folder of cells with readings", got, "name the folder that `run` wrote"))
    if not with_reading:
        remedy = f"run {', '.join(READ)} with --prompts above 0"
        raise InputError(teach(f"cells with readings in {cells}", "none", remedy))
    readings = [_reading(cell, cells) for cell in with_reading]
    _make_place(cells, out)
    samples = with_reading[0]["prompts"]
    known = stored_readings(out, samples) if add else {}
    known |= {(reading.model, reading.training): reading for reading in readings}
    write_readings(out, list(known.values()), samples=samples)
    return len(with_reading)


def _reading(cell: dict[str, Any], folder: Path) -> Reading:
    """Reading of a cell, with its training."""
    from repflow.papers.reading import Reading, training_of

    try:
        base = VARIANTS[cell["variant"]].base if cell["variant"] in SIZED else ""
        return replace(Reading.from_json(cell["reading"]), **training_of(cell["record"])._asdict(), size_of=base)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        got = f"what cannot be read ({type(error).__name__}: {error})"
        name = f"{cell['variant']} with seed {cell['seed']}"
        raise InputError(teach(f"a reading in the cell of {name} in {folder}", got, REMEDY)) from None


def write_summary(cells: Path, out: Path, *, add: bool = False) -> int:
    """Put what the tables need of all cells into one file; returns how many cells.

    Args:
        cells: folder.
        out: file.
        add: keep the other cells of that file.
    """
    chosen = {
        (cell["variant"], cell["seed"]): cell for path in ([out] if add else []) + [cells] for cell in read_cells(path)
    }
    order = sorted(chosen, key=lambda key: (list(VARIANTS).index(key[0]), key[1]))
    lines = [json.dumps(compact(chosen[key]), separators=(",", ":")) for key in order]
    _make_place(cells, out)
    write_atomic(out.resolve(), ("[\n" + ",\n".join(lines) + "\n]\n").encode())  # a cell a line
    return len(lines)


def _make_place(cells: Path, out: Path) -> None:
    """Folder of a file to write, which must not lie among the cells."""
    if out.resolve().parent == cells.resolve():
        got = f"{out}, which would be read as a cell"
        raise InputError(teach(f"a file outside {cells}", got, "choose another --out"))
    check_file(out, "--out")
    make_folder(out.parent)


def read_cells(folder: Path) -> list[dict[str, Any]]:
    """All cells of a folder, or of a summary.

    Raises:
        InputError: there is none, or a file that holds something else, or cells of different settings.
    """
    if folder.is_file():
        entries = _read_json(folder)
        if not isinstance(entries, list):
            got = f"{type(entries).__name__} in {folder}"
            raise InputError(teach("a list of cells", got, "name the folder of the cells, or a summary of them"))
        named_cells = [(folder, cell) for cell in entries]
    else:
        named_cells = [(file, _read_json(file)) for file in sorted(folder.glob("*.json"))]
    if not named_cells:
        raise InputError(teach(f"cells in {folder}", "none", "make them with `python -m tools.zoo.architecture run`"))
    for file, cell in named_cells:
        if wrong := fault(cell):
            raise InputError(teach(f"a cell of `python -m tools.zoo.architecture run` in {file}", wrong, REMEDY))
    cells = [cell for _, cell in named_cells]
    _check_alike([settings(cell) for cell in cells], folder, "put cells of each setting into a folder of their own")
    return cells


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(teach(f"JSON in {file}", f"what cannot be read ({error})", REMEDY)) from None


def _asked(options: argparse.Namespace, data: ZooData) -> dict[str, Any]:
    """What the cells of a run will share."""
    from repflow.papers.reading import training_of

    shared = {
        "steps": options.steps,
        "batch": options.batch,
        "size": options.size,
        "data": training_of({"data": data.facts_of}).data,
        "held-out prompts": prompt_counts(
            {name: len(prompts.ids[: options.limit]) for name, prompts in data.held_out.items()}
        ),
    }
    return shared | ({"prompts of the probes": options.prompts} if options.prompts else {})


def _check_alike(told_by: Sequence[tuple[str, dict[str, Any]]], folder: Path, remedy: str) -> None:
    """Refuse cells that cannot stand in one table."""
    seen: dict[str, tuple[str, Any]] = {}
    for name, facts in told_by:
        for word, value in facts.items():
            first, expected = seen.setdefault(word, (name, value))
            if value != expected:
                got = f"{word}: {expected} ({first}) and {value} ({name})"
                raise InputError(teach(f"cells of the same settings in {folder}", got, remedy))


if __name__ == "__main__":
    sys.exit(main())
