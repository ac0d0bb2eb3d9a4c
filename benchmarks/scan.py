"""Fast scans on the CPU: Mamba and Mamba-2 end to end against transformers' own path, and growth with the tokens.

    python benchmarks/scan.py                                   # 130M shapes, one prompt of 1024 tokens
    python benchmarks/scan.py --growth 1024 2048 4096           # time and memory over n, a Transformer beside them

Base model, random weights, float32. Both paths run in turn in one process and are compared by CPU seconds, so that
other work on the machine does not decide. The outputs of both are held against a float64 pass of the same weights in
the same run. Rates are 2 · all parameters · tokens / time. The GPU part is benchmarks/scan_gpu.py.
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
from contextlib import contextmanager
from pathlib import Path

SHAPES = {
    "mamba-130m": ("mamba", {"hidden_size": 768, "num_hidden_layers": 24, "state_size": 16, "vocab_size": 50280}),
    "mamba2-130m": (
        "mamba2",
        {
            "hidden_size": 768,
            "num_hidden_layers": 24,
            "state_size": 128,
            "head_dim": 64,
            "num_heads": 24,
            "n_groups": 1,
            "vocab_size": 50288,
        },
    ),
    "transformer-130m": (
        "gpt_neox",
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "vocab_size": 50304,
            "max_position_embeddings": 65536,
        },
    ),
    "mamba-tiny": ("mamba", {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 4, "vocab_size": 128}),
    "mamba2-tiny": (
        "mamba2",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "state_size": 8,
            "head_dim": 16,
            "num_heads": 8,
            "n_groups": 1,
            "vocab_size": 128,
        },
    ),
    "transformer-tiny": (
        "gpt_neox",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 256,
            "vocab_size": 128,
            "max_position_embeddings": 65536,
        },
    ),
}


def build(shape, seed=0):
    """Random base model of a shape in eval mode."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    kind, options = SHAPES[shape]
    torch.manual_seed(seed)
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **options)).eval()


def draw_ids(network, tokens, seed=0):
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, network.config.vocab_size, (1, tokens), generator=generator)


def switch(network, setting):
    """Set the form of the scan; returns what says afterwards what ran."""
    from repflow.models.anatomy import find_blocks
    from repflow.models.fastpath.scans import install

    return install(network, find_blocks(network, network.config), setting)


def last_state(network, ids):
    import torch

    with torch.inference_mode():
        return network(ids, use_cache=False).last_hidden_state


@contextmanager
def wide_norms(network):
    """Norms that stay in float64; transformers' go to float32 whatever the model's dtype."""
    import torch

    def wide(module):
        def forward(hidden, gate=None):
            hidden = hidden if gate is None else hidden * torch.nn.functional.silu(gate)
            return module.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)

        return forward

    norms = [module for module in network.modules() if hasattr(module, "variance_epsilon")]
    for module in norms:
        module.forward = wide(module)
    yield
    for module in norms:
        del module.forward


def against_transformers(shape, tokens, repeats):
    """Median CPU seconds of both paths, run in turn, and their errors against float64."""
    network = build(shape)
    ids = draw_ids(network, tokens)
    seconds, outputs, ran = {"reference": [], "fast": []}, {}, {}
    for repeat in range(repeats + 1):
        for setting in seconds:
            scans = switch(network, setting)
            begin = time.process_time()
            outputs[setting] = last_state(network, ids)
            if repeat:  # the first pass of each is the warm-up
                seconds[setting].append(time.process_time() - begin)
            ran[setting] = scans.facts()
    scan_error = scan_errors(network, ids, switch(network, "fast"))
    network = network.double()
    switch(network, "fast")
    with wide_norms(network):
        exact = last_state(network, ids)
    scale = float(exact.norm())
    errors = {name: float((y.double() - exact).norm()) / scale for name, y in outputs.items()}
    median = {name: statistics.median(values) for name, values in seconds.items()}
    parameters = sum(p.numel() for p in network.parameters())
    return {
        "shape": shape,
        "tokens": tokens,
        "repeats": repeats,
        "cpu_seconds": median,
        "spread": {name: [min(values), max(values)] for name, values in seconds.items()},
        "gflops": {name: 2e-9 * parameters * tokens / value for name, value in median.items()},
        "ratio": median["reference"] / median["fast"],
        "error": errors,
        "scan_error": scan_error,
        "ran": ran,
    }


