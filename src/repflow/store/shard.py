"""Arrays as safetensors bytes, and files against their digests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from repflow.core.errors import InputError, teach
from repflow.store.disk import digest, read_bytes

SHARDS = "shards"
SUFFIX = ".safetensors"


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Encode arrays; equal arrays give equal bytes.

    No metadata goes in: safetensors writes its keys in random order.
    """
    # safetensors copies the raw buffer: a transposed view would silently come back with its values in another order.
    dense = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    for name, array in dense.items():
        _check_dtype(name, array)
    return save(dense)


def unpack(data: bytes) -> dict[str, np.ndarray]:
    """Decode what `pack` made."""
    return load(data)


def stamp(data: bytes) -> dict[str, Any]:
    """Size and sha256, as the manifest keeps them."""
    return {"bytes": len(data), "sha256": digest(data)}


def read_stamped(path: Path, expected: Mapping[str, Any]) -> tuple[bytes, str]:
    """Content of a file and what is wrong with it, "" for nothing."""
    if path.is_symlink() or (path.parent.is_symlink() and path.parent.name == SHARDS):
        return b"", "a symbolic link, which is not followed"
    data = read_bytes(path)
    if data is None:
        return b"", "missing"
    if len(data) != expected["bytes"]:
        return data, f"{len(data)} bytes instead of {expected['bytes']}"
    if digest(data) != expected["sha256"]:
        return data, "content does not match its sha256"
    return data, ""


def shard_path(folder: Path, name: str) -> Path:
    """Path of a shard."""
    return folder / SHARDS / f"{name}{SUFFIX}"


def _check_dtype(name: str, array: np.ndarray) -> None:
    try:
        save({"probe": np.zeros(0, array.dtype)})
    except (SafetensorError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            teach(
                f"numbers or booleans in array {name!r}",
                f"dtype {array.dtype}",
                "store text in the meta or provenance, complex128 as real and imaginary parts",
            )
        ) from error
