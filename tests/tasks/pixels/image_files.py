"""Small files of images in every format, for tests here and elsewhere."""

import io
import json
import pickle
import tarfile

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(12) % 10
PARTS = {"data_batch_1": slice(0, 4), "data_batch_2": slice(4, 8), "test_batch": slice(8, 12)}


def planes(part):
    return PIXELS[part].transpose(0, 3, 1, 2).reshape(-1, 3072)


def binary():
    return {
        f"{name}.bin": np.concatenate([LABELS[part, None].astype(np.uint8), planes(part)], 1).tobytes()
        for name, part in PARTS.items()
    }


def pickled(protocol=2):
    return {
        name: pickle.dumps({b"data": planes(part), b"labels": LABELS[part].tolist(), b"filenames": [b"a"]}, protocol)
        for name, part in PARTS.items()
    }


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def sheets():
    files = {f"{name}.png": png(PIXELS[part].reshape(-1, 1024, 3)) for name, part in PARTS.items()}
    files["train_lables.json"] = json.dumps(LABELS[:8].tolist()).encode()
    files["test_lables.json"] = json.dumps(LABELS[8:].tolist()).encode()
    return files


FORMATS = {"binary": binary, "python": pickled, "npm": sheets}


def folder(path, files):
    path.mkdir(exist_ok=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return str(path)


def archive(path, files, mode="w:gz", prefix="package/"):
    with tarfile.open(path, mode) as tar:
        for name, data in {"README": b"x", **files}.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
