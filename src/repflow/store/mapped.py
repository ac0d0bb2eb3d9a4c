"""Arrays of a shard mapped from its file: what is not read stays on the disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def map_arrays(path: Path) -> dict[str, np.ndarray]:
    """Map the arrays of a safetensors file, read only.

    The file begins with the length of its header (8 bytes, little endian) and the header (JSON: dtype, shape and the
    place of each array after the header).
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    arrays = {}
    for name, entry in header.items():
        start, end = (8 + size + place for place in entry["data_offsets"])
        assert end - start == math.prod(entry["shape"]) * np.dtype(DTYPES[entry["dtype"]]).itemsize
        arrays[name] = raw[start:end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays
