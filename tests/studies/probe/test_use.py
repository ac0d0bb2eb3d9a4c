"""How probes and diagnoses feel: names that do not collide, reported phases, features that can go, runs reused."""

import json
from dataclasses import replace

import numpy as np
import pytest

import repflow
from repflow.core.errors import InputError
from repflow.report.terminal.diagnose import diagnosis_json, diagnosis_text
from repflow.store import list_runs, load_result, verify
from repflow.studies.diagnose import study as diagnose
from repflow.studies.diagnose.blocks import block_statements, block_steps
from repflow.studies.diagnose.study import DiagnoseConfig
from repflow.studies.probe import study as probe
from repflow.studies.probe.study import ProbeConfig, run_name
from tests.studies.probe.inputs import KVPR, PlantedModel, PlantedTask, planted_prompts, reader


def test_a_quick_try_has_another_name_than_the_real_run():
    whole = ProbeConfig(model="m")
    others = [{"samples": 50}, {"seeds": 1}, {"items": 3}, {"recipes": ["robust"]}, {"twin": "default"}, {"lens": 0}]
    others += [{"match_with": ["n"]}, {"seed": 1}, {"label": "answer"}, {"task": "mdqa"}, {"sweep": ["0"]}]
    names = [run_name(whole), *(run_name(replace(whole, **other)) for other in others)]
    assert len(set(names)) == len(names)
    # how and where it runs is no part of the name
    same = replace(whole, batch_size=4, device="cuda", allow_leak=True, drop_features=True)
    assert run_name(same) == run_name(whole)
    quick, real = (DiagnoseConfig(model="m", samples=samples) for samples in (50, 1000))
    assert diagnose.run_name(quick) != diagnose.run_name(real)
    assert diagnose.run_name(real) == "m-kvpr-300-1000x5-diagnosis"
    assert diagnose.run_name(replace(real, loss_points=5.0)) != diagnose.run_name(real)
    assert diagnose.run_name(DiagnoseConfig(model="m", task="random", length=64)) == "m-random-64-16-diagnosis"


def test_the_default_length_is_the_tasks():
    assert [kind(task=task).length for kind in (ProbeConfig, DiagnoseConfig) for task in ("kvpr", "mdqa")] == [
        300,
        1000,
    ] * 2
    assert ProbeConfig(task="mdqa", length=300).length == 300


class Told:
    """A progress that remembers its phases."""

    def __init__(self):
        self.phases, self.batches = [], []

    def __call__(self, done, total, tokens):
        self.batches.append((done, total))

    def phase(self, text, done, total):
        if not self.phases or self.phases[-1] != text:
            self.phases.append(text)


def test_every_phase_is_told_and_a_finished_run_shows_no_bar(tmp_path):
    config = ProbeConfig(task="kvpr", twin="default", seeds_vary="all", **{**KVPR, "samples": 30}, allow_leak=True)
    progress = Told()
    probe.run(config, model=reader("mamba2"), out=tmp_path, name="n", progress=progress)
    wanted = ["making prompts", "checking for leaks", "reading states", "fitting probes, paper, prompts 1 of 2"]
    wanted += ["fitting the control task, ", "fitting shuffled labels", "logit lens", "greedy answers"]
    wanted += ["loading the twin", "reading the twin's states", "fitting the twin's probes, ", "intervals"]
    places = [next(i for i, text in enumerate(progress.phases) if text.startswith(start)) for start in wanted]
    assert places == sorted(places)
    assert progress.batches[-1] == (120, 120)
    again = Told()
    probe.run(config, model=reader("mamba2"), out=tmp_path, name="n", progress=again)
    assert again.phases[-1] == "finished before, reading the stored result"
    assert not again.batches


def test_features_are_dropped_once_the_run_is_finished(tmp_path):
    config = ProbeConfig(task="kvpr", **{**KVPR, "samples": 30}, allow_leak=True)
    first = probe.run(config, model=reader("mamba2"), out=tmp_path, name="n")
    shards, lines = tmp_path / "n" / "shards", (tmp_path / "n" / "manifest.jsonl").read_bytes()
    features = sorted(shards.glob("model-*batch*"))
    assert features
    assert probe.run(config, model=reader("mamba2"), out=tmp_path, name="n").provenance == first.provenance
    assert (tmp_path / "n" / "manifest.jsonl").read_bytes() == lines  # reading a finished run writes nothing
    result = (tmp_path / "n" / "result.json").read_bytes()
    probe.run(replace(config, drop_features=True), model=reader("mamba2"), out=tmp_path, name="n")
    assert not sorted(shards.glob("model-*batch*"))
    assert sorted(shards.glob("model-fit*"))
    assert verify(tmp_path / "n") == []
    assert list_runs(tmp_path)[0].finished
    assert (tmp_path / "n" / "result.json").read_bytes() == result
    again = probe.run(config, model=reader("mamba2"), out=tmp_path, name="n")  # reads, does not run again
    np.testing.assert_array_equal(again["probe_accuracy"], first["probe_accuracy"])
    assert not sorted(shards.glob("model-*batch*"))


