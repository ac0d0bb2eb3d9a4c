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
    from repflow.studies.probe import ProbeConfig, run
    from repflow.studies.zoo_save import write_json

    made: dict[str, Any] = {"task": "kvpr", "samples": samples, "seeds": seeds, "length": length, "labels": {}}
    for label in LABELS:
        config = ProbeConfig(
            model=str(folder), task="kvpr", length=length, samples=samples, seeds=seeds, label=label,
            recipes=["robust"], controls=["none"], answers=0, lens=0, device=device,
        )  # fmt: skip
        result = run(config)
        made["labels"][label] = _by_state(result)
    write_json(Path(folder) / "probe.json", made)
    return made


def _by_state(result: Any) -> dict[str, Any]:
    accuracy = np.asarray(result["probe_accuracy"]).mean(-1)
    return {"accuracy": accuracy.tolist(), "chance": float(result["probe_chance"])}
