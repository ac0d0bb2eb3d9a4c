"""Probes of trained models with, with frozen and without norms: can the place of the asked pair be read off a state?

Models are those that the phase `seeds` of the study `norms` keeps. A probe of the last token of recall rows, one model
a file, so that a call that is stopped goes on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from repflow.studies.architecture.config import ArchitectureCell
from repflow.studies.laboratory.kept import model_place, models_folder

FOLDER = "{}.probes"
"""Of a run's probes, beside it."""


def probe_models(out: Path, name: str, words: list[str], *, samples: int, device: str | None) -> None:
    """Probe every kept model of a run that has no file yet.

    Args:
        out: folder of runs.
        name: of the run.
        words: its cells.
        samples: prompts of a probe.
        device: that reads the models.
    """
    import repflow

    folder = out / FOLDER.format(name)
    folder.mkdir(exist_ok=True)
    for word in words:
        cell, file = ArchitectureCell.parse(word), _file(folder, word)
        place = model_place(models_folder(out, name), cell)
        if file.exists():
            continue
        if not place.exists():
            raise SystemExit(
                f"no model of {word} in {place.parent}: the phase seeds keeps them on the machine it runs on"
            )
        result = repflow.probe(str(place), "recall", length=cell.length, samples=samples, seeds=3, device=device)
        file.write_text(json.dumps(_numbers(result)), encoding="utf-8")
        print(word, file.read_text(encoding="utf-8"), flush=True)


def read_probes(out: Path, name: str, word: str) -> dict[str, Any]:
    """Numbers of one model's probe; none where it was not probed."""
    file = _file(out / FOLDER.format(name), word)
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def _file(folder: Path, word: str) -> Path:
    return folder / f"{model_place(folder, ArchitectureCell.parse(word)).name}.json"


def _numbers(result: Any) -> dict[str, Any]:
    """Test accuracy at the state that validation chose and at the last one, and that of guessing."""
    known = result.provenance["probe"]
    values = {
        "probe_peak": known["peak_accuracy"],
        "probe_last": known["last_accuracy"],
        "probe_chance": known["chance"],
    }
    shown = {key: float(f"{value:.5g}") for key, value in values.items() if np.isfinite(value)}
    return {**shown, "probe_state": int(known["peak"])}
