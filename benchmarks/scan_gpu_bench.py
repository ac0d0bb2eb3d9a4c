"""Shapes, timing and results of benchmarks/scan_gpu.py."""

from __future__ import annotations

import gc
import json
import statistics
import time
from pathlib import Path

SHAPES = {
    "mamba-2.8b": ("mamba", {
        "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, "vocab_size": 50280, "time_step_rank": 160}),
    "mamba2-2.7b": ("mamba2", {
        "hidden_size": 2560, "num_hidden_layers": 64, "head_dim": 64, "num_heads": 80, "state_size": 128, "n_groups": 1,
        "vocab_size": 50288}),
    "pythia-2.8b": ("gpt_neox", {
        "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 10240,
        "max_position_embeddings": 32768, "vocab_size": 50304,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}),
    "mamba2-8m": ("mamba2", {
        "hidden_size": 256, "num_hidden_layers": 16, "head_dim": 64, "num_heads": 8, "state_size": 64, "n_groups": 1,
        "vocab_size": 4096, "tie_word_embeddings": True}),
    "tiny-mamba": ("mamba", {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "vocab_size": 64,
    "time_step_rank": 4}),
    "tiny-mamba2": ("mamba2", {
        "hidden_size": 16, "num_hidden_layers": 2, "head_dim": 16, "num_heads": 2, "state_size": 16, "n_groups": 1,
        "vocab_size": 64, "chunk_size": 16, "tie_word_embeddings": True}),
    "tiny-pythia": ("gpt_neox", {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
        "vocab_size": 64}),
}  # fmt: skip


class Bench:
    """Device, sizes and results of a run."""

    def __init__(self, smoke, path):
        import torch

        self.torch, self.smoke, self.path = torch, smoke, path
        self.device = torch.device("cpu" if smoke else "cuda")
        self.dtype = torch.float32 if smoke else torch.bfloat16
        self.reps = 1 if smoke else 10
        self.results, self.models = [], {}

    def say(self, row, **values):
        """Print a line at once and keep it."""
        self.results.append({"row": row, **values})
        print(
            f"[{time.strftime('%H:%M:%S')}] {row:8s}",
            "  ".join(f"{k}={short(v)}" for k, v in values.items()),
            flush=True,
        )
        if self.path:
            Path(self.path).write_text(json.dumps(self.results, indent=1), encoding="utf-8")

    def build(self, shape, dtype=None, *, head=False, **changes):
        """A shape's model with random weights, made on the device."""
        from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

        if self.smoke and not shape.startswith("tiny"):
            shape = "tiny-" + shape.split("-")[0]
        kind, options = SHAPES[shape]
        maker = AutoModelForCausalLM if head else AutoModel
        more = {"attn_implementation": "sdpa"} if kind == "gpt_neox" else {}
        with self.device:
            return maker.from_config(
                AutoConfig.for_model(kind, **{**options, **changes}), dtype=dtype or self.dtype, **more
            ).eval()

    def model(self, shape):
        """One large model is held at a time; what earlier rows left behind is said, as it would count as this one's."""
        if shape not in self.models:
            self.free()
            left = 0.0 if self.smoke else self.torch.cuda.memory_allocated() / 2**30
            if left > 0.1:
                self.say("memory", shape=shape, left_by_earlier_rows_gib=left)
            self.torch.manual_seed(0)
            self.models[shape] = self.build(shape)
        return self.models[shape]

    def free(self):
        """Let go of the models; their layers and hooks refer to each other, so it takes the garbage collector."""
        self.models.clear()
        gc.collect()
        if not self.smoke:
            self.torch.cuda.empty_cache()

    def time(self, call, reps=None, warm=2):
        """Median seconds, and peak memory in GiB, of a call."""
        torch, reps = self.torch, reps or self.reps
        for _ in range(warm):
            call()
        if self.smoke:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start, 0.0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(reps):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1000)
        return statistics.median(times), torch.cuda.max_memory_allocated() / 2**30

    def ids(self, model, batch, tokens):
        """Random tokens of the model's vocabulary."""
        return self.torch.randint(0, model.config.vocab_size, (batch, tokens), device=self.device)


def short(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def parameters(model):
    return sum(p.numel() for p in model.parameters())
