"""What a penalty costs: whole training steps with it over whole steps without, in one run.

    python benchmarks/penalties.py                                   # a small stack on the CPU, about two minutes
    python benchmarks/penalties.py --device cuda --layers 24 --width 768 --tokens 1024 --rows 8

Steps of all cases take turns, so that a slow moment of the machine hits all of them; the table has medians. On a GPU
also the peak of memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

CASES = (
    "none",
    "token_diversity",
    "excess_similarity",
    "smoothness",
    "stability",
    "block_gain",
    "decay_bound",
    "heads",
)


def penalty_of(case: str, layers: int) -> Any:
    """The penalty of a case, at the settings that the docs recommend to try first."""
    from repflow.training import losses

    made: dict[str, Any] = {
        "token_diversity": lambda: losses.TokenDiversity(0.1),
        "excess_similarity": lambda: losses.ExcessSimilarity(0.1),
        "smoothness": lambda: losses.SmoothnessPenalty(0.1),
        "stability": lambda: losses.StabilityPenalty(0.1),
        "block_gain": lambda: losses.BlockGain(0.1),
        "decay_bound": lambda: losses.DecayBound(0.1),
        "heads": lambda: losses.IntermediateSupervision(0.1, depths=(layers // 2,)),
    }
    return made[case]()


class Case:
    """One training whose steps are timed one at a time."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        import torch

        from repflow.models import StackConfig, StackForCausalLM
        from repflow.training import Batch, CrossEntropy, TrainingConfig
        from repflow.training.losses import Penalised
        from repflow.training.step import Stepper

        torch.manual_seed(0)
        sizes = {"num_hidden_layers": args.layers, "hidden_size": args.width, "vocab_size": args.vocabulary}
        network = StackForCausalLM(StackConfig(args.mixer, **sizes)).to(args.device).train()
        loss = CrossEntropy() if name == "none" else Penalised([penalty_of(name, args.layers)])
        config = TrainingConfig(steps=10**6, device=args.device, graph=args.graph)
        self.torch, self.name, self.device = torch, name, torch.device(args.device)
        self.stepper = Stepper(network, loss, config, self.device)
        self.batch = Batch(torch.randint(0, args.vocabulary, (args.rows, args.tokens), device=self.device))
        self.seconds: list[float] = []
        self.memory = 0

    def step(self, number: int) -> None:
        """One step, timed."""
        gpu = self.device.type == "cuda"
        if gpu:
            self.torch.cuda.synchronize()
            self.torch.cuda.reset_peak_memory_stats()
            before = self.torch.cuda.memory_allocated()
        began = time.perf_counter()
        self.stepper.step(number, self.batch)
        if gpu:
            self.torch.cuda.synchronize()
            self.memory = max(self.memory, self.torch.cuda.max_memory_allocated() - before)
        self.seconds.append(time.perf_counter() - began)


def main() -> None:
    """Time all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mixer", default="s6")
    for name, value in {"layers": 8, "width": 64, "tokens": 128, "rows": 4, "vocabulary": 1024, "steps": 12}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--graph", action="store_true", help="record steps as CUDA graphs")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    warm = 5
    cases = [Case(name, args) for name in args.cases]
    for number in range(args.steps + warm):
        for case in cases:
            case.step(number)
    bare = statistics.median(cases[0].seconds[warm:])
    rows = [
        {
            "penalty": case.name,
            "step_seconds": statistics.median(case.seconds[warm:]),
            "over_none": statistics.median(case.seconds[warm:]) / bare,
            "peak_mebibytes": case.memory / 2**20,
            "graph": case.stepper.recorded,
            "notes": case.stepper.notes,
        }
        for case in cases
    ]
    print(f"{'penalty':20s} {'ms/step':>9s} {'over none':>9s} {'peak MiB':>9s} graph")
    for row in rows:
        numbers = f"{1000 * row['step_seconds']:9.2f} {row['over_none']:8.2f}x {row['peak_mebibytes']:9.0f}"
        print(f"{row['penalty']:20s} {numbers} {row['graph']} {' '.join(row['notes'])}")
    if args.json is not None:
        options = {key: value for key, value in vars(args).items() if key not in {"json", "cases"}}
        args.json.write_text(json.dumps({"options": options, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
