"""A zoo of six tiny untrained models in a folder of its own, made in seconds: same files as the packaged one."""

import json
import lzma
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
END = "<|endoftext|>"


def make_data(folder):
    """A prepared data folder from the licence's text."""
    from tools.zoo.make import main

    parts = [part for part in (ROOT / "LICENSE").read_text(encoding="utf-8").split("\n\n") if part.strip()]
    folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", parts[:-6]), ("valid", parts[-6:])):
        (folder / f"{name}.txt.xz").write_bytes(lzma.compress(f"\n{END}\n".join(chosen).encode()))
    options = ["--vocabulary", "1024", "--length", "256", "--articles", "12", "--samples", "4"]
    assert main(["prepare", "--corpus", str(folder), "--out", str(folder / "data"), *options]) == 0
    return folder / "data"


def make_model(name, data, folder, seed=0):
    """Folder of one untrained model, with the records that training and evaluation write."""
    import torch

    from tools.zoo.card import write_card
    from tools.zoo.data import open_data
    from tools.zoo.models import build
    from tools.zoo.save import save_model
    from tools.zoo.train import TrainConfig, begin_record

    opened = open_data(data, check=False)
    network = build(name, "tiny", opened.vocabulary, opened.window, seed)
    config = TrainConfig(name, str(data), str(folder), size="tiny", seed=seed, device="cpu")
    record = begin_record(config, opened, network, torch.device("cpu")) | {"steps": 0, "seconds": 0.0, "tokens": 0}
    save_model(network, folder, record)
    held = {"kvpr-256": {"exact": 1, "of": 4, "tokens": 231}}
    prose = {"nats_per_token": 6.5, "bits_per_byte": 2.25, "tokens": 100}
    (folder / "evaluation.json").write_text(json.dumps({"retrieval": held, "prose": prose}))
    write_card(folder, data)


def make_zoo(folder):
    """All six and their digests; returns the folder."""
    from repflow.spec.zoo import NAMES, write_digests

    data = make_data(folder / "raw")
    zoo = folder / "zoo"
    for name in NAMES:
        make_model(name, data, zoo / name)
    write_digests(zoo)
    return zoo
