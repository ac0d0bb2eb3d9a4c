"""Kill children of a warm parent in the middle of `repflow.studies.probe`, resume each, compare every byte.

A script, because the parent must never have used a second thread before it forks: `probe_kills.py FOLDER KILLS` prints
a JSON object.
"""

import json
import random
import sys
import time
from pathlib import Path

import numpy as np
from measure_kills import CONFIG, contents, killed_child

KILLS_PER_RUN = 3
SAMPLES = 60


def labelled():
    from repflow.tasks import Prompt, Prompts

    made = []
    for index in range(SAMPLES):
        rng = np.random.default_rng(index)
        made.append(Prompt(tuple(rng.integers(0, 128, int(rng.integers(12, 20))).tolist()), label=index % 2))
    return Prompts("kills", tuple(made), ("a", "b"))


def main(folder, kills_wanted):
    import torch

    torch.set_num_threads(1)
    from repflow.studies.probe import ProbeConfig, load_model, run

    (folder / "model.json").write_text(json.dumps(CONFIG))
    config = ProbeConfig(
        model=f"config:{folder / 'model.json'}", seeds=2, batch_size=4, allow_leak=True, epochs=20, twin="default"
    )
    model, prompts = load_model(config), labelled()

    def work(name):
        return run(config, model=model, prompts=prompts, out=folder / "runs", name=name)

    work("warm")  # the first run pays for lazy imports
    start = time.perf_counter()
    work("reference")
    duration = time.perf_counter() - start
    reference = contents(folder / "runs" / "reference")
    total = len(reference) - 2
    rng = random.Random("kills of probes")
    found = {"kills": 0, "midway": 0, "different": [], "shards": total}
    number = 0
    while found["kills"] < kills_wanted:
        name, number = f"run{number}", number + 1
        for _ in range(KILLS_PER_RUN):
            if not killed_child(lambda name=name: work(name), rng.uniform(0, 0.8 * duration)):
                break
            found["kills"] += 1
            manifest = folder / "runs" / name / "manifest.jsonl"
            stored = manifest.read_bytes().count(b'"kind":"shard"') if manifest.exists() else 0
            found["midway"] += 0 < stored < total
        work(name)
        if contents(folder / "runs" / name) != reference:
            found["different"].append(name)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
