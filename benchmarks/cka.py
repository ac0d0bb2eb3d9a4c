"""All-pairs linear CKA of 24 states: repflow against torch_cka and an obvious loop, and its memory at 8192 tokens.

    python benchmarks/cka.py [--json FILE] [--quick]

torch_cka is measured where it is installed (pip install torch-cka); no extra asks for it, as it is not maintained. It
compares hooked modules, so it runs here through its public class on a model that replays the states. At 512 tokens each
takes the best of three, at 2048 one run each. Values of all three must agree to 1e-5 in the same run.
Memory is measured in a fresh process: the most it held, less what it held with torch loaded and the states made.
"""

import argparse
import io
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stderr
from pathlib import Path

import torch

from repflow.metrics import cka_matrix, linear_cka

STATES, WIDTH = 24, 768
BAR_SPEED, BAR_EQUAL, BUDGET_MB = 30, 1e-5, 2048
REPEATS = {512: 3, 2048: 1}
"""The same for every contender: the best of more runs is faster by luck alone on a busy machine."""


def make_states(tokens):
    """A residual random walk (state, token, width): neighbours are alike, ends are not."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(STATES, tokens, WIDTH, generator=generator)
    for state in range(1, STATES):
        states[state] += states[state - 1]
    return states


def best_time(function, repeats):
    """Least wall time over the repeats (other work on the machine only adds), and the value."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        value = function()
        times.append(time.perf_counter() - start)
    return min(times), value


def own_cka_error(states):
    """How far CKA(X, X) is from 1 when the two are not known to be the same."""
    return abs(float(linear_cka(states[-1], states[-1].clone())) - 1)


def per_pair_loop(states):
    """What one would write: two Gram matrices and Song's formula for every pair (upper half only)."""

    def hsic(k, m):
        n = len(k)
        total = (k * m).sum() + k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k.sum(0) @ m.sum(0))
        return total / (n * (n - 3))

    def gram(x):
        x = x - x.mean(0)
        return (x @ x.T).fill_diagonal_(0).double()

    out = torch.ones(len(states), len(states), dtype=torch.float64)
    for i in range(len(states)):
        for j in range(i):
            k, m = gram(states[i]), gram(states[j])
            out[i, j] = out[j, i] = hsic(k, m) / (hsic(k, k) * hsic(m, m)).sqrt()
    return out


def torch_cka(states):
    """The torch_cka package on a model whose layers hand out the states; None where it is not installed.

    The states come centred: its estimator does not need it, but its float32 sums would lose the mean's size.
    """
    try:
        from torch_cka import CKA
    except ImportError as problem:
        return None, f"torch_cka not measured: {problem}"

    class Replay(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in states)

        def forward(self, rows):
            for layer, state in zip(self.layers, states, strict=True):
                layer(state)  # the hook takes it from here
            return rows

    names = [f"layers.{i}" for i in range(len(states))]
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(states.shape[1])), batch_size=states.shape[1]
    )
    # its progress bar and its advice on names are no part of the measurement
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        comparison = CKA(Replay(), Replay(), "a", "b", model1_layers=names, model2_layers=names)
        comparison.compare(loader, loader)
    return comparison.export()["CKA"].double(), ""


def race(tokens, threads, peers):
    """Times of one size, agreement included."""
    torch.set_num_threads(threads)
    states = make_states(tokens)
    repeats = REPEATS[tokens]
    cka_matrix(states[:2, :64])  # loads what the first call loads
    seconds, value = best_time(lambda: cka_matrix(states), repeats)
    row = {"tokens": tokens, "threads": threads, "repflow_s": seconds}
    row["own_cka_error"] = own_cka_error(states)
    if "loop" in peers:
        row["loop_s"], loop = best_time(lambda: per_pair_loop(states), repeats)
        row["loop_ratio"] = row["loop_s"] / seconds
        row["loop_difference"] = float((value - loop).abs().max())
    if "torch_cka" in peers:
        centred = states - states.mean(1, keepdim=True)
        row["torch_cka_s"], (peer, row["note"]) = best_time(lambda: torch_cka(centred), repeats)
        if peer is None:
            del row["torch_cka_s"]
        else:
            row["torch_cka_ratio"] = row["torch_cka_s"] / seconds
            row["torch_cka_difference"] = float((value - peer).abs().max())
    return row


