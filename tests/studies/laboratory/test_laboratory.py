"""What every laboratory has: unlike models by one code, resumption, pauses, memory, kept models, cost."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

import repflow
from repflow.core.errors import InputError, PausedError
from repflow.report.data.laboratory import lines_of
from repflow.studies.laboratory import group, study, volume
from repflow.studies.laboratory.cost import estimate
from repflow.studies.laboratory.curve import read_curves
from repflow.studies.laboratory.group import groups
from repflow.studies.laboratory.size import model_cost, saved_bytes, step_work
from repflow.studies.pixels.config import PixelsConfig
from repflow.studies.pixels.study import STUDY as PIXELS
from repflow.training import Batch, CrossEntropy
from tests import warm
from tests.studies.laboratory.tower import STUDY, classes, same, tower

UNLIKE = [
    *("language:s6:none:0.01:0", "language:s6:none:0.02:1", "language:ssd+softmax_attention:none:0.01:0"),
    *("language:s6:diversity:0.01:0", "classes:s6:none:0.01:0"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return out, STUDY.run(tower(cells=UNLIKE, points=3, keep_models=True), out=out, name="t")


def test_unlike_models_are_trained_by_one_code(whole):
    out, result = whole
    assert groups(STUDY, tower(cells=UNLIKE)) == [[0, 1], [2], [3], [4]]  # kernels take S6 side by side
    assert [cell["beside"] for cell in result.provenance["cells"]] == [2, 2, 1, 1, 1]
    assert result["loss_by_position"].shape == (5, 7)
    assert np.isnan(result["class_accuracy"]).tolist() == [True] * 4 + [False]
    assert np.isfinite(result["loss"]).all()
    assert result["first_weight_on_the_way"].shape == (5, 3)
    assert result.provenance["recall"]["watched"] == [0, 3, 6]
    assert not (out / "t.training").exists()


def test_models_that_differ_in_their_seed_alone_are_one_line_beside_others_or_not(whole):
    """Facts of a cell, such as its commands, are no part of what it is."""
    config = tower(cells=["language:s6:none:0.01:0", "language:s6:none:0.01:1", UNLIKE[2]])
    result = STUDY.run(config)
    assert [cell["beside"] for cell in result.provenance["cells"]] == [2, 2, 1]
    assert [line.cells for line in lines_of(result)] == [(0, 1), (2,)]
    assert [len(line.cells) for line in lines_of(whole[1])] == [1] * 5


def test_a_large_model_is_trained_alone_in_parts_of_its_batch_and_is_the_same(whole, monkeypatch):
    _, result = whole
    beside = [result[name][0] for name in ("loss", "loss_by_position")]
    config = tower(cells=UNLIKE[:2])
    cell = config.grid()[0]
    work = volume.step_volume(STUDY.step_tokens(cell, config), STUDY.build(cell, config))
    monkeypatch.setattr(volume, "ALONE", work / 2)
    monkeypatch.setattr(volume, "PART", work / 2)
    assert groups(STUDY, config) == [[0], [1]]
    assert volume.batch_parts(work, config.batch) == 2
    own = STUDY.run(tower(cells=UNLIKE[:1]))
    assert [own["loss"][0], own["loss_by_position"][0]] == [pytest.approx(value, abs=1e-5) for value in beside]


def test_a_model_alone_and_beside_others_is_the_same_up_to_rounding(whole):
    _, result = whole
    alone = STUDY.run(tower(cells=[UNLIKE[1]]))
    assert alone["loss"][0] == pytest.approx(result["loss"][1], abs=1e-6)
    assert alone["loss_by_position"][0] == pytest.approx(result["loss_by_position"][1], abs=1e-5)


def test_the_loss_by_position_is_that_of_transformers(whole):
    out, result = whole
    from tests.studies.laboratory.tower import tokens

    model = repflow.load(str(out / "t.models" / "language_s6_none_0.01_0"))
    ids = tokens(torch.Generator().manual_seed(9), 16).inputs
    assert model.network(ids, labels=ids).loss.item() == pytest.approx(result["loss_by_position"][0].mean(), abs=1e-5)


def test_kept_models_can_be_looked_at_and_are_not_claimed_where_they_were_not_kept(whole, tmp_path):
    out, result = whole
    assert len(list((out / "t.models").iterdir())) == len(UNLIKE)
    again = AutoModelForSequenceClassification.from_pretrained(out / "t.models" / "classes_s6_none_0.01_0").eval()
    rows = classes(torch.Generator().manual_seed(9), 16)
    right = (again(rows.inputs).logits.argmax(-1) == rows.targets).double().mean()
    assert float(right) == result["class_accuracy"][4]
    STUDY.run(tower(), out=tmp_path, name="t")
    with pytest.raises(InputError, match=r"1 of 1 models of a run whose training had not been asked to keep them"):
        STUDY.run(tower(keep_models=True), out=tmp_path, name="t")


def test_a_diverged_model_is_reported_with_its_step_and_the_grid_goes_on(monkeypatch):
    built = STUDY.network

    def broken(cell, config):
        network = built(cell, config)
        if cell.seed == 1:
            with torch.no_grad():
                network.model.blocks[0].mixer_norm.weight.fill_(torch.nan)
        return network

    monkeypatch.setattr(STUDY, "network", broken)
    for blocks in ("s6", "softmax_attention"):  # side by side, and alone
        result = STUDY.run(tower(blocks=[blocks], seeds=["0", "1"]))
        assert result["diverged_at"].tolist()[1] == 1
        assert np.isnan(result["loss_by_position"][1]).all()
        assert np.isfinite(result["loss_by_position"][0]).all()
        text = next(finding.message for finding in result.findings if finding.code == "diverged")
        assert f"language:{blocks}:none:0.01:1: the loss of step 1 is not finite; the others went on" in text


KILLED = """
import os, signal
from repflow.training import loop
from tests.studies.laboratory.tower import STUDY, tower
step = loop.Loop._step
def dying(self, batch):
    step(self, batch)
    if self.done == 4:
        os.kill(os.getpid(), signal.SIGKILL)
