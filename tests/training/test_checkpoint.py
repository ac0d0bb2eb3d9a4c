"""Checkpoints: every half-done training goes on with the same bits, and what is not its own is refused."""

import errno
import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from repflow.core.errors import ConfigChangedError, DamagedRunError, InputError, RunLockedError
from repflow.store import UnwritableError, list_runs
from repflow.store.canonical import seal, unseal
from repflow.training import Callback, CrossEntropy, OptimiserConfig, train
from repflow.training import loop as training_loop
from repflow.training.checkpoint import TrainingFolder
from repflow.training.random_state import RandomState, own_random_state, random_state, seed_all, set_random_state
from tests.training.test_loop import Failing, Meddler, dropout_model
from tests.training.tiny_training import assert_equal_bits, config, network, source, weights, without_clock


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted training: weights and log."""
    model = dropout_model()
    run = train(model, source(), config(), folder=tmp_path_factory.mktemp("whole"), callbacks=[Meddler()])
    return weights(model), without_clock(run.log), run.history


@pytest.mark.parametrize("checkpoint_every", [1, 3, 6])
@pytest.mark.parametrize("at", [1, 6, 7, 12])
def test_a_training_that_was_cut_anywhere_goes_on_bit_for_bit(checkpoint_every, at, whole, tmp_path):
    asked = config(checkpoint_every=checkpoint_every)
    with pytest.raises(ZeroDivisionError):
        train(dropout_model(), source(), asked, folder=tmp_path, callbacks=[Meddler(), Failing(at)])
    model = dropout_model()
    run = train(model, source(), asked, folder=tmp_path, callbacks=[Meddler()])
    last = (at - 1) // checkpoint_every * checkpoint_every
    assert run.resumed_from == (last or None)
    assert_equal_bits(weights(model), whole[0])
    assert without_clock(run.log) == whole[1]
    assert {name: values.tolist() for name, values in run.history.items()} == {
        name: values.tolist() for name, values in whole[2].items()
    }
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [".training.lock", "checkpoint-000000012-final.safetensors", "log.jsonl", "training.json"]


def test_lines_behind_the_checkpoint_are_cut_off_before_others_are_logged(tmp_path):
    for at in (11, 7):  # both begin from the first step, the second ends earlier
        with pytest.raises(ZeroDivisionError):
            train(network(), source(), config(checkpoint_every=100), folder=tmp_path, callbacks=[Failing(at)])
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == [step for step in (4, 8) if step < at]


@pytest.mark.parametrize("check", [4, 6])
def test_a_training_that_ran_out_of_time_goes_on(check, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(training_loop, "CHECK", check)
    stopped = train(dropout_model(), source(), config(seconds=0.0), folder=tmp_path, callbacks=[Meddler()])
    assert (stopped.steps, stopped.stopped) == (check, "time")
    assert stopped.logged("seen_evaluate")[0][-1] == check
    model = dropout_model()
    run = train(model, source(), config(), folder=tmp_path, callbacks=[Meddler()])
    assert run.resumed_from == check
    assert_equal_bits(weights(model), whole[0])
    assert without_clock(run.log) == whole[1]


def test_a_finished_training_is_only_read(tmp_path):
    model, again = network(), network()
    run = train(model, source(), config(), folder=tmp_path)

    class Never(type(source())):
        def batch(self, step):
            raise AssertionError("trained again")

    never = source()
    never.__class__ = Never
    never.__class__.__qualname__ = "DrawnBatches"
    read = train(again, never, config(), folder=tmp_path)
    assert_equal_bits(weights(model), weights(again))
    assert read.log == run.log
    assert read.seconds >= run.log[-1]["step"] * 0
    assert read.resumed_from == read.steps == 12


class Counting(Callback):
    def __init__(self):
        self.count = 0

    def on_step(self, moment):
        self.count += 1
        return {"count": self.count}

    def state(self):
        return {"count": self.count}

    def restore(self, state):
        self.count = state["count"]


def test_a_callbacks_state_goes_on(tmp_path):
    with pytest.raises(ZeroDivisionError):
        train(network(), source(), config(), folder=tmp_path, callbacks=[Counting(), Failing(8)])
    run = train(network(), source(), config(), folder=tmp_path, callbacks=[Counting()])
    assert run.logged("count")[1].tolist() == list(range(1, 13))


def test_what_is_drawn_inside_is_not_seen_outside():
    drawn = []
    for inside in (False, True):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        if inside:
            with own_random_state():
                seed_all(9)
                random.random(), np.random.rand(), torch.rand(2)
        drawn.append((random.random(), np.random.rand(), float(torch.rand(1))))
    assert drawn[0] == drawn[1]


def test_the_state_of_every_generator_comes_back():
    random.seed(3), np.random.seed(4), torch.manual_seed(5)
    random.gauss(0, 1), np.random.randn()  # both keep half a pair
    kept = random_state()
    tensors = RandomState.from_tensors({name: value.clone() for name, value in kept.tensors().items()})
    drawn = []
    for state in (kept, tensors):
        set_random_state(state)
        drawn.append([random.gauss(0, 1), random.random(), np.random.randn(), np.random.rand(), float(torch.rand(1))])
    assert drawn[0] == drawn[1]


# ---------------------------------------------------------------- refused
@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A training that was stopped at step 8, with the checkpoint of step 5."""
    folder = tmp_path_factory.mktemp("half") / "run"
    with pytest.raises(ZeroDivisionError):
        train(network(), source(), config(), folder=folder, callbacks=[Failing(8)])
    return folder