def peak_mb():
    """Most resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024**2 if platform.system() == "Darwin" else 1024)


def memory_probe(tokens):
    """Run in a process of its own: peak memory before and after."""
    states = make_states(tokens)
    cka_matrix(states[:2, :300])  # loads what the first call loads
    before = peak_mb()
    start = time.perf_counter()
    cka_matrix(states)
    return {
        "tokens": tokens,
        "threads": torch.get_num_threads(),
        "seconds": time.perf_counter() - start,
        "states_mb": states.numel() * 4 / 1024**2,
        "peak_mb": peak_mb(),
        "extra_mb": peak_mb() - before,
        "own_cka_error": own_cka_error(states),
    }


def cell(row, key, form):
    return format(row[key], form) if key in row and not math.isnan(row[key]) else "—"


def print_table(report):
    print(f"{STATES} states, width {WIDTH}, float32, unbiased; {report['machine']}")
    print("tokens threads  repflow s   loop s    ratio  torch_cka s    ratio  |difference|")
    for row in report["speed"]:
        difference = max(row.get("loop_difference", 0), row.get("torch_cka_difference", 0))
        print(
            f"{row['tokens']:6} {row['threads']:7} {row['repflow_s']:10.3f} {cell(row, 'loop_s', '8.2f'):>8} "
            f"{cell(row, 'loop_ratio', '7.1f'):>7}x {cell(row, 'torch_cka_s', '11.2f'):>12} "
            f"{cell(row, 'torch_cka_ratio', '7.1f'):>7}x {difference:12.1e}"
        )
    memory = report["memory"]
    print(
        f"{memory['tokens']} tokens: {memory['seconds']:.1f} s, peak {memory['peak_mb']:.0f} MB in all, of which"
        f" {memory['states_mb']:.0f} MB states; extra {memory['extra_mb']:.0f} MB; budget {BUDGET_MB} MB"
    )
    for note in sorted({row["note"] for row in report["speed"] if row.get("note")}):
        print(note)
    for name, met in report["bars"].items():
        print(f"{name}: {'met' if met else 'NOT met' if met is False else 'not measured'}")


def bars(speed, memory):
    ratios = [row["torch_cka_ratio"] for row in speed if "torch_cka_ratio" in row and row["tokens"] == 512]
    differences = [row[key] for row in speed for key in ("loop_difference", "torch_cka_difference") if key in row]
    own = [row["own_cka_error"] for row in (*speed, memory)]
    return {
        f"at least {BAR_SPEED}x torch_cka at 512 tokens": min(ratios) >= BAR_SPEED if ratios else None,
        f"equal to {BAR_EQUAL}": max(differences) <= BAR_EQUAL if differences else None,
        "CKA(X, X) = 1 to 1e-6": max(own) <= 1e-6,
        f"{memory['tokens']} tokens within {BUDGET_MB} MB, states and interpreter included": memory["peak_mb"]
        <= BUDGET_MB,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the report here")
    parser.add_argument("--quick", action="store_true", help="512 tokens only, memory at 2048")
    parser.add_argument("--memory-probe", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_probe:
        print(json.dumps(memory_probe(arguments.memory_probe)))
        return
    every = torch.get_num_threads()
    speed = [race(512, threads, ("loop", "torch_cka")) for threads in dict.fromkeys((1, every))]
    if not arguments.quick:
        # torch_cka needs minutes from here on: n³ products of Gram matrices for every pair
        speed += [race(2048, threads, ("loop",)) for threads in dict.fromkeys((1, every))]
    probe = [sys.executable, __file__, "--memory-probe", "2048" if arguments.quick else "8192"]
    memory = json.loads(subprocess.run(probe, check=True, capture_output=True, text=True).stdout)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    report = {"states": STATES, "width": WIDTH, "machine": machine, "speed": speed, "memory": memory}
    report["bars"] = bars(speed, memory)
    print_table(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
