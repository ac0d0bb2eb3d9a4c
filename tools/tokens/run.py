"""The study of the token laboratory (docs/laboratories/tokens.md): do signs matter, and is sorting more than a leak?

    python -m tools.tokens.run prepare --corpus FOLDER                    texts as token ids, in runs/tokens-text
    python -m tools.tokens.run screen  --part scenarios [--seconds 480]   rates, one seed, a third of the steps
    python -m tools.tokens.run seeds   --part scenarios [--seconds 480]   three new seeds at the best rate
    python -m tools.tokens.run table [--reviews RUN] [--recipes RUNS]     docs/laboratories/tokens.json from these

Parts: `scenarios` and `mamba`, `attention` (orders of tokens) are the core; `shift`, `norms`, `h3` and `ablations` the
extension. Each phase of a part is one run of `repflow architecture`; run it again until it says that it is done.
`--keep FOLDER` packs runs and half-trained models into parts of 15 MiB when the time is up, so that they can be carried
to another machine, where `--from FOLDER` unpacks them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repflow.studies.architecture.config import ArchitectureCell, ArchitectureConfig
from repflow.studies.architecture.study import STUDY
from tools.phases import carry_options, exact_command, phase_or_table, run_phase, trained_cells

SORTED = ("", "+leaky", "+chunks", "+chunks+identity", "+chunks+random")
"""Orders of tokens: as they come, the paper's, the causal one, and its two controls."""
RATES, SEEDS, STEPS = (0.002, 0.005, 0.01), (1, 2, 3), 2000
TOKENIZER, LAYERS, WIDTH, LENGTH, BATCH = "zoo:mamba2", 4, 128, 256, 64


@dataclass(frozen=True)
class PartOfStudy:
    """Rows that are trained in one run.

    Attributes:
        rows: architectures.
        rates: that are screened.
        match: row whose parameters the others match.
    """

    rows: tuple[str, ...]
    rates: tuple[float, ...] = RATES
    match: str | None = None


PARTS = {
    "scenarios": PartOfStudy(
        ("mamba+scaled", "mamba+positive+scaled", "mamba+mixed+scaled", "mamba+negative+scaled"),
    ),
    "mamba": PartOfStudy(tuple(f"mamba{order}" for order in SORTED)),
    "attention": PartOfStudy(tuple(f"transformer{order}" for order in SORTED)),
    "shift": PartOfStudy(("mamba+complex+scaled", "mamba+positive+shift", "mamba+mixed", "mamba+negative+shift")),
    "norms": PartOfStudy(
        (
            *("mamba+mixed-norm", "mamba+positive-norm", "mamba+negative-norm", "mamba-norm"),
            *("mamba+mixed", "mamba+positive", "mamba+negative"),
        ),
        (0.0005, 0.001, 0.002, 0.005),
    ),
    "h3": PartOfStudy(tuple(f"h3{order}" for order in SORTED)),
    "ablations": PartOfStudy(
        tuple(f"mamba{part}{order}" for part in ("+shared", "-norm", "-conv") for order in SORTED),
        (0.001, 0.002, 0.005),
        match="mamba",
    ),
}
CORE = ("scenarios", "mamba", "attention")
NUMBERS = (
    *("parameters", "own_width", "diverged_at", "loss_drop", "leak", "leak_low", "leak_high", "whole_loss"),
    "prefix_loss",
)
LISTS = ("perplexity", "perplexity_low", "perplexity_high", "token_norm", "start_token_norm", "start_norm")
FACTS = "facts"
"""Folder beside the runs: what is known of each before it is finished."""


def screened_row(row: str) -> str:
    """The row whose rate a row takes: a control differs from what it controls in its order alone.

    >>> screened_row("mamba+chunks+random"), screened_row("mamba+leaky")
    ('mamba+chunks', 'mamba+leaky')
    """
    return row.replace("+identity", "").replace("+random", "")


def score(cell: Mapping[str, Any]) -> float:
    """Perplexity on held-out text; infinite for a model that diverged."""
    values = cell.get("perplexity") or [None]
    return float("inf") if values[0] is None else float(values[0])


