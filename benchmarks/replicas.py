"""Tokens a second of many small models trained side by side on one GPU, forward, backward and optimiser.

    python benchmarks/replicas.py [--replicas 1,4,8,16] [--layers 2] [--width 64] [--state 16] [--profile]

Two layers, width 64, 16 states, vocabulary 8,192, 128 rows of 256 tokens, 32 queries, as in issue 20: first one stack
alone by its own code, launch by launch and as a CUDA graph, then `ReplicaStack` of several. Prints a table and JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from repflow.models import StackConfig, StackForCausalLM
from repflow.models.stack.replicas import ReplicaStack
from repflow.tasks import RecallSetting, recall_rows
from repflow.training.batch import Batch
from repflow.training.config import TrainingConfig
from repflow.training.losses import CrossEntropy
from repflow.training.replicas import ReplicaLoss
from repflow.training.step import Stepper

ROWS, LENGTH, PAIRS, VOCABULARY = 128, 256, 32, 8192


def network(seed: int, options: argparse.Namespace) -> StackForCausalLM:
    """A stack of one seed."""
    torch.manual_seed(seed)
    mixer = {"name": "s6", "state": options.state}
    shape = {"num_hidden_layers": options.layers, "hidden_size": options.width, "vocab_size": VOCABULARY}
    return StackForCausalLM(StackConfig(mixers=mixer, **shape))


def batch(rows: int) -> Batch:
    """Rows of the task."""
    setting = RecallSetting(length=LENGTH, pairs=PAIRS, vocabulary=VOCABULARY)
    made = recall_rows(setting, rows, torch.Generator("cuda").manual_seed(0))
    return Batch(made.ids, made.targets, positions=made.positions)


def seconds(stepper: Stepper, rows: Batch, steps: int = 20) -> float:
    """Median of five times of one step, after the graph was recorded."""
    wait = torch.cuda.synchronize if rows.inputs.is_cuda else int
    for number in range(6):
        stepper.step(number, rows)
    wait()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for number in range(steps):
            stepper.step(number, rows)
        wait()
        times.append((time.perf_counter() - start) / steps)
    return statistics.median(times)


def profiled(stepper: Stepper, rows: Batch) -> list[tuple[str, float, int]]:
    """Microseconds of each kernel in one step, and its launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        stepper.step(9, rows)
        torch.cuda.synchronize()
    events = [(event.key[:90], event.self_device_time_total, event.count) for event in found.key_averages()]
    return sorted(events, key=lambda event: -event[1])


def measure(name: str, model: Any, loss: Any, models: int, options: argparse.Namespace, *, graph: bool) -> dict:
    """One row of the table."""
    config = TrainingConfig(steps=10_000, clip=None, graph=graph)
    model = model.cuda().train()
    stepper = Stepper(model, loss, config, torch.device("cuda"))
    rows = batch(ROWS * models)
    each = seconds(stepper, rows)
    row = {"form": name, "models": models, "ms_per_model_step": 1e3 * each / models}
    row["million_tokens_per_second"] = models * ROWS * LENGTH / each / 1e6
    row["graph"], row["notes"] = stepper.recorded, stepper.notes
    row["gib"] = torch.cuda.max_memory_allocated() / 2**30
    print(json.dumps(row), flush=True)
    if options.profile and isinstance(model, ReplicaStack):
        for key, micro, count in profiled(stepper, rows)[:26]:
            print(f"    {micro / models:9.1f} us/model {count:4d}  {key}", flush=True)
    del stepper, model
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", default="1,4,8,16")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--state", type=int, default=16)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    rows = []
    if options.alone:
        for graph in (False, True):
            words = "stack, CUDA graph" if graph else "stack, launch by launch"
            rows.append(measure(words, network(0, options), CrossEntropy(), 1, options, graph=graph))
    for count in map(int, options.replicas.split(",")):
        stack = ReplicaStack([network(seed, options) for seed in range(count)])
        rows.append(measure("replicas", stack, ReplicaLoss(), count, options, graph=True))
    print("form | models | ms per model and step | million tokens/s")
    for row in rows:
        found = (row["form"], row["models"], row["ms_per_model_step"], row["million_tokens_per_second"])
        print("{} | {} | {:.3f} | {:.1f}".format(*found))


if __name__ == "__main__":
    main()
