"""`repflow.influence` and the recency study: what the Result says against the gradients, twins, ratios, refusals."""

import json

import numpy as np
import pytest
import torch
from rich.text import Text

import repflow
from repflow.capture.influence.jacobian import FINAL, influence_squares
from repflow.core.errors import ConfigChangedError, InputError, UnsupportedModelError
from repflow.models.stack.network import StackConfig, StackForCausalLM
from repflow.report.terminal.recency import curve_table, reach_table, summary_table, view
from repflow.store import load_result, verify
from repflow.studies.engine.size import Size
from repflow.studies.recency.ratio import influence_ratio
from repflow.studies.recency.study import STUDY, Compared, RecencyConfig, check_request, run, run_name
from repflow.tasks import Prompt, Prompts
from repflow.theory.influence_curve import exponential_fit
from tests.models.stack.inputs import stack
from tests.models.tiny_configs import tiny_model

torch.set_num_threads(1)
IDS = torch.randint(3, 64, (3, 40), generator=torch.Generator().manual_seed(5))


def codes(result):
    return {finding.code: finding.message for finding in result.findings}


@pytest.fixture(scope="module")
def mamba():
    return repflow.load(tiny_model("mamba"))


@pytest.fixture(scope="module")
def result(mamba):
    return repflow.influence(mamba, IDS, to=["final", 2], twin="default", seed=1)


def test_curves_are_logarithms_of_the_jacobians_norms(mamba, result):
    squares = influence_squares(mamba, IDS, None, at=[39] * 3, targets=(FINAL, 2))
    assert result.axes["log_influence"] == ("sample", "distance")
    for name, target in (("", FINAL), ("to:2/", 2)):
        logs = 0.5 * np.log(squares[target].mean[0])[:, ::-1]
        np.testing.assert_allclose(result[f"{name}log_influence"], logs, rtol=1e-5, atol=1e-5)
    states = 0.5 * np.log(squares[FINAL].mean[1:5])[:, :, ::-1]
    np.testing.assert_allclose(result["depth/log_influence"][:4], states.mean(1), rtol=1e-4, atol=1e-4)
    assert result["to:2/depth/log_influence"].shape == (3, 40)  # states 0, 1 and 2
    assert (result["log_influence_error"] == 0).all()
    assert result.provenance["recency"]["exact"]
    assert result.provenance["recency"]["gradient_check"] < 0.02


def test_numbers_follow_from_the_curves(result):
    curves = result["log_influence"]
    fit = exponential_fit(curves)
    said = result.provenance["recency"]["fit"]
    assert said == fit.to_json()
    assert result.mean("kappa") == pytest.approx(said["kappa"])
    band = result.bands["kappa"]
    assert (said["kappa_low"], said["kappa_high"]) == pytest.approx((float(band.low), float(band.high)))
    influence = np.exp(curves)
    np.testing.assert_allclose(result["recent_share"][:, 1], influence[:, :16].sum(1) / influence.sum(1))
    assert np.isnan(result["recent_share"][:, 2]).all()
    assert "log_influence" in result.bands
    assert (result["depth/recent_share"][-1, :, 0] == 1).all()  # from the last state only the token itself
    assert (result["depth/half_reach"][-1] == 1).all()
    assert np.isnan(result["future_influence"]).all()
    assert result.provenance["recency"]["future"] == 0


def test_theorems_kappa_stands_beside_the_curve(result):
    assert result["theorem_kappa"].shape == (4, 3)
    np.testing.assert_allclose(result["decay_max"], np.exp(-result["theorem_kappa"]))
    assert "Theorem 3.1" in codes(result)["loose_bound"]


def test_the_twin_is_the_random_model_on_the_same_prompts(mamba, result):
    twin = repflow.influence(repflow.models.twin(mamba, "default", seed=1), IDS, to=["final", 2], seed=1)
    for name in twin:
        np.testing.assert_allclose(result[f"twin/{name}"], twin[name], rtol=1e-6, equal_nan=True)
    assert result.provenance["twin"]["init"] == "default"
    assert result.provenance["twin"]["fit"] == twin.provenance["recency"]["fit"]
    assert "random twin (default)" in codes(result)["twin_recency"]


