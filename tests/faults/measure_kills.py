"""Kill children of a warm parent in the middle of `repflow.studies.measure`, resume each, compare every byte.

A script, because the parent must never have used a second thread before it forks: `measure_kills.py FOLDER KILLS`
prints a JSON object.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

KILLS_PER_RUN = 5
BATCHES = 10
CONFIG = {"model_type": "mamba2", "hidden_size": 32, "num_hidden_layers": 4, "num_heads": 8, "head_dim": 8}
CONFIG |= {"state_size": 8, "n_groups": 2, "chunk_size": 8, "vocab_size": 128}


def contents(run):
    files = [*sorted((run / "shards").iterdir()), run / "result.json", run / "result.safetensors"]
    return {file.name: file.read_bytes() for file in files}


def killed_child(work, delay):
    """Fork a child that works and is killed after a while; False if it got to the end first."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit("a child failed by itself")
    return os.WIFSIGNALED(status)


def main(folder, kills_wanted):
    import torch

    torch.set_num_threads(1)
    from repflow.studies.measure import MeasureConfig, load_model, run

    (folder / "model.json").write_text(json.dumps(CONFIG))
    config = MeasureConfig(model=f"config:{folder / 'model.json'}", length=24, samples=BATCHES, batch_size=1)
    model = load_model(config)

    def work(name):
        return run(config, model=model, out=folder / "runs", name=name)

    work("warm")  # the first run pays for lazy imports
    start = time.perf_counter()
    work("reference")
    duration = time.perf_counter() - start
    reference = contents(folder / "runs" / "reference")
    rng = random.Random("kills of children")
    found = {"kills": 0, "midway": 0, "different": [], "cuts": 0}
    number = 0
    while found["kills"] < kills_wanted:
        name, number = f"run{number}", number + 1
        for _ in range(KILLS_PER_RUN):
            if not killed_child(lambda name=name: work(name), rng.uniform(0, 0.6 * duration)):
                break
            found["kills"] += 1
            manifest = folder / "runs" / name / "manifest.jsonl"
            stored = manifest.read_bytes().count(b'"kind":"shard"') if manifest.exists() else 0
            found["midway"] += 0 < stored < BATCHES
        work(name)
        if contents(folder / "runs" / name) != reference:
            found["different"].append(name)
    for _ in range(5):
        manifest = folder / "runs" / "reference" / "manifest.jsonl"
        whole = manifest.read_bytes()
        manifest.write_bytes(whole[: rng.randrange(len(whole))])
        work("reference")
        found["cuts"] += contents(folder / "runs" / "reference") == reference
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
