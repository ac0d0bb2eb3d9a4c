"""`repflow memory` as a study: what it stores, resumes and says; figures 5 and 6 of paper 2."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

from repflow.core.axes import AXES
from repflow.core.errors import InputError
from repflow.models import load
from repflow.store import load_result, verify
from repflow.studies.memory.study import MemoryConfig, run, run_name
from repflow.studies.reproduce import memory as memory_figures
from repflow.studies.reproduce.study import ReproduceConfig, plan
from repflow.studies.reproduce.study import run as reproduce
from repflow.tasks import Prompt, Prompts
from tests.models.recurrence.scan_models import lively
from tests.models.tiny_configs import save_tiny, tiny_model

SMALL = MemoryConfig(length=16, samples=3)
KINDS = ["gpt_neo", "gpt_neox", "mamba", "mamba2", "rwkv", "recurrent_gemma", "bamba"]


def made(kind):
    return load(tiny_model(kind) if kind in ("rwkv", "recurrent_gemma") else lively(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_runs_on_every_architecture(kind, tmp_path):
    model = made(kind)
    result = run(replace(SMALL, attention=True, units=3), model=model, out=tmp_path, name="m")
    assert verify(tmp_path / "m") == []
    stored = load_result(tmp_path / "m")
    assert stored.config["study"] == "memory"
    assert {axis for axes in stored.axes.values() for axis in axes} <= set(AXES)
    for name, array in result.arrays.items():
        np.testing.assert_array_equal(stored[name], array)
    recurrent = np.array([entry["kind"] is not None for entry in stored.provenance["transitions"]])
    assert (np.isfinite(stored["sharpness/state"]).all(1) == recurrent).all()
    assert np.isfinite(stored["sharpness/mixer"]).all()
    assert np.isfinite(stored["sharpness/block"]).all()
    assert np.isfinite(stored["attention/mean_distance"]).all()
    codes = {finding.code for finding in stored.findings}
    if recurrent.any():
        assert {"decay_range", "contraction"} <= codes
        assert stored["range_cumulative"][-1] == 1
        assert (np.diff(stored["range_cumulative"]) >= 0).all()
    else:
        assert "no_transition" in codes
        assert "A_range" not in stored


def test_a_killed_run_goes_on(tmp_path):
    """After the first batch; what is stored is not computed again, and the result is the same."""
    model = made("mamba")
    config = replace(SMALL, batch_size=1, attention=True, units=2)
    want = run(config, model=model)

    def stop(done, total, tokens):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, model=model, out=tmp_path, name="m", progress=stop)
    shards = sorted((tmp_path / "m" / "shards").glob("*"))
    assert len(shards) == 2
    before = {file: file.stat().st_mtime_ns for file in shards}
    result = run(config, model=model, out=tmp_path, name="m")
    assert {file: file.stat().st_mtime_ns for file in shards} == before
    for name, array in want.arrays.items():
        np.testing.assert_allclose(result[name], array, rtol=1e-6, equal_nan=True)


def test_batches_do_not_change_a_number():
    model = made("mamba2")
    one, three = (run(replace(SMALL, batch_size=size), model=model) for size in (1, 3))
    for name, array in one.arrays.items():
        np.testing.assert_allclose(three[name], array, rtol=1e-4, equal_nan=True)


def test_the_a_of_one_state_never_meets_the_hypothesis():
    """Mamba at its own initialisation: states a = 1, 2, 3, 4, so that a quarter never meets A + Δ ≤ 1."""
    result = run(replace(SMALL, init="default"), model=load(tiny_model("mamba", spread=1.0)))
    np.testing.assert_allclose(result["never_contractive"], 0.25)
    np.testing.assert_allclose(result["contractive_share"], 0.75)
    assert "25% of states have a rate of at most 1" in next(
        f.message for f in result.findings if f.code == "contraction"
    )


def test_a_recurrence_that_cannot_be_read_is_said(monkeypatch):
    for home in ("quantities", "readers"):  # as if xLSTM were not known
        monkeypatch.setattr(f"repflow.models.recurrence.{home}.READ", {})
    result = run(SMALL, model=load(tiny_model("xlstm")))
    assert (
        "4 recurrent layers have no transition that can be read (blocks 1-4): mixer and block only"
        in {f.code: f.message for f in result.findings}["unread_transition"]
    )
    assert np.isfinite(result["sharpness/block"]).all()


def test_maps_are_a_run_of_their_own(tmp_path):
    model = made("bamba")
    config = replace(SMALL, maps=[0, 1], units=2)
    result = run(config, model=model, out=tmp_path, name="m")
    assert "maps" not in result.config
    maps = load_result(tmp_path / "m-maps")
    assert maps.config["study"] == "hidden_attention"
    assert maps["0/signed"].shape == maps["1/normalised"].shape == (1, 2, 16, 16)
    with pytest.raises(InputError, match="a folder for the run of maps"):
        run(config, model=model)
    with pytest.raises(InputError, match="a layer from 0 to 3; got 7"):
        run(replace(config, maps=[7]), model=model, out=tmp_path, name="n")
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"length": 2}, "length of at least 3"), ({"units": 0}, "units of at least 1"), ({"samples": 0}, "samples"),
     ({"task": "story"}, "unknown task 'story'"), ({"maps": [-1]}, "maps of at least 0")],
)  # fmt: skip
def test_refused_before_a_model_is_loaded(change, message):
    with pytest.raises(InputError, match=message):
        run(replace(MemoryConfig(model="nowhere/at-all"), **change))


def test_one_decay_has_no_range():
    model = made("mamba2")
    short, long = Prompt((1, 2)), Prompt((1, 2, 3, 4))
    with pytest.raises(InputError, match="a prompt of at least 3 tokens; got 2 at most"):
        run(SMALL, model=model, given=Prompts("own", (short, short)))
    result = run(SMALL, model=model, given=Prompts("own", (short, long)))
    assert "1 prompts of fewer than 3 tokens" in {f.code: f.message for f in result.findings}["short_prompts"]
    assert "short_prompts" not in {f.code for f in run(SMALL, model=model, given=Prompts("own", (long,))).findings}


def test_names_of_runs():
    assert run_name(MemoryConfig(model="zoo/mamba", length=64)) == "zoo-mamba-text-64-memory"
    assert run_name(MemoryConfig(model="m", init="default", attention=True)) == "m-default-text-512-memory-attention"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("roles")
    torch.set_num_threads(1)
    for kind in ("mamba", "gpt_neox"):
        save_tiny(kind, place / kind)
    return place


def figure(recipe, folders, tmp_path):
    roles = memory_figures.RECIPES[recipe].roles
    kinds = {role: "gpt_neox" if role.startswith("Pythia") else "mamba" for role in roles}
    config = ReproduceConfig(
        recipe=recipe, models=[f"{role}={folders / kind}" for role, kind in kinds.items()], tasks=["random"],
        lengths=[16], samples=3,
    )  # fmt: skip
    return reproduce(config, out=tmp_path), config


def test_figure_five(folders, tmp_path):
    result, _ = figure("recency-fig5", folders, tmp_path)
    lines = {line["what"]: line for line in result.provenance["lines"]}
    assert list(lines) == [
        "Mamba-1.4B, b and h", "Mamba-1.4B, mixer output", "Mamba-1.4B, block output", "Mamba-1.4B, assumption (i)",
        "Mamba-1.4B against Pythia-1.4B, mixer output", "Mamba-1.4B against Pythia-1.4B, block output",
    ]  # fmt: skip
    inside, state = (result[f"Mamba-1.4B/sharpness/{part}"] for part in ("input", "state"))
    apart = [scipy.stats.ttest_rel(*pair).pvalue < 0.05 for pair in zip(inside, state, strict=True)]
    above = (inside.mean(1) > state.mean(1)) & apart
    below = (inside.mean(1) < state.mean(1)) & apart
    assert f"in {above.sum()} of 4 layers, below in {below.sum()}" in lines["Mamba-1.4B, b and h"]["ours"]
    assert lines["Mamba-1.4B, b and h"]["holds"] is (False if below.any() else True if above.all() else None)
    assert lines["Mamba-1.4B, mixer output"]["of"].startswith("Mamba-1.4B → mamba, 0.0")
    assert lines["Mamba-1.4B, assumption (i)"]["holds"] is False
    assert {finding.code for finding in result.findings} == {"stand_in"}


def test_figure_six(folders, tmp_path):
    result, config = figure("recency-fig6", folders, tmp_path)
    ranges = result["Mamba-130M/A_range"]
    share = float((ranges <= 0.5).mean())
    line = result.provenance["lines"][0]
    assert line["ours"].startswith(f"{share:.1%} over all prompts")
    band = result_band(result, "Mamba-130M")
    side = True if band[0] > 0.6 else False if band[1] < 0.6 else None
    assert line["holds"] is (side if side == (share > 0.6) else None)
    for scale, roles in (("tiny", 1), ("zoo", 1), ("paper", 2)):  # below scale paper one Mamba stands for both
        whole = plan(ReproduceConfig(recipe="recency-fig6", scale=scale), tmp_path)
        assert list(whole.models) == ["Mamba-130M", "Mamba-1.4B"][:roles]
        assert "mamba2" not in str([cell.config.model for cell in whole.cells])
    assert {cell.config.length for cell in plan(config, tmp_path).cells} == {16}
    with pytest.raises(InputError, match="recency-fig6 without states; got branch; leave states out"):
        plan(replace(config, states=["branch"]), tmp_path)


def result_band(result, role):
    """Interval of the share of channels with a range below one half, over prompts."""
    band = result.band(f"{role}/range_cumulative_sample")
    return [float(np.interp(0.5, result.provenance["thresholds"], side)) for side in (band.low, band.high)]


@pytest.mark.parametrize("prompts", [1, 4])
def test_figure_six_judges_by_an_interval(prompts):
    from repflow.core.results import Result

    shares = np.tile([[0.0], [0.7], [1.0]], prompts) + np.array([[0], [1], [0]]) * np.linspace(-0.01, 0.01, prompts)
    arrays = {
        "range_cumulative": np.array([0.0, 0.7, 1.0]),
        "range_cumulative_sample": shares,
        "A_range": np.zeros((4, 2)),
    }
    axes = {"range_cumulative": ("threshold",), "range_cumulative_sample": ("threshold", "sample")}
    result = Result(arrays, axes | {"A_range": ("layer", "channel")}, {}, {"thresholds": [0.0, 0.5, 1.0]})
    (line,) = memory_figures.RECIPES["recency-fig6"].lines({"Mamba-130M": result})
    assert "nan" not in line.ours
    assert line.holds is (True if prompts > 2 else None)
    assert ("too few prompts for an interval" in line.ours) == (prompts == 1)


def test_a_random_model_decides_nothing_on_training(tmp_path):
    from repflow.studies.reproduce.statement import Line, named, settled

    lines = [Line("Mamba-130M, trained", "falls", "κ", True), Line("Mamba-130M, untrained", "falls", "κ", True, False)]
    tiny, zoo = (plan(ReproduceConfig(recipe="recency-fig1", scale=scale), tmp_path) for scale in ("tiny", "zoo"))
    for config, prompts, expected in ((tiny, 8, [None, True]), (zoo, 8, [True, True]), (zoo, 2, [None, None])):
        assert [settled(line, 0.0, config, prompts)[0].holds for line in lines] == expected
    label = "Mamba-130M → tiny-mamba, 0.1M, random"
    assert named(lines[1].what, {"Mamba-130M": label}) == f"{label}: untrained"


def test_slope_is_per_relative_depth():
    from repflow.core.results import Result

    rows = np.array([[1.0, 2.0], [0.5, 1.5], [0.0, 1.0]])
    band = memory_figures.depth_slope(Result({"m": rows}, {"m": ("layer", "sample")}), "m")
    assert float(band.mean) == pytest.approx(-1.0)


def test_a_kernel_that_hides_the_scan_is_refused():
    """Before 5.22 transformers computes the scan inside the layer, where nothing can be read."""
    from repflow import hidden_attention

    model = made("mamba2")
    for layer in model.scans.layers:
        layer.readable = False
    for look in (lambda: run(SMALL, model=model), lambda: hidden_attention(model, 0, [[1, 2, 3]])):
        with pytest.raises(InputError) as caught:
            look()
        assert "a transformers whose scan in block 1 can be read; got one that computes it inside the layer" in str(
            caught.value
        )
        assert "install transformers 5.22 or later" in str(caught.value)


def test_one_prompt_decides_nothing_of_depth():
    from repflow.core.results import Result

    names = ("input", "state", "mixer", "block")
    arrays = {f"sharpness/{name}": np.linspace(0.9, 0.1, 6)[:, None] for name in names}
    arrays |= dict.fromkeys(("contractive_share", "spread_state", "spread_bound"), np.ones((6, 1)))
    axes = dict.fromkeys(arrays, ("layer", "sample"))
    result = Result(arrays | {"never_contractive": np.zeros(6)}, axes | {"never_contractive": ("layer",)})
    lines = {line.what: line.holds for line in memory_figures.RECIPES["recency-fig5"].lines({"Mamba-1.4B": result})}
    assert lines["Mamba-1.4B, mixer output"] is None
    assert lines["Mamba-1.4B, block output"] is None