def test_an_attention_model_has_no_theorem_and_a_hybrid_says_who_carries(mamba):
    plain = repflow.influence(tiny_model("gpt_neox"), IDS)
    assert "theorem_kappa" not in plain
    assert not {"loose_bound", "hidden_transition"} & codes(plain).keys()
    hybrid = repflow.influence(tiny_model("bamba"), IDS)
    assert np.isnan(hybrid["theorem_kappa"][1]).all()
    assert "attention layers, which the theorem does not bind" in codes(hybrid)["loose_bound"]


def test_a_single_linear_state_decays_as_the_theorem_says():
    network = stack(["s4d"], norm="none", final_norm=False, spread=1.0).double()
    block = network.model.blocks[0]
    object.__setattr__(block.mixer, "readout", lambda y, x: y)
    with torch.no_grad():  # one real state of decay exp(−Δ/2) in every channel
        block.mixer.kernel.A_imag.zero_()
        block.mixer.kernel.log_dt.fill_(-1.0)
    measured = repflow.influence(repflow.load(network, dtype="float64"), IDS)
    said, kappa = measured.provenance["recency"]["fit"], 0.5 * np.exp(-1)
    assert said["kappa"] == pytest.approx(kappa, rel=1e-6)
    assert said["r2"] == pytest.approx(1)
    np.testing.assert_allclose(measured["theorem_kappa"], kappa, rtol=1e-6)
    assert codes(measured)["loose_bound"].endswith("so the bound is sharp")
    assert codes(measured)["exponential_fit"].endswith("an exponential")


def test_a_polarized_stack_is_promised_no_decay_and_not_one_below_zero():
    """A state of decay one: ln(1/1) is minus zero to a computer, and was printed as κ ≥ -0."""
    torch.manual_seed(0)
    mixers = [{"name": "s6", "state": 5, "polarize": "both"}]
    polarized = StackForCausalLM(StackConfig(mixers=mixers, hidden_size=16, vocab_size=64)).eval()
    measured = repflow.influence(polarized, IDS)
    said = codes(measured)["loose_bound"]
    assert said == "Theorem 3.1 allows κ ≥ 0 (layer 1 has the largest A, 1): no decay is promised"
    assert not np.signbit(measured["theorem_kappa"]).any()
    measured.arrays["theorem_kappa"] = -np.abs(measured["theorem_kappa"])  # as stored by an older version
    shown = "\n".join(str(cell) for table in view(measured)[1:3] for cell in cells(table))
    assert "0" in shown.splitlines()
    assert "-0" not in shown.splitlines()


def cells(table):
    built = table.build(table.columns, Text())
    return [cell for column in built.columns for cell in column.cells]


def test_below_three_prompts_values_stand_alone_and_bad_fits_have_no_half_life(mamba):
    """The demo printed "half-life 163 tokens [159, 167]" of two prompts at R² = .115."""
    measured = repflow.influence(mamba, IDS[:2], twin="default")
    fit = measured.provenance["recency"]["fit"]
    assert fit["kappa_low"] is fit["kappa_high"] is fit["half_life"] is None
    assert not fit["exponential"]
    said = codes(measured)["exponential_fit"]
    assert f"R² {fit['r2']:.3f}" in said
    assert "half-life" not in said.replace("it has no half-life", "")
    assert "the decay is not exponential" in said
    reach = f"{measured.mean('half_reach'):.1f}".removesuffix(".0")
    assert f"half of the influence comes from the last {reach} tokens" in said
    tables = [part for part in view(measured) if not isinstance(part, Text)][:2]
    assert sum("no interval below 3 prompts" in table.caption for table in tables) == 1
    assert not any("nan" in str(cell) for table in tables for cell in cells(table))
    assert all("95 %" not in table.columns and "half-life" not in table.columns for table in tables)
    assert "R²" in reach_table([measured]).columns[:4]