def rate_of(row: str, screened: Sequence[Mapping[str, Any]]) -> float:
    """The rate that served a row best."""
    known = {cell["rate"]: score(cell) for cell in screened if cell["row"] == screened_row(row)}
    best = min(known, key=lambda rate: known[rate], default=None)
    if best is None or not np.isfinite(known[best]):
        raise SystemExit(f"no rate of {screened_row(row)} was trained to the end: screen it with lower --rates")
    return float(best)


def cells_of(phase: str, options: argparse.Namespace, screened: Sequence[Mapping[str, Any]]) -> list[str]:
    """Models of a phase."""
    part = PARTS[options.part]
    rates = [float(rate) for rate in options.rates.split(",")] if options.rates else part.rates
    chosen: list[tuple[str, float, int]] = []
    if phase == "screen":
        chosen = [(row, rate, 0) for row in dict.fromkeys(map(screened_row, part.rows)) for rate in rates]
    else:
        chosen = [(row, rate_of(row, screened), seed) for row in part.rows for seed in SEEDS[: options.seeds]]
    size = (options.layers, options.width, options.length)
    return [str(ArchitectureCell(row, *size, rate, seed)) for row, rate, seed in chosen]


def config_of(phase: str, options: argparse.Namespace, screened: Sequence[Mapping[str, Any]]) -> ArchitectureConfig:
    """The request of a phase."""
    few = phase == "screen"
    more: dict[str, Any] = {"readings": 0, "leak_positions": 0} if few else {"leak_positions": options.positions}
    steps = max(1, options.steps // 3) if few else options.steps
    return ArchitectureConfig(
        cells=cells_of(phase, options, screened),
        text=[str(options.data)],
        steps=steps,
        batch=options.batch,
        chunk=options.chunk,
        warmup=0.1,
        flow_samples=0,
        match_row=PARTS[options.part].match,
        seconds=options.seconds,
        device=options.device,
        **more,
    )


def tested(out: Path, name: str) -> list[dict[str, Any]]:
    """Models of a run that are trained and tested, whether or not all are."""
    from repflow.store import load_result

    cells = [described(word, arrays) for word, arrays in trained_cells(out, name)]
    if (out / name / "result.json").exists():
        known = load_result(out / name).provenance
        for cell, own in zip(cells, known["cells"], strict=True):
            cell |= {key: own[key] for key in ("seconds", "tokens", "graph", "beside") if key in own}
            cell["command"] = exact_command(known["architecture"]["groups"], cell["cell"])
    return cells


def described(word: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Numbers of one model, rounded."""
    cell: dict[str, Any] = ArchitectureCell.parse(word).values() | {"cell": word}
    cell |= {name: _plain(arrays[name]) for name in (*NUMBERS, *LISTS) if name in arrays}
    if "eigenvalues_real" in arrays:
        real = arrays["eigenvalues_real"]
        cell["positive_share"] = _plain(np.nanmean(np.where(np.isnan(real), np.nan, real > 0)))
        cell["spectral_norm"] = _plain(arrays["spectral_norm"])
    if "watched/perplexity" in arrays:
        cell["on_the_way"] = _plain(arrays["watched/perplexity"][:, 1])
        cell["read_at"] = arrays["watched/perplexity"][:, 0].astype(int).tolist()
    return cell


def _plain(values: np.ndarray | float) -> Any:
    """Plain numbers of eight digits, None for NaN."""
    if np.ndim(values):
        return [_plain(value) for value in np.asarray(values)]
    return float(f"{float(values):.8g}") if np.isfinite(values) else None


def run_name(phase: str, part: str) -> str:
    """Of a phase's run."""
    return f"{part}-{phase}"


def table(out: Path) -> dict[str, Any]:
    """Numbers of all phases, also of those that are not finished."""
    numbers: dict[str, Any] = {}
    for file in sorted((out / FACTS).glob("*.json")):
        facts = json.loads(file.read_text(encoding="utf-8"))
        done = (out / file.stem / "result.json").exists()
        falling = _said(out / file.stem, "still_falling") if done else ""
        facts |= {"still_falling": falling} if falling else {}
        numbers[file.stem] = {
            "finished": done,
            "models": facts.pop("models"),
            "facts": facts,
            "cells": tested(out, file.stem),
        }
    return numbers


def _said(run: Path, code: str) -> str:
    """What a finding of a stored run says; "" without it."""
    from repflow.store import load_result

    return next((finding.message for finding in load_result(run).findings if finding.code == code), "")


def reviews(run: Path | None) -> dict[str, Any]:
    """Numbers of a stored grid of classifiers (`repflow classify`, Table 7): accuracy of each, and what they show."""
    from repflow.store import load_result

    if run is None:
        return {}
    result = load_result(run)
    known, data = result.provenance, result.provenance["classify"]["data"]
    cells = [
        {key: cell[key] for key in ("cell", "row", "rate", "seed", "command")} | {"accuracy": _plain(accuracy)}
        for cell, accuracy in zip(known["cells"], result["accuracy"], strict=True)
    ]
    facts = {"texts": data["texts"], "tokens": data["tokens"], "folds": data["folds"], "steps": result.config["steps"]}
    said = {finding.code: finding.message for finding in result.findings}
    return {"reviews": {**facts, "said": said, "cells": cells}}


def _best_models(grid: Any) -> list[dict[str, Any]]:
    """Models of a grid of language models at each row's best rate, as the study's are described; none of others."""
    from repflow.studies.architecture.fit import best_cells

    if "perplexity" not in grid:
        return []
    keys = ("row", "layers", "width", "length", "rate", "seed")
    return [
        {key: grid.provenance["cells"][at][key] for key in keys}
        | {"steps": grid.config["steps"], "perplexity": _plain(grid["perplexity"][at])}
        | ({"own_width": int(grid["own_width"][at])} if "own_width" in grid else {})
        for at in best_cells(grid)
    ]


def _spelled(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The command of every model of a grid, with ROW, RATE and SEED for what its models differ by, and these."""
    _, *same, _, _ = cells[0]["cell"].split(":")
    values = {name: list(dict.fromkeys(cell[name] for cell in cells)) for name in ("row", "rate", "seed")}
    words = {":".join([row, *same, f"{rate:g}", str(seed)]) for row, rate, seed in itertools.product(*values.values())}
    assert words == {cell["cell"] for cell in cells}, "models of a recipe differ by row, rate and seed alone"
    alone = cells[0].get("alone", cells[0]["command"])
    command = alone.replace(cells[0]["cell"], ":".join(["ROW", *same, "RATE", "SEED"]))
    return {"rows": values["row"], "rates": sorted(values["rate"]), "seeds": values["seed"], "command": command}


def recipes(runs: Path | None) -> dict[str, Any]:
    """What `repflow reproduce dynamics-...` says of stored comparisons, by recipe and scale."""
    from repflow.store import load_result, read_record

    known: dict[str, Any] = {}
    if runs is None:
        return known
    for file in sorted(runs.glob("dynamics-*/result.json")):
        result = load_result(file.parent)
        grid = load_result(runs / result.provenance["runs"]["models"])
        kept = ("what", "stated", "ours", "holds")
        judged = [line for line in result.provenance["lines"] if line.get("judged", True)]
        known[f"{result.config['recipe']} {result.config['scale']}"] = {
            "models": len(grid.provenance["cells"]),
            "steps": grid.config["steps"],
            "tried": bool(result.config["try_steps"]),
            # of the machine that trained: shares may be put together on another
            "device": read_record(runs / result.provenance["runs"]["models"]).provenance["device_name"],
            "run": result.provenance["runs"]["models"],
            **_spelled(grid.provenance["cells"]),
            "still_falling": _said(runs / result.provenance["runs"]["models"], "still_falling"),
            "models_at_best_rates": _best_models(grid),
            "diverged": [finding.message for finding in grid.findings if finding.code == "diverged"],
            "lines": [{key: line[key] for key in kept} for line in judged],
        }
    return {"recipes": known}


def note(out: Path, name: str, config: ArchitectureConfig) -> None:
    """Keep what is known of a run beside it: texts and settings."""
    import torch

    known = STUDY.facts(config)
    facts: dict[str, Any] = {"models": len(config.grid()), "texts": known["texts"]}
    facts["data"] = {part: {key: own[key] for key in ("documents", "tokens")} for part, own in known["data"].items()}
    facts |= {key: getattr(config, key) for key in ("steps", "batch", "decay", "chunk", "match_row", "eigenvalue_norm")}
    facts |= {"rates": sorted({cell.rate for cell in config.grid()})}
    facts["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    folder = out / FACTS
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(facts), encoding="utf-8")


def train(options: argparse.Namespace) -> None:
    """One phase of a part, as far as the time allows."""
    name, screen = run_name(options.phase, options.part), run_name("screen", options.part)
    if options.phase == "seeds" and not (options.out / screen / "result.json").exists():
        raise SystemExit(f"run {screen} first")
    config = config_of(options.phase, options, tested(options.out, screen))

    def show() -> None:
        for cell in tested(options.out, name):
            seconds = f"{cell['seconds']:.1f} s" if "seconds" in cell else ""
            print(cell["cell"], cell.get("perplexity"), "leak", cell.get("leak"), seconds)

    note(options.out, name, config)
    run_phase(STUDY, config, name, options, show)


def prepare(options: argparse.Namespace) -> None:
    """The development corpus and WikiText-2 as token ids; articles of WikiText-2 are documents."""
    from repflow.training.text import text_data

    corpus, scratch = options.corpus / "corpus", options.out / "texts"
    scratch.mkdir(parents=True, exist_ok=True)
    wiki = (options.corpus / "wikitext2" / "test.txt").read_text(encoding="utf-8")
    articles = [part for part in re.split(r"(?m)^(?= = [^=\n]+ = $)", wiki) if part.strip()]
    (scratch / "wikitext2.txt").write_text("\n<|endoftext|>\n".join(articles), encoding="utf-8")
    for name in ("train", "valid"):
        (scratch / f"{name}.txt").write_bytes(lzma.decompress((corpus / f"{name}.txt.xz").read_bytes()))
    for name, count in (("train", options.documents), ("valid", options.tests), ("wikitext2", options.tests)):
        if count:
            parts = (scratch / f"{name}.txt").read_text(encoding="utf-8").split("<|endoftext|>")[:count]
            (scratch / f"{name}.txt").write_text("<|endoftext|>".join(parts), encoding="utf-8")
    data = text_data(
        scratch / "train.txt",
        held_out=scratch / "valid.txt",
        others={"wikitext2": scratch / "wikitext2.txt"},
        tokenizer=TOKENIZER,
    )
    data.save(options.data)
    size = sum(file.stat().st_size for file in options.data.rglob("*")) / 2**20
    print(f"wrote {options.data}: {size:.1f} MiB", json.dumps(data.facts()))


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("prepare", "screen", "seeds", "table"))
    parser.add_argument("--part", choices=PARTS, default=CORE[0])
    parser.add_argument("--out", type=Path, default=Path("runs/tokens"))
    parser.add_argument("--data", type=Path, default=Path("runs/tokens-text"))
    parser.add_argument("--corpus", type=Path, help="folder with corpus and wikitext2, for prepare")
    parser.add_argument("--documents", type=int, help="first documents of the corpus alone, for a try")
    parser.add_argument("--tests", type=int, help="first documents of both tests alone, for a try: they take longer")
    carry_options(parser)
    parser.add_argument("--steps", type=int, default=STEPS, help="of the phase seeds")
    parser.add_argument("--rates", help="in place of the part's")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--positions", type=int, default=2000)
    parser.add_argument("--reviews", type=Path, help="stored run of repflow classify, for table")
    parser.add_argument("--recipes", type=Path, help="folder of runs of repflow reproduce, for table")
    parser.add_argument("--to", type=Path, default=Path("docs/laboratories/tokens.json"))
    return parser.parse_args()


def main() -> None:
    """Prepare texts, run a phase, or gather all of them."""
    options = parsed()
    if options.phase == "prepare":
        prepare(options)
    else:
        phase_or_table(options, train, lambda out: table(out) | reviews(options.reviews) | recipes(options.recipes))


if __name__ == "__main__":
    main()
