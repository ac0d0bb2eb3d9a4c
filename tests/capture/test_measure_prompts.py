"""Measured values on real tiny models: equal to the pure functions, whatever the batches, the order and the kind."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from repflow import metrics as m
from repflow.capture import collect_states
from repflow.capture.measure import MeasureOptions, measure_prompts
from repflow.core.catalogue import DEFAULT_METRICS, METRICS
from repflow.core.errors import InputError
from repflow.models import load
from repflow.tasks import Prompts, id_prompts
from tests.capture.inputs import LENGTHS, model, prompts
from tests.models.tiny_configs import VOCAB, tiny_config

FAMILIES = ["gpt_neox", "mamba2", "bamba", "rwkv"]
EVERY = (*DEFAULT_METRICS, "direction_smoothness", "direction_stability", "paper_smoothness", "paper_stability")
PER_STATE = ("token_similarity", "token_similarity_excess", "common_share", "sharpness")
PER_SAMPLE = tuple(name for name in EVERY if METRICS[name].axes == ("sample",))
DROP = "norm>10"


@functools.cache
def measured(family, dtype="float32", **options):
    return measure_prompts(model(family, dtype), prompts(), MeasureOptions(**{"metrics": EVERY, **options}))


def assert_close(got, want, *, rtol, atol, order=None):
    """Every array of two results; `order` says which sample of `want` each of `got` is."""
    assert list(got) == list(want)
    for name in want:
        value = want[name]
        if order is not None and "sample" in want.axes[name] and not name.startswith("kept/"):
            value = np.take(value, order, axis=want.axes[name].index("sample"))
        if not name.startswith("kept/") or order is None:
            np.testing.assert_allclose(got[name], value, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize(("dtype", "rtol", "atol"), [("float32", 1e-5, 1e-5), ("float64", 1e-9, 1e-9)])
def test_values_do_not_depend_on_batches_or_order(kind, dtype, rtol, atol):
    if (kind, dtype) in (("mamba2", "float64"), ("bamba", "float64")):
        rtol = atol = 1e-5  # transformers scans in float32 whatever the weights are
    alone = measured(kind, dtype, batch_size=1)
    for size in (3, 8):
        assert_close(measured(kind, dtype, batch_size=size), alone, rtol=rtol, atol=atol)
    order = np.random.default_rng(5).permutation(len(LENGTHS))
    shuffled = Prompts("ids", tuple(prompts()[int(i)] for i in order))
    other = measure_prompts(model(kind, dtype), shuffled, MeasureOptions(metrics=EVERY, batch_size=4))
    assert_close(other, alone, rtol=rtol, atol=atol, order=order)


def assert_pure(result, hidden, mask, *, prefix="", names=PER_STATE + PER_SAMPLE, embedding=True, rtol=1e-9, atol=1e-9):
    for name in names:
        extra = {"embedding": embedding} if name.startswith("paper_") else {}
        for drop in ("none", DROP):
            want = getattr(m, name)(hidden, mask=mask, drop=drop, **extra).numpy()
            key = f"{prefix}{name}" if drop == "none" else f"{prefix}{drop}/{name}"
            np.testing.assert_allclose(result[key], want, rtol=rtol, atol=atol, err_msg=key)
    np.testing.assert_allclose(result[f"{prefix}token_norm"], m.token_norm(hidden, mask=mask), rtol=rtol)
    share, top = m.gram_share(hidden, mask=mask)
    np.testing.assert_allclose(result[f"{prefix}gram_share"], share, rtol=rtol)
    np.testing.assert_array_equal(result[f"{prefix}top_tokens"], top)
    np.testing.assert_allclose(result[f"{prefix}channel_share"], m.channel_share(hidden, mask=mask)[0], rtol=rtol)


@pytest.mark.parametrize("kind", ["gpt_neox", "rwkv"])
def test_values_are_those_of_the_pure_functions(kind):
    hidden, mask, final = collect_states(model(kind, "float64"), prompts())
    result = measured(kind, "float64", batch_size=4)
    assert_pure(result, hidden, mask)
    np.testing.assert_allclose(result["layer_cosine"], m.layer_cosine(hidden, mask=mask), rtol=1e-9, atol=1e-9)
    assert_pure(result, final[None], mask, prefix="final_norm/", names=PER_STATE)
    for name in ("layer_cosine", "token_norm", "token_similarity_by_token"):
        values = result[f"kept/{name}"]
        want = getattr(m, name)(hidden, mask=mask).numpy()[:, :4]
        np.testing.assert_allclose(values, want[..., : values.shape[-1]], rtol=1e-8, atol=1e-9, err_msg=name)


def test_final_norm_is_the_output_of_the_models_own_norm():
    """By hand, without hooks: norm(last block) of one prompt."""
    loaded, one = model(dtype="float64"), prompts()[1]
    ids = torch.tensor([one.ids])
    with torch.no_grad():
        last = loaded.network.base_model(ids, use_cache=False).last_hidden_state
    result = measured("gpt_neox", "float64", batch_size=4)
    want = m.token_similarity(last[None])[0]
    np.testing.assert_allclose(result["final_norm/token_similarity"][:, 1], want, rtol=1e-9)
    assert result.axes["final_norm/token_similarity"] == ("state", "sample")
    assert result["final_norm/token_similarity"].shape == (1, 9)
    assert not np.allclose(result["final_norm/token_norm"][0, 1], result["token_norm"][-1, 1], equal_nan=True)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("gpt_neox", "branch"),
        ("gpt_neox", "branch:mlp"),
        ("gpt_neox", "branch:attention"),
        ("gpt_neox", "hf-tuple"),
        ("mamba2", "branch:ssm"),
        ("bamba", "branch:ssm"),
        ("rwkv", "hf-tuple"),
    ],
)
def test_other_kinds_of_state(family, kind):
    hidden, mask, _ = collect_states(model(family, "float64"), prompts(), kind=kind)
    every = tuple(n for n in EVERY if METRICS[n].default or METRICS[n].states <= hidden.shape[0])
    result = measured(family, "float64", kind=kind, batch_size=4, metrics=every)
    some = tuple(n for n in PER_SAMPLE if hidden.shape[0] > 2 or "smoothness" not in n)
    tolerance = {"rtol": 1e-5, "atol": 1e-7} if family in ("mamba2", "bamba") else {}
    embedding = not kind.startswith("branch")
    assert_pure(result, hidden, mask, names=PER_STATE + some, embedding=embedding, **tolerance)
    assert not any(name.startswith("final_norm/") for name in result), "the final norm belongs to the residual stream"
    count = {"branch": 4, "hf-tuple": 5, "branch:mlp": 4, "branch:attention": 4}.get(kind)
    assert hidden.shape[0] == model(family).state_count(kind) == (count or hidden.shape[0])


def test_printed_smoothness_needs_three_blocks():
    config = tiny_config("gpt_neox")
    config.num_hidden_layers = 2
    loaded = load(AutoModelForCausalLM.from_config(config))
    with pytest.raises(InputError, match=r"at least 3 blocks for .*paper_smoothness.*; got 2; use mode='mean'"):
        measure_prompts(loaded, prompts(), MeasureOptions(metrics=("paper_smoothness",)))
    assert "paper_stability" in measure_prompts(loaded, prompts(), MeasureOptions(metrics=("paper_stability",)))


def test_kinds_are_not_mixed_up():
    residual, branch, tuple_ = (
        collect_states(model(dtype="float64"), prompts(), kind=kind)[0] for kind in ("residual", "branch", "hf-tuple")
    )
    torch.testing.assert_close(residual[0] + branch.cumsum(0), residual[1:])
    torch.testing.assert_close(tuple_[:-1], residual[:-1])
    assert not torch.allclose(tuple_[-1], residual[-1]), "transformers puts the final norm in place of the last block"


def test_a_single_state_is_measured_too():
    """A hybrid with one attention layer has one such branch: nothing over depth, everything else."""
    config = tiny_config("lfm2")
    config.layer_types = ["conv", "full_attention", "conv", "conv"]
    loaded = load(AutoModelForCausalLM.from_config(config))
    assert loaded.sublayers("branch:attention") == [1]
    result = measure_prompts(loaded, prompts(), MeasureOptions(kind="branch:attention", batch_size=4))
    assert result["token_similarity"].shape == (1, 9)
    assert result["layer_cosine"].shape == (0, 9, 21)
    assert not {"stability", "smoothness", "path_energy"} & set(result)
    np.testing.assert_array_equal(result["kept/layer_cosine"].shape, (0, 4, 21))


def companions(asked):
    return set(measured("gpt_neox", metrics=asked))


@pytest.mark.parametrize("name", EVERY)
def test_one_metric_alone_and_its_companions(name):
    follow = {"gram_share": {"gram_share_error", "top_tokens"}, "channel_share": {"top_channels"}}.get(name, set())
    got = companions((name,))
    assert {key.rsplit("/", 1)[-1] for key in got} == {name} | follow
    whole = measured("gpt_neox")
    for key in got:
        np.testing.assert_array_equal(measured("gpt_neox", metrics=(name,))[key], whole[key])
    assert got == {key for key in whole if key.rsplit("/", 1)[-1] in {name} | follow}


def test_aliases_and_doubles_are_one_metric():
    assert companions(("Vloc", "smoothness")) == companions(("smoothness",))


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (("smothness",), "unknown metric 'smothness'; did you mean smoothness"),
        ((), "at least one metric"),
        (
            ("mutual_neighbours",),
            "a metric of one model; got mutual_neighbours, which compares two; use repflow compare",
        ),
    ],
)
def test_wrong_metrics_are_refused(asked, text):
    with pytest.raises(InputError, match=text):
        measured("gpt_neox", metrics=asked)


def test_opt_in_metrics_are_those_of_the_pure_functions():
    hidden = collect_states(model(dtype="float64"), prompts())[0]
    result = measured("gpt_neox", "float64", metrics=("cka_matrix", "effective_rank"), batch_size=4)
    assert {name for name in result if not name.startswith("cka_")} == {"effective_rank"}
    assert result.axes["cka_matrix"] == ("state", "state", "sample")
    for sample, length in enumerate(LENGTHS):
        states = hidden[:, sample, :length]
        np.testing.assert_allclose(result["effective_rank"][:, sample], m.effective_rank(states), rtol=1e-9)
        if length < 4:
            assert np.isnan(result["cka_matrix"][..., sample]).all()
            continue
        np.testing.assert_allclose(result["cka_matrix"][..., sample], m.cka_matrix(states), rtol=1e-8, atol=1e-9)
        assert result["cka_rows_per_width"][sample] == length / 32
    assert np.abs(np.diagonal(result["cka_pooled"]) - 1).max() < 1e-6


@pytest.mark.filterwarnings("ignore:biased CKA")
@pytest.mark.parametrize("form", ["unbiased", "paper"])
def test_row_pooled_cka_is_that_of_all_tokens_in_one_matrix(form):
    hidden, mask, _ = collect_states(model(dtype="float64"), prompts())
    options = {"metrics": ("cka_matrix",), "cka_pool": "rows", "cka_form": form}
    result = measured("gpt_neox", "float64", batch_size=4, **options)
    rows = hidden[:, mask]
    want = m.cka_matrix(rows, unbiased=form == "unbiased")
    np.testing.assert_allclose(result["cka_row_pooled"], want, rtol=1e-8, atol=1e-9)
    assert result.axes["cka_row_pooled"] == ("state", "state")
    assert float(result["cka_row_pooled_rows_per_width"]) == sum(LENGTHS) / 32
    assert "cka_matrix" in result, "per sample as well"


def test_row_pooled_cka_over_its_budget_is_refused():
    with pytest.raises(InputError, match=r"cka_pool='rows' within cka_memory=0 MiB; got 5 states of width 32"):
        measured("gpt_neox", metrics=("cka_matrix",), cka_pool="rows", cka_memory=1000)
    with pytest.raises(InputError, match="CKA form unbiased or paper, pool mean or rows; got exact, mean"):
        measured("gpt_neox", cka_form="exact")


@pytest.mark.parametrize("grid", [1, 2, 3, 4])
def test_matched_grid_is_that_of_resampled_states(grid):
    hidden, mask, _ = collect_states(model(dtype="float64"), prompts())
    result = measured("gpt_neox", "float64", grid=grid, batch_size=4)
    coarse = m.resample_depth(hidden, grid)
    np.testing.assert_allclose(result["matched/stability"], m.stability(coarse, mask=mask), rtol=1e-9)
    if grid > 1:
        np.testing.assert_allclose(result["matched/smoothness"], m.smoothness(coarse, mask=mask), rtol=1e-9)


@pytest.mark.parametrize("grid", [0, 5])
def test_a_grid_finer_than_the_model_is_refused(grid):
    with pytest.raises(InputError, match=f"grid between 1 and 4; got {grid}; use the shallowest model's blocks"):
        measured("gpt_neox", grid=grid)


@pytest.mark.parametrize("drop", ["first", "bos", "norm>2"])
def test_other_drops(drop):
    inputs = prompts(bos_id=1)
    hidden, mask, _ = collect_states(model(dtype="float64"), inputs)
    result = measure_prompts(model(dtype="float64"), inputs, MeasureOptions(drop=drop, batch_size=4))
    bos = torch.zeros_like(mask)
    bos[::2, 0] = True
    for name in ("token_similarity", "common_share", "stability", "path_energy"):
        want = getattr(m, name)(hidden, mask=mask, drop=drop, bos=bos)
        np.testing.assert_allclose(result[f"{drop}/{name}"], want, rtol=1e-9, err_msg=name)
    assert not any(name.startswith("norm>10") for name in result)
    np.testing.assert_allclose(result["token_similarity"], m.token_similarity(hidden, mask=mask), rtol=1e-9)


@pytest.mark.parametrize("drop", ["last", "norm>0", "norm>x", ""])
def test_unknown_drops_are_refused(drop):
    with pytest.raises(InputError, match="drop = none, first, bos or norm>k"):
        measured("gpt_neox", drop=drop)


@pytest.mark.parametrize("keep", [0, 2, 99])
def test_kept_samples(keep):
    result = measured("gpt_neox", keep_samples=keep)
    names = [name for name in result if name.startswith("kept/")]
    assert len(result.provenance["kept"]) == min(keep, 9)
    assert bool(names) == bool(keep)
    for name in names:
        assert result[name].shape[1] == min(keep, 9)
        assert result[name].shape[2] == max(LENGTHS[:keep])
    for sample, entry in enumerate(result.provenance["kept"]):
        assert entry["ids"] == list(prompts()[sample].ids)
        assert entry["tokens"] == [str(i) for i in entry["ids"]]
    with pytest.raises(InputError, match="keep_samples of 0 or more"):
        measured("gpt_neox", keep_samples=-1)


def test_one_prompt_has_every_metric_but_the_excess():
    result = measure_prompts(model(), prompts((12,)), MeasureOptions())
    missing = set(measured("gpt_neox")) - set(result)
    names = {name.rsplit("/", 1)[-1] for name in missing}
    assert names == {"token_similarity_excess", *EVERY[len(DEFAULT_METRICS) :]}
    band = result.band("token_similarity")
    np.testing.assert_allclose(band.mean, result["token_similarity"][:, 0])
    assert np.isnan(band.low).all()


def test_prompts_of_two_tokens():
    result = measure_prompts(model(dtype="float64"), prompts((2, 2, 2)), MeasureOptions(batch_size=2))
    hidden, mask, _ = collect_states(model(dtype="float64"), prompts((2, 2, 2)))
    assert_pure(replace_top(result), hidden, mask, names=("token_similarity", "common_share", "sharpness", "stability"))
    assert np.isfinite(result["token_similarity"]).all()
    assert (result["top_tokens"][..., 2:] == -1).all()
    assert not [f for f in result.findings if f.code == "sink_tokens"], "two of two tokens are not a sink"


def replace_top(result):
    """`top_tokens` without the empty places that fill it up to four."""
    return {**result.arrays, "top_tokens": result["top_tokens"][..., :2]}


def test_provenance_of_the_numbers():
    result = measured("gpt_neox")
    assert result.provenance["lengths"] == list(LENGTHS)
    assert result.provenance["positions"] == list(range(21))
    assert all(name in result.bands for name in result if result.axes[name] == ("state", "sample"))
    assert list(result) == sorted(result)


def test_long_prompts_say_which_positions_were_pooled():
    result = measure_prompts(model("mamba2"), prompts((300, 20)), MeasureOptions(metrics=("token_norm",)))
    bins = result.provenance["positions"]
    assert len(bins) == 256 == result["token_norm"].shape[-1]
    assert bins[:5] == [0, 1, 2, 3, 4]
    assert result["kept/token_norm"].shape == (5, 2, 300)
    norm = result["kept/token_norm"][:, 0]
    want = [norm[:, a:b].mean(1) for a, b in zip(bins, [*bins[1:], 300], strict=True)]
    np.testing.assert_allclose(result["token_norm"][:, 0], np.stack(want, 1), rtol=1e-5)


@pytest.mark.parametrize("lengths", [(40, 256), (300, 300), (257, 700, 433)])
def test_the_mean_over_pooled_positions_counts_every_token_once(lengths):
    """Beyond 256 tokens a position is a span of them, but for the first four: a plain mean would count these more."""
    loaded, inputs = model("mamba", "float64"), prompts(lengths)
    result = measure_prompts(loaded, inputs, MeasureOptions(batch_size=2, keep_samples=1))
    each = [m.layer_cosine(collect_states(loaded, id_prompts([list(p.ids)], VOCAB))[0])[:, 0].numpy() for p in inputs]
    np.testing.assert_allclose(
        result.token_mean("layer_cosine"), np.stack([one.mean(-1) for one in each], 1), rtol=1e-6
    )
    pooled = result.token_mean("layer_cosine", pooled=True)
    np.testing.assert_allclose(pooled, np.concatenate(each, -1).mean(-1), rtol=1e-6)
    np.testing.assert_allclose(result.token_mean("kept/layer_cosine")[:, 0], each[0].mean(-1), rtol=1e-6)
    plain = np.nanmean(result["layer_cosine"], axis=(1, 2))
    assert (np.abs(plain - pooled).max() > 1e-5) == (max(lengths) > 256)


def test_what_does_not_fit_the_model_is_refused():
    with pytest.raises(InputError, match="at most 64 tokens for this model; got 65"):
        measure_prompts(model(), prompts((65, 4)), MeasureOptions())
    with pytest.raises(InputError, match="at least 2 tokens; got 1 in sample 1"):
        measure_prompts(model(), prompts((6, 1)), MeasureOptions())
    with pytest.raises(InputError, match=r"states of kind 'branch:ssm'; got none in .*; ask for residual or branch"):
        measured("gpt_neox", kind="branch:ssm")
    with pytest.raises(InputError, match="a kind of state"):
        measured("gpt_neox", kind="residuals")
    with pytest.raises(InputError, match="meter_memory of at least"):
        measured("gpt_neox", meter_memory=100)


def test_memory_given_makes_smaller_batches_and_the_same_numbers():
    tight = measured("gpt_neox", meter_memory=60_000)
    assert_close(tight, measured("gpt_neox"), rtol=1e-5, atol=1e-5)


def test_calibrated_similarity_is_centred_on_the_mean_of_other_prompts():
    loaded, other = model(dtype="float64"), prompts((9, 15, 4), seed=9)
    result = measure_prompts(loaded, prompts(), MeasureOptions(calibration=other, batch_size=4))
    hidden, mask, _ = collect_states(loaded, other)
    center = hidden[:, mask].mean(1)
    hidden, mask, _ = collect_states(loaded, prompts())
    want = m.token_similarity(hidden, center=center, mask=mask)
    np.testing.assert_allclose(result["centered/token_similarity"], want, rtol=1e-9, atol=1e-9)
    plain = measure_prompts(loaded, prompts(), MeasureOptions(batch_size=4))
    assert set(result) - set(plain) == {"centered/token_similarity"}
    both = Prompts("ids", (*other, prompts()[3]))
    with pytest.raises(InputError, match="calibration prompts other than the measured ones; got 1 in both"):
        measure_prompts(loaded, prompts(), replace(MeasureOptions(), calibration=both))


def test_other_work_waits_until_the_last_batch_is_launched(monkeypatch):
    """Nothing that the passes do not need is done before them: a GPU would wait for it."""
    from repflow.capture import run

    order = []
    real = run.start_batch
    monkeypatch.setattr(run, "start_batch", lambda *args, **kwargs: order.append("batch") or real(*args, **kwargs))
    options = MeasureOptions(batch_size=4)
    measure_prompts(model("gpt_neox"), prompts(), options, meanwhile=lambda: order.append("other"))
    assert order == ["batch"] * -(-len(LENGTHS) // 4) + ["other"]
