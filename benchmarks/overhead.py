"""What measuring costs beside a bare forward pass: repflow, transformers' own tuple with metrics afterwards, peers.

    python benchmarks/overhead.py --shape gpt2-24 --batch 4 --tokens 1024            # CPU
    python benchmarks/overhead.py --shape pythia-2.8b --batch 8 --tokens 2048 --dtype bfloat16 --device cuda

Every row is measured in the same process; read the ratios, not the seconds. Memory is what a row takes above the bare
forward's peak (GPU: allocator; CPU: resident set of a fresh process per row).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

SHAPES = {
    "tiny": (
        "gpt_neox",
        {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256},
    ),
    "gpt2-12": ("gpt2", {"n_embd": 1024, "n_layer": 12, "n_head": 16, "n_positions": 2048}),
    "gpt2-24": ("gpt2", {"n_embd": 1024, "n_layer": 24, "n_head": 16, "n_positions": 2048}),
    "gpt2-48": ("gpt2", {"n_embd": 1024, "n_layer": 48, "n_head": 16, "n_positions": 2048}),
    "pythia-2.8b": (
        "gpt_neox",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 10240,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        },
    ),
    # both keep their stream in float32, whatever the weights' dtype
    "mamba-2.8b": ("mamba", {"hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, "time_step_rank": 160}),
    "mamba2-2.7b": (
        "mamba2",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 64,
            "head_dim": 64,
            "num_heads": 80,
            "state_size": 128,
            "n_groups": 1,
            "vocab_size": 50280,
        },
    ),
}


def build(shape, device, dtype):
    """Random weights of a shape, made on the device, as a repflow model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from repflow.models import load

    kind, options = SHAPES[shape]
    torch.manual_seed(0)
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options), dtype=dtype)
    return load(network.eval())


def rows(model, ids, batches):
    """Name → function that runs all batches once, as a run does: plan, forward passes, meters, records in memory."""
    import torch

    from repflow.capture.features import FeatureMeter
    from repflow.capture.measure import MeasureOptions, meter_factory
    from repflow.capture.plan import make_plan
    from repflow.capture.run import MemorySink, run_plan
    from repflow.tasks import id_prompts

    prompts = id_prompts(ids.tolist(), model.vocab_size)
    plan = make_plan(
        prompts.lengths,
        width=model.width,
        itemsize=model.dtype.itemsize,
        batch_size=len(prompts) // batches,
        grouped=model.device.type == "cuda",
    )
    factory = meter_factory(model, prompts, MeasureOptions(), plan.group)
    placed = ids.to(model.device).chunk(batches)

    def bare():
        with torch.inference_mode():
            for batch in placed:
                model.network.base_model(input_ids=batch, use_cache=False)

    def repflow():
        run_plan(model, prompts, plan, factory, MemorySink())

    def features():
        run_plan(model, prompts, plan, lambda: [FeatureMeter()], MemorySink())

    def tuple_and_metrics():
        for batch in placed:
            _after(model.network.base_model, batch)

    return {
        "bare": bare,
        "repflow, every default meter": repflow,
        "repflow, features for probes": features,
        "hidden_states, metrics after": tuple_and_metrics,
    }


def _after(network, batch):
    """What a script does without repflow: keep transformers' tuple, then compute the plain metrics on it."""
    import torch

    from repflow import metrics

    with torch.inference_mode():
        hidden = torch.stack(network(input_ids=batch, use_cache=False, output_hidden_states=True).hidden_states)
        for name in ("layer_cosine", "token_similarity", "token_norm", "common_share", "smoothness", "stability",
                     "depth_stability", "path_energy"):  # fmt: skip
            getattr(metrics, name)(hidden)


