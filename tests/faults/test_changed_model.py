"""A model that was changed behind a stored run: nothing mixes, and the key that differs is named."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import repflow
from repflow.core.errors import ConfigChangedError
from repflow.models import load
from repflow.models.identity.record import normalised
from repflow.models.load import find_source, read_config
from repflow.models.weights import digest as scheme
from repflow.store import read_record, verify
from repflow.store.canonical import seal
from repflow.studies import measure
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.cells import run_cells
from tests.models.tiny_configs import CONFIGS, tiny_config, tiny_model
from tests.sample import sampled

EDITS = [
    ("hidden_act", "relu"),
    ("layer_norm_eps", 1e-2),
    ("num_attention_heads", 2),
    ("use_parallel_residual", False),
]


class Killed(BaseException):
    """Stands for a kill: no handler of ours may catch it."""


@pytest.fixture
def folder(tmp_path):
    tiny_model("gpt_neox").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit(folder, key, value):
    file = folder / "config.json"
    content = json.loads(file.read_text())
    content[key] = value
    file.write_text(json.dumps(content))


def request(folder, **more):
    return measure.MeasureConfig(model=str(folder), task="random", length=12, samples=6, batch_size=2, **more)


def run(folder, out, *, stop_after=None):
    def progress(done, total, tokens):
        if stop_after is not None and done >= stop_after:
            raise Killed

    return measure.run(request(folder), out=out, name="run", progress=progress)


@pytest.mark.parametrize(("key", "value"), EDITS, ids=[key for key, _ in EDITS])
@pytest.mark.parametrize("finished", [False, True], ids=["killed", "finished"])
def test_an_edited_configuration_is_refused_with_its_key(folder, tmp_path, key, value, finished):
    out = tmp_path / "runs"
    if finished:
        run(folder, out)
    else:
        with pytest.raises(Killed):
            run(folder, out, stop_after=4)
    before = {path: path.read_bytes() for path in sorted((out / "run").rglob("*")) if path.is_file()}
    assert sum("shards" in str(path) for path in before) == (3 if finished else 2)
    original = (folder / "config.json").read_text()
    edit(folder, key, value)
    with pytest.raises(ConfigChangedError, match=rf"model key 'config\.{key}': stored .*, now {value!r}; .*name"):
        run(folder, out)
    assert before == {path: path.read_bytes() for path in sorted((out / "run").rglob("*")) if path.is_file()}
    (folder / "config.json").write_text(original)
    whole = run(folder, out)
    assert np.array_equal(whole["token_similarity"], run(folder, tmp_path / "again")["token_similarity"])
    assert verify(out / "run") == []


def test_changed_code_is_refused_with_the_part(folder, tmp_path):
    model = load(folder)
    repflow.measure(model, "random", length=12, samples=2, out=tmp_path, name="run")
    model.network.base_model.layers[1].mlp.act = torch.nn.ReLU()
    with pytest.raises(ConfigChangedError, match=r"model key 'function.block 2': stored .*rounding explains"):
        repflow.measure(model, "random", length=12, samples=2, out=tmp_path, name="run")


def test_another_class_is_refused(folder, tmp_path):
    repflow.measure(folder, "random", length=12, samples=2, out=tmp_path, name="run")
    model = load(folder)
    kind = type(model.network)
    model.network.__class__ = type("Patched", (kind,), {"__module__": "notebook"})
    model.spec = str(folder)
    with pytest.raises(ConfigChangedError, match=r"model key 'code.class': stored 'transformers.*', now 'Patched'"):
        repflow.measure(model, "random", length=12, samples=2, out=tmp_path, name="run")


def test_weights_drawn_elsewhere_are_refused_by_that_name(tmp_path):
    model = load(tiny_model("gpt_neox"), init="default")
    repflow.measure(model, "random", length=12, samples=2, out=tmp_path, name="run")
    model.drawn_on = "NVIDIA H200"
    with pytest.raises(ConfigChangedError, match="model key 'drawn_on': stored 'cpu', now 'NVIDIA H200'"):
        repflow.measure(model, "random", length=12, samples=2, out=tmp_path, name="run")


def test_a_grid_does_not_read_a_cell_of_another_configuration(folder, tmp_path):
    cells = [Cell("one", request(folder))]
    assert [outcome.status for outcome in run_cells(cells, tmp_path / "grid")] == ["finished"]
    assert [outcome.status for outcome in run_cells(cells, tmp_path / "grid")] == ["finished"]
    edit(folder, "hidden_act", "relu")
    (again,) = run_cells(cells, tmp_path / "grid")
    assert again.status == "failed"
    assert "config.hidden_act" in again.reason


@pytest.mark.parametrize("model_type", sampled(CONFIGS))
def test_a_configuration_on_disk_is_that_of_the_loaded_model(model_type, tmp_path):
    """A grid compares the two; and loading must not change what is compared."""
    tiny_model(model_type).save_pretrained(tmp_path)
    config = normalised(read_config(find_source(tmp_path), trust_remote_code=False))
    assert config == normalised(load(tmp_path).network.config)
    again = normalised(tiny_config(model_type))
    assert {key for key in config if again.get(key) != config[key]} <= {"tie_word_embeddings"}


def as_earlier(run, model):
    """Rewrite a stored run as an earlier version would have left it: SHA-256 of all bytes, no identity."""
    record = read_record(run)
    provenance = {key: value for key, value in record.provenance.items() if key != "identity"}
    provenance["digests"] = provenance["digests"] | {"weights": model.sha256()}
    content = record.content() | {"provenance": provenance}
    (run / "run.json").write_bytes(seal(content, indent=2))
    lines = (run / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    first = json.loads(lines[0])
    first.pop("sum")
    first["data"] = content
    (run / "manifest.jsonl").write_bytes(seal(first) + b"".join(lines[1:]))


def test_a_run_of_an_earlier_version_goes_on_and_says_what_was_compared(folder, tmp_path):
    whole = run(folder, tmp_path / "whole")
    with pytest.raises(Killed):
        run(folder, tmp_path, stop_after=4)
    as_earlier(tmp_path / "run", load(folder))
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    result = run(folder, tmp_path)
    assert np.array_equal(result["token_similarity"], whole["token_similarity"])
    (event,) = [
        json.loads(line)
        for line in (tmp_path / "run" / "manifest.jsonl").read_text().splitlines()
        if '"resumed"' in line
    ]
    text = " ".join(event["data"]["changes"])
    assert "digests.weights: stored by an earlier scheme (SHA-256 of all bytes), by which it is equal" in text
    assert "identity: stored by a version that kept none" in text
    changed = load(folder)
    with torch.no_grad():
        changed.network.get_input_embeddings().weight[0, 0] += 1
    shutil.rmtree(tmp_path / "run")
    shutil.move(tmp_path / "other", tmp_path / "run")
    changed.spec = str(folder)
    with pytest.raises(ConfigChangedError, match="digest key 'weights'"):
        measure.run(request(folder), model=changed, out=tmp_path, name="run")


def test_the_scheme_of_a_digest_is_stored(folder, tmp_path):
    run(folder, tmp_path)
    assert read_record(Path(tmp_path / "run")).provenance["digests"]["weights"].endswith(f":{scheme.SCHEME}")