def scan_errors(network, ids, scans, places=3):
    """Errors of the two scans alone, on the inputs that layers through the depth give them, against float64.

    Without skip, gate and the layers around, whose rounding is the same in both paths and the larger part.
    """
    from dataclasses import replace

    import repflow.models.fastpath.scans as fastpath

    found = []

    def watch(layer, call):
        exact = widened(call).run()[0]
        own = getattr(sys.modules[type(network).__module__], FUNCTION[call.kind])
        outputs = {"reference": call_transformers(getattr(own, fastpath.MARK), call), "fast": call.alone().run()[0]}
        norm = float(exact.norm())
        found.append({name: float((y.double() - exact).norm()) / norm for name, y in outputs.items()})

    def widened(call):
        named = ("x", "raw_delta", "A", "B", "C", "bias")
        return replace(call.alone(), **{name: getattr(call, name).double() for name in named})

    wanted = scans.layers[:: max(1, len(scans.layers) // places)]
    for layer in wanted:
        layer.watchers.append(watch)
    last_state(network, ids)
    for layer in wanted:
        layer.watchers.clear()
    return {name: statistics.median(row[name] for row in found) for name in found[0]}


FUNCTION = {"s6": "mamba_selective_scan", "ssd": "mamba2_chunk_scan"}


def call_transformers(function, call):
    """Transformers' own scan of the arguments of one call, without skip and gate."""
    if call.kind == "s6":
        parts = (call.x.mT, call.raw_delta.mT, call.A, call.B.mT, call.C.mT)
        return function(*parts, delta_bias=call.bias, delta_softplus=call.softplus)
    parts = (call.x, call.raw_delta, call.A, call.B, call.C)
    return function(*parts, chunk_size=256, dt_bias=call.bias, dt_softplus=call.softplus, dt_limit=call.limits)


def growth_row(shape, tokens, setting):
    """One pass in this process: CPU seconds and the peak of the resident set above the weights."""
    network = build(shape)
    switch(network, setting)
    last_state(network, draw_ids(network, 64))
    before = resident()
    begin = time.process_time()
    last_state(network, draw_ids(network, tokens))
    seconds = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"shape": shape, "tokens": tokens, "setting": setting, "cpu_seconds": seconds, "extra_mib": peak - before}


def resident():
    """MiB of memory this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def growth(shapes, lengths, own_limit):
    """Each pass in a process of its own, since the peak of a process never falls."""
    rows = []
    for tokens in lengths:
        for shape in shapes:
            for setting in ("fast", "reference"):
                if setting == "reference" and (shape.startswith("transformer") or tokens > own_limit):
                    continue
                command = [sys.executable, __file__, "--row", shape, str(tokens), setting]
                done = subprocess.run(command, capture_output=True, text=True)
                row = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
                rows.append(row or {"shape": shape, "tokens": tokens, "setting": setting, "failed": done.stderr[-500:]})
                print_growth_row(rows[-1])
    return rows


def print_comparison(row):
    seconds, error, rate = row["cpu_seconds"], row["error"], row["gflops"]["fast"]
    times = f"{seconds['reference']:.2f} | {seconds['fast']:.2f} | {row['ratio']:.2f}x | {rate:.0f}"
    alone = row["scan_error"]
    errors = f"{error['reference']:.2e} | {error['fast']:.2e} | {alone['reference']:.2e} | {alone['fast']:.2e}"
    print(f"| {row['shape']} | {row['tokens']} | {times} | {errors} |", flush=True)


def print_growth_row(row):
    name = row["shape"] + ("" if row["setting"] == "fast" else ", transformers' scan")
    if "failed" in row:
        print(f"| {row['tokens']} | {name} | failed | |", flush=True)
    else:
        print(f"| {row['tokens']} | {name} | {row['cpu_seconds']:.1f} | {row['extra_mib']:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="130m", choices=["130m", "tiny"])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--growth", type=int, nargs="+", metavar="N", help="lengths of the table over n, instead")
    parser.add_argument("--own-limit", type=int, default=4096, help="longest prompt of transformers' own scan in it")
    parser.add_argument("--json", help="file for the numbers")
    parser.add_argument("--row", nargs=3, metavar=("SHAPE", "N", "SETTING"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    if options.row:
        shape, tokens, setting = options.row
        print(json.dumps(growth_row(shape, int(tokens), setting)))
        return
    ssm = [f"mamba-{options.size}", f"mamba2-{options.size}"]
    if options.growth:
        print("| tokens | model | CPU seconds | extra MiB |\n|---|---|---|---|")
        found = growth([*ssm, f"transformer-{options.size}"], options.growth, options.own_limit)
    else:
        titles = (
            "shape",
            "tokens",
            "transformers, CPU s",
            "repflow, CPU s",
            "ratio",
            "GFLOP/s",
            "error of the states:",
        )
        titles = (*titles, "repflow's", "error of the scan alone:", "repflow's")
        print(f"| {' | '.join(titles)} |\n" + "|---" * len(titles) + "|")
        found = []
        for shape in ssm:
            found.append(against_transformers(shape, options.tokens, options.repeats))
            print_comparison(found[-1])
        for row in found:
            larger = any(row[error]["fast"] > row[error]["reference"] for error in ("error", "scan_error"))
            met = row["ratio"] >= 2 and not larger
            print(f"{row['shape']}: bar of 2x at no larger error {'met' if met else 'NOT met'}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
