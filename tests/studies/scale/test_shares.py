"""One run by several workers: shares of its prompts or of the models that it trains, put together bit by bit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from repflow.cli import scale
from repflow.cli.main import app
from repflow.core.errors import InputError
from repflow.models import StackConfig, StackForSequenceClassification
from repflow.store import RunFolder, load_result
from repflow.store.claims.attempt import OWN
from repflow.store.claims.board import Policy
from repflow.store.claims.ledger import CLAIMS
from repflow.store.claims.place import FolderPlace
from repflow.store.manifest import live_shards, read_manifest
from repflow.store.merge import merge_runs
from repflow.studies.architecture.config import ArchitectureConfig
from repflow.studies.corrupt.config import AttackConfig, CorruptConfig
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.spot import SHARES, spot_of
from repflow.studies.engine.table import study_for
from repflow.studies.measure import MeasureConfig
from repflow.studies.probe.study import ProbeConfig
from repflow.studies.recall.study import STUDY as RECALL
from repflow.studies.scale.config import ScaleConfig
from repflow.studies.scale.engine import Engine
from repflow.studies.scale.order import Order
from repflow.studies.scale.worker import Post, work
from tests.studies.recall.tiny import tiny

NAME = "x"
POST = Post(policy=Policy(beat=0.05))


def measure(**more):
    return MeasureConfig(model="a", task="random", length=12, samples=9, batch_size=2, **more)


def probe():
    """With answers and the lens, which follow when the states are together."""
    few = {"seeds": 1, "epochs": 2, "recipes": ["robust"], "controls": ["none"], "answers": 4, "lens": 4}
    return ProbeConfig(model="zoo:gpt-neox", task="kvpr", length=150, samples=20, batch_size=4, **few)


def big_probe():
    """One of 20,000 prompts, as docs/benchmarks.md has it, with 400 of them; its random twin is read by shares too."""
    small = {"length": 16, "samples": 400, "batch_size": 64, "epochs": 5}
    return ProbeConfig(model="a", task="recall", seeds=3, twin="default", **small)


def corrupt(**more):
    options = {"task": "random", "regions": ["windows:4", "last:2"], "replace": ["random", "other"]}
    return CorruptConfig(**{"model": "a", "length": 13, "samples": 5, **options, **more})


@pytest.fixture
def images(tmp_path):
    """A classifier of small images."""
    config = StackConfig(
        mixers=[{"name": "s6", "state": 4}], hidden_size=8, vocab_size=257, input_channels=1, input_range=[0, 1],
        num_labels=10, class_token="end", pixel_layout={"order": "row", "grey": True},
    )  # fmt: skip
    torch.manual_seed(0)
    StackForSequenceClassification(config).save_pretrained(tmp_path / "classifier")
    return {"model": str(tmp_path / "classifier"), "images": "drawn:8", "samples": 12, "regions": ["last:8", "0:8"]}


def architecture():
    small = {"layers": ["1"], "widths": ["16"], "lengths": ["8"], "steps": 2, "batch": 2, "readings": 1}
    more = {"reading_tokens": 40, "leak_positions": 4, "held_out_share": 0.1, "flow_samples": 0}
    return ArchitectureConfig(rows=["mamba", "transformer"], keep_models=True, **small, **more)


def recall():
    return tiny(rows=["none/4", "ssd/4"], keep_models=True, flow_samples=0)


def serial(config, out):
    return study_for(config).run(config, out=out, name=NAME)


def divided(config, out, split=3):
    return Order(out, study_for(config).work(config, out, NAME, split).cells)


def by_workers(order):
    tallies = [work(stage, POST) for stage in order.stages()]
    assert sum(tally.failed for tally in tallies) == 0
    return tallies


def same_bytes(one, other):
    for name in ("result.json", "result.safetensors"):
        assert (one / NAME / name).read_bytes() == (other / NAME / name).read_bytes(), name


@pytest.mark.parametrize("request_of", [measure, probe, big_probe, corrupt])
def test_shares_of_a_run_make_the_same_bytes(shop, tmp_path, monkeypatch, request_of):
    """Of prompts, and of what is replaced in them."""
    monkeypatch.chdir(shop)
    make_the_same_bytes(request_of(), tmp_path)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(CorruptConfig, {"replace": ["normal"], "influence": 2}), (AttackConfig, {"targets": ["dots"]})],
)
def test_shares_of_replaced_pixels_make_the_same_bytes(tmp_path, images, kind, options):
    make_the_same_bytes(kind(**images, **options), tmp_path, split=2)


def make_the_same_bytes(config, tmp_path, split=3):
    serial(config, tmp_path / "serial")
    order = divided(config, tmp_path / "shared", split)
    assert [len(stage.cells) for stage in order.stages()] == [split, 1]
    shares, whole = order.stages()
    first = work(shares, POST)
    folders = [spot_of(order.folder, share).target / "shards" for share in order.cells[0].shares()]
    names = [path.name for folder in folders for path in folder.iterdir()]
    assert len(names) == len(set(names)) >= split  # nothing is computed twice
    second = work(whole, POST)
    assert [(tally.finished, tally.failed) for tally in (first, second)] == [(split, 0), (1, 0)]
    same_bytes(tmp_path / "serial", tmp_path / "shared")
    assert not (tmp_path / "shared" / OWN / SHARES).exists()
    assert [len(stage.cells) for stage in order.stages()] == [1]  # nothing is done again


def test_every_batch_is_in_one_share(shop, tmp_path, monkeypatch):
    monkeypatch.chdir(shop)
    order = divided(measure(), tmp_path, split=2)
    work(order.stages()[0], POST)
    batches = [sorted((spot_of(tmp_path, share).target / "shards").iterdir()) for share in order.cells[0].shares()]
    names = [path.name for folder in batches for path in folder]
    assert len(names) == len(set(names)) == 5
    assert {len(folder) for folder in batches} == {2, 3}


def test_a_share_of_other_batches_is_left_out_and_computed_again(shop, tmp_path, monkeypatch):
    """A machine with less memory plans smaller batches: names of batches do not mean the same prompts there."""
    monkeypatch.chdir(shop)
    serial(measure(), tmp_path / "serial")
    order = divided(measure(), tmp_path / "shared", split=2)
    work(order.stages()[0], POST)
    manifest = spot_of(order.folder, order.cells[0].shares()[1]).target / "manifest.jsonl"
    other = divided(measure(), tmp_path / "other", split=2)
    monkeypatch.setattr("repflow.capture.measure.measure_plan", smaller_plan)
    work(other.stages()[0], POST)
    monkeypatch.undo()
    monkeypatch.chdir(shop)
    theirs = spot_of(other.folder, other.cells[0].shares()[1]).target
    manifest.parent.rename(tmp_path / "gone")
    theirs.rename(manifest.parent)
    by_workers(order)
    same_bytes(tmp_path / "serial", tmp_path / "shared")
    serial_run, shared_run = (tmp_path / name / NAME for name in ("serial", "shared"))
    assert live_shards(read_manifest(shared_run).good).keys() == live_shards(read_manifest(serial_run).good).keys()
    assert [entry.kind for entry in read_manifest(shared_run).good].count("plan") == 1


def smaller_plan(model, prompts, options):
    from repflow.capture import make_plan

    return make_plan(prompts.lengths, width=model.width, itemsize=4, batch_size=3)


def test_a_damaged_share_is_not_used(shop, tmp_path, monkeypatch):
    monkeypatch.chdir(shop)
    order = divided(measure(), tmp_path, split=2)
    work(order.stages()[0], POST)
    shard = next((spot_of(tmp_path, order.cells[0].shares()[0]).target / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    tally = work(order.stages()[1], POST)
    assert (tally.finished, tally.failed) == (0, 1)
    assert "delete its run" in (tmp_path / f"{NAME}.json").read_text()


def test_shares_of_two_requests_are_not_mixed(tmp_path):
    for number in range(2):
        with RunFolder.open(tmp_path, f"s{number}", config={"length": number}, provenance={}):
            pass
    with pytest.raises(InputError, match="length"):
        merge_runs([tmp_path / "s0", tmp_path / "s1"], tmp_path, "whole")
    with pytest.raises(InputError, match="at least one share"):
        merge_runs([], tmp_path, "whole")


@pytest.mark.parametrize("request_of", [recall, architecture])
def test_groups_of_a_laboratory_are_trained_by_different_workers(tmp_path, request_of):
    config = request_of()
    serial(config, tmp_path / "serial")
    order = divided(config, tmp_path / "shared", split=1)
    assert [len(stage.cells) for stage in order.stages()] == [2, 1]
    by_workers(order)
    ours, theirs = (load_result(tmp_path / where / NAME) for where in ("shared", "serial"))
    assert {name: array.tobytes() for name, array in ours.items()} == {
        name: array.tobytes() for name, array in theirs.items()
    }
    models = [sorted(p.name for p in (tmp_path / where / f"{NAME}.models").iterdir()) for where in ("serial", "shared")]
    assert models[0] == models[1]
    assert len(models[0]) == 2
    assert sorted(p.name for p in (tmp_path / "shared").iterdir()) == [OWN, NAME, f"{NAME}.models"]
    with pytest.raises(InputError, match="leave seconds out"):
        RECALL.shares(tiny(seconds=5.0), 1)


class Here(Engine):
    """Workers in this process, one after the other."""

    def start(self, order, posts):
        for post in posts:
            work(order, post)

    def replace(self, order, post):
        raise AssertionError("no worker is lost")

    def ended(self):
        return []

    def stop(self, patience):
        pass


def test_shares_that_failed_are_tried_once_more_by_the_crew(tmp_path, monkeypatch, capsys):
    """Memory that others held is free again: one worker alone need not train all that failed."""
    config, failing, crews = recall(), [2], []
    whole, share = RECALL.run_share, "expected memory for none/4"

    def short(*args, **more):
        if failing[0]:
            failing[0] -= 1
            raise InputError(share)
        return whole(*args, **more)

    def engine_for(order, scale):
        crews.append((len(order.cells), scale.workers))
        return Here(), [replace(POST, policy=replace(POST.policy, retry=scale.retry_failed))]

    monkeypatch.setattr(type(RECALL), "run_share", lambda self, *args, **more: short(*args, **more))
    monkeypatch.setattr(scale, "engine_for", engine_for)
    scale.spread(divided(config, tmp_path, split=1), ScaleConfig(workers=4))
    assert crews == [(2, 4), (2, 2), (1, 4)]
    said = " ".join(capsys.readouterr().err.split())
    assert said.count(f" and 1 more: {share}") == said.count(share) == 1
    assert "2 of 2 shares failed and are tried once more by 2 workers" in said
    assert (tmp_path / NAME / "result.json").exists()


def run(*words):
    return CliRunner().invoke(app, ["run", *words])


def test_a_command_by_workers(shop, tmp_path, monkeypatch):
    """`repflow run -- twins ...`: a worker does the cells, then the command itself finds them finished."""
    monkeypatch.chdir(shop)
    twins = ["twins", "a", "--task", "random", "--inits", "default", "--lengths", "12", "--seeds", "2"]
    twins += ["--samples", "3", "--out", str(tmp_path), "--name", NAME]
    worker = run("--worker", "--", *twins)
    assert worker.exit_code == 0, worker.stderr
    assert "3 cells finished here" in worker.stderr
    assert worker.stdout == ""
    done = run("--worker", "--split", "2", "--", "measure", "a", "--task", "random", "--length", "12", "--out", "m")
    assert done.exit_code == 0, done.stderr
    assert "3 cells finished here" in done.stderr  # two shares, and the whole
    whole = CliRunner().invoke(app, [*twins, "--json"])
    assert whole.exit_code in (0, 1), whole.stderr
    assert len(json.loads(whole.stdout)["provenance"]["cells"]) == 3
    place = FolderPlace(tmp_path / NAME / OWN)
    assert all(place.names(f"{CLAIMS}/{cell}") == ["000001", "000002"] for cell in place.names(CLAIMS))


def test_the_runs_of_a_recipe_are_its_work(tmp_path):
    from repflow.studies.reproduce.config import ReproduceConfig
    from repflow.studies.reproduce.study import STUDY, plan

    config = ReproduceConfig(recipe="flow-fig2", scale="tiny", tasks=["kvpr"])
    shared = STUDY.work(config, tmp_path, NAME, 4)
    assert {cell.name for cell in shared.cells} == {cell.name for cell in plan(config, tmp_path).cells}
    assert {cell.split for cell in shared.cells} != {1}
    assert all(Path(cell.config.model.removeprefix("config:")).exists() for cell in shared.cells)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "2", "--", "recal", "--steps", "3"], "did you mean recall"),
        (["--workers", "2", "--", "diagnose", "a"], "by `kind` of a STUDY.toml"),
        (["--workers", "2", "--out", "b", "--", "probe", "a"], "--out behind the command"),
        (["--split", "0", "study.toml"], "--split"),
        (["--workers", "2", "--", "probe", "a", "--tasks", "kvpr"], "no such option: --tasks"),
    ],
)
def test_commands_that_cannot_be_spread(words, message):
    done = run(*words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_names_of_shares():
    assert [cell.name for cell in Cell("a", None, 2).shares()] == ["a.1-of-2", "a.2-of-2"]
    assert Cell("a", None).shares() == []
