"""Kill children of a warm parent in the middle of a study, resume each, compare every byte.

The parent must never have used a second thread before it forks. A child is killed after some seconds of its own CPU
time, so that kills are spread over its work however busy the machine is.
"""

import os
import random
import signal
import time

CONFIG = {"model_type": "mamba2", "hidden_size": 32, "num_hidden_layers": 4, "num_heads": 8, "head_dim": 8}
CONFIG |= {"state_size": 8, "n_groups": 2, "chunk_size": 8, "vocab_size": 128}


def contents(run):
    """Every byte that must not depend on interruptions: shards and result."""
    files = [*sorted((run / "shards").iterdir()), run / "result.json", run / "result.safetensors"]
    return {file.name: file.read_bytes() for file in files}


def killed_after(seconds):
    """Have the kernel end this process when it has used so much CPU time; as with kill -9, no code of ours runs."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-4))


def killed_child(work, seconds):
    """Fork a child that works and is killed after some CPU time; False if it got to the end first."""
    pid = os.fork()
    if pid == 0:
        try:
            killed_after(seconds)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit("a child failed by itself")
    return os.WIFSIGNALED(status)


def kill_and_resume(work, runs, *, kills, midway, per_run, within):
    """Kill runs of `work(name)` until `kills` have hit, `midway` of them between two shards, and finish each.

    Args:
        work: does or resumes a run of this name in the folder `runs`; the run `reference` is what all must equal.
        runs: folder of runs.
        kills: number of kills wanted.
        midway: number of them that leave a run with some shards.
        per_run: kills of one run at most, before it is finished.
        within: share of a whole run's CPU time in which the kill comes.
    """
    work("warm")  # the first run pays for lazy imports
    start = time.process_time()
    work("reference")
    duration = time.process_time() - start
    reference = contents(runs / "reference")
    shards = len(reference) - 2
    rng = random.Random("kills of children")
    counts = {"kills": 0, "midway": 0, "different": [], "shards": shards}
    number = 0
    while counts["kills"] < kills or counts["midway"] < midway:
        name, number = f"run{number}", number + 1
        for _ in range(per_run):
            if not killed_child(lambda name=name: work(name), rng.uniform(0, within * duration)):
                break
            counts["kills"] += 1
            manifest = runs / name / "manifest.jsonl"
            stored = manifest.read_bytes().count(b'"kind":"shard"') if manifest.exists() else 0
            counts["midway"] += 0 < stored < shards
        work(name)
        if contents(runs / name) != reference:
            counts["different"].append(name)
    return counts
