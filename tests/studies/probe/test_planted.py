"""A label that one state alone holds: the probe and the diagnosis must find exactly that state."""

import numpy as np
import pytest

import repflow
from repflow.report.terminal.probe import summary_lines
from repflow.studies.probe.steps import LeakError
from tests.studies.probe.inputs import CLASSES, PlantedModel, PlantedTask, planted_prompts

QUICK = {"samples": 240, "seeds": 3, "lens": 0, "answers": 0}


@pytest.fixture(scope="module")
def planted():
    return repflow.probe(PlantedModel(label_at=2), PlantedTask(), **QUICK)


def test_the_state_that_holds_the_label_is_found(planted):
    about = planted.provenance["probe"]
    assert about["peak"] == 2
    assert about["tied"] == [2]
    assert about["intermediate_beats_final"] is True
    assert planted["probe_like_peak"].tolist() == [False, False, True, False, False]
    assert planted["probe_accuracy"][2].min() > 0.9
    assert about["covers_refits"] is True
    assert about["read_out"]["prompts"] == {
        "train": 144, "valid": 48, "test": 48, "seeds": 3, "vary": "split", "covers_refits": True,
    }  # fmt: skip


def test_no_other_state_reads_it(planted):
    band = planted.bands["probe_accuracy"]
    for state in (0, 1, 3, 4):
        assert band.low[state] <= planted["probe_chance"] <= band.high[state]
        assert planted["probe_information"][state] < 0.3
    assert planted["probe_information"][2] > 1.2
    assert float(planted["final_norm/probe_accuracy"].mean()) < 0.45


def test_numbers_beside_the_accuracy(planted):
    accuracy, chance = planted["probe_accuracy"].mean(1), float(planted["probe_chance"])
    assert chance == pytest.approx(1 / CLASSES, abs=0.08)
    assert planted.provenance["probe"]["classes"] == CLASSES
    np.testing.assert_allclose(planted["probe_corrected"], (accuracy - chance) / (1 - chance))
    drop = planted.bands["probe_drop"]
    assert float(planted["probe_drop"]) == pytest.approx(accuracy[2] - max(accuracy[4], chance))
    assert drop.low < drop.mean < drop.high
    assert float(planted["probe_drop_corrected"]) == pytest.approx(float(planted["probe_drop"]) / (1 - chance))
    (finding,) = [f for f in planted.findings if f.code == "intermediate_beats_final"]
    assert finding.layer == 2
    assert f"by {100 * float(planted['probe_drop']):.1f} [" in finding.message
    assert finding.message.endswith("fitted on 144, tested on 48 prompts, 3 splits of the same prompts")
    assert "with half the training prompts" in finding.message


def test_blocks_that_write_and_remove_the_label_are_claimed(planted):
    assert planted["probe_step_claim"].tolist() == [0, 1, -1, 0]
    assert planted["half/probe_step"].shape == (4,)
    codes = {f.code: f for f in planted.findings}
    assert codes["lost_in_block"].layer == 2
    assert codes["lost_in_block"].message.startswith("lost in block 3: accuracy")
    assert "fitted on 144, tested on 48 prompts" in codes["gained_in_block"].message


def test_one_seed_claims_no_loss():
    """The same label, the same accuracies: but nothing says how far they move with other training prompts."""
    result = repflow.probe(PlantedModel(label_at=2), planted_prompts(240), **{**QUICK, "seeds": 1}, recipes=["robust"])
    about = result.provenance["probe"]
    assert result.bands["probe_drop"].low > 0.2
    assert about["intermediate_beats_final"] is False
    assert "no interval covers refitting" in about["read_out"]["statement"]
    assert not result["probe_step_claim"].any()
    assert [f.code for f in result.findings if f.code == "no_refits"]


def test_fixed_epochs_are_no_finding_where_the_robust_recipe_is_reported(planted):
    """Adam's 150 epochs on raw features end short of a minimum, as published: their numbers are not reported here."""
    assert planted.provenance["probe"]["recipe"] == "robust"
    assert not planted["probe/paper/converged"].all()
    assert not [f for f in planted.findings if f.code == "unconverged"]
    paper = repflow.probe(PlantedModel(), planted_prompts(240), **{**QUICK, "seeds": 1}, recipes=["paper"], controls=[])
    (message,) = [f.message for f in paper.findings if f.code == "unconverged"]
    assert message.startswith("recipe paper ended after its 150 epochs, short of a minimum, at ")


