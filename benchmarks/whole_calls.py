"""Whole calls beside the bare forward passes of the same prompts: what a user waits for, and for what.

    python benchmarks/whole_calls.py --out FOLDER                       # every bar, on a GPU
    python benchmarks/whole_calls.py --out FOLDER --only live folder    # some of them
    python benchmarks/whole_calls.py --out FOLDER --tiny                # does the script work? also on a CPU

Each bar runs in processes of its own, on the shapes of benchmarks/journey.py with random weights, and leaves a JSON
file. `live` is `repflow.measure` on a live model (a profile of its last call is kept), `folder` the command on a
checkpoint, beside imports, transformers' own loading and bare passes; `table2` one cell of paper 1's Table 2; `recency`
the command; `small` every command on a 130M shape with warm kernel caches; `readme` the README's first commands.

Where torch's modules are not compiled and Python may not write them beside their source, every process compiles them
again, 7 s of imports: set PYTHONPYCACHEPREFIX and unset PYTHONDONTWRITEBYTECODE, and run something twice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import journey

BIG = ("pythia-2.8b", "mamba2-2.7b", "mamba-2.8b")


def wait():
    """Until the GPU is done."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def clocked(call):
    """Seconds of a call, and what it gave."""
    wait()
    begun = time.perf_counter()
    given = call()
    wait()
    return time.perf_counter() - begun, given


def profiled(call, lines=60):
    """Where the host's time goes in a call, the most expensive functions first."""
    import cProfile
    import io
    import pstats

    profile = cProfile.Profile()
    profile.runcall(call)
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(lines)
    return text.getvalue().splitlines()


def timeline(call, kernels=24):
    """When the GPU is at work in a call: milliseconds before its first kernel, after its last, and by kernel."""
    import tempfile

    import torch

    if not torch.cuda.is_available():
        return None
    wait()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        begun = time.time_ns()
        call()
        wait()
        ended = time.time_ns()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        trace = json.loads(Path(file.name).read_text())
    base, work = trace.get("baseTimeNanoseconds", 0), ("kernel", "gpu_memcpy", "gpu_memset")
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event.get("cat") in work]
    spans = sorted((base + 1e3 * e["ts"], base + 1e3 * (e["ts"] + e["dur"]), e["name"]) for e in events)
    busy, last, by_kernel = 0.0, 0.0, {}
    for start, end, name in spans:
        busy += max(0.0, end - max(start, last))
        last = max(last, end)
        entry = by_kernel.setdefault(name, {"ms": 0.0, "launches": 0, "kernel": name[:90]})
        entry["ms"] += (end - start) / 1e6
        entry["launches"] += 1
    return {
        "call": (ended - begun) / 1e6,
        "before_first_kernel": (spans[0][0] - begun) / 1e6,
        "after_last_kernel": (ended - last) / 1e6,
        "busy": busy / 1e6,
        "kernels": len(spans),
        "largest": sorted(by_kernel.values(), key=lambda entry: -entry["ms"])[:kernels],
    }


def bare_pass(network, ids, batch):
    """A function that runs the base model over all batches, as a script without repflow would."""
    import torch

    def run():
        with torch.inference_mode():
            for part in ids.split(batch):
                network.base_model(input_ids=part, use_cache=False)

    return run


def live(shop, args, name):
    """First, second and third call of `repflow.measure` on a live model, beside the bare passes by the same kernels."""
    import torch

    begun = time.perf_counter()
    import repflow
    import repflow.capture.run
    import repflow.models
    from repflow.core.seconds import CLOCK, since
    from repflow.models import load

    imports = time.perf_counter() - begun
    network = shop.network(name, args.dtype)
    ids = torch.randint(3, network.config.vocab_size, (args.prompts, args.tokens), device=network.device)
    options = {"batch_size": args.batch}
    record = {"imports": imports}
    for call in ("first", "second", "third"):
        before = CLOCK.seconds()
        record[call], _ = clocked(lambda: repflow.measure(network, ids.cpu(), **options))
        record[f"{call}_phases"] = since(before)
    record["profile"] = profiled(lambda: repflow.measure(network, ids.cpu(), **options))
    run = bare_pass(load(network).network, ids, args.batch)  # by the same kernels
    run()
    record["bare"] = min(clocked(run)[0] for _ in range(3))
    record["second_over_bare"] = min(record["second"], record["third"]) / record["bare"]
    record["first_above_bare"] = record["first"] - record["bare"]
    record["timeline_bare_ms"] = timeline(run)
    record["timeline_measure_ms"] = timeline(lambda: repflow.measure(network, ids.cpu(), **options))
    return record


