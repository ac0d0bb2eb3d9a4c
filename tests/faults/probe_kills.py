"""Kills in the middle of `repflow.studies.probe.study`; prints a JSON object."""

import json

import numpy as np

from tests.faults.child_kills import CONFIG, kill_and_resume

SAMPLES = 60


def labelled():
    from repflow.tasks import Prompt, Prompts

    rows = []
    for index in range(SAMPLES):
        rng = np.random.default_rng(index)
        rows.append(Prompt(tuple(rng.integers(0, 128, int(rng.integers(12, 20))).tolist()), label=index % 2))
    return Prompts("kills", tuple(rows), ("a", "b"))


def main(folder, kills):
    import torch

    torch.set_num_threads(1)
    from repflow.studies.engine.loading import load_model
    from repflow.studies.probe.study import ProbeConfig, run

    (folder / "model.json").write_text(json.dumps(CONFIG))
    config = ProbeConfig(
        model=f"config:{folder / 'model.json'}", seeds=2, batch_size=4, allow_leak=True, epochs=20, twin="default"
    )
    model, prompts, runs = load_model(config), labelled(), folder / "runs"

    def work(name):
        return run(config, model=model, given=prompts, out=runs, name=name)

    print(json.dumps(kill_and_resume(work, runs, kills=kills, midway=kills // 3, per_run=3, within=0.8)))
