"""Tokens that are not finite in the Triton scans on a GPU: which tokens they spoil, and what the repair costs.

    python benchmarks/nan_repair_gpu.py                          # about half a minute on an H200
    python benchmarks/nan_repair_gpu.py --before build/before    # also the speed of another version, taking turns
    TRITON_INTERPRET=1 python benchmarks/nan_repair_gpu.py --cpu-smoke --before build/before    # does the script work?

--before names a folder that holds another version's package `repflow`, for instance that of a commit:

    mkdir -p build/before && git archive main:src | tar -x -C build/before --wildcards '*.py'

Times are those of the forward scan alone, of the Mamba2-2.7B shape (80 heads of 64, state 128, 2048 tokens), as a CUDA
graph of ten calls: the median of 15 turns of both versions. With the graph no launch waits for Python.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import statistics
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

import torch
from torch.nn import functional as F

from repflow.mixers.scan import forms

CALLS, TURNS = 10, 15


def kernels_of(folder, package):
    """The module of another version's SSD scan, its package under another name so that both can be imported."""
    home = Path(tempfile.mkdtemp())
    shutil.copytree(folder / "repflow", home / package)
    for path in (home / package).rglob("*.py"):
        path.write_text(re.sub(r"\brepflow\b", package, path.read_text(encoding="utf-8")), encoding="utf-8")
    sys.path.insert(0, str(home))
    return importlib.import_module(scan_module(home / package))


def scan_module(package):
    """Dotted name of the module that defines the scan, wherever a version keeps it."""
    (found,) = (p for p in package.rglob("*.py") if "\ndef ssd_scan_triton(" in p.read_text(encoding="utf-8"))
    return ".".join([package.name, *found.relative_to(package).with_suffix("").parts])


def ours():
    import repflow

    return importlib.import_module(scan_module(Path(repflow.__file__).parent))


# ---------------------------------------------------------------- correctness
def draw(batch, tokens, heads, dim, groups, state, dtype, device):
    def normal(*sizes):
        return torch.randn(*sizes, device=device).to(dtype)

    return {
        "x": normal(batch, tokens, heads, dim), "delta": normal(batch, tokens, heads) - 2,
        "A": -torch.rand(heads, device=device) - 0.1, "B": normal(batch, tokens, groups, state),
        "C": normal(batch, tokens, groups, state), "D": torch.randn(heads, device=device),
    }  # fmt: skip


def run(module, inputs, **more):
    with torch.no_grad():
        return module.ssd_scan_triton(**inputs, delta_softplus=True, **more)


def exact(inputs):
    wide = {name: v.double() for name, v in inputs.items()}
    wide["delta"] = F.softplus(wide["delta"])
    with torch.no_grad():
        return forms.ssd_scan(**wide, path="reference")


def verdict(module, inputs, spoiled, whole, more):
    """What differs from the sequential form in float64, and from the numbers of finite inputs beyond rounding."""
    got, finite = run(module, spoiled, **more), exact(spoiled).isfinite()
    wrong = int((got.isfinite() != finite).sum())
    # a repaired head is worked on by another kernel, whose float32 sums the compiler may order in another way
    room = 4 * torch.finfo(got.dtype).eps * float(whole.abs().max()) if got.dtype == torch.float32 else 0.0
    changed = int(((got[finite] - whole[finite]).abs() > room).sum())
    return wrong, changed, int((~finite).sum())


