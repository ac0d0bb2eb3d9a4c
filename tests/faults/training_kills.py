"""Kills in the middle of `repflow.training.train`; prints a JSON object.

Children of a warm parent train a model with dropout. A third of the kills come at a random time, a third at a random
call of the file system (in the middle of a write included), a third behind a random step, before its checkpoint.
"""

import json
import os
import random
import signal
import time

STEPS, EVERY, CALLS = 24, 4, 60
FINAL = f"checkpoint-{STEPS:09d}-final.safetensors"


def outcome(run):
    """What must not depend on interruptions: weights, generators and history by their bytes, and the log."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("tokens_per_second", None)
    return (run / FINAL).read_bytes(), lines


def stored_step(run):
    record = run / "training.json"
    return json.loads(record.read_text())["step"] if record.exists() else -1


def killed_child(work, how, rng, duration):
    """Fork a child that trains and is killed; False if it got to the end first."""
    from tests.faults.child_kills import killed_after
    from tests.faults.store.kills import die_at

    pid = os.fork()
    if pid == 0:
        try:
            if how == "call":
                die_at(rng.randint(1, CALLS))
            elif how == "time":
                killed_after(rng.uniform(0, 0.8 * duration))
            work(rng.randint(1, STEPS - 1) if how == "step" else None)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit("a child failed by itself")
    return os.WIFSIGNALED(status)


def main(folder, kills):
    import torch

    torch.set_num_threads(1)
    from repflow.training import Callback, train
    from tests.training.test_loop import Meddler, dropout_model
    from tests.training.tiny_training import config, source

    class Killer(Callback):
        def __init__(self, at):
            self.at = at

        def on_step(self, moment):
            if moment.step == self.at:
                os.kill(os.getpid(), signal.SIGKILL)

    asked = config(steps=STEPS, checkpoint_every=EVERY, evaluate=6)

    def work(name, at=None):
        train(dropout_model(), source(), asked, folder=folder / name, callbacks=[Meddler(), Killer(at)])

    work("warm")
    start = time.process_time()
    work("reference")
    duration = time.process_time() - start
    expected = outcome(folder / "reference")
    rng = random.Random("kills of trainings")
    counts = {"kills": 0, "midway": 0, "different": [], "steps": []}
    number = 0
    while counts["kills"] < kills or counts["midway"] < kills // 2:
        name, number = f"run{number}", number + 1
        for how in rng.sample(["time", "call", "step"], 3):
            seed = rng.random()
            if not killed_child(lambda at, name=name: work(name, at), how, random.Random(seed), duration):
                break
            counts["kills"] += 1
            counts["steps"].append(stored_step(folder / name))
            counts["midway"] += 0 < counts["steps"][-1] < STEPS
        work(name)
        names = sorted(file.name for file in (folder / name).iterdir())
        if outcome(folder / name) != expected or names != [".training.lock", FINAL, "log.jsonl", "training.json"]:
            counts["different"].append(name)
    print(json.dumps(counts))
