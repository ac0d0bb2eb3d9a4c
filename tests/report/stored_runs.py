"""Stored runs of known arrays, in the form in which measure, probe, compare and twins keep theirs."""

from pathlib import Path

import numpy as np

from repflow.core.results import Band, Finding, Result
from repflow.store import RunFolder

DROP = "norm>10"
MACHINE = {
    "repflow": "0.1.0",
    "python": "3.11.7",
    "packages": {"numpy": "2.0"},
    "device": "cpu",
    "device_name": "x86_64",
}


def facts(name, layers=4, kinds=None, init="trained", ablate=(), parameters=1000):
    """What a Result says about its model."""
    return {
        "name": name,
        "spec": f"models/{name}",
        "type": "gpt_neox",
        "init": init,
        "ablate": list(ablate),
        "layers": layers,
        "layer_kinds": list(kinds or ["attention"] * layers),
        "width": 8,
        "parameters": parameters,
    }


def keep(folder, name, result):
    """Store a result as a finished run."""
    provenance = {key: value for key, value in result.provenance.items() if key != "kept"}
    with RunFolder.open(folder, name, config=result.config, provenance=provenance) as run:
        run.finish(result)
    return Path(folder) / name


def measured(
    name="gpt", *, layers=4, kinds=None, init="trained", init_seed=None, task="kvpr", length=32, states="residual",
    dtype="float32", prompts="p0", samples=6, tokens=None, bins=None, seed=0, cka="unbiased", parameters=1000, kept=2,
    spec=None, weights=None,
):  # fmt: skip
    """A Result as `repflow measure` makes it, of random values."""
    rng = np.random.default_rng([seed, layers, length, len(name)])
    count = layers + 1 if states == "residual" else layers
    tokens, bins = tokens or length, bins or min(length, 256)
    arrays, axes = {}, {}

    def add(key, own, *shape, low=0.0, high=1.0):
        arrays[key], axes[key] = rng.uniform(low, high, shape).astype(np.float32), own

    for metric in ("token_similarity", "token_similarity_excess", "common_share"):
        for prefix in ("", f"{DROP}/"):
            add(f"{prefix}{metric}", ("state", "sample"), count, samples)
            add(f"final_norm/{prefix}{metric}", ("state", "sample"), 1, samples)
    add("layer_cosine", ("layer", "sample", "token"), count - 1, samples, bins, low=0.2)
    add("token_norm", ("state", "sample", "token"), count, samples, bins, high=9.0)
    for metric in ("smoothness", "stability", "matched/smoothness", "matched/stability", "relative_smoothness"):
        add(metric, ("sample",), samples)
    add("cka_pooled", ("state", "state"), count, count)
    add("cka_pooled_null_mean", ("state", "state"), count, count, high=0.1)
    add("cka_pooled_null_sd", ("state", "state"), count, count, high=0.2)
    add("cka_matrix", ("state", "state", "sample"), count, count, samples)
    if kept:
        add("kept/layer_cosine", ("layer", "sample", "token"), count - 1, kept, tokens)
        add("kept/token_norm", ("state", "sample", "token"), count, kept, tokens)
        add("kept/token_similarity_by_token", ("state", "sample", "token"), count, kept, tokens)
    config = {
        "model": f"models/{name}", "task": task, "text": [], "length": length, "samples": samples, "seed": 0,
        "match": "text", "match_with": [], "init": init, "init_seed": init_seed, "ablate": [], "states": states,
        "metrics": ["token_similarity"], "drop": DROP, "keep_samples": kept, "cka_form": cka, "dtype": None,
    }  # fmt: skip
    about = facts(name, layers, kinds, init, parameters=parameters)
    about |= {"spec": spec} if spec else {}
    provenance = {
        **MACHINE,
        "dtype": dtype,
        "digests": {
            "weights": weights or f"w-{name}-{init}-{init_seed}-{dtype}",
            "prompts": f"{prompts}-{task}-{length}",
        },
        "model": about,
        "states": states,
        "branch_layers": list(range(layers)) if states == "branch" else None,
        "positions": [int(p) for p in np.linspace(0, tokens, bins, endpoint=False)],
        "lengths": [tokens] * samples,
        "task": {"items": 2, "classes": ["0", "1"], "labels": [0, 1] * 3, "gold_positions": [0.0, 1.0] * 3},
        "kept": [{"ids": list(range(tokens)), "tokens": [f"t{i}" for i in range(tokens)], "text": "a b"}] * kept,
    }
    return Result(arrays, axes, config, provenance)