@pytest.fixture
def copy(half, tmp_path):
    return shutil.copytree(half, tmp_path / "copy")


def frozen():
    model = network()
    model.model.embeddings.weight.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"config": config(steps=13)}, "'config.steps': stored 12, now 13"),
        ({"config": config(seed=1)}, "'config.seed': stored 0, now 1"),
        ({"config": config(optimiser=OptimiserConfig(rate=2e-2))}, "'config.optimiser.rate': stored 0.01, now 0.02"),
        ({"config": config(deterministic=True)}, "'config.deterministic': stored False, now True"),
        ({"source": source(seed=2)}, "'batches.seed': stored 0, now 2"),
        ({"loss": CrossEntropy(accuracy=True)}, "'loss.accuracy': stored False, now True"),
        (
            {"model": frozen()},
            r"'model.parameters.model.embeddings.weight': stored 'torch.float32 \(13, 8\)', now 'frozen",
        ),
        ({"model": network(hidden_size=16)}, r"'model.parameters.model.embeddings.weight': stored"),
        ({"model": network(norm_eps=1e-6)}, "'model.config.norm_eps': stored 1e-05, now 1e-06"),
        (
            {"model": network(seed=1)},
            "'first_weights': .*: give it the model as it was at first, drawn from the same seed",
        ),
    ],
)
def test_a_changed_request_is_refused_by_its_key(change, key, half, tmp_path):
    given = {"model": network(), "source": source(), "config": config(), "loss": CrossEntropy(), **change}
    before = {file.name: file.read_bytes() for file in half.iterdir() if file.name != ".training.lock"}
    with pytest.raises(ConfigChangedError, match=f"training key {key}"):
        train(given["model"], given["source"], given["config"], loss=given["loss"], folder=half)
    assert {file.name: file.read_bytes() for file in half.iterdir() if file.name != ".training.lock"} == before


def test_settings_that_decide_no_weight_may_change(copy):
    run = train(network(), source(), replace(config(), checkpoint_every=2, ahead=2, seconds=1e6), folder=copy)
    assert run.resumed_from == 5


def flipped(path, place):
    raw = bytearray(path.read_bytes())
    raw[place] ^= 4
    path.write_bytes(bytes(raw))


def reseal(folder, **changes):
    record = unseal((folder / "training.json").read_bytes(), indent=1)
    (folder / "training.json").write_bytes(seal({**record, **changes}, indent=1))