def test_prompts_that_agree_on_their_half_reach_leave_it_an_interval(mamba):
    result = repflow.influence(mamba, IDS[:, :4])
    values, band = result["half_reach"], result.band("half_reach")
    assert len(set(values)) == 1, values
    room = 1 - 0.025 ** (1 / 3)
    assert [float(band.low), float(band.high)] == pytest.approx([max(1.0, values[0] - room), values[0] + room])
    assert f"the last {values[0]:.1f} [{band.low:.1f}, {band.high:.1f}] tokens" in codes(result)["influence"]


def test_a_half_life_of_a_bad_fit_stored_by_an_older_version_is_not_shown(result):
    fit = result.provenance["recency"]["fit"]
    old = {key: value for key, value in fit.items() if key != "exponential"} | {"half_life": 163.0, "r2": 0.13}
    result.provenance["recency"]["fit"] = old
    try:
        assert "half-life" not in summary_table(result).columns
        result.provenance["recency"]["fit"] = old | {"r2": 0.99, "power_r2": 0.9, "kappa": 0.0043}
        table = summary_table(result)
        assert table.columns.index("R²") < table.columns.index("half-life")
        assert "163.0" in [str(cell) for cell in cells(table)]
    finally:
        result.provenance["recency"]["fit"] = fit


def test_wide_models_take_probes_and_say_their_error():
    wide = stack(["ssd", "softmax_attention"], hidden_size=80)
    measured = repflow.influence(wide, IDS[:2, :20])
    assert measured.provenance["recency"]["probes"] == 8
    assert (measured["log_influence_error"] > 0).all()
    exact = repflow.influence(wide, IDS[:2, :20], probes=0)
    assert exact.provenance["recency"]["exact"]
    z = (measured["log_influence"] - exact["log_influence"]) / measured["log_influence_error"]
    assert np.median(np.abs(z)) < 2
    assert np.median(np.abs(np.expm1(measured["log_influence"] - exact["log_influence"]))) < 0.2
    table = curve_table(measured)
    half = 2.364624 * measured.mean("log_influence_error")[0]  # Student's quantile at 7 degrees of freedom
    assert f"{half:.3f}" in [str(cell) for cell in cells(table)]
    assert "95 % half width that the probes leave" in table.caption


def test_an_earlier_token_shows_that_the_future_is_zero():
    measured = repflow.influence(tiny_model("gpt_neo"), [[3, 4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 5]], at=3)
    assert measured["log_influence"].shape == (2, 4)
    assert (measured["future_influence"] == 0).all()


def test_ragged_prompts_are_nan_where_they_end():
    measured = repflow.influence(tiny_model("gpt_neox"), [list(range(3, 30)), list(range(3, 15))])
    assert measured["log_influence"].shape == (2, 27)
    assert np.isfinite(measured["log_influence"][1, :12]).all()
    assert np.isnan(measured["log_influence"][1, 12:]).all()
    assert np.isfinite(measured["recent_share"][0, 1])
    assert np.isnan(measured["recent_share"][1, 1])


def test_influence_that_is_zero_is_left_out_and_said():
    # windows of 4 in one layer: nothing beyond distance 3 in a stack of one local attention layer
    measured = repflow.influence(tiny_model("gpt_neox"), IDS[:, :12], ablate=["attention-window:3"], to=[1])
    assert np.isnan(measured["log_influence"][:, 3:]).all()
    assert "influences are zero" in codes(measured)["underflow"]
    assert measured["half_reach"].max() <= 3


def test_influence_that_is_not_finite_is_said(mamba, monkeypatch):
    from repflow.capture.influence import jacobian as influence

    norms = influence.gradient_norms

    def broken(gradient):
        values = norms(gradient)
        values[..., 1] = np.nan
        return values

    monkeypatch.setattr(influence, "gradient_norms", broken)
    result = repflow.influence(mamba, IDS[:1, :12], probes=2)
    assert codes(result)["nonfinite_influence"].startswith("1 influences are NaN")
    assert np.isnan(result["log_influence"][0, 10])


