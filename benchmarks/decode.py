"""Tokens per second of greedy decoding, from kept states and by whole passes, and whether both say the same.

    python benchmarks/decode.py                                                # tiny shapes, CPU
    python benchmarks/decode.py --shape mamba2-2.7b mamba-2.8b --device cuda --dtype bfloat16

Random weights, made on the device. Prompts are read once (not counted in tokens/s; its seconds stand beside). The whole
pass makes a few tokens only, which is enough to see what one costs. `blocks` says whether every block makes of single
tokens what it makes in a whole pass; in half precision the tokens themselves may differ by rounding.
"""

from __future__ import annotations

import argparse
import json
import time

SHAPES = {
    "tiny-mamba": ("mamba", {"hidden_size": 64, "num_hidden_layers": 4, "state_size": 16, "vocab_size": 256}),
    "tiny-mamba2": (
        "mamba2",
        {
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_heads": 4,
            "head_dim": 32,
            "state_size": 16,
            "n_groups": 1,
            "vocab_size": 256,
        },
    ),
    "tiny-pythia": (
        "gpt_neox",
        {
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 256,
            "vocab_size": 256,
        },
    ),
    "mamba-2.8b": (
        "mamba",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 64,
            "state_size": 16,
            "time_step_rank": 160,
            "vocab_size": 50280,
        },
    ),
    "mamba2-2.7b": (
        "mamba2",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 64,
            "num_heads": 80,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 1,
            "vocab_size": 50288,
        },
    ),
    "pythia-2.8b": (
        "gpt_neox",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 10240,
            "max_position_embeddings": 4096,
            "vocab_size": 50304,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        },
    ),
    "gpt-neo-2.7b": (
        "gpt_neo",
        {
            "hidden_size": 2560,
            "num_layers": 32,
            "num_heads": 20,
            "attention_types": [[["global", "local"], 16]],
            "vocab_size": 50257,
        },
    ),
    "bamba-2.6b": (
        "bamba",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 32,
            "attn_layer_indices": [9, 18, 27],
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 6912,
            "mamba_n_heads": 80,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "vocab_size": 50304,
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


def timed(device, run):
    """Value and seconds of a call, the GPU's work included."""
    import torch

    def wait():
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    value = run()
    wait()
    return value, time.perf_counter() - start


def measure(shape, arguments, dtype):
    """One row: tokens/s with and without kept states."""
    import torch

    from repflow.capture.continuation import Continuation, blocks_agree, keeps_state, read_prompts

    model = build(shape, arguments.device, dtype)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, model.vocab_size, (arguments.batch, arguments.prompt), generator=generator)
    kept, check = timed(arguments.device, lambda: keeps_state(model, ids[:4]))
    read_prompts(model, ids, cached=True).greedy(arguments.tokens + 1, last=True)  # kernels and memory are made here
    read, prefill = timed(arguments.device, lambda: read_prompts(model, ids, cached=True))
    made, seconds = timed(arguments.device, lambda: read.greedy(arguments.tokens + 1, last=True))
    eager = read_prompts(model, ids, cached=True)
    eager.graphs = False
    plain, launched = timed(arguments.device, lambda: eager.greedy(arguments.tokens + 1, last=True))
    few = min(arguments.tokens, 3)
    whole, slow = timed(arguments.device, lambda: Continuation(model, ids).greedy(few + 1))
    peak = torch.cuda.max_memory_allocated() / 2**30 if arguments.device.startswith("cuda") else float("nan")
    return {
        "shape": shape,
        "kept": type(read).__name__,
        "state agrees": kept,
        "check s": check,
        "blocks": blocks_agree(model, ids[:4, :64]),
        "prefill s": prefill,
        "tokens/s": arguments.batch * arguments.tokens / seconds,
        "ms/token": 1000 * seconds / arguments.tokens,
        "launch by launch": arguments.batch * arguments.tokens / launched,
        "as launched": float((made == plain).float().mean()) if made.shape == plain.shape else 0.0,
        "whole tokens/s": arguments.batch * (few + 1) / slow,
        "equal": float((made[:, : few + 1] == whole).float().mean()),
        "peak GiB": peak,
    }


def main():
    """Print one row per shape, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["tiny-mamba", "tiny-mamba2", "tiny-pythia"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=0, help="tokens of a prompt; 1000 on a GPU, 32 on a CPU")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    import torch

    arguments.prompt = arguments.prompt or (32 if arguments.device == "cpu" else 1000)
    rows = []
    for shape in arguments.shape:
        rows.append(measure(shape, arguments, getattr(torch, arguments.dtype)))
        shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in rows[-1].items()}
        if len(rows) == 1:
            print("| " + " | ".join(shown) + " |\n|" + "---|" * len(shown))
        print("| " + " | ".join(shown.values()) + " |", flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