CHECKPOINT = "checkpoint-000000005.safetensors"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: flipped(f / CHECKPOINT, 2000), "checkpoint of step 5 in .*; got other bytes .*; delete the folder"),
        (lambda f: (f / CHECKPOINT).write_bytes(b""), r"got other bytes \(0, stored were \d+\); delete"),
        (lambda f: (f / CHECKPOINT).unlink(), "got no such file; delete the folder to train from the first step"),
        (lambda f: flipped(f / "training.json", 40), "expected the record of a training in .*; got a file that was"),
        (lambda f: reseal(f, checkpoint={"file": "../x", "bytes": 1, "sha256": ""}), "the record of a training in"),
        (
            lambda f: reseal(f, step="5"),
            "expected the record of a training in .*; got a file that was changed or cut, or",
        ),
        (
            lambda f: reseal(f, names=["loss"]),
            r"expected the model's tensors in .*; got a history of shape \(5, 2\) for 1",
        ),
        (lambda f: reseal(f, step=4), "expected the model's tensors in .*; got 5 steps of 4; delete the folder"),
        (lambda f: (f / "training.json").write_text("{}"), "expected the record of a training in"),
        (lambda f: flipped(f / "log.jsonl", 9), r"expected the first \d+ bytes of .*log.jsonl as .*; got other bytes"),
        (lambda f: (f / "log.jsonl").write_bytes(b"{"), r"log.jsonl as they were logged; got 1 bytes; delete"),
        (lambda f: (f / "log.jsonl").unlink(), r"log.jsonl as they were logged; got 0 bytes; delete"),
    ],
)
def test_a_damaged_folder_is_refused(damage, told, copy):
    damage(copy)
    before = {file.name: file.read_bytes() for file in copy.iterdir() if file.name != ".training.lock"}
    with pytest.raises(DamagedRunError, match=told):
        train(network(), source(), config(), folder=copy)
    assert {file.name: file.read_bytes() for file in copy.iterdir() if file.name != ".training.lock"} == before


def test_another_format_and_foreign_files_are_refused(copy, tmp_path):
    reseal(copy, format=2)
    with pytest.raises(InputError, match=r"expected a training of format 1 in .*; got 2; resume it with the version"):
        train(network(), source(), config(), folder=copy)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "log.jsonl").write_text("mine")
    with pytest.raises(InputError, match=r"expected a new folder or that of a training at .*; got log.jsonl without"):
        train(network(), source(), config(), folder=tmp_path / "mine")
    assert (tmp_path / "mine" / "log.jsonl").read_text() == "mine"


def test_a_checkpoint_whose_tensors_are_not_the_models_is_refused(copy):
    import safetensors.torch

    from repflow.store.disk import digest

    raw = safetensors.torch.save({"history/rows": torch.zeros(5, 2)})
    (copy / CHECKPOINT).write_bytes(raw)
    reseal(copy, checkpoint={"file": CHECKPOINT, "bytes": len(raw), "sha256": digest(raw)})
    with pytest.raises(DamagedRunError, match=r"expected the model's tensors in .*; got none of the name 'weights/"):
        train(network(), source(), config(), folder=copy)


@pytest.mark.parametrize("file", ["training.json", "log.jsonl", CHECKPOINT])
def test_a_full_disk_is_a_clear_error_and_the_training_goes_on(file, copy, monkeypatch):
    real = os.write
    expected = train(network(), source(), config())
    record = json.loads((copy / "training.json").read_text())

    def full(fd, data):
        place = Path(f"/proc/self/fd/{fd}").readlink().name.removesuffix(".tmp")
        if place == file or (file == CHECKPOINT and place.startswith("checkpoint-")):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UnwritableError, match=r"no room to write .*: .* bytes needed"):
        train(network(), source(), config(), folder=copy)
    monkeypatch.undo()
    assert json.loads((copy / "training.json").read_text()) == record
    model, whole = network(), network()
    run = train(model, source(), config(), folder=copy)
    train(whole, source(), config())
    assert run.resumed_from == 5
    assert_equal_bits(weights(model), weights(whole))
    assert without_clock(run.log) == without_clock(expected.log)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("graph", [False, True])
def test_a_cut_training_on_a_gpu_goes_on_bit_for_bit_in_the_deterministic_mode(graph, tmp_path):
    asked = config(device="cuda", deterministic=True, graph=graph, steps=20)
    whole, model = dropout_model(), dropout_model()
    train(whole, source(), asked)
    with pytest.raises(ZeroDivisionError):
        train(dropout_model(), source(), asked, folder=tmp_path, callbacks=[Failing(13)])
    assert train(model, source(), asked, folder=tmp_path).resumed_from == 10
    assert_equal_bits(weights(whole), weights(model))


def test_a_folder_that_another_training_writes_is_refused(copy):
    record = json.loads((copy / "training.json").read_text())
    with (
        TrainingFolder(copy, record["identity"], record["versions"]),
        pytest.raises(RunLockedError, match="only writer"),
    ):
        train(network(), source(), config(), folder=copy)
    assert train(network(), source(), config(), folder=copy).steps == 12


def test_a_training_among_runs_is_not_taken_for_a_damaged_run(copy):
    assert list_runs(copy.parent) == []


def test_other_versions_are_a_finding(copy):
    reseal(copy, versions={"repflow": "0", "torch": "1"})
    run = train(network(), source(), config(), folder=copy)
    assert [finding.code for finding in run.findings] == ["resumed"]
