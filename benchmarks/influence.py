"""Cost of influence: eight probes at n = 2048 on 2.7B shapes beside forward and backward passes of the same run.

    PYTHONPATH=src python3 benchmarks/influence.py --json influence.json      # a GPU
    PYTHONPATH=src python3 benchmarks/influence.py --tiny                     # a try on the CPU

One (forward + backward) is the same network, by the same kernels, with the gradient of one token's output by the
embeddings and none by the weights. `ratio` is the influence of one prompt, from the embedding and from every state, by
that many of them as there are probes; the bound is 1.1, the memory's 60 GiB. Before any number is timed, the GPU's
influence in float32 is held against the CPU's in float64 on small models.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path

RATIO, GIB = 1.1, 60.0
SHAPES = {
    "gpt-neo-2.7b": ("gpt_neo", {
        "hidden_size": 2560, "num_layers": 32, "num_heads": 20, "attention_types": [[["global", "local"], 16]],
        "window_size": 256, "max_position_embeddings": 2048, "vocab_size": 50257}),
    "pythia-2.8b": ("gpt_neox", {
        "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 10240,
        "max_position_embeddings": 2048, "vocab_size": 50304,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}),
    "mamba-2.8b": ("mamba", {
        "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, "vocab_size": 50280, "time_step_rank": 160}),
    "mamba2-2.7b": ("mamba2", {
        "hidden_size": 2560, "num_hidden_layers": 64, "head_dim": 64, "num_heads": 80, "state_size": 128, "n_groups": 1,
        "vocab_size": 50288}),
}  # fmt: skip
TINY = {
    "gpt-neo-2.7b": ("gpt_neo", {
        "hidden_size": 64, "num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]],
        "window_size": 16, "max_position_embeddings": 256, "vocab_size": 256}),
    "pythia-2.8b": ("gpt_neox", {
        "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256,
        "max_position_embeddings": 256, "vocab_size": 256}),
    "mamba-2.8b": ("mamba", {
        "hidden_size": 64, "num_hidden_layers": 4, "state_size": 16, "vocab_size": 256, "time_step_rank": 4}),
    "mamba2-2.7b": ("mamba2", {
        "hidden_size": 64, "num_hidden_layers": 4, "head_dim": 16, "num_heads": 8, "state_size": 16, "n_groups": 1,
        "vocab_size": 256, "chunk_size": 32}),
}  # fmt: skip


def build(shape, device, dtype):
    """Random weights of a shape, made on the device, as a repflow model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from repflow.models import load

    kind, options = shape
    torch.manual_seed(0)
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options), dtype=dtype)
    return load(network.eval())


def forward_backward(model, ids):
    """A function that runs one forward and one backward pass by hand, without hooks."""
    import torch

    from repflow.capture.influence.jacobian import fast_layers

    network = model.network.base_model
    embedded = model.network.get_input_embeddings()(ids).detach().requires_grad_()
    probe = torch.randint(0, 2, (model.width,), device=model.device) * 2.0 - 1.0

    def run():
        with fast_layers(model), torch.enable_grad():
            y = network(inputs_embeds=embedded, use_cache=False).last_hidden_state[0, -1]
            torch.autograd.grad(y, embedded, probe.to(y.dtype))

    return run


def timed(run, device, repeats):
    """Median seconds of a call, and the peak memory in GiB; the first call is left out."""
    import torch

    on_gpu = device == "cuda"
    run()
    seconds = []
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None
    return statistics.median(seconds), peak