def test_layers_that_hide_their_decay_leave_the_curve_standing():
    model = repflow.load(tiny_model("mamba"))
    for layer in model.scans.layers:
        layer.readable = False
    measured = repflow.influence(model, IDS[:1, :12])
    assert np.isfinite(measured["log_influence"]).all()
    assert "theorem_kappa" not in measured
    assert "install transformers 5.22" in codes(measured)["hidden_transition"]


def test_ratio_of_two_models(result):
    other = repflow.influence(tiny_model("gpt_neox"), IDS, to=["final", 2])
    ratio = influence_ratio(result, other, nearest=20)
    expected = result["log_influence"].mean(0)[:20] - other["log_influence"].mean(0)[:20]
    np.testing.assert_allclose(ratio["log_ratio"], expected)
    facts = ratio.provenance["ratio"]
    assert facts["paired"]
    assert facts["kappa"] == pytest.approx(exponential_fit(expected).kappa)
    np.testing.assert_allclose(np.diff(ratio["log_ratio_fit"]), -facts["kappa"])
    assert "κ = " in ratio.findings[0].message
    loose = influence_ratio(result, repflow.influence(tiny_model("gpt_neox"), IDS[:2] + 1, to=["final", 2]))
    assert not loose.provenance["ratio"]["paired"]
    with pytest.raises(InputError, match="curves with the same to"):
        influence_ratio(result, repflow.influence(tiny_model("gpt_neox"), IDS))
    with pytest.raises(InputError, match=r"two results of repflow\.influence"):
        influence_ratio(result, repflow.measure(tiny_model("gpt_neox"), IDS))


def test_ratio_of_a_model_to_itself(result):
    one = influence_ratio(result, result)
    assert one.provenance["ratio"]["r2"] is None
    assert one.provenance["ratio"]["kappa"] == 0
    assert one.findings[0].message.endswith("per token; neither is the more local")


def test_numbers_of_numpy_are_numbers(tmp_path, mamba):
    options = {"length": np.int64(12), "samples": np.int64(2), "fit_last": np.int32(9)}
    stored = repflow.influence(mamba, "random", **options, out=tmp_path, name="n")
    assert stored.config["samples"] == 2
    assert load_result(tmp_path / "n").config["fit_last"] == 9


def test_runs_are_stored_resumed_and_refuse_another_request(tmp_path, mamba):
    asked = {"out": tmp_path, "name": "n", "probes": 2, "batch_size": 1, "twin": "default"}
    first = repflow.influence(mamba, IDS[:, :12], **asked)
    folder = tmp_path / "n"
    assert verify(folder) == []
    stored = load_result(folder)
    assert stored.config["study"] == "recency"
    for name in first:
        np.testing.assert_array_equal(stored[name], first[name])
    with pytest.raises(ConfigChangedError, match="probes"):
        repflow.influence(mamba, IDS[:, :12], **asked | {"probes": 3})
    assert len(list((folder / "shards").iterdir())) == 6  # three prompts, and the twin's


