"""Trained models that are kept: a folder in Hugging Face format for each, beside the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, teach
from repflow.store.disk import link_or_copy
from repflow.store.name import check_name
from repflow.studies.laboratory.cell import Cell

PART = ".part"
"""Ending of a model's folder that is being written."""


def models_folder(out: Path, name: str) -> Path:
    """Where the models of a run are kept."""
    return out / f"{name}.models"


def model_place(folder: Path, cell: Cell) -> Path:
    """Folder of one model: the cell, with characters that every file system takes."""
    return folder / check_name(str(cell).translate({ord("/"): "-", ord(":"): "_"}), "name of a model")


def keep_model(folder: Path, cell: Cell, network: Any, tokenizer: Any = None) -> Path:
    """Write a model as a folder that `repflow.load` takes; whole, or not there."""
    from repflow.models.load import without_progress

    place = model_place(folder, cell)
    if not place.exists():
        half = place.with_name(place.name + PART)
        with without_progress():  # a bar for every model, between lines that say what is trained
            network.save_pretrained(half)
        if tokenizer is not None:
            tokenizer.save_pretrained(half)
        half.rename(place)
    return place


def join_models(folders: Sequence[Path], target: Path) -> None:
    """Put models of several folders into one; whole, or not there. What is there stays."""
    for place in [place for folder in folders if folder.is_dir() for place in sorted(folder.iterdir())]:
        if place.is_dir() and not place.name.endswith(PART) and not (target / place.name).exists():
            half = target / (place.name + PART)
            half.mkdir(parents=True, exist_ok=True)
            for file in place.iterdir():
                (half / file.name).unlink(missing_ok=True)
                link_or_copy(file, half / file.name)
            half.rename(target / place.name)


def check_kept(folder: Path, cells: Sequence[Cell]) -> None:
    """Refuse to call models kept that were trained without being kept."""
    missing = [cell for cell in cells if not model_place(folder, cell).exists()]
    if missing:
        got = f"{len(missing)} of {len(cells)} models of a run whose training had not been asked to keep them"
        remedy = "pass another --name to train them again; the run's numbers stay as they are"
        raise InputError(teach(f"trained models in {folder}", got, remedy))