def check(device):
    """Largest relative error of the meters' fast path against float64 pure functions, on fresh random states."""
    import numpy as np
    import torch

    from repflow import metrics
    from repflow.metrics.flow import FlowMeter
    from repflow.metrics.meter import BatchInfo

    worst = {}
    seed = int.from_bytes(os.urandom(4), "little")
    generator = torch.Generator().manual_seed(seed)
    lengths = (700, 333, 2)
    mask = torch.arange(700) < torch.tensor(lengths)[:, None]
    full, brain, half = torch.float32, torch.bfloat16, torch.float16
    for embedding, stream in ((full, full), (brain, brain), (half, half), (brain, full), (half, full)):
        for width, group in ((96, 1), (96, 3), (1000, 2), (2560, 7), (2560, 4)):
            hidden = torch.randn(7, 3, 700, width, generator=generator).cumsum(0) + 0.3
            hidden[4, 0, 5] *= 40
            states = [state.to(stream if at else embedding) for at, state in enumerate(hidden)]
            exact = torch.stack([state.double() for state in states])
            for state in states:
                state[~mask] = torch.nan
            meter = FlowMeter(7, positions=700, keep=frozenset([0, 1]), group=group, direction=group % 2 == 0)
            meter.begin(BatchInfo((0, 1, 2), lengths))
            for at, state in enumerate(states):
                meter.update(at, state.to(device))
            meter.end()
            table = meter.compute()
            for name in ("token_similarity", "token_similarity_excess", "common_share", "sharpness", "smoothness",
                         "stability", "relative_stability", "depth_stability", "path_energy"):  # fmt: skip
                for drop in ("none", "norm>10"):
                    expected = getattr(metrics, name)(exact, mask=mask, drop=drop).numpy()
                    got = table[name if drop == "none" else f"{drop}/{name}"][1]
                    error = float(np.nanmax(np.abs(got - expected)) / np.nanmax(np.abs(expected)))
                    worst[name] = max(worst.get(name, 0.0), error)
            by_token = metrics.token_similarity_by_token(exact, mask=mask)[:, :2].numpy()
            error = np.nanmax(np.abs(table["kept/token_similarity_by_token"][1] - by_token))
            worst["by_token"] = max(worst.get("by_token", 0.0), float(error))
            share = metrics.gram_share(exact, mask=mask)[0].numpy()
            z = np.abs(table["gram_share"][1] - share) / (table["gram_share_error"][1] + 1e-3)
            worst["gram_share (standard errors)"] = max(
                worst.get("gram_share (standard errors)", 0.0), float(np.nanmax(z))
            )
    print(f"check on {device}, seed {seed}: largest relative error against float64")
    for name, error in worst.items():
        print(f"  {name:32} {error:.2e}")


def peers(model, ids, batches):
    """Passes of other libraries that keep every block's output; those that are not installed are named and left out."""
    found = {}
    for name, make in (
        ("nnsight, save every block", _nnsight),
        ("TransformerLens, cache every block, head too", _lens),
    ):
        try:
            found[name] = make(model, ids.to(model.device).chunk(batches))
        except ImportError as error:
            print(f"{name}: not installed ({error})", file=sys.stderr)
    return found


def _nnsight(model, batches):
    import nnsight
    import torch

    wrapped = nnsight.NNsight(model.network.base_model)
    blocks = wrapped.layers if hasattr(model.network.base_model, "layers") else wrapped.h

    def run():
        for batch in batches:
            with torch.inference_mode(), wrapped.trace(batch, use_cache=False):
                nnsight.save([block.output for block in blocks])

    return run


def _lens(model, batches):
    import tempfile

    import torch
    from transformer_lens.model_bridge import TransformerBridge

    with tempfile.TemporaryDirectory() as folder:
        model.network.config.save_pretrained(folder)  # its name is looked up even when the model itself is given
        bridge = TransformerBridge.boot_transformers(folder, hf_model=model.network, load_weights=False)

    def run():
        for batch in batches:
            with torch.inference_mode():
                bridge.run_with_cache(batch, names_filter=lambda n: n.endswith("hook_out") and n.count(".") == 2)

    return run


class Stopwatch:
    """Seconds spent inside the meters' own methods; exact on a CPU, where a call returns when its work is done."""

    METHODS = ("begin", "update", "final_norm", "close", "end")

    def __init__(self):
        self.seconds = 0.0

    def watch(self, meter):
        """Wrap a meter's methods."""
        for name in self.METHODS:
            setattr(meter, name, self._timed(getattr(meter, name)))
        return meter

    def _timed(self, method):
        def call(*arguments):
            start = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                self.seconds += time.perf_counter() - start

        return call


def _watched(watch, factory):
    return [watch.watch(meter) for meter in factory()]


def inside(model, ids, batches, repeats):
    """Smallest and median share of a measuring pass that is spent in the meters: needs no second pass to compare."""
    from repflow.capture.measure import MeasureOptions, meter_factory
    from repflow.capture.plan import make_plan
    from repflow.capture.run import MemorySink, run_plan
    from repflow.tasks import id_prompts

    prompts = id_prompts(ids.tolist(), model.vocab_size)
    size = len(prompts) // batches
    plan = make_plan(prompts.lengths, width=model.width, itemsize=model.dtype.itemsize, batch_size=size)
    factory = meter_factory(model, prompts, MeasureOptions(), plan.group)
    ratios = []
    for _ in range(repeats):
        watch = Stopwatch()
        start = time.perf_counter()
        run_plan(model, prompts, plan, partial(_watched, watch, factory), MemorySink())
        whole = time.perf_counter() - start
        ratios.append(whole / (whole - watch.seconds))
    return min(ratios), statistics.median(ratios)


