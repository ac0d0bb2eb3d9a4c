"""Kills in the middle of `repflow.studies.needle.study`; prints a JSON object."""

import json


def main(folder, kills):
    import torch

    from tests.faults.child_kills import kill_and_resume
    from tests.studies.needle.inputs import needle_model

    torch.set_num_threads(1)
    from repflow.studies.needle.study import NeedleConfig, run

    config = NeedleConfig(lengths=["128"], positions=["0", "1"], samples=2, candidates=2, answer_tokens=1, batch_size=1)
    model, runs = needle_model("mamba2"), folder / "runs"

    def work(name):
        return run(config, model=model, out=runs, name=name)

    print(json.dumps(kill_and_resume(work, runs, kills=kills, midway=kills // 3, per_run=3, within=0.8)))
