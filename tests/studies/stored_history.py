"""Stored histories of a training that never was, for tests of what reads them."""

import numpy as np

from repflow.training.flow.history import FlowHistory, HistoryFolder

FACTS = {"name": "tiny", "spec": "live:tiny", "init": "trained", "layers": 2, "layer_kinds": ["attention"] * 2}


def history(folder, name, steps=(0, 10, 20), shift=0.0, states=3, prompts="abc"):
    config = {"study": "training", "model": "live:tiny", "task": "random", "length": 8, "prompts": 4, "every": 10}
    config |= {"metrics": ["token_similarity", "smoothness"], "states": "residual", "autocast": None}
    provenance = {"model": {**FACTS, "layers": states - 1}, "digests": {"prompts": prompts}, "dtype": "float32"}
    kept = FlowHistory(config, provenance)
    place = None
    for number, step in enumerate(steps):
        depth = np.linspace(0.1, 0.5, states)[:, None] + 0.01 * np.arange(4) + 0.1 * number + shift
        table = {"token_similarity": (("state", "sample"), depth), "smoothness": (("sample",), depth[0])}
        place = place or HistoryFolder(folder, name, kept, step)
        kept.add(step, table)
        place.write(kept, step, table)
    place.close(kept)
    return folder / name