def measure(name, shape, device, dtype, tokens, probes, repeats):
    """One row: forward + backward, and influence, in one process."""
    import torch

    from repflow.capture.influence.batches import needs_checkpointing
    from repflow.capture.influence.jacobian import influence_squares

    model = build(shape, device, dtype)
    ids = torch.randint(3, model.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0)).to(device)
    for parameter in model.network.parameters():
        parameter.requires_grad_(False)
    checkpointing = needs_checkpointing(model, tokens)

    def influence():
        influence_squares(model, ids, None, at=[tokens - 1], probes=probes, checkpointing=checkpointing)

    bare, bare_peak = timed(forward_backward(model, ids), device, repeats)
    ours, peak = timed(influence, device, repeats)
    row = {
        "shape": name, "tokens": tokens, "probes": probes, "dtype": str(dtype).removeprefix("torch."),
        "forward_backward_s": bare, "influence_s": ours, "ratio": ours / (probes * bare), "peak_gib": peak,
        "forward_backward_gib": bare_peak, "checkpointing": checkpointing, "scan": model.scans.facts(),
    }  # fmt: skip
    row["met"] = row["ratio"] <= RATIO and (peak or 0.0) <= GIB
    del model
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return row


def check(device):
    """Largest relative difference of the influence in float32 here from that in float64 on the CPU, per shape."""
    import numpy as np
    import torch

    from repflow.capture.influence.jacobian import FINAL, influence_squares

    found = {}
    seed = time.time_ns() % 2**32
    for name, shape in TINY.items():
        exact = build(shape, "cpu", torch.float64)
        with torch.no_grad():
            for parameter in exact.network.parameters():
                parameter.mul_(2.0 if parameter.ndim == 2 else 1.0)  # so that every branch matters
        near = build(shape, device, torch.float32)
        near.network.load_state_dict(exact.network.state_dict())
        ids = torch.randint(3, 256, (2, 100), generator=torch.Generator().manual_seed(seed))
        values = [influence_squares(model, ids, None, at=[99, 60], probes=4)[FINAL].mean for model in (exact, near)]
        floor = 1e-6 * values[0].max()
        found[name] = float(np.max(np.abs(values[1] - values[0]) / (values[0] + floor)))
    return seed, found


def table(rows):
    """Lines of the result."""
    head = ("shape", "dtype", "fwd+bwd s", "influence s", "probes", "ratio", "peak GiB", "recomputed", "met")
    lines = [head]
    for row in rows:
        if "error" in row:
            lines.append((row["shape"], row["dtype"], row["error"][:60], *[""] * 6))
            continue
        numbers = (f"{row['forward_backward_s']:.4f}", f"{row['influence_s']:.4f}", str(row["probes"]))
        more = (f"{row['ratio']:.3f}", f"{row['peak_gib'] or 0.0:.1f}", "blocks" if row["checkpointing"] else "nothing")
        lines.append((row["shape"], row["dtype"], *numbers, *more, "yes" if row["met"] else "NO"))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]


def main():
    """Check, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=SHAPES, help="default: all of them")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--probes", type=int, default=8)
    parser.add_argument("--dtype", action="append", choices=("bfloat16", "float32"), help="default: bfloat16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="small shapes on the CPU in float32")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    import torch

    device = "cpu" if given.tiny else "cuda"
    if given.tiny:
        given.tokens, given.dtype, given.repeats = min(given.tokens, 128), ["float32"], 2
    seed, differences = check(device)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}; float32 here against float64 on the CPU, seed {seed}:", differences)
    rows = []
    for dtype in given.dtype or ["bfloat16"]:
        for shape in given.shape or list(SHAPES):
            sizes = (TINY if given.tiny else SHAPES)[shape]
            try:
                row = measure(shape, sizes, device, getattr(torch, dtype), given.tokens, given.probes, given.repeats)
            except (RuntimeError, ValueError) as error:
                row = {"shape": shape, "dtype": dtype, "error": f"{type(error).__name__}: {error}"}
            rows.append(row)
            print(json.dumps(row), flush=True)
            if given.json:
                made = {"device": name, "torch": torch.__version__, "check": differences, "seed": seed, "rows": rows}
                given.json.write_text(json.dumps(made, indent=1), encoding="utf-8")
    print(f"bounds: ratio {RATIO}, {GIB:.0f} GiB", *table(rows), sep="\n")


if __name__ == "__main__":
    main()
