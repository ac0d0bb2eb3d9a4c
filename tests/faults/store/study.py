"""A study of a few tiny shards, as the fault tests run, kill and resume it."""

import numpy as np

from repflow.core.results import Finding, Result
from repflow.store import RunFolder

SHARDS = 6
CONFIG = {"model": "tiny", "task": "random", "samples": SHARDS, "length": 8}
PROVENANCE = {"digests": {"weights": "aa", "prompts": "bb"}, "versions": {"numpy": np.__version__}}


def open_run(parent, name="run"):
    return RunFolder.open(parent, name, config=CONFIG, provenance=PROVENANCE)


def run_study(parent, name="run", on_shard=lambda: None):
    with open_run(parent, name) as run:
        if run.finished:
            return
        if not run.events("plan"):
            run.record("plan", {"samples": list(range(SHARDS))})
        for i in range(SHARDS):
            if not run.has_shard(f"batch-{i}"):
                run.write_shard(f"batch-{i}", shard(i), {"samples": [i]})
                on_shard()
        parts = [run.read_shard(f"batch-{i}") for i in range(SHARDS)]
        run.finish(merge(parts))


def shard(i):
    rng = np.random.default_rng(i)
    return {"token_similarity": rng.normal(size=(3, 1)).astype(np.float32), "count": np.array([i], np.int64)}


def merge(parts):
    similarity = np.concatenate([part["token_similarity"] for part in parts], axis=1)
    count = np.concatenate([part["count"] for part in parts])
    arrays = {"token_similarity": similarity, "count": count}
    axes = {"token_similarity": ("state", "sample"), "count": ("sample",)}
    return Result(arrays, axes, CONFIG, {"digests": {}}, [Finding("none", None, "made for a test")])


def contents(folder):
    """Every byte that must not depend on interruptions: shards and result."""
    files = [*sorted((folder / "shards").iterdir()), folder / "result.json", folder / "result.safetensors"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