loop.Loop._step = dying
STUDY.run(tower(checkpoint=2, blocks=[os.environ["BLOCKS"]], seeds=["0", "1"]), out=os.environ["OUT"], name="r")
"""


@pytest.mark.parametrize("blocks", ["s6", "ssd"])
def test_half_trained_models_go_on_after_a_kill(tmp_path, blocks):
    environment = {**os.environ, "OUT": str(tmp_path), "BLOCKS": blocks}
    process = warm.Process(warm.script, KILLED, cwd=tmp_path, env=environment)
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said[-500:]
    assert (tmp_path / "r.training" / "group-000" / "checkpoint-000000002.safetensors").exists()
    config = tower(checkpoint=2, blocks=[blocks], seeds=["0", "1"])
    assert same(STUDY.run(config, out=tmp_path, name="r"), STUDY.run(config))


def test_time_that_is_up_is_said(tmp_path):
    with pytest.raises(PausedError, match="stopped after 0 s, as asked, with 0 of 1 groups trained; nothing is lost"):
        STUDY.run(tower(seconds=0.0), out=tmp_path, name="r")


def test_time_that_is_up_between_tests_loses_none_of_them(monkeypatch, tmp_path):
    config = tower(blocks=["s6"], seeds=["0", "1"], seconds=1e6)
    monkeypatch.setattr(study._Bench, "left", lambda bench: 0.0 if bench.sink.has("cell-0000") else None)
    with pytest.raises(PausedError, match="with 1 of 2 models of a group tested; nothing is lost"):
        STUDY.run(config, out=tmp_path, name="r")
    monkeypatch.undo()
    assert same(STUDY.run(config, out=tmp_path, name="r"), STUDY.run(config))


def test_models_that_do_not_fit_side_by_side_are_trained_in_halves(monkeypatch, tmp_path):
    trained, sizes = group.train, []

    def small(network, *args, **options):
        sizes.append(len(network) if isinstance(network, group.ReplicaStack) else 1)
        if sizes[-1] > 1:
            raise torch.OutOfMemoryError("no room")
        return trained(network, *args, **options)

    monkeypatch.setattr(group, "train", small)
    config = tower(blocks=["s6"], seeds=["0", "1", "2"])
    result = STUDY.run(config, out=tmp_path, name="r")
    assert sizes == [3, 1, 2, 1, 1]
    monkeypatch.undo()
    assert result["loss"] == pytest.approx(STUDY.run(config)["loss"], abs=1e-6)


def test_one_model_that_does_not_fit_is_an_error_and_loses_nothing(monkeypatch, tmp_path):
    def full(*args, **options):
        raise torch.OutOfMemoryError("no room\nat all")

    STUDY.run(tower(), out=tmp_path, name="earlier")
    monkeypatch.setattr(group, "train", full)
    with pytest.raises(InputError, match=r"expected memory for language:s6\+s6.*; got out of memory: no room; pass a"):
        STUDY.run(tower(), out=tmp_path, name="r")
    assert (tmp_path / "earlier" / "result.json").exists()


def test_memory_that_was_asked_for_bounds_the_groups():
    config = tower(blocks=["s6"], seeds=["0", "1", "2", "3", "4"])
    each = model_cost(STUDY, config.grid()[0], config).bytes
    bounded = tower(blocks=["s6"], seeds=["0", "1", "2", "3", "4"], memory=2.5 * each / 1e9)
    assert groups(STUDY, bounded) == [[0, 1], [2, 3], [4]]
    assert estimate(STUDY, bounded).memory_bytes == pytest.approx(2 * each)
    with pytest.raises(InputError, match=r"expected memory that holds one model of language:s6:none:0.01:0, about"):
        STUDY.run(tower(blocks=["s6"], memory=1e-9))


def test_what_a_pass_keeps_is_counted_and_grows_with_its_rows():
    config = tower(cells=["classes:s6:none:0.01:0"])
    network = STUDY.build(config.grid()[0], config)
    rows = classes(torch.Generator().manual_seed(0), 8)
    one, eight = (saved_bytes(network, rows.rows(slice(count)), CrossEntropy()) for count in (1, 8))
    assert 0.8 * one < eight <= one  # of one row, whatever the number; what rows share counts in full for one
    linear = torch.nn.Linear(3, 5)
    kept = saved_bytes(linear, Batch(torch.ones(2, 3), torch.tensor([1, 0])), CrossEntropy())
    assert kept >= 4 * (3 + 5)  # its inputs and the logits of a row at least


def test_cost_counts_tokens_parameters_and_checkpoints():
    config = tower(blocks=["s6"], seeds=["0", "1"])
    cost = estimate(STUDY, config)
    own = sum(part.numel() for part in STUDY.build(config.grid()[0], config).parameters())
    assert (cost.models, cost.groups, cost.tokens) == (2, 1, 2 * 6 * 4 * 8)
    assert cost.parameters == (own, own)
    assert cost.checkpoint_bytes == 2 * 3 * 4 * own
    assert json.loads(json.dumps(cost.to_json()))["parameters"] == [own, own]
    assert any("calls of 1e-06 s" in line for line in cost.lines(1e-6))


def test_work_of_a_step_counts_states_and_directions():
    config = PixelsConfig(rows=["mamba/16", "mamba", "mamba/16+both", "mamba/8", "transformer"], images="drawn:8")
    works = [step_work(PIXELS, cell, config, PIXELS.build(cell, config)) for cell in config.grid()]
    plain = 64 * 65 * 3 * 32 / 64  # 64 images of 64 pixels and a class token; 3 layers of width 32, by 64
    assert [work.volume / plain for work in works] == pytest.approx([1, 4, 2, 1, 1])
    assert [work.walk for work in works] == [3 * 65, 3 * 65, 6 * 65, 3 * 65, 0]


def test_curves_say_when_a_half_was_reached_and_whether_the_loss_still_fell():
    steps = np.arange(1000)
    curves = read_curves(10.0 - steps / 200, (steps >= 500).astype(float))
    assert curves["half_step"] == 545  # the mean over 90 steps
    assert curves["loss_drop"] > 0.05
    assert np.isnan(curves["diverged_at"])
    assert len(curves["loss"]) == 100
    flat = read_curves(np.full(50, 2.0), np.zeros(50))
    assert np.isnan(flat["half_step"])
    assert flat["loss_drop"] == 0
    assert "half_step" not in read_curves(np.full(50, 2.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cells": ["language:s6"]}, "expected a cell as TASK:BLOCKS:REMEDY:RATE:SEED; got 'language:s6'; write"),
        ({"seeds": ["-1"]}, "different numbers of at least 0 in seeds"),
        ({"rates": ["0"]}, "a rate above 0"),
        ({"memory": -1.0}, "expected memory of at least 0"),
        ({"device": "gpu"}, "expected a device such as cpu"),
        ({"together": 0}, "together of at least 1"),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_written(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        STUDY.run(tower(**options), out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_provenance_names_the_device_that_trains(monkeypatch):
    """It named the CPU while models were trained on a GPU."""
    monkeypatch.setattr("repflow.models.devices.resolve_device", lambda device: torch.device("meta"))
    job = study.LaboratoryJob(tower(cells=UNLIKE[:1]), {}, None, 1)
    assert STUDY.machine(job)["device"] == "meta"