def folder(shop, args, name):
    """The whole command on a checkpoint, beside imports, transformers' loading and bare passes."""
    place = shop.folder(name)
    out = shop.out / "runs" / f"folder-{name}-{time.time_ns()}"
    line = ["measure", str(place), "--task", "random", "--length", str(args.tokens), "--samples", str(args.prompts),
            "--dtype", args.dtype, "--batch-size", str(args.batch), "--out", str(out)]  # fmt: skip
    code = PLAIN.format(place=str(place), dtype=args.dtype, prompts=args.prompts, tokens=args.tokens, batch=args.batch)
    first, _ = command_line([*line[:-1], str(out) + "-warm"])  # files, compiled modules and kernels are cached then
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loading, passes = json.loads(done.stdout.splitlines()[-1])
    plain = loading + passes
    ours, said = command_line(line)
    return {
        "first_command": first,
        "loading": loading,
        "passes": passes,
        "plain": plain,
        "command": ours,
        "over_plain": ours / plain,
        "said": said[-400:],
    }


PLAIN = """
import json, time
begun = time.perf_counter()
import torch, transformers
device = "cuda" if torch.cuda.is_available() else "cpu"
network = transformers.AutoModelForCausalLM.from_pretrained({place!r}, dtype=torch.{dtype}, device_map=device)
loaded = time.perf_counter() - begun
from repflow.models import load
network = load(network).network  # by the same kernels; transformers' own scan does not fit
ids = torch.randint(3, network.config.vocab_size, ({prompts}, {tokens}), device=device)
def wait():
    if device == "cuda":
        torch.cuda.synchronize()
def run():
    with torch.inference_mode():
        for part in ids.split({batch}):
            network.base_model(input_ids=part, use_cache=False)
    wait()
network.base_model(input_ids=ids[:1, :64], use_cache=False)
wait()
begun = time.perf_counter()
run()
print(json.dumps([loaded, time.perf_counter() - begun]))
"""


def command_line(line):
    """Seconds of a command in a process of its own, and the end of what it says; its exit code must be 0."""
    begun = time.perf_counter()
    whole = [sys.executable, "-m", "repflow", "--timings", *line]
    done = subprocess.run(whole, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(f"{line[:2]} ended with {done.returncode}: {done.stderr[-800:]}")
    return seconds, done.stderr.strip().splitlines()[-1]


def table2(shop, args, name):
    """One cell of paper 1's Table 2: probes of every state on one forward pass that all seeds share."""
    spec = shop.spec(journey.Cell("probe", name, "config", args.dtype))
    out = shop.out / "runs" / f"table2-{name}-{time.time_ns()}"
    line = ["probe", spec, "--task", "kvpr", "--length", "300", "--train", str(args.train), "--test", str(args.test),
            "--seeds", "5", "--answers", "0", "--tokenizer", journey.tokenizer(), "--dtype", args.dtype,
            "--recipes", "paper", "--out", str(out)]  # fmt: skip
    seconds, said = command_line(line)
    return {"command": seconds, "said": said}


def recency(shop, args, name):
    """The command, eight prompts."""
    spec = shop.spec(journey.Cell("recency", name, "config", args.dtype))
    out = shop.out / "runs" / f"recency-{name}-{time.time_ns()}"
    line = ["recency", spec, "--task", "random", "--length", str(args.tokens), "--samples", "8", "--dtype", args.dtype,
            "--out", str(out)]  # fmt: skip
    seconds, said = command_line(line)
    return {"command": seconds, "said": said}


def small(shop, args, name):
    """Every command on one small model with warm kernel caches, one after the other.

    The commands before, which fill the caches, run side by side and are not timed. What is done is kept: a call that
    was cut off goes on where it was.
    """
    kept = shop.out / "bars" / f"small-{name}.part.json"
    record = json.loads(kept.read_text()) if kept.is_file() else {}
    todo = [entry for entry in journey.ENTRIES[:-1] if entry not in record]

    def lines(entry):
        cell = journey.Cell(entry, name, "config", args.dtype)
        again = journey.Workshop(shop.out / f"small-{entry}-{time.time_ns()}", shop.size, shop.device)
        return [line for line, code in journey.commands(cell, again) if code == 0 and line[0] != "report"]

    def warm_up(entry):
        for line in lines(entry):
            command_line(line)

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(warm_up, todo))
    for entry in todo:
        parts = [command_line(line) for line in lines(entry)]
        record[entry] = {"warm": [seconds for seconds, _ in parts], "said": [said for _, said in parts]}
        kept.write_text(json.dumps(record))
    return record | {"slowest_warm": max(max(row["warm"]) for row in record.values())}


