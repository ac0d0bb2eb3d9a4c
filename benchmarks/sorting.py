"""What sorting tokens costs (paper 3's Table 8): whole training steps with it over whole steps without, in one run.

    python benchmarks/sorting.py                                   # small classifiers on the CPU, some seconds
    python benchmarks/sorting.py --device cuda --layers 12 --width 640 --rows 128

Rows are those of `repflow pixels`, each by its own stack's code. Steps of all rows take turns, so that a slow moment of
the machine hits all of them; the table has medians, on a CPU of the process's own time, which other work does not
lengthen. On a GPU also the peak of memory, weights and optimiser with it.
The paper: 308 to 322 s an epoch (1.05 times), 7,232 to 7,334 MB (1.01 times), MambaVision-T on ImageNet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

ROWS = (
    "mamba/16+mean",
    *("mamba/16+mean+leaky", "mamba/16+mean+leaky+hard", "mamba/16+mean+leaky+restore", "mamba/16+mean+leaky+all"),
)
CHANNELS, CLASSES, WARM = 12, 10, 3
"""Patches of 2 × 2 pixels in three colours."""


class Training:
    """One training whose steps are timed one at a time."""

    def __init__(self, row: str, args: argparse.Namespace) -> None:
        import torch

        from repflow.models import StackConfig
        from repflow.models.stack.network import StackForSequenceClassification
        from repflow.studies.pixels.config import parse_row
        from repflow.training import Batch, CrossEntropy, TrainingConfig
        from repflow.training.step import Stepper

        torch.manual_seed(0)
        frame = parse_row(row).frame(args.layers, args.width, args.tokens)
        config = StackConfig(input_channels=CHANNELS, num_labels=CLASSES, **frame)
        network = StackForSequenceClassification(config).to(args.device).train()
        how = TrainingConfig(steps=10**6, device=args.device, graph=args.graph)
        self.torch, self.row, self.device = torch, row, torch.device(args.device)
        self.parameters = sum(part.numel() for part in network.parameters())
        self.stepper = Stepper(network, CrossEntropy(), how, self.device)
        images = torch.rand(args.rows, args.tokens, CHANNELS, device=self.device)
        self.batch = Batch(images, torch.randint(CLASSES, (args.rows,), device=self.device))
        self.seconds: list[float] = []

    def step(self, number: int) -> None:
        """One step, timed."""
        gpu = self.device.type == "cuda"
        clock = time.perf_counter if gpu else time.process_time
        if gpu:
            self.torch.cuda.synchronize()
        began = clock()
        self.stepper.step(number, self.batch)
        if gpu:
            self.torch.cuda.synchronize()
        self.seconds.append(clock() - began)


def peak_bytes(row: str, args: argparse.Namespace) -> int | None:
    """Most memory of a training by itself; None on a CPU."""
    import torch

    if torch.device(args.device).type != "cuda":
        return None
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    alone = Training(row, args)
    for number in range(WARM):
        alone.step(number)
    return int(torch.cuda.max_memory_allocated()) - before


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Size, time and memory of every row, each also by that of the first."""
    memory = {row: peak_bytes(row, args) for row in args.cases}
    trainings = [Training(row, args) for row in args.cases]
    for number in range(args.steps + WARM):
        for training in trainings:
            training.step(number)
    seconds = {one.row: statistics.median(one.seconds[WARM:]) for one in trainings}
    bare, least = seconds[args.cases[0]], memory[args.cases[0]]
    return [
        {
            "row": one.row,
            "parameters": one.parameters,
            "step_seconds": seconds[one.row],
            "time_ratio": seconds[one.row] / bare,
            "peak_bytes": memory[one.row],
            "memory_ratio": None if least is None else (memory[one.row] or 0) / least,
            "graph": one.stepper.recorded,
        }
        for one in trainings
    ]


def main() -> None:
    """Time all rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    for name, value in {"layers": 3, "width": 64, "tokens": 256, "rows": 4, "steps": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--graph", action="store_true", help="record steps as CUDA graphs")
    parser.add_argument(
        "--cases", nargs="+", default=list(ROWS), help="rows of repflow pixels; ratios are by the first"
    )
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    rows = measured(args)
    print(f"{'row':30s} {'parameters':>11s} {'ms/step':>9s} {'time':>6s} {'peak MiB':>9s} {'memory':>6s} graph")
    for one in rows:
        peak = "-" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 2**20:.0f}"
        more = "-" if one["memory_ratio"] is None else f"{one['memory_ratio']:.2f}x"
        time_words = f"{1000 * one['step_seconds']:9.2f} {one['time_ratio']:5.2f}x"
        print(f"{one['row']:30s} {one['parameters']:11,d} {time_words} {peak:>9s} {more:>6s} {one['graph']}")
    if args.json is not None:
        options = {key: value for key, value in vars(args).items() if key != "json"}
        args.json.write_text(json.dumps({"options": options, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
