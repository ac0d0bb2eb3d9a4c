"""The core of the recall laboratory (docs/laboratories/recall.md): is it the poles, the extra state, or the rate?

    python -m tools.recall.run screen  --out runs/recall [--seconds 540]   3 rates, one seed, a third of the steps
    python -m tools.recall.run confirm --out runs/recall [--seconds 540]   the best two rates of each row, all steps
    python -m tools.recall.run seeds   --out runs/recall [--seconds 540]   five new seeds at the best rate
    python -m tools.recall.run table   --out runs/recall                   docs/laboratories/recall.json from these

Each phase is one run of `repflow recall`; run a phase again until it says that it is done. `--keep FOLDER` packs the
runs and half-trained models into parts of 15 MiB when the time is up, so that they can be carried to another machine,
where `--from FOLDER` unpacks them. `--extension published` and `--extension single` have the same phases for more rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from repflow.core.results import Result
from repflow.studies.recall.config import RecallCell, RecallConfig
from repflow.studies.recall.study import STUDY
from tools.phases import carry_options, exact_command, phase_or_table, run_phase, trained_cells

ROWS = {
    "core": ("right", ("none/16", "none/18", "both/16", "both+/16", "placebo/16")),
    "published": ("published", ("none/16", "none/18", "both/16", "both+/16", "placebo/16")),
    "single": ("right", ("one/16", "zero/16", "one+/16", "zero+/16", "none/17")),
}
"""Initialisation and rows of the core, and of each extension."""
LAYERS, RATES, STEPS, SEEDS = (2, 4), (0.005, 0.01, 0.02), 12_000, range(1, 6)
PHASES = {"screen": (), "confirm": ("screen",), "seeds": ("confirm",)}
"""Phases, and those whose results each of them needs."""
SHOWN = ("accuracy", "half_step", "loss_drop", "diverged_at", "half_reach", "kappa", "parameters", "state_bytes")
CURVES = ("accuracy_by_distance", "token_similarity", "half_life")


def score(result: Result, place: int) -> float:
    """Mean accuracy over numbers of pairs; −1 for a model that diverged."""
    value = float(np.mean(result["accuracy"][place]))
    return value if np.isfinite(value) else -1.0


def ranked(results: list[Result], row: str, layers: int) -> list[float]:
    """Rates of a row and depth, the best first."""
    scores: dict[float, list[float]] = {}
    for result in results:
        for place, cell in enumerate(result.provenance["cells"]):
            if (cell["row"], cell["layers"]) == (row, layers):
                scores.setdefault(float(cell["rate"]), []).append(score(result, place))
    return sorted(scores, key=lambda rate: -float(np.mean(scores[rate])))


def cells_of(phase: str, earlier: list[Result], rows: str, rates: list[float]) -> list[str]:
    """Models of a phase."""
    cells = []
    init, words = ROWS[rows]
    for layers in LAYERS:
        for row in words:
            if phase == "screen":
                pairs = [(rate, 0) for rate in rates]
            elif phase == "confirm":
                pairs = [(rate, 0) for rate in ranked(earlier, row, layers)[:2]]
            else:
                pairs = [(ranked(earlier, row, layers)[0], seed) for seed in SEEDS]
            cells += [str(RecallCell(row, layers, 64, init, rate, seed)) for rate, seed in pairs]
    return cells


def run_name(phase: str, rows: str) -> str:
    """Of a phase's run."""
    return f"{rows}-{phase}"


