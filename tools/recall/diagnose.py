"""Why do models stay on the plateau where they name some value of a row, but not the one that belongs to the key?

    python -m tools.recall.diagnose --seconds 120 --out FOLDER            on a GPU, at the study's size
    python -m tools.recall.diagnose --size small --seconds 36000 --out FOLDER    the sizes of the CPU runs on the page
    python -m tools.recall.diagnose --size tiny --seconds 60 --out FOLDER        tries the script

One change at a time from the settings with which nine screened models did not learn: 8 models side by side (four rates,
two seeds) on rows of 64 tokens with 4, 8 and 16 pairs. Prints a line per change and rate, and writes diagnosis.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repflow.models.stack.config import StackConfig
from repflow.models.stack.network import StackForCausalLM
from repflow.models.stack.replicas import ReplicaStack
from repflow.studies.laboratory.curve import read_curves
from repflow.tasks.recall import RecallSetting
from repflow.training import OptimiserConfig, Schedule, TrainingConfig, train
from repflow.training.recall import RecallBatches
from repflow.training.replicas import ReplicaBatches, ReplicaLoss

RATES, SEEDS = (0.002, 0.005, 0.01, 0.02), (0, 1)
CHANGES: dict[str, dict[str, Any]] = {
    "as screened: tied head, decay .1, clip 1, betas .9 .95, cosine to 0": {},
    "untied head": {"tied": False},
    "warm-up of a tenth": {"warmup": 0.1},
    "untied head, warm-up of a tenth": {"tied": False, "warmup": 0.1},
    "constant rate": {"shape": "constant"},
    "embeddings of size 1": {"spread": 1.0},
    "decay .01": {"decay": 0.01},
    "no clipping": {"clip": None},
    "betas .9 .999": {"betas": (0.9, 0.999)},
    "as the pilot: untied, constant, decay .01, no clipping, betas .9 .999": {
        **{"tied": False, "shape": "constant", "decay": 0.01, "clip": None, "betas": (0.9, 0.999)}
    },
}
"""In the order in which they run; a call that ends early has the first ones."""
SIZES = {
    "lab": {
        "vocabulary": 8192,
        "width": 64,
        "state": 16,
        "length": 64,
        "pairs": (4, 8, 16),
        "rows": 128,
        "steps": 5000,
    },
    "small": {"vocabulary": 64, "width": 32, "state": 8, "length": 16, "pairs": (2, 4), "rows": 32, "steps": 6000},
    "tiny": {"vocabulary": 32, "width": 16, "state": 4, "length": 16, "pairs": (2, 4), "rows": 8, "steps": 40},
}


def build(size: dict[str, Any], seed: int, *, tied: bool = True, spread: float = 0.02) -> StackForCausalLM:
    """One model at its initialisation."""
    torch.manual_seed(seed)
    mixer = {"name": "s6", "state": size["state"]}
    shape: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": size["width"], "vocab_size": size["vocabulary"]}
    return StackForCausalLM(StackConfig(mixers=mixer, tie_word_embeddings=tied, initializer_range=spread, **shape))


def trained(size: dict[str, Any], change: dict[str, Any], device: str, seconds: float) -> dict[str, Any]:
    """Eight models with one change: accuracy and steps to a half by rate."""
    cells = [(rate, seed) for rate in RATES for seed in SEEDS]
    own = {key: change[key] for key in ("tied", "spread") if key in change}
    whole = ReplicaStack([build(size, seed, **own) for _, seed in cells], factors=[rate for rate, _ in cells])
    kinds = [RecallSetting(length=size["length"], pairs=n, vocabulary=size["vocabulary"]) for n in size["pairs"]]
    sources = {seed: RecallBatches(kinds, rows=size["rows"], seed=seed, device=device) for seed in SEEDS}
    steps = size["steps"]
    how = TrainingConfig(
        steps=steps,
        optimiser=OptimiserConfig(rate=1.0, decay=change.get("decay", 0.1), betas=change.get("betas", (0.9, 0.95))),
        schedule=Schedule(change.get("shape", "cosine"), warmup=round(change.get("warmup", 0.0) * steps)),
        clip=change.get("clip", 1.0),
        device=device,
        log_every=1000,
        seconds=seconds,
    )
    began = time.perf_counter()
    run = train(whole, ReplicaBatches([sources[seed] for _, seed in cells]), how, loss=ReplicaLoss())
    took = time.perf_counter() - began
    rows = []
    for number, (rate, seed) in enumerate(cells):
        loss, accuracy = (run.history[f"{name} {number}"].astype(np.float64) for name in ("loss", "accuracy"))
        curves, last = read_curves(loss, accuracy), max(1, len(loss) // 20)
        half = float(curves["half_step"])
        rows.append(
            {
                **{"rate": rate, "seed": seed, "loss": round(float(loss[-last:].mean()), 3)},
                **{
                    "accuracy": round(float(accuracy[-last:].mean()), 4),
                    "half_step": half if np.isfinite(half) else None,
                },
            }
        )
    return {"steps": run.steps, "seconds": round(took, 1), "tokens_per_second": run.tokens / took, "models": rows}


def main() -> None:
    """Run the changes as far as the time allows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--size", choices=list(SIZES), default="lab")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    size = SIZES[options.size]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began, results = time.perf_counter(), {}
    for name, change in CHANGES.items():
        left = options.seconds - (time.perf_counter() - began)
        if left < 5:
            break
        results[name] = group = trained(size, change, device, left)
        print(f"{name}: {group['steps']} steps, {group['tokens_per_second'] / 1e6:.1f} M tokens/s", flush=True)
        for row in group["models"]:
            half = "never" if row["half_step"] is None else f"{row['half_step']:.0f}"
            words = f"accuracy {100 * row['accuracy']:5.1f} %, loss {row['loss']:.3f}, half right at step {half}"
            print(f"    rate {row['rate']:<6g} seed {row['seed']}: {words}", flush=True)
        facts = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": torch.__version__}
        text = json.dumps({"facts": facts, "size": size, "changes": results}, indent=1)
        (options.out / "diagnosis.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
