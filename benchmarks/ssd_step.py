"""A training step of Mamba-2 stacks on a GPU: layers in one step between their projections, and by parts.

    python benchmarks/ssd_step.py [--profile] [--out FOLDER]

First both forms are held against the reference in float64, in float32 and under autocast to bfloat16. Then whole steps
of the training loop (forward, backward, clip, AdamW, replayed as a CUDA graph) are timed in turn for the models of the
remedy study: 12 layers of width 112, heads of 16, 64 rows of 256 tokens. With `--device cpu --layers 1 --width 16
--rows 2 --tokens 16` it runs anywhere, to see that it works; there both forms are the same.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
from replicas import profiled, seconds

from repflow.mixers import ssd
from repflow.mixers.ssd import SSD
from repflow.models import StackConfig, StackForCausalLM
from repflow.training.batch import Batch
from repflow.training.config import TrainingConfig
from repflow.training.losses import CrossEntropy
from repflow.training.step import Stepper

FORMS = {"one step": ssd.in_one_step, "by parts": lambda *_, **__: False}
IDS = 1280
LARGEST = {"float32": 2e-3, "bfloat16": 5e-2}
"""Relative errors above which a form is called wrong: products in tf32, and in bfloat16."""


def errors(options: argparse.Namespace) -> dict[str, float]:
    """Largest error of a layer's output and gradients against the reference in float64, by form and precision."""
    found = {}
    for name, form in FORMS.items():
        for half in (False, True) if options.device == "cuda" else (False,):
            torch.manual_seed(0)
            mixer = SSD(48, state=64, head_dim=16).to(options.device)
            wide, x = copy.deepcopy(mixer).double(), torch.randn(3, 150, 48, device=options.device)
            ssd.in_one_step = form
            with torch.autocast(options.device, dtype=torch.bfloat16, enabled=half):
                y = mixer(x)
            slope = torch.randn_like(x)
            y.float().backward(slope)
            true = wide(x.double(), path="reference")
            true.backward(slope.double())
            pairs = [
                (y.detach(), true.detach()),
                *((a.grad, b.grad) for a, b in zip(mixer.parameters(), wide.parameters(), strict=True)),
            ]
            worst = max(float((a.double() - b).norm() / b.norm()) for a, b in pairs)
            found[f"{name}, {'bfloat16' if half else 'float32'}"] = worst
    return found


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step of the training loop in one form."""
    ssd.in_one_step = FORMS[name]
    torch.manual_seed(0)
    shape = {"num_hidden_layers": options.layers, "hidden_size": options.width, "vocab_size": IDS}
    network = StackForCausalLM(StackConfig(mixers={"name": "ssd", "head_dim": options.head_dim}, **shape))
    config = TrainingConfig(steps=10_000, device=options.device)
    stepper = Stepper(network.to(options.device).train(), CrossEntropy(), config, torch.device(options.device))
    rows = Batch(torch.randint(0, IDS, (options.rows, options.tokens), device=options.device))
    each = seconds(stepper, rows, options.steps)
    row = {"form": name, "ms": 1e3 * each, "million_tokens_per_second": rows.inputs.numel() / each / 1e6}
    row |= {"graph": stepper.recorded, "notes": stepper.notes}
    if options.device == "cuda":
        row["gib"] = torch.cuda.max_memory_allocated() / 2**30
        row["kernels"] = profiled(stepper, rows)[:14] if options.profile else []
        torch.cuda.reset_peak_memory_stats()
    return row


def main() -> None:
    """Check, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 12), ("width", 112), ("head-dim", 16), ("rows", 64), ("tokens", 256), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    found = errors(options)
    wrong = [words for words, error in found.items() if not error < LARGEST[words.rpartition(" ")[2]]]
    print(json.dumps(found), f"WRONG: {'; '.join(wrong)}" if wrong else "both forms are right", sep="\n", flush=True)
    rows = [measure(name, options) for name in FORMS]
    if options.out is not None:
        (options.out / "ssd_step.json").write_text(json.dumps({"errors": found, "rows": rows}, indent=1))
    print("form | ms a step | million tokens/s | over by parts")
    for row in rows:
        rate, ratio = row["million_tokens_per_second"], rows[-1]["ms"] / row["ms"]
        print(f"{row['form']} | {row['ms']:.2f} | {rate:.2f} | {ratio:.2f}x")
        for kernel in row.get("kernels", []):
            print("   ", *kernel, sep="  ")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
