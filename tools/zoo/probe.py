"""Linear probes of a zoo model, for its card: the answer's first symbol and the gold pair's index, by depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

LABELS = ("answer", "index")


def probe_model(
    folder: str | Path, *, samples: int = 1000, seeds: int = 3, length: int = 256, device: str | None = None
) -> dict[str, Any]:
    """Probe a saved model on kvpr prompts and write probe.json beside it; its folder needs the tokenizer."""
    from repflow.studies.engine.feature_sink import MemoryKeeper
    from repflow.studies.engine.loading import load_model
    from repflow.studies.probe.config import ProbeConfig
    from repflow.studies.probe.prompts import seed_prompts
    from repflow.studies.probe.steps import ProbeStudy
    from tools.zoo.save import write_json

    content: dict[str, Any] = {"task": "kvpr", "samples": samples, "seeds": seeds, "length": length, "labels": {}}
    options = {"task": "kvpr", "length": length, "samples": samples, "seeds": seeds, "device": device}
    none = {"recipes": ["robust"], "controls": ["none"], "answers": 0, "lens": 0, "seeds_vary": "all"}
    configs = [ProbeConfig(model=str(folder), label=label, **options, **none) for label in LABELS]  # type: ignore[arg-type]
    model = load_model(configs[0])
    sinks: dict[str, Any] = {}
    first: Any = None
    for config in configs:
        prompts = seed_prompts(config, model)
        ids = [[prompt.ids for prompt in prompts.part(number)] for number in range(prompts.n_parts)]
        if ids != first:  # the same texts with another label need no second pass
            sinks, first = {}, ids
        study = ProbeStudy(config, model, prompts, None)
        study.check_leaks()
        content["labels"][config.label] = _by_state(study.result(MemoryKeeper(sinks=sinks)))
    write_json(Path(folder) / "probe.json", content)
    return content


def _by_state(result: Any) -> dict[str, Any]:
    accuracy = np.asarray(result["probe_accuracy"]).mean(-1)
    return {"accuracy": accuracy.tolist(), "chance": float(result["probe_chance"])}
