"""Reading weights: safetensors, or `.bin` files with `weights_only=True`; pickled objects are never executed."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from repflow.core.errors import InputError, refusing, teach, words_of

INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
LONGEST_NAME = 255


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, refusing anything else by name."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(teach("a readable JSON file", f"{path}: {words_of(error)}", "check the file")) from error
    if not isinstance(data, dict):
        raise InputError(teach("a JSON object", f"{path} with a value of type {type(data).__name__}", "check the file"))
    return data


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read a folder's weights on the CPU, from one file or the shards of an index."""
    weights: dict[str, Tensor] = {}
    for path in weight_files(folder):
        weights.update(_read_file(path))
    return weights


def weight_files(folder: Path) -> list[Path]:
    """Files that hold a folder's weights; safetensors are preferred."""
    for single, index in zip(WEIGHT_FILES, INDEX_FILES, strict=True):
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            return _shards(folder, index)
    expected = f"weights in {' or '.join(WEIGHT_FILES)}"
    raise InputError(
        teach(expected, f"none in {folder}", "give a folder with weights, or init='default' for random ones")
    )


def stored_weights(folder: Path) -> int:
    """Number of weights in a folder's files; of a `.bin` file at least that many, by its size in float32."""
    count = 0
    for path in weight_files(folder):
        if path.suffix != ".safetensors":
            count += path.stat().st_size // 4
            continue
        with refusing_pickles(path.name), safe_open(path, framework="pt") as file:
            count += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return count


def refuse_integer_weights(folder: Path, network: nn.Module) -> None:
    """Refuse a checkpoint whose header calls a weight integers where the model computes with floating point.

    transformers would turn the integers into as many floats, which are not the weights. Masks and positions may be
    integers.
    """
    floating = {name for name, parameter in network.named_parameters() if parameter.is_floating_point()}
    short = {name.partition(".")[2] for name in floating}  # a base model's names lack the head's prefix
    for path in (path for path in weight_files(folder) if path.suffix == ".safetensors"):
        with refusing_pickles(path.name), safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                kind = str(file.get_slice(name).get_dtype())
                if kind.startswith(("I", "U", "BOOL")) and (name in floating or name in short):
                    got = f"{name} as {kind} in {path.name}"
                    raise InputError(teach("weights in floating point", got, "the file is damaged; download it again"))


def _shards(folder: Path, index: str) -> list[Path]:
    """Files that an index names, all inside the folder."""
    names = read_json(folder / index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        got = f"{index} with {names!r:.80}"
        raise InputError(teach("an index with a weight_map from parameters to files", got, "download it again"))
    files = []
    for name in sorted(set(names.values())):
        # by its spelling alone: files of the hub's cache are links to elsewhere
        inside = name and "\0" not in name and not Path(name).is_absolute() and ".." not in Path(name).parts
        if not inside:
            got = f"{index}, which names {name!r:.80}"
            raise InputError(
                teach("weights inside the model's folder", got, "it was not opened; do not trust this model")
            )
        if len(name) > LONGEST_NAME or not (folder / name).is_file():
            raise InputError(
                teach(f"the file {name!r:.80} that {index} names", f"none in {folder}", "download it again")
            )
        files.append(folder / name)
    return files


def _read_file(path: Path) -> dict[str, Tensor]:
    with refusing_pickles(path.name):
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))


def refuse_pickled_objects(folder: Path) -> None:
    """Open every `.bin` file of a folder with `weights_only=True` before anything else touches it."""
    for path in weight_files(folder):
        if path.suffix != ".safetensors":
            with refusing_pickles(path.name):
                torch.load(path, map_location="meta", weights_only=True, mmap=_is_zip(path))


@contextmanager
def refusing_pickles(name: str) -> Iterator[None]:
    """Turn the unpickler's refusal, or a damaged file, into an error that says what to do."""
    with refusing("a readable checkpoint", name, "check its files, or download it again"):
        try:
            yield
        except pickle.UnpicklingError as error:
            raise InputError(
                teach(
                    "a checkpoint of tensors only",
                    f"{name}, which needs unpickling of objects",
                    "it was not executed; ask its author for safetensors",
                )
            ) from error


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:  # only the zip format can be mapped into memory; files before torch 1.6 are not
        return file.read(4) == b"PK\x03\x04"
