"""The core of the recall laboratory (docs/laboratories/recall.md): is it the poles, the extra state, or the rate?

    python benchmarks/recall.py screen  --out runs/recall [--seconds 540]   3 rates, one seed, a third of the steps
    python benchmarks/recall.py confirm --out runs/recall [--seconds 540]   the best two rates of each row, all steps
    python benchmarks/recall.py seeds   --out runs/recall [--seconds 540]   five new seeds at the best rate
    python benchmarks/recall.py table   --out runs/recall                   benchmarks/recall.json of what is there

Each phase is one run of `repflow recall`; run a phase again until it says that it is done. `--keep FILE.tar` packs the
runs when the time is up, so that they can be carried to another machine (`--from FILE.tar` unpacks them there).
"""

from __future__ import annotations

import argparse
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from repflow.core.errors import PausedError
from repflow.core.results import Result
from repflow.studies.recall.config import RecallCell, RecallConfig
from repflow.studies.recall.study import STUDY

ROWS = ("none/16", "none/18", "both/16", "both+/16", "placebo/16")
LAYERS, RATES, STEPS = (2, 4), (1e-3, 2e-3, 4e-3), 21_000
SHOWN = ("accuracy", "half_step", "loss_drop", "diverged_at", "half_reach", "kappa", "parameters", "state_bytes")


def score(result: Result, place: int) -> float:
    """Mean accuracy over numbers of pairs."""
    value = float(np.mean(result["accuracy"][place]))
    return value if np.isfinite(value) else -1.0


def ranked(results: list[Result], row: str, layers: int) -> list[float]:
    """Rates of a row and depth, the best first."""
    found: dict[float, list[float]] = {}
    for result in results:
        for place, cell in enumerate(result.provenance["cells"]):
            if (cell["row"], cell["layers"]) == (row, layers):
                found.setdefault(float(cell["rate"]), []).append(score(result, place))
    return sorted(found, key=lambda rate: -float(np.mean(found[rate])))


def cells_of(phase: str, earlier: list[Result]) -> list[str]:
    """Models of a phase."""
    made = []
    for layers in LAYERS:
        for row in ROWS:
            if phase == "screen":
                pairs = [(rate, 0) for rate in RATES]
            elif phase == "confirm":
                pairs = [(rate, 0) for rate in ranked(earlier, row, layers)[:2]]
            else:
                pairs = [(ranked(earlier, row, layers)[0], seed) for seed in range(1, 6)]
            made += [str(RecallCell(row, layers, 64, "right", rate, seed)) for rate, seed in pairs]
    return made


def config_of(phase: str, earlier: list[Result], options: argparse.Namespace) -> RecallConfig:
    """The request of a phase."""
    steps = max(1, options.steps // 3) if phase == "screen" else options.steps
    more: dict[str, Any] = {"flow_samples": 0} if phase == "screen" else {}
    more |= {"lengths": options.lengths.split(","), "vocabulary": options.vocabulary, "batch": options.batch}
    more |= {"test_rows": options.test_rows, "seconds": options.seconds, "checkpoint": 5000}
    return RecallConfig(cells=cells_of(phase, earlier), steps=steps, **more)


def stored(out: Path, phase: str) -> Result | None:
    """The finished run of a phase."""
    from repflow.store import load_result

    place = out / f"core-{phase}"
    return load_result(place) if (place / "result.json").exists() else None


def table(out: Path) -> dict[str, Any]:
    """Numbers of all finished phases."""
    found: dict[str, Any] = {}
    for phase in ("screen", "confirm", "seeds"):
        result = stored(out, phase)
        if result is None:
            if cells := unfinished(out, phase):
                found[phase] = {"unfinished": True, "cells": cells}
            continue
        cells = []
        for place, cell in enumerate(result.provenance["cells"]):
            own = {key: cell[key] for key in ("cell", "tokens", "command")}
            numbers = {name: np.round(result[name][place], 6).tolist() for name in SHOWN if name in result}
            for name in ("accuracy_by_distance", "token_similarity", "half_life"):
                if name in result:
                    numbers[name] = np.round(result[name][place], 4).tolist()
            cells.append({**own, **numbers})
        facts = {key: result.provenance.get(key) for key in ("device_name", "packages", "repflow")}
        found[phase] = {"facts": facts, "recall": result.provenance["recall"], "cells": cells}
    return found


def unfinished(out: Path, phase: str) -> list[dict[str, Any]]:
    """Models of a phase that are trained and tested while others are not."""
    from safetensors.numpy import load_file

    from repflow.store import read_record

    place = out / f"core-{phase}"
    if not (place / "run.json").exists():
        return []
    words, found = read_record(place).config["cells"], []
    for shard in sorted((place / "shards").glob("cell-*.safetensors")):
        arrays = load_file(shard)
        accuracy = arrays["right"].sum(1) / arrays["queries"].sum(1)
        own = {"cell": words[int(shard.stem.removeprefix("cell-"))], "accuracy": np.round(accuracy, 4).tolist()}
        own |= {"last_loss": round(float(arrays["loss"][-1]), 4), "loss_drop": round(float(arrays["loss_drop"]), 4)}
        found.append(own)
    return found


def unpack(file: str | None, out: Path) -> None:
    """Runs from another machine."""
    if file is not None and Path(file).exists():
        with tarfile.open(file) as archive:
            archive.extractall(out, filter="data")


def pack(file: str | None, out: Path) -> None:
    """Runs for another machine, without half-trained models."""
    if file is not None:
        with tarfile.open(file, "w") as archive:
            for run in sorted(out.glob("core-*")):
                if not run.name.endswith(".training"):
                    archive.add(run, run.name)


def train(options: argparse.Namespace) -> None:
    """One phase, as far as the time allows."""
    before = {"screen": [], "confirm": ["screen"], "seeds": ["confirm"]}[options.phase]
    earlier = [found for phase in before if (found := stored(options.out, phase)) is not None]
    if len(earlier) < len(before):
        raise SystemExit(f"run the phase {before[0]} first")
    config = config_of(options.phase, earlier, options)
    try:
        result = STUDY.run(config, out=options.out, name=f"core-{options.phase}", progress=Shown())
        print(f"{options.phase} is done")
        for place, cell in enumerate(result.provenance["cells"]):
            print(cell["cell"], np.round(100 * result["accuracy"][place], 1).tolist())
    except PausedError as error:
        print(error)
    finally:
        pack(options.keep, options.out)


class Shown:
    """Prints what is being done."""

    def __call__(self, done: int, total: int, tokens: int) -> None:
        """Models that are done."""
        print(f"{done} of {total} models", flush=True)

    def phase(self, text: str, done: int, total: int | None) -> None:
        """What begins."""
        print(text, flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("screen", "confirm", "seeds", "table"))
    parser.add_argument("--out", type=Path, default=Path("runs/recall"))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--lengths", default="64,128,256")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--test-rows", type=int, default=1000)
    parser.add_argument("--keep")
    parser.add_argument("--from", dest="source")
    parser.add_argument("--to", type=Path, default=Path("benchmarks/recall.json"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    unpack(options.source, options.out)
    if options.phase == "table":
        options.to.write_text(json.dumps(table(options.out), indent=1) + "\n", encoding="utf-8")
        print(f"wrote {options.to}")
    else:
        train(options)


if __name__ == "__main__":
    main()