def reset_resident_peak():
    """Forget the peak so far, which building a model sets; Linux only, elsewhere the peak since the start remains."""
    if os.access("/proc/self/clear_refs", os.W_OK):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def resident_peak():
    """Bytes of the largest resident set since the last reset."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def once(function, device):
    """Seconds, CPU seconds and peak memory of one pass."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    else:
        reset_resident_peak()
    start, spent = time.perf_counter(), time.process_time()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds, cpu = time.perf_counter() - start, time.process_time() - spent
    return seconds, cpu, torch.cuda.max_memory_allocated() if device == "cuda" else resident_peak()


def measure(arguments):
    """Time all rows in this process, in rounds: what slows the machine for a while then slows every row."""
    import torch

    dtype = getattr(torch, arguments.dtype)
    model = build(arguments.shape, arguments.device, dtype)
    ids = torch.randint(
        0,
        model.vocab_size,
        (arguments.batch * arguments.batches, arguments.tokens),
        generator=torch.Generator().manual_seed(1),
    )
    if arguments.only_inside:
        print("{:.3f} smallest, {:.3f} median".format(*inside(model, ids, arguments.batches, arguments.repeats)))
        sys.exit()
    functions = rows(model, ids, arguments.batches) | (peers(model, ids, arguments.batches) if arguments.peers else {})
    if arguments.row:
        functions = {arguments.row: functions[arguments.row]}
    else:
        functions["bare, again"] = functions["bare"]
    passes, table = {name: [] for name in functions}, {}
    for round in range(arguments.repeats + 1):  # the first warms up
        for name, function in functions.items():
            if name in table:
                continue
            try:
                if round == 0:
                    function()
                else:
                    passes[name].append(once(function, arguments.device))
            except Exception as error:  # noqa: BLE001  a peer that cannot run here is a row of the table
                table[name] = {"failed": f"{type(error).__name__}: {str(error)[:120]}"}
    for name in [n for n in functions if n not in table]:
        seconds, cpu, memory = zip(*passes[name], strict=True)
        table[name] = {
            "seconds": statistics.median(seconds),
            "cpu_seconds": statistics.median(cpu),
            "peak_bytes": max(memory),
        }
    if arguments.device == "cpu" and not arguments.row:
        low, middle = inside(model, ids, arguments.batches, arguments.repeats)
        print(f"pass over the same pass without the time inside the meters: {middle:.3f} (smallest {low:.3f})")
    return {name: table[name] for name in functions}


def main():
    """Print the table; with --memory each row runs in a process of its own so that its peak can be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2-24")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--batches", type=int, default=1, help="batches per timed run; a run overlaps them on a GPU")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--memory", action="store_true", help="CPU: measure each row's peak memory in its own process")
    parser.add_argument("--row", help="run one row only")
    parser.add_argument("--only-inside", action="store_true", help="CPU: print the meters' own share and nothing else")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="first compare the fast path with float64")
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.device)
    table = measure(arguments)
    if arguments.memory:
        for name in [n for n in table if "again" not in n]:
            command = [sys.executable, *sys.argv[: len(sys.argv)], "--row", name, "--json", "/dev/stdout"]
            command = [c for c in command if c != "--memory"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            table[name]["peak_bytes"] = json.loads(lines[-1])[name]["peak_bytes"] if lines else None
    if arguments.json:
        with arguments.json.open("w") as file:
            file.write(json.dumps(table) + "\n")
    if arguments.row:
        return
    bare = statistics.mean(table[name]["seconds"] for name in ("bare", "bare, again"))
    bare_cpu = statistics.mean(table[name]["cpu_seconds"] for name in ("bare", "bare, again"))
    base = table["bare"]["peak_bytes"]
    shape = f"{arguments.shape}, {arguments.batches} x batch {arguments.batch}, {arguments.tokens} tokens"
    print(f"{shape}, {arguments.dtype}, {arguments.device}")
    for name, row in table.items():
        if "failed" in row:
            print(f"{name:36} {row['failed']}")
            continue
        extra = (row["peak_bytes"] or 0) - (base or 0)
        print(
            f"{name:36} {row['seconds']:8.3f} s {row['seconds'] / bare:6.3f}x bare"
            f" (CPU time {row['cpu_seconds'] / bare_cpu:6.3f}x)  +{extra / 2**20:8.0f} MiB"
        )


if __name__ == "__main__":
    main()