def test_steps_across_blocks_are_paired(tmp_path):
    result = repflow.probe(
        PlantedModel(label_at=2), planted_prompts(300), seeds=3, answers=0, lens=0, recipes=["robust"]
    )
    band = result.bands["probe_step"]
    # below chance counts as chance: nothing can be lost there
    over = np.maximum(result["probe_accuracy"].mean(1), float(result["probe_chance"]))
    np.testing.assert_allclose(result["probe_step"], np.diff(over), atol=1e-12)
    assert result.axes["probe_step"] == ("layer",)
    assert band.low[1] > 0.3  # block 2 puts the label there
    assert band.high[2] < -0.3  # block 3 takes it away
    assert (band.low <= result["probe_step"]).all()
    assert (result["probe_step"] <= band.high).all()


QUICK = {"samples": 240, "seeds": 3, "answers": 0, "lens": 0, "recipes": ["robust"]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A measured and a probed run of one planted model, whose block 2 writes the label and block 3 removes it."""
    folder = tmp_path_factory.mktemp("runs")
    model = PlantedModel(label_at=2, alike_at=1)
    repflow.measure(model, planted_prompts(12), out=folder, name="flow")
    repflow.probe(model, PlantedTask(), **QUICK, out=folder, name="probe")
    return folder


def test_diagnosis_of_runs_that_are_there_names_the_blocks(runs, tmp_path):
    config = DiagnoseConfig(flow_run=str(runs / "flow"), probe_run=str(runs / "probe"))
    diagnose.check_request(config)
    result = diagnose.run(config, out=tmp_path)
    (name,) = [entry.name for entry in tmp_path.iterdir()]
    assert name == diagnose.run_name(config)
    said = {(s["code"], s["numbers"].get("block")): s for s in result.provenance["statements"]}
    assert said["gained_in_block", 2]["numbers"]["after"] > 0.8
    assert said["lost_in_block", 3]["numbers"]["change"]["high"] < 0
    assert [step["verdict"] for step in result.provenance["blocks"]] == ["", "gained", "lost", ""]
    assert result.provenance["runs"] == {"flow": str(runs / "flow"), "probe": str(runs / "probe")}
    page = diagnosis_text(result, 80)
    assert max(map(len, page.splitlines())) <= 80
    assert "Lost in block 3 (attention): accuracy" in " ".join(page.split())
    change = result.provenance["blocks"][2]["change"]
    assert f"{change['value']:+.3f} [{change['low']:+.3f}, {change['high']:+.3f}]   lost" in page
    assert "on 6 of 12 prompts" in " ".join(page.split())
    assert "recipe robust" in " ".join(page.split())
    json.dumps(diagnosis_json(result), allow_nan=False)
    assert load_result(tmp_path / name).provenance["blocks"] == result.provenance["blocks"]
    assert verify(tmp_path / name) == []


def test_one_run_alone_claims_only_its_part(runs):
    flow = diagnose.run(DiagnoseConfig(flow_run=str(runs / "flow")))
    assert {s["section"] for s in flow.provenance["statements"]} <= {"flow", "signature"}
    probed = diagnose.run(DiagnoseConfig(probe_run=str(runs / "probe")))
    assert "flow between tokens" in " ".join(probed.provenance["not_measured"])
    assert any(s["code"] == "lost_in_block" for s in probed.provenance["statements"])


def test_what_is_missing_is_measured(runs, tmp_path):
    config = DiagnoseConfig(task="planted", flow_run=str(runs / "flow"), samples=240, seeds=1, answers=0, lens=0)
    result = diagnose.run(config, model=PlantedModel(label_at=2), given=PlantedTask(), out=tmp_path, name="d")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["d", "d-probe"]
    assert result.provenance["runs"] == {"flow": str(runs / "flow"), "probe": "d-probe"}


def test_runs_of_other_kinds_and_models_are_refused(runs, tmp_path):
    with pytest.raises(InputError, match=r"expected flow_run with a run of `repflow measure`; got .*probe"):
        diagnose.run(DiagnoseConfig(flow_run=str(runs / "probe")))
    with pytest.raises(InputError, match=r"expected probe_run with a run of `repflow probe`; got .*flow"):
        diagnose.run(DiagnoseConfig(probe_run=str(runs / "flow")))
    repflow.measure(reader("mamba2"), "random", length=16, samples=2, out=tmp_path, name="other")
    config = DiagnoseConfig(flow_run=str(tmp_path / "other"), probe_run=str(runs / "probe"))
    with pytest.raises(InputError, match=r"flow and probe of one model; got .*, whose weights differ"):
        diagnose.run(config)
    with pytest.raises(InputError, match="a MODEL to measure and probe, or runs of it; got neither"):
        diagnose.check_request(DiagnoseConfig())


def test_other_prompts_are_a_finding(runs, tmp_path):
    model = PlantedModel(label_at=2)
    repflow.measure(model, "random", length=16, samples=4, out=tmp_path, name="flow")
    result = diagnose.run(DiagnoseConfig(flow_run=str(tmp_path / "flow"), probe_run=str(runs / "probe")))
    (finding,) = [f for f in result.findings if f.code == "different_prompts"]
    assert finding.message.startswith("the flow is from random at 16 tokens, the probe from planted")


def test_luck_is_not_called_a_loss(runs):
    """Without a label in the states no block gains or loses it, whatever single intervals say."""
    result = repflow.probe(PlantedModel(label_at=99), planted_prompts(240), **{**QUICK, "seeds": 3})
    evidence = diagnose.ProbeEvidence.of(result)
    steps = block_steps(None, evidence)
    assert [step.verdict for step in steps] == [""] * 4
    (said,) = block_statements(steps, evidence)
    assert said.holds is None
    assert said.text.startswith("No single one of the 4 blocks is shown to lose it; fitted on 144, tested on 48")