def test_a_run_that_was_cut_goes_on(tmp_path, mamba, monkeypatch):
    from repflow.capture.influence import batches as influence_run

    real, calls = influence_run.influence_squares, []

    def cut(*args, **kwargs):
        calls.append(kwargs["samples"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(influence_run, "influence_squares", cut)
    config = RecencyConfig(probes=2, batch_size=1, length=12, samples=3)
    with pytest.raises(KeyboardInterrupt):
        run(config, model=mamba, out=tmp_path, name="n")
    resumed = run(config, model=mamba, out=tmp_path, name="n")
    assert [list(sample) for sample in calls] == [[0], [1], [2], [2]]
    whole = run(config, model=mamba)
    np.testing.assert_array_equal(resumed["log_influence"], whole["log_influence"])


def test_a_run_of_an_earlier_version_goes_on_without_a_finding(tmp_path, mamba):
    """Its run.json has the model's facts from the start: resumed without them, they passed for changed."""
    from repflow.capture.provenance import model_facts
    from repflow.store.record import read_record

    config = RecencyConfig(probes=2, length=12, samples=2)
    result = run(config, model=mamba, out=tmp_path, name="n")
    assert read_record(tmp_path / "n").provenance["model"] == json.loads(json.dumps(model_facts(mamba)))
    for name in ("result.json", "result.safetensors"):
        (tmp_path / "n" / name).unlink(missing_ok=True)
    again = run(config, model=mamba, out=tmp_path, name="n")
    assert [finding.code for finding in again.findings] == [finding.code for finding in result.findings]
    assert "resumed" not in (tmp_path / "n" / "manifest.jsonl").read_text()


def test_tasks_texts_and_names(mamba):
    assert repflow.influence(mamba, "random", length=9, samples=2)["log_influence"].shape == (2, 9)
    assert run_name(RecencyConfig(model="a/b", init="he", at=3)).startswith("a-b-he-recency-text-512-")
    assert run_name(RecencyConfig(model="m", checkpointing=True)) == run_name(RecencyConfig(model="m"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": 40}, "t from -40 to 39, as the prompt has 40 tokens; got 40"),
        ({"to": [9]}, "to='final' or a state from 0 to 4; got 9"),
        ({"to": ["last"]}, "to='final', or the number of a state; got 'last'"),
        ({"probes": -1}, "probes of at least 0"),
        ({"twin": "trained"}, "a random scheme for the twin"),
        ({"prob": 3}, "unknown option 'prob'; did you mean"),
        ({"fit_first": 30, "fit_last": 31}, "fit_last of at least 32"),
        ({"fit_first": 39}, "at least 3 distances to fit"),
        ({"nearest": 2}, "nearest of at least 4"),
        ({"fit_last": 2}, "fit_last of at least 3; got 2"),
        ({"batch_size": 1.5}, "a whole number for batch_size; got 1.5; leave batch_size out for its default"),
        ({"nearest": None}, "a whole number for nearest; got None"),
        ({"length": 1.5}, "a whole number for length; got 1.5"),
        ({"twin": True}, "a string for twin; got True"),
        ({"checkpointing": "yes"}, "True or False for checkpointing; got 'yes'"),
        ({"ablate": 3}, "a list for ablate; got 3"),
    ],
)
def test_wrong_requests_are_refused(mamba, options, message):
    with pytest.raises(InputError, match=message):
        repflow.influence(mamba, IDS, **options)


def test_t_beyond_the_length_is_refused_before_a_model_is_loaded():
    with pytest.raises(InputError, match="at from -20 to 19 with length=20; got 20"):
        check_request(RecencyConfig(model="no such model", length=20, at=20))


def test_prompts_too_short_for_a_ratio_are_refused_before_they_are_run(tmp_path, mamba):
    prompts = Prompts("own", (Prompt((5, 6, 7)), Prompt((5, 6))))
    with pytest.raises(InputError, match=r"at least 3 tokens before token t, so that the ratio of two .*; got 2"):
        Compared().run(RecencyConfig(), model=mamba, given=prompts, out=tmp_path, name="r")
    assert not (tmp_path / "r").exists()
    assert run(RecencyConfig(), model=mamba, given=prompts)["log_influence"].shape == (2, 3)


@pytest.mark.parametrize(
    ("options", "width", "passes"),
    [
        ({}, 768, 1 + 8),
        ({}, 32, 1 + 32),
        ({"probes": 0}, 96, 1 + 96),
        ({"probes": 4, "to": ["final", 2]}, 768, 1 + 2 * 4),
        ({"probes": 4, "checkpointing": True}, 768, 1 + 2 * 4),
    ],
)
def test_its_cost_counts_a_backward_pass_for_each_probe(options, width, passes):
    config = RecencyConfig(model="m", length=100, samples=3, **options)
    assert STUDY.flops(config, Size(1000, 2, width)) == 2 * 1000 * 300 * passes


def test_a_model_whose_gradient_is_cut_is_refused_and_leaves_nothing(tmp_path):
    network = tiny_model("gpt_neox")
    model = repflow.load(network)
    model.network.gpt_neox.layers[1].mlp.register_forward_hook(lambda _, __, y: y.detach())
    with pytest.raises(UnsupportedModelError, match="finite differences"):
        repflow.influence(model, IDS, out=tmp_path, name="n")
    assert not (tmp_path / "n").exists()
