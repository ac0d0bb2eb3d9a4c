"""What watching a training costs: whole steps with and without `FlowMeter`, alternating in one process.

    python benchmarks/training.py                                                                    # CPU
    python benchmarks/training.py --shape pythia-410m --batch 16 --tokens 1024 --autocast bfloat16 --device cuda

A round is `--every` steps with the meter and as many without, each from the first forward pass to the optimiser's step
(the GPU is waited for); the meter reads once in it, on prompts that hold one batch's tokens, with the default metrics,
and stores its history. The order changes from round to round. Read the ratio: the median over rounds of the time with
over the time without, on a CPU by the process's own seconds, since a clock would time other programs too. `--form`
adds what else a training does: `compile`, `checkpoint`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

SHAPES = {
    "tiny": (
        "gpt_neox",
        {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256},
    ),
    "gpt-10m": (
        "gpt_neox",
        {
            "hidden_size": 256,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "intermediate_size": 1024,
            "vocab_size": 8192,
        },
    ),
    "pythia-410m": (
        "gpt_neox",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "max_position_embeddings": 2048,
        },
    ),
    "mamba2-370m": (
        "mamba2",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 48,
            "head_dim": 64,
            "num_heads": 32,
            "state_size": 128,
            "n_groups": 1,
        },
    ),
}
METRICS = {"default": "default", "more": ["default", "influence_half_life"]}


def make(args):
    """What a step calls, the step itself, and its batch."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, options = SHAPES[args.shape]
    torch.manual_seed(0)
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).train()
    if args.form == "checkpoint":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    call = torch.compile(model) if args.form == "compile" else model
    fused = {"fused": True} if args.device == "cuda" else {}
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, **fused)
    half = None if args.autocast is None else getattr(torch, args.autocast)
    size = (args.batch, args.tokens)
    ids = torch.randint(0, model.config.vocab_size, size, device=args.device)

    def step():
        with torch.autocast(args.device, dtype=half, enabled=half is not None):
            loss = call(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return call, step, ids


def timed(args, work):
    """Seconds of some work: the clock's on a GPU, the process's own on a CPU."""
    import torch

    now = time.perf_counter if args.device == "cuda" else time.process_time
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    wait()
    began = now()
    work()
    wait()
    return now() - began


def run(args, folder):
    """Seconds of rounds with and without, of one reading, and of making the meter."""
    from repflow.training import FlowMeter

    call, step, ids = make(args)
    for _ in range(args.warm):
        step()
    meters = []
    options = {"metrics": METRICS[args.metrics], "autocast": args.autocast, "out": folder, "on_error": "raise"}
    setup = timed(args, lambda: meters.append(FlowMeter(call, ids.cpu(), args.every, **options)))
    meter = meters[0]
    readings = [timed(args, lambda: meter.measure(0))]
    done = 0

    def watched():
        nonlocal done
        for _ in range(args.every):
            step()
            done += 1
            meter.step(done)

    def bare():
        for _ in range(args.every):
            step()

    seconds = {"with": [], "without": []}
    for number in range(args.rounds):
        for name, work in [("with", watched), ("without", bare)][:: 1 if number % 2 else -1]:
            seconds[name].append(timed(args, work))
    readings += [timed(args, lambda at=at: meter.measure(done + at)) for at in (1, 2, 3)]
    meter.close()
    return {
        "seconds": seconds,
        "setup": setup,
        "first reading": readings[0],
        "reading": statistics.median(readings[1:]),
    }


def summary(args, found):
    """The numbers of the table."""
    pairs = list(zip(found["seconds"]["with"], found["seconds"]["without"], strict=True))
    bare = statistics.median(without for _, without in pairs) / args.every
    return {
        "shape": args.shape,
        "form": args.form,
        "batch": f"{args.batch} x {args.tokens}",
        "every": args.every,
        "step, ms": 1000 * bare,
        "reading, ms": 1000 * found["reading"],
        "reading, steps": found["reading"] / bare,
        "by one reading, %": 100 * found["reading"] / bare / args.every,
        "whole steps, %": 100 * (statistics.median(a / b for a, b in pairs) - 1),
        "making the meter, s": found["setup"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="gpt-10m")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--autocast", choices=("bfloat16", "float16"))
    parser.add_argument("--form", choices=("plain", "compile", "checkpoint"), default="plain")
    parser.add_argument("--metrics", choices=METRICS, default="default")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    args = parser.parse_args()
    import torch

    if args.device == "cpu":
        torch.set_num_threads(1)  # other programs on the machine then change little
    with tempfile.TemporaryDirectory() as folder:
        found = run(args, folder)
    row = summary(args, found)
    for name, value in row.items():
        print(f"{name:>20}: {value:.3g}" if isinstance(value, float) else f"{name:>20}: {value}")
    if args.json is not None:
        args.json.write_text(json.dumps({"row": row, **found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