def config_of(phase: str, earlier: list[Result], options: argparse.Namespace) -> RecallConfig:
    """The request of a phase."""
    steps = max(1, options.steps // 3) if phase == "screen" else options.steps
    more: dict[str, Any] = {"flow_samples": 0} if phase == "screen" else {}
    more |= {"lengths": options.lengths.split(","), "vocabulary": options.vocabulary, "batch": options.batch}
    more |= {"test_rows": options.test_rows, "seconds": options.seconds, "checkpoint": 5000}
    more |= {"untied": options.untied, "warmup": options.warmup, "together": options.together}
    rates = [float(rate) for rate in options.rates.split(",")]
    return RecallConfig(cells=cells_of(phase, earlier, options.extension or "core", rates), steps=steps, **more)


def stored(out: Path, name: str) -> Result | None:
    """The finished run of a phase."""
    from repflow.store import load_result

    return load_result(out / name) if (out / name / "result.json").exists() else None


def table(out: Path) -> dict[str, Any]:
    """Numbers of all finished phases, and of the cells of unfinished ones that are trained."""
    numbers: dict[str, Any] = {}
    for rows in ROWS:
        for phase in PHASES:
            name = run_name(phase, rows)
            result = stored(out, name)
            if result is not None:
                facts = {key: result.provenance.get(key) for key in ("device_name", "packages", "repflow")}
                recall = {key: value for key, value in result.provenance["recall"].items() if key != "steps"}
                cells = [described(result, place) for place in range(len(result.provenance["cells"]))]
                numbers[name] = {"facts": facts, "recall": recall, "config": result.config, "cells": cells}
            elif cells := unfinished(out, name):
                numbers[name] = {"unfinished": True, "cells": cells}
    return numbers


def described(result: Result, place: int) -> dict[str, Any]:
    """Numbers of one model, rounded."""
    cell = result.provenance["cells"][place]
    own = {key: cell[key] for key in ("cell", "row", "layers", "init", "rate", "seed", "tokens")}
    own["command"] = exact_command(result.provenance["recall"]["groups"], cell["cell"])
    numbers = {name: _plain(result[name][place], 6) for name in SHOWN if name in result}
    return {**own, **numbers, **{name: _plain(result[name][place], 4) for name in CURVES if name in result}}


def _plain(values: np.ndarray, digits: int) -> Any:
    """Plain numbers, None for NaN."""
    if np.ndim(values):
        return [_plain(value, digits) for value in values]
    return round(float(values), digits) if np.isfinite(values) else None


def unfinished(out: Path, name: str) -> list[dict[str, Any]]:
    """Models of a run that are trained and tested while others are not."""
    cells = []
    for word, arrays in trained_cells(out, name):
        own: dict[str, Any] = {"cell": word}
        if "right" in arrays:
            own["accuracy"] = np.round(arrays["right"].sum(1) / arrays["queries"].sum(1), 4).tolist()
        own |= {"last_loss": round(float(arrays["loss"][-1]), 4), "loss_drop": round(float(arrays["loss_drop"]), 4)}
        cells.append(own)
    return cells


def train(options: argparse.Namespace) -> None:
    """One phase, as far as the time allows."""
    rows = options.extension or "core"
    needed = [run_name(phase, rows) for phase in PHASES[options.phase]]
    earlier = [result for name in needed if (result := stored(options.out, name)) is not None]
    if len(earlier) < len(needed):
        raise SystemExit(f"run {needed[0]} first")
    config = config_of(options.phase, earlier, options)
    name = run_name(options.phase, rows)

    def show() -> None:
        for cell in unfinished(options.out, name):
            print(cell)

    run_phase(STUDY, config, name, options, show)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=(*PHASES, "table"))
    parser.add_argument("--extension", choices=[name for name in ROWS if name != "core"])
    parser.add_argument("--out", type=Path, default=Path("runs/recall"))
    carry_options(parser)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rates", default=",".join(f"{rate:g}" for rate in RATES))
    parser.add_argument("--warmup", type=float, default=0.1)
    parser.add_argument("--untied", action="store_true")
    parser.add_argument("--together", type=int, default=8)
    parser.add_argument("--lengths", default="64,128,256")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--test-rows", type=int, default=1000)
    parser.add_argument("--to", type=Path, default=Path("docs/laboratories/recall.json"))
    options = parser.parse_args()
    phase_or_table(options, train, table)


if __name__ == "__main__":
    main()