def test_controls_tell_task_from_capacity(planted):
    """The control's key shows in no state, so the control stays at its chance and selectivity is the task's gain.

    A control below its chance counts as at chance: it would lift selectivity over what the task itself gains.
    """
    assert planted["probe_control_accuracy"].shape == (5, 3)
    assert float(planted["probe_control_chance"]) == pytest.approx(1 / CLASSES, abs=0.08)
    assert planted["probe_control_accuracy"].mean(1).max() < 0.45
    own, other = float(planted["probe_chance"]), float(planted["probe_control_chance"])
    task, control = planted["probe_accuracy"].mean(1), planted["probe_control_accuracy"].mean(1)
    corrected = (control - other) / (1 - other)
    assert corrected.min() < 0  # or the bound would not be tested
    expected = (task - own) / (1 - own) - np.where(corrected > 0, corrected, 0)
    np.testing.assert_allclose(planted["probe_selectivity"], expected)
    np.testing.assert_allclose(planted["probe_control_corrected"], corrected)
    assert planted["probe_selectivity"].max() <= 1
    control_band = planted.bands["probe_control_accuracy"]
    np.testing.assert_allclose(control_band.mean, control)
    assert (control_band.low < control).all()
    assert (control < control_band.high).all()
    assert planted["probe_control_information"].max() < 0.2
    band = planted.bands["probe_selectivity"]
    assert band.low[2] > 0.5
    assert (band.low < planted["probe_selectivity"]).all()
    assert (planted["probe_selectivity"] <= band.high).all()
    assert (band.low[[0, 1, 3, 4]] < 0.1).all()
    assert planted["probe_capacity"].min() > float(planted["probe_chance"])


def test_keys_that_all_begin_alike_give_no_control():
    from dataclasses import replace

    from repflow.tasks import Prompts

    prompts = planted_prompts(120)
    same = Prompts("same", tuple(replace(p, key="0") for p in prompts), prompts.classes)
    result = repflow.probe(PlantedModel(), same, **QUICK, recipes=["robust"], controls=["task"])
    assert "probe_selectivity" not in result
    assert [f.code for f in result.findings if "control" in f.code] == ["no_control"]


@pytest.mark.parametrize("label_at", [1, 4])
def test_wherever_it_is_put(label_at):
    model = PlantedModel(label_at=label_at, alike_at=3)
    result = repflow.probe(model, PlantedTask(), **QUICK, controls="none", recipes=["robust"])
    assert result.provenance["probe"]["peak"] == label_at
    assert result.provenance["probe"]["intermediate_beats_final"] is (label_at < 4)
    assert "probe_capacity" not in result


def test_nothing_to_find_is_not_found():
    result = repflow.probe(PlantedModel(strength=0.0), PlantedTask(), **QUICK, controls="none")
    about = result.provenance["probe"]
    assert about["intermediate_beats_final"] is False
    assert 4 in about["tied"]
    assert result.bands["probe_accuracy"].low[about["peak"]] <= float(result["probe_chance"])
    assert not [f for f in result.findings if f.code == "intermediate_beats_final"]


def test_diagnosis_of_the_planted_model():
    result = repflow.diagnose(PlantedModel(label_at=2, alike_at=1), PlantedTask(), **QUICK, flow_samples=12)
    said = {(s["code"], s["basis"]): s for s in result.provenance["statements"]}
    assert said["homogenise", "measured"]["numbers"]["state"] == 1
    assert said["homogenise", "measured"]["holds"] is True
    assert said["recover", "measured"]["holds"] is True
    assert said["early_similarity", "published"]["holds"] is True
    assert said["early_similarity", "judged"]["holds"] is True
    assert said["late_similarity", "judged"]["holds"] is False
    assert said["decodable", "measured"]["holds"] is True
    assert said["best_state", "measured"]["numbers"]["state"] == 2
    assert said["best_state", "measured"]["numbers"]["tied"] == []
    assert said["intermediate", "measured"]["holds"] is True
    assert said["peak_to_last", "judged"]["holds"] is True
    assert any("twin" in text for text in result.provenance["not_measured"])


