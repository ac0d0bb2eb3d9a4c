"""PNG files, of a known size and within bounds: what the header says is checked before anything is decoded."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np

from repflow.core.errors import InputError, MissingExtraError, refusing, teach
from repflow.tasks.pixels.images import MOST_BYTES, Images, PixelData, split

MOST_SIDE = 512
"""Pixels a side of an image that is to be a sequence."""
MOST_FILE = 64 << 20
"""Bytes of a file."""
SMALL_FILE = 4 << 20
"""Bytes of the file of one image."""
HEAD = b"\x89PNG\r\n\x1a\n"
"""How a PNG begins; its first part, IHDR, says how large the image is."""
AGAIN = "save the file again as PNG"


def decode_png(data: bytes, what: str, *, columns: int | None = None, most_rows: int = MOST_SIDE) -> np.ndarray:
    """Pixels uint8 (row, column, 3) of a PNG.

    Args:
        data: the file.
        what: its name, for errors.
        columns: how wide it must be; at most `MOST_SIDE` if left out.
        most_rows: how high it may be.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError(
            teach("Pillow, which reads PNG files", "no such package", "run: pip install 'repflow[images]'")
        ) from None
    wide, high = _announced(data, what)
    fits = wide == columns if columns is not None else wide <= MOST_SIDE
    if not fits or high > most_rows:
        expected = f"an image of {'at most ' if columns is None else ''}{columns or MOST_SIDE} × {most_rows} pixels"
        raise InputError(teach(expected, f"{what}, whose header says {wide} × {high}", "scale it down"))
    with refusing("a PNG image", what, AGAIN), Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        if image.size != (wide, high):  # a second header
            raise InputError(teach("one size in a PNG image", f"two in {what}", AGAIN))
        if image.mode.startswith("I"):  # grey of 16 bits, which Pillow cuts at 255; of colours it takes the upper 8 too
            upper = (np.asarray(image).astype(np.int64) >> 8).astype(np.uint8)
            return np.repeat(upper[..., None], 3, axis=-1)
        return np.asarray(image.convert("RGB"))  # a file with less data than its header says raises here


def _announced(data: bytes, what: str) -> tuple[int, int]:
    """Columns and rows that a PNG's header says; read here, as Pillow has limits of its own."""
    if not data.startswith(HEAD) or data[12:16] != b"IHDR" or len(data) < 24:
        raise InputError(teach("a PNG image", f"{what}, which does not begin as one", AGAIN))
    wide, high = struct.unpack(">II", data[16:24])
    if not wide or not high:
        raise InputError(
            teach("a PNG image of at least one pixel", f"{what}, whose header says {wide} × {high}", AGAIN)
        )
    return wide, high


def read_folder(folder: Path, seed: int) -> PixelData:
    """Images of a folder with a folder for each class, which may stand below `train` and `test`.

    All images have one size. Without `train` and `test`, a fifth of every class is for testing.
    """
    parts = [folder / name for name in ("train", "test")]
    if all(part.is_dir() for part in parts):
        names = _class_names(parts[0])
        _check_classes(parts[0], names)
        train, test = (_read_classes(part, names) for part in parts)
        return PixelData(folder.name, train, test)
    if {path.name for path in folder.iterdir() if path.is_dir()} in ({"train"}, {"test"}):
        lacking = "test" if parts[0].is_dir() else "train"
        got = f"no folder {lacking} in {folder}"
        raise InputError(teach("train and test side by side, or folders of classes", got, f"add {lacking}"))
    _check_classes(folder, _class_names(folder))
    return split(folder.name, _read_classes(folder, _class_names(folder)), seed)


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")))
    if len(names) < 2:
        got = f"{len(names)} in {folder}"
        raise InputError(teach("a folder of PNG files for each of at least 2 classes", got, "sort the images by class"))
    return names


def _check_classes(folder: Path, names: tuple[str, ...]) -> None:
    """Refuse a class without images, as of files in another format: nothing could be learned of it."""
    for name in names:
        if not _files(folder / name):
            others = sum(path.is_file() for path in (folder / name).iterdir())
            got = f"none, and {others} other file{'' if others == 1 else 's'}, in {folder / name}"
            raise InputError(teach("PNG files in the folder of every class", got, "save its images as PNG"))


def _files(folder: Path) -> list[Path]:
    """PNG files of one class, in the order of their names; a class of test images may have none."""
    there = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in there if path.is_file() and path.suffix.lower() == ".png")


def _read_classes(folder: Path, names: tuple[str, ...]) -> Images:
    if (strange := sorted({path.name for path in folder.iterdir() if path.is_dir()} - {*names})) and (
        visible := [name for name in strange if not name.startswith(".")]
    ):
        raise InputError(teach(f"the classes {', '.join(names)}", f"{visible[0]} in {folder}", "remove it"))
    pictures: list[np.ndarray] = []
    labels: list[int] = []
    first = ""
    for label, name in enumerate(names):
        for path in _files(folder / name):
            picture = _read_file(path)
            if pictures and picture.shape != pictures[0].shape:
                got = f"{_size(picture)} in {path} and {_size(pictures[0])} in {first}"
                raise InputError(teach("images of one size", got, "scale them alike"))
            first = first or str(path)
            pictures.append(picture)
            labels.append(label)
            if len(pictures) * picture.nbytes > MOST_BYTES:
                got = f"more than {len(pictures):,} images in {folder}"
                raise InputError(teach(f"images of at most {MOST_BYTES >> 30} GiB", got, "give fewer or smaller ones"))
    if not pictures:
        raise InputError(teach("PNG files in folders of classes", f"none in {folder}", "check the path"))
    return Images.checked(np.stack(pictures), labels, names, what=f"images in {folder}")


def _read_file(path: Path) -> np.ndarray:
    if path.stat().st_size > SMALL_FILE:
        got = f"{path.stat().st_size:,} in {path}"
        raise InputError(teach(f"PNG files of at most {SMALL_FILE:,} bytes", got, "scale the image down"))
    return decode_png(path.read_bytes(), str(path))


def _size(picture: np.ndarray) -> str:
    return f"{picture.shape[1]} × {picture.shape[0]}"
