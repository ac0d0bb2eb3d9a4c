"""`.bin` checkpoints are read with weights_only=True; one that needs unpickling of objects is never executed."""

import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from repflow.core.errors import InputError
from repflow.models import load
from repflow.models.weights.checkpoint import read_weights
from tests.models.tiny_configs import tiny_model


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


@pytest.fixture
def folder(tmp_path) -> Path:
    """gpt2 folder whose weights lie in pytorch_model.bin."""
    network = tiny_model("gpt2")
    network.config.save_pretrained(tmp_path)
    weights = {k: v for k, v in network.state_dict().items() if k != "lm_head.weight"}
    torch.save(weights, tmp_path / "pytorch_model.bin")
    return tmp_path


def test_plain_bin(folder):
    assert load(folder).digest() == load(tiny_model("gpt2")).digest()


def test_bin_of_the_old_format(folder):
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert load(folder).digest() == load(tiny_model("gpt2")).digest()


def test_sharded_bin(folder):
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    names = sorted(weights)
    parts = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, keys in parts.items():
        torch.save({key: weights[key] for key in keys}, folder / file)
    index = {"metadata": {}, "weight_map": {key: file for file, keys in parts.items() for key in keys}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (folder / "pytorch_model.bin").unlink()
    assert load(folder).digest() == load(tiny_model("gpt2")).digest()
    assert sorted(read_weights(folder)) == names


@pytest.mark.parametrize("form", ["zip", "old", "raw", "second shard"])
def test_pickled_objects_are_refused_and_never_executed(folder, tmp_path, form):
    marker = tmp_path / "executed"
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    target = folder / "pytorch_model.bin"
    if form == "raw":
        target.write_bytes(pickle.dumps(Bomb(marker)))
    elif form == "second shard":
        target.rename(folder / "a.bin")
        torch.save({"extra": Bomb(marker)}, folder / "b.bin")
        index = {"weight_map": {**dict.fromkeys(weights, "a.bin"), "extra": "b.bin"}}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    else:
        torch.save({**weights, "extra": Bomb(marker)}, target, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(InputError, match="needs unpickling of objects; it was not executed"):
        load(folder)
    assert not marker.exists()


def test_the_bomb_works(tmp_path):
    """Guards the test above: unpickling it the ordinary way does create the file."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


def test_damaged_files(folder):
    whole = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="checkpoint"):
        load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match="checkpoint"):
        load(folder)
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("nothing", "here")
    with pytest.raises(InputError, match="checkpoint"):
        load(folder)


def test_damaged_safetensors(tmp_path):
    tiny_model("gpt2").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(InputError, match="checkpoint"):
        load(tmp_path)
