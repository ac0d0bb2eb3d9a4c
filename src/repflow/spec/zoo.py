"""The built-in models: where they are, what their cards say, whether every byte is as it was made. No torch.

`zoo:NAME` names one of them wherever a model is expected. Another folder with the same names can replace the
packaged one, such as that of your own training: set REPFLOW_ZOO to it.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, RepflowError, nearest, teach

PREFIX = "zoo:"
NAMES = ("gpt-neo", "gpt-neox", "mamba", "mamba2", "hybrid", "hybrid-mirror")
SHAPES = {
    "gpt-neo": "Transformer with learned positions, global and local attention in turn",
    "gpt-neox": "Transformer with rotary positions",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "hybrid": "Bamba: Mamba-2 blocks first, attention last",
    "hybrid-mirror": "Bamba: attention first, Mamba-2 blocks last",
}
DIGESTS, SEEDS = "digests.json", "seeds.json"
"""Files beside the models: SHA-256 of what is loaded; measurements of further trainings."""
SEEDS_FORMAT = 1
"""Of the file of further trainings."""
DIGESTED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""Files of a model that have a digest."""
VARIABLE = "REPFLOW_ZOO"


def zoo_folder() -> Path:
    """Folder that holds the models."""
    setting = os.environ.get(VARIABLE)
    return Path(setting).expanduser() if setting else Path(__file__).parents[1] / "models" / "zoo"


def _elsewhere() -> bool:
    """Whether the models are in the user's own folder."""
    return bool(os.environ.get(VARIABLE))


def available() -> tuple[str, ...]:
    """Names whose weights are there, in the order of `NAMES`; a folder of one's own may hold fewer than six."""
    folder = zoo_folder()
    return tuple(name for name in NAMES if (folder / name / "model.safetensors").is_file())


def shown_models() -> tuple[str, ...]:
    """Names whose weights are there, at least one.

    Raises:
        InputError: there is none.
    """
    names = available()
    if not names:
        model_folder(NAMES[0])  # says what is missing and what to do
    return names


def is_zoo(spec: object) -> bool:
    """Whether a model spec names a built-in model.

    >>> is_zoo("zoo:mamba"), is_zoo("gpt2")
    (True, False)
    """
    return isinstance(spec, str) and spec.startswith(PREFIX)


def check_zoo_name(name: str) -> str:
    """Name of a built-in model, with or without `zoo:`.

    >>> check_zoo_name("zoo:mamba2")
    'mamba2'
    """
    plain = name.removeprefix(PREFIX)
    if plain not in NAMES:
        close = nearest(plain, NAMES)
        known = "" if close.startswith("known") else f"; the zoo has {', '.join(NAMES)}"
        raise InputError(f"unknown model of the zoo {plain!r}; {close}{known}")
    return plain


def model_folder(name: str) -> Path:
    """Folder of a built-in model.

    Raises:
        InputError: there is no such model, or its files are missing.
    """
    folder = zoo_folder() / check_zoo_name(name)
    if not (folder / "model.safetensors").is_file():
        remedy = f"check {VARIABLE}" if _elsewhere() else "install repflow again"
        raise InputError(teach(f"the built-in model {folder.name}", f"no weights in {folder}", remedy))
    return folder


def checked_folder(name: str) -> Path:
    """Folder of a built-in model whose files match their digests."""
    folder = model_folder(name)
    wrong = damaged_files(folder.name)
    if wrong:
        expected = f"{wrong[0]} of zoo:{folder.name} as it was made"
        remedy = (
            f"check {VARIABLE}, or run `python -m tools.zoo.make digests` if you changed it"
            if _elsewhere()
            else "install repflow again"
        )
        raise RepflowError(teach(expected, f"other bytes in {folder}", remedy))
    return folder


def damaged_files(name: str) -> list[str]:
    """Files of a built-in model that differ from their digests; none where the folder has no digests at all."""
    folder, stored = model_folder(name), zoo_folder() / DIGESTS
    if not stored.is_file():
        return []
    known = json.loads(stored.read_text(encoding="utf-8")).get(folder.name, {})
    return [file for file, digest in known.items() if file_digest(folder / file) != digest]


def file_digest(path: Path) -> str:
    """SHA-256 of a file, "" where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def write_digests(folder: Path) -> dict[str, dict[str, str]]:
    """Write the digests of all models in a folder.

    Raises:
        InputError: there is no model, or one that lacks a file; digests of nothing would end the check at load.
    """
    digests = {
        name: {file: file_digest(folder / name / file) for file in DIGESTED}
        for name in NAMES
        if (folder / name / "model.safetensors").is_file()
    }
    if not digests:
        remedy = "name the folder that `python -m tools.zoo.make train` wrote the models to"
        raise InputError(teach(f"models of the zoo in {folder}", "none", remedy))
    for name, files in digests.items():
        if missing := [file for file, digest in files.items() if not digest]:
            raise InputError(
                teach(f"{missing[0]} in {folder / name}", "none", "run `python -m tools.zoo.make card` first")
            )
    part = folder / f"{DIGESTS}.part"
    part.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / DIGESTS)
    return digests


def record(name: str, kind: str = "training") -> dict[str, Any]:
    """What training, evaluation or probe of a built-in model measured; empty where there is no such file."""
    return record_in(zoo_folder() / check_zoo_name(name), kind)


def record_in(folder: Path, kind: str = "training") -> dict[str, Any]:
    """The same for any folder that `tools.zoo.make train` wrote."""
    file = folder / f"{kind}.json"
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return record


def card(name: str) -> str:
    """Model card of a built-in model."""
    file = model_folder(name) / "README.md"
    if not file.is_file():
        raise InputError(teach(f"a card in {file.parent}", "none", "run `python -m tools.zoo.make card`"))
    return file.read_text(encoding="utf-8")


def seed_records() -> list[dict[str, Any]]:
    """Stored readings of further trainings of these models, as `repflow.papers.findings` writes them."""
    file = zoo_folder() / SEEDS
    if not file.is_file():
        return []
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        readings: list[dict[str, Any]] = content["readings"]
        if content["format"] != SEEDS_FORMAT:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        remedy = "measure it again with `python -m tools.zoo.make seeds`, or delete it"
        raise InputError(teach(f"readings of format {SEEDS_FORMAT} in {file}", "other content", remedy)) from None
    return readings
