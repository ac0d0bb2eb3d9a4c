"""Kills in the middle of `repflow.studies.measure`; prints a JSON object."""

import json
import random

from tests.faults.child_kills import CONFIG, contents, kill_and_resume

BATCHES = 10


def main(folder, kills):
    import torch

    torch.set_num_threads(1)
    from repflow.studies.measure import MeasureConfig, load_model, run

    (folder / "model.json").write_text(json.dumps(CONFIG))
    config = MeasureConfig(model=f"config:{folder / 'model.json'}", length=24, samples=BATCHES, batch_size=1)
    model, runs = load_model(config), folder / "runs"

    def work(name):
        return run(config, model=model, out=runs, name=name)

    resume = kill_and_resume(work, runs, kills=kills, midway=kills // 2, per_run=5, within=0.6)
    resume["cuts"] = 0
    manifest, reference = runs / "reference" / "manifest.jsonl", contents(runs / "reference")
    rng = random.Random("cuts")
    for _ in range(5):
        whole = manifest.read_bytes()
        manifest.write_bytes(whole[: rng.randrange(len(whole))])
        work("reference")
        resume["cuts"] += contents(runs / "reference") == reference
    print(json.dumps(resume))
