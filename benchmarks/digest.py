"""Cost of a model's identity: digest of the weights, random weights, checks at load; on a GPU and on the CPU.

    PYTHONPATH=src python3 benchmarks/digest.py --json digest.json      # a GPU if there is one, 2.8 billion parameters
    PYTHONPATH=src python3 benchmarks/digest.py --device cpu            # half a gigabyte of weights
    PYTHONPATH=src python3 benchmarks/digest.py --device cpu --tiny

The digest is beside a bare read (the sum of all words) and a copy of the same tensors on the same device, best of
five; the bars are 200 GB/s on a GPU and 2 GB/s on the CPU. On a GPU the same weights are digested on the CPU too: the
values must be equal. Then 2.8 billion weights are drawn on the GPU (bar: 3 s), and the checks at load are timed (1 s).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

GPU_RATE, CPU_RATE, DRAW_SECONDS, CHECK_SECONDS = 200.0, 2.0, 3.0, 1.0
SHAPES = {
    "pythia-2.8b": ("gpt_neox", {
        "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 10240,
        "max_position_embeddings": 2048, "vocab_size": 50304}),
    "mamba-2.8b": ("mamba", {
        "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, "vocab_size": 50280, "time_step_rank": 160}),
    "mamba2-2.7b": ("mamba2", {
        "hidden_size": 2560, "num_hidden_layers": 64, "head_dim": 64, "num_heads": 80, "state_size": 128, "n_groups": 1,
        "vocab_size": 50288}),
}  # fmt: skip
TINY = {
    "pythia-2.8b": ("gpt_neox", {
        "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256,
        "max_position_embeddings": 256, "vocab_size": 256}),
}  # fmt: skip


def timed(work, device, repeats=5):
    """Best seconds of some calls, the device waited for, after one that compiles."""
    import torch

    seconds = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return min(seconds[1:])


def rates(tensors, device):
    """GB/s of the digest, of a bare read and of a copy, and the digest."""
    import torch

    from repflow.models.weights.digest import weights_digest

    total = sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)
    words = [
        tensor.detach()
        .reshape(-1)
        .view(torch.uint8)[: tensor.numel() * tensor.element_size() // 8 * 8]
        .view(torch.int64)
        for _, tensor in tensors
    ]
    target = [torch.empty_like(part) for part in words]
    works = {
        "digest": lambda: weights_digest(tensors),
        "read": lambda: [part.sum() for part in words],
        "copy": lambda: [to.copy_(part) for to, part in zip(target, words, strict=True)],
    }
    found = {name: total / timed(work, device) / 1e9 for name, work in works.items()}
    begun = time.process_time()
    value = weights_digest(tensors)
    spent = time.process_time() - begun  # of all threads: on a shared machine it says more than the wall clock
    found["digest_per_cpu"] = total / max(spent, 1e-9) / 1e9
    return {"bytes": total, **{f"{name}_gb_s": rate for name, rate in found.items()}, "value": value}


def models(shapes, device, dtype):
    """Yield each shape's model with the seconds of drawing its weights, of loading it and of the checks alone."""
    import torch
    from transformers import AutoConfig

    from repflow.models import Model, load
    from repflow.models.identity.fingerprint import fingerprint
    from repflow.models.weights.initialise import drawing_device, random_model

    for name, (kind, options) in shapes.items():
        config = AutoConfig.for_model(kind, **options)
        place = drawing_device(config, device)
        random_model(config, "default", seed=0, device=place)  # imports, the allocator
        begun = time.perf_counter()
        network = random_model(config, "default", seed=0, device=place)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        drawn = time.perf_counter() - begun
        model = load(network, dtype=dtype, device=str(device))
        del network
        checks = timed(lambda m=model: Model(m.network, spec=m.spec, name=m.name), device, 2)
        function = timed(lambda m=model: fingerprint(m), device, 2)
        yield name, model, {"draw_s": drawn, "checks_s": checks, "fingerprint_s": function, "drawn_on": str(place)}


def main():
    """Print a table, and write JSON where asked."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = torch.device(given.device)
    found = {"device": str(device), "threads": torch.get_num_threads(), "torch": torch.__version__}
    if device.type == "cuda":
        found["name"] = torch.cuda.get_device_name(device)
        for name, model, seconds in models(TINY if given.tiny else SHAPES, device, torch.bfloat16):
            tensors = list(model.network.named_parameters())
            found[name] = rates(tensors, device) | seconds
            held = [(key, tensor.detach().cpu()) for key, tensor in tensors]
            found[name]["same_on_cpu"] = rates(held, torch.device("cpu"))["value"] == found[name]["value"]
            del model, tensors, held
            torch.cuda.empty_cache()
    else:
        generator = torch.Generator().manual_seed(0)
        count = 1 << (16 if given.tiny else 27)
        found["weights"] = rates([("a", torch.randint(0, 1 << 30, (count,), generator=generator).int())], device)
    print(json.dumps(found, indent=2))
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