def probed(
    name="gpt", *, layers=4, task="kvpr", length=32, seed=0, prompts="p0", dtype="float32", kinds=None, parameters=1000
):
    """A Result as `repflow probe` makes it, of random values."""
    rng = np.random.default_rng([seed, layers, length, 7])
    states, seeds, samples = layers + 1, 2, 10
    accuracy = rng.uniform(0.3, 0.9, (states, seeds))
    mean = accuracy.mean(1)
    peak = int(mean.argmax())
    arrays = {
        "probe_accuracy": accuracy,
        "probe_valid_accuracy": accuracy,
        "probe_chance": np.asarray(0.25),
        "probe_corrected": (mean - 0.25) / 0.75,
        "probe_drop": np.asarray(mean[peak] - mean[-1]),
        "probe_peak_accuracy": np.asarray(mean[peak]),
        "probe_control_accuracy": rng.uniform(0.2, 0.3, (states, seeds)),
        "probe_selectivity": rng.uniform(0, 0.5, states),
        "final_norm/probe_accuracy": rng.uniform(0.3, 0.9, (1, seeds)),
        "lens_rank": rng.integers(1, 5, (states, samples)).astype(np.float32),
        "lens_logprob": -rng.uniform(0, 5, (states, samples)).astype(np.float32),
        "answer_correct": np.array([1.0, 0.0] * 5),
    }
    axes = {
        "probe_accuracy": ("state", "seed"), "probe_valid_accuracy": ("state", "seed"), "probe_chance": (),
        "probe_corrected": ("state",), "probe_drop": (), "probe_peak_accuracy": (),
        "probe_control_accuracy": ("state", "seed"), "probe_selectivity": ("state",),
        "final_norm/probe_accuracy": ("state", "seed"), "lens_rank": ("state", "sample"),
        "lens_logprob": ("state", "sample"), "answer_correct": ("sample",),
    }  # fmt: skip
    bands = {}
    for key in ("probe_accuracy", "probe_control_accuracy", "final_norm/probe_accuracy"):
        middle = arrays[key].mean(1)
        bands[key] = Band(middle, middle - 0.05, middle + 0.06)
    for key in ("probe_drop", "probe_peak_accuracy", "probe_selectivity"):
        bands[key] = Band(arrays[key], np.asarray(arrays[key] - 0.02), np.asarray(arrays[key] + 0.03))
    config = {
        "model": f"models/{name}", "task": task, "length": length, "samples": samples, "seeds": seeds, "seed": 0,
        "label": "index", "position": "last", "init": "trained", "ablate": [], "states": "residual", "match": "text",
    }  # fmt: skip
    about = {
        "label": "index of the gold pair", "classes": 4, "chance": 0.25, "recipe": "robust", "peak": peak,
        "peaks": [peak, peak], "last": layers, "peak_accuracy": float(mean[peak]), "last_accuracy": float(mean[-1]),
        "tied": [peak], "intermediate_beats_final": bool(peak < layers), "position": "last",
    }  # fmt: skip
    provenance = {
        **MACHINE,
        "dtype": dtype,
        "digests": {"weights": f"w-{name}-trained-None-{dtype}", "prompts": f"{prompts}-probe-{task}-{length}"},
        "model": facts(name, layers, kinds, parameters=parameters),
        "probe": about,
    }
    return Result(arrays, axes, config, provenance, [], bands)


def reached(name="gpt", *, layers=4, kinds=None, length=32, samples=3, half=5.0, task="kvpr", parameters=1000):
    """A Result as `repflow recency` makes it: influence that falls with the distance, half of it in `half` tokens."""
    distances = np.arange(length, dtype=np.float64)
    arrays = {
        "log_influence": np.tile(-distances / (2 * half), (samples, 1)),
        "half_reach": np.full(samples, half) + np.linspace(-0.2, 0.2, samples),
        "recent_share": np.tile([0.1, 0.6, np.nan, np.nan], (samples, 1)),
        "lost_in_the_middle": np.zeros(samples),
    }
    axes = {"log_influence": ("sample", "distance"), "half_reach": ("sample",), "recent_share": ("sample", "window")}
    axes |= {"lost_in_the_middle": ("sample",)}
    config = {"study": "recency", "model": f"models/{name}", "task": task, "length": length, "samples": samples}
    fit = {"first": 1, "last": length - 1, "intercept": 0.0, "kappa": 0.5 / half, "r2": 1.0, "power_r2": 0.2}
    provenance = {
        **MACHINE,
        "dtype": "float32",
        "digests": {"weights": f"w-{name}-trained-None-float32", "prompts": f"p0-reach-{task}-{length}"},
        "model": facts(name, layers, kinds, parameters=parameters),
        "recency": {"windows": [1, 16, 64, 256], "fit": fit},
    }
    return Result(arrays, axes, config, provenance)


def compared(a="gpt", b="mamba", *, layers=(4, 6), seed=0, length=32):
    """A Result as `repflow compare` of two models makes it."""
    rng = np.random.default_rng([seed, *layers])
    shape = (layers[0] + 1, layers[1] + 1)
    arrays = {
        "cka_cross_pooled": rng.uniform(0, 1, shape),
        "cka_cross_pooled_null_mean": rng.uniform(0, 0.1, shape),
        "cka_cross_pooled_null_sd": rng.uniform(0, 0.2, shape),
        "neighbours_cross": rng.uniform(0, 1, (*shape, 3)),
        "neighbours_chance": np.full(3, 0.4),
        "kept_share": np.full(3, 0.5),
    }
    axes = {name: ("state", "state", "sample")[: array.ndim] for name, array in arrays.items()}
    axes |= {"neighbours_chance": ("sample",), "kept_share": ("sample",)}
    config = {"study": "compare", "model_a": a, "model_b": b, "model": f"{a} | {b}", "task": "kvpr", "length": length}
    config |= {"states": "residual", "cka_form": "unbiased"}
    provenance = {
        **MACHINE,
        "dtype": "float32",
        "models": {"a": facts(a, layers[0]), "b": facts(b, layers[1], ["ssm"] * layers[1])},
        "matched_by": ["token"],
        "digests": {"weights_a": f"w-{a}-trained-None-float32", "weights_b": f"w-{b}-trained-None-float32"},
    }
    return Result(arrays, axes, config, provenance)


def stray(code="sink_tokens", message="one token carries all"):
    """A finding of a run."""
    return Finding(code, 2, message)