def places(tokens, rows):
    """One number each: around the borders of tiles and chunks, in every input."""
    for token in sorted({0, rows - 1, rows, 2 * rows - 1, 2 * rows, tokens // 2 + 3, tokens - 1}):
        yield "x", (1, token, 2, 3)
        yield "B", (0, token, 1, 5)
        yield "C", (1, token, 0, 2)
        yield "delta", (0, token, 3)


def check(module, dtype, tokens, rows, device, more):
    """Each place alone with NaN and inf, then all of them at once."""
    inputs = draw(2, tokens, 4, 16, 2, 32, dtype, device)
    whole, cases = run(module, inputs, **more), list(places(tokens, rows))
    failed = []
    for value in (torch.nan, torch.inf):
        for name, at in cases:
            spoiled = {**inputs, name: inputs[name].clone()}
            spoiled[name][at] = value
            wrong, changed, count = verdict(module, inputs, spoiled, whole, more)
            if wrong or changed or not count:
                failed.append(f"{name}{list(at)} = {value}: {wrong} spoiled or spared wrongly, {changed} changed")
    spoiled = {name: v.clone() for name, v in inputs.items()}
    for (name, at), value in zip(cases[4:], cycle((torch.nan, torch.inf)), strict=False):
        spoiled[name][at] = value
    if any(verdict(module, inputs, spoiled, whole, more)[:2]):
        failed.append("all at once")
    kind = str(dtype).removeprefix("torch.")
    print(
        f"{kind}, {tokens} tokens: {2 * len(cases) + 1 - len(failed)} right, {len(failed)} wrong",
        *failed[:4],
        sep="\n  ",
    )
    return not failed


# ---------------------------------------------------------------- speed
def graph_of(call):
    """CALLS calls as one CUDA graph, compiled and warm."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return graph.replay


def timed(play):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    play()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / CALLS


def clock(calls):
    """Milliseconds of a call of each kind, the kinds taking turns."""
    plays = {name: graph_of(call) for name, call in calls.items()}
    times = {name: [] for name in plays}
    for turn in range(TURNS + 3):
        for name, play in plays.items():
            taken = timed(play)
            if turn >= 3:
                times[name].append(taken)
    return {name: (statistics.median(v), min(v), max(v)) for name, v in times.items()}


def speed(new, before, batch, dtype, device, **more):
    inputs = draw(batch, 2048, 80, 64, 1, 128, dtype, device)
    one, every = ({**inputs, "x": inputs["x"].clone()} for _ in range(2))
    one["x"][0, 1000, 7, 3] = torch.nan
    every["x"][:, 1000] = torch.nan
    calls = {"now": lambda: run(new, inputs, **more)}
    if before is not None:
        calls["before"] = lambda: run(before, inputs, **more)
    calls["now, one NaN"] = lambda: run(new, one, **more)
    calls["now, NaN in every head"] = lambda: run(new, every, **more)
    times = clock(calls)
    label = f"B={batch} {str(dtype).removeprefix('torch.')} {'' if not more else 'chunks of 64'}".strip()
    for name, (median, low, high) in times.items():
        print(f"{label:24s} {name:24s} {median:.4f} ms [{low:.4f}, {high:.4f}]", flush=True)
    if before is not None:
        print(f"{label:24s} now / before = {times['now'][0] / times['before'][0]:.4f}", flush=True)


def smoke(new, before):
    """Everything but the clock, on tiny shapes in Triton's interpreter."""
    device, tiles = torch.device("cpu"), new.Tiles(chunk=32, rows=16)
    good = check(new, torch.float32, 40, 16, device, {"tiles": tiles})
    if before is not None:
        inputs = draw(1, 20, 2, 4, 1, 4, torch.float32, device)
        same = torch.equal(run(before, inputs, tiles=before.Tiles(16, 16)), run(new, inputs, tiles=new.Tiles(16, 16)))
        print("finite inputs give the same bits in both versions:", same)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="folder of another version's package repflow")
    parser.add_argument("--cpu-smoke", action="store_true", help="tiny shapes on the CPU, with TRITON_INTERPRET=1")
    args = parser.parse_args()
    torch.manual_seed(0)
    new = ours()
    before = None if args.before is None else kernels_of(args.before, "repflow_before")
    if args.cpu_smoke:
        sys.exit(0 if smoke(new, before) else 1)
    began, device = time.perf_counter(), torch.device("cuda")
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    good = [
        check(new, torch.bfloat16, 300, 64, device, {}),
        check(new, torch.float32, 150, 64, device, {}),
        check(new, torch.bfloat16, 150, 64, device, {"tiles": new.TRAINING}),
    ]
    print(f"checks: {time.perf_counter() - began:.0f} s", flush=True)
    for batch in (8, 1):
        speed(new, before, batch, torch.bfloat16, device)
    if before is None or before.TRAINING == new.TRAINING:
        speed(new, before, 8, torch.bfloat16, device, tiles=new.TRAINING)
    speed(new, before, 1, torch.float32, device)
    print(f"all: {time.perf_counter() - began:.0f} s", flush=True)
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