def test_mean_and_other_positions():
    task = PlantedTask()
    mean = repflow.probe(PlantedModel(strength=60.0), task, **QUICK, position="mean", recipes=["robust"], controls=[])
    assert mean.provenance["probe"]["peak"] == 2
    assert mean.provenance["probe"]["position"] == "mean"
    swept = repflow.probe(PlantedModel(), task, **QUICK, sweep=["0", "0.5,1"], recipes=["robust"], controls=["none"])
    assert swept.provenance["probe"]["sweep"] == ["0", "0.5", "1"]
    assert swept.axes["sweep/probe_accuracy"] == ("position", "state", "seed")
    best = swept["sweep/probe_accuracy"].mean(2)
    chosen = np.array(swept.provenance["probe"]["sweep_peaks"])  # (position, seed)
    at = swept["sweep/probe_accuracy"][np.arange(3)[:, None], chosen, np.arange(3)]
    np.testing.assert_allclose(swept["sweep/probe_peak_accuracy"], at.mean(1))
    assert swept["sweep/probe_peak_accuracy"][0] < best[0].max()  # where nothing is to be read, luck is not taken
    (line,) = [line for line in summary_lines(swept) if "other positions" in line]
    assert "of the state that validation chose there" in line
    band = swept.bands["sweep/probe_peak_accuracy"]
    assert f"{float(band.mean[0]):.3f} [{float(band.low[0]):.3f}, {float(band.high[0]):.3f}]" in line
    assert best[2, 2] > 0.9  # position 1 is the last token
    np.testing.assert_array_equal(swept["sweep/probe_accuracy"][2], swept["probe_accuracy"])
    for name in ("probe_corrected", "probe_information"):
        assert swept.axes[f"sweep/{name}"] == ("position", "state")
        np.testing.assert_allclose(swept[f"sweep/{name}"][2], swept[name])
    for part in ("mean", "low", "high"):
        mine, main = (getattr(swept.bands[name], part) for name in ("sweep/probe_accuracy", "probe_accuracy"))
        assert mine.shape == (3, 5)
        np.testing.assert_allclose(mine[2], main)
    assert best[:2].max() < 0.5  # the label lies at the last token only


def test_twin_of_a_planted_model_holds_nothing(monkeypatch):
    import repflow.studies.probe.steps as study

    monkeypatch.setattr(study, "_load_twin", lambda *_: PlantedModel(strength=0.0))
    result = repflow.probe(PlantedModel(), PlantedTask(), **QUICK, twin="default", recipes=["robust"], controls="none")
    band = result.bands["twin/probe_accuracy"]
    assert result["twin/probe_accuracy"].shape == (5, 3)
    assert (band.low <= float(result["probe_chance"])).all()
    assert result.bands["probe_accuracy"].low[2] > band.high.max()
    assert result["twin/probe_valid_accuracy"].shape == (5, 3)
    peaks = result["twin/probe_valid_accuracy"].argmax(0)  # chosen on validation, by seed
    twin = result["twin/probe_accuracy"][peaks, [0, 1, 2]].mean()
    assert float(result["twin/probe_peak_accuracy"]) == pytest.approx(twin)
    assert float(result["twin/probe_gain"]) == pytest.approx(float(result["probe_peak_accuracy"]) - twin)
    gain = result.bands["twin/probe_gain"]
    assert 0.3 < gain.low < float(result["twin/probe_gain"]) < gain.high


def test_a_model_is_no_better_than_itself():
    """Twin and model alike: by prompt there is no difference at all, which the width of either interval hides.

    Prompts that all agree leave a small width: they do not prove that the next one would.
    """
    from repflow.studies.probe import steps as probe_study

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe_study, "_load_twin", lambda *_: PlantedModel(strength=1.5))
        result = repflow.probe(
            PlantedModel(strength=1.5), PlantedTask(), **QUICK, twin="default", recipes=["robust"], controls="none"
        )
    gain = result.bands["twin/probe_gain"]
    assert float(gain.mean) == 0.0
    assert -0.05 < float(gain.low) < 0 < float(gain.high) < 0.05


def leaky(**change):
    from dataclasses import replace

    from repflow.tasks import Prompts

    prompts = planted_prompts(240)
    return Prompts("leaky", tuple(replace(p, **{k: v(p) for k, v in change.items()}) for p in prompts), prompts.classes)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bag of tokens", {"ids": lambda p: (*p.ids[:2], 40 + p.label, *p.ids[2:])}),
        ("length and counts", {"items": lambda p: 5 + p.label}),
    ],
)
def test_leaks_stop_the_run_by_name_and_leave_nothing(name, change, tmp_path):
    with pytest.raises(LeakError, match=f"got a leak: {name} reads the label with accuracy .*; fix the prompts"):
        repflow.probe(PlantedModel(), leaky(**change), **QUICK, out=tmp_path, name="leaky")
    assert not list(tmp_path.iterdir())
    result = repflow.probe(
        PlantedModel(), leaky(**change), **QUICK, out=tmp_path, name="leaky", allow_leak=True, controls="none"
    )
    assert [f.code for f in result.findings].count("leak") == 1
    assert [s["name"] for s in result.provenance["sentinels"] if s["leaks"]] == [name]
    assert "allow_leak" not in result.config


def test_last_token_that_tells_the_label_is_a_leak():
    """State 0 of a real model: the embedding of the last token."""
    from tests.studies.probe.inputs import reader

    leak = leaky(ids=lambda p: (*p.ids[:-1], 40 + p.label))
    with pytest.raises(LeakError, match="state 0 at the last token reads the label"):
        repflow.probe(reader("mamba2"), leak, **QUICK)