def readme(shop, args, name):
    """The README's first three commands on this model, in fresh processes."""
    spec = shop.spec(journey.Cell("measure", name, "config", args.dtype))
    out = str(shop.out / "runs" / f"readme-{time.time_ns()}")
    where = ["--dtype", args.dtype, "--out", out, "--tokenizer", journey.tokenizer()]
    read = ["--task", "kvpr", "--length", "256", *where]
    lines = [["measure", spec, *read], ["compare", spec, "twin", *read], ["probe", spec, "--samples", "100", *where]]
    parts = [command_line(line) for line in lines]
    return {"commands": [s for s, _ in parts], "together": sum(s for s, _ in parts), "said": [t for _, t in parts]}


BARS = {
    "live": (live, BIG),
    "folder": (folder, ("pythia-2.8b", "mamba2-2.7b")),
    "table2": (table2, ("mamba2-2.7b",)),
    "recency": (recency, ("mamba2-2.7b",)),
    "small": (small, ("mamba2-130m",)),
    "readme": (readme, ("mamba2-2.7b",)),
}


def main():
    """Read the arguments; without --one, start each bar in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", nargs="*", default=list(BARS), help="names of bars, or bar:model")
    parser.add_argument("--one", help="run one bar here: bar:model")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device")
    parser.add_argument("--limit", type=float, default=400)
    args = parser.parse_args()
    args.prompts, args.tokens, args.batch, args.dtype = (
        (4, 64, 2, "float32") if args.tiny else (48, 2048, 8, "bfloat16")
    )
    args.train, args.test = (40, 20) if args.tiny else (20_000, 2_000)
    out = Path(args.out)
    (out / "bars").mkdir(parents=True, exist_ok=True)
    if args.one:
        bar, _, name = args.one.partition(":")
        shop = journey.Workshop(args.out, journey.SMALL if args.tiny else journey.REAL, args.device)
        if bar == "folder":
            args.tokens = min(args.tokens, 2000)
        record = BARS[bar][0](shop, args, name)
        (out / "bars" / f"{bar}-{name}.json").write_text(json.dumps(record, indent=1))
        return
    for bar, (_, names) in BARS.items():
        for name in names:
            if bar in args.only or f"{bar}:{name}" in args.only:
                line = [sys.executable, __file__, "--one", f"{bar}:{name}", "--out", args.out]
                line += ["--tiny"] if args.tiny else []
                line += ["--device", args.device] if args.device else []
                try:
                    done = subprocess.run(line, capture_output=True, text=True, timeout=args.limit, check=False)
                    print(
                        f"{bar} {name}: {done.stderr[-1500:] if done.returncode else short(out, bar, name)}", flush=True
                    )
                except subprocess.TimeoutExpired:
                    print(f"{bar} {name}: not finished after {args.limit:.0f} s", flush=True)


def short(out, bar, name):
    """One line of a bar's record."""
    record = json.loads((out / "bars" / f"{bar}-{name}.json").read_text())
    for long in ("profile", "timeline_bare_ms", "timeline_measure_ms"):
        record.pop(long, None)
    rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in record.items()}
    return json.dumps(rounded)


if __name__ == "__main__":
    main()
