"""Hidden attention: exact against each layer's own term, Eq. 6 by hand, forms, rows, storing, and refusals."""

import numpy as np
import pytest
import torch

import repflow
from repflow.capture.maps import normalised, row_statistics
from repflow.core.errors import InputError
from repflow.models import load, ssm_quantities
from repflow.store import load_result, verify
from repflow.studies.hidden_attention import _indices
from tests.models.recurrence.scan_models import lively
from tests.models.stack.inputs import ids as stack_ids
from tests.models.stack.inputs import stack
from tests.models.tiny_configs import tiny_model

IDS = torch.randint(3, 128, (2, 18), generator=torch.Generator().manual_seed(5))
SCANS = ["mamba", "falcon_mamba", "mamba2", "bamba", "zamba", "zamba2", "falcon_h1"]


def scans(model, ids):
    """Arguments of each layer's scans."""
    calls = {}
    with ssm_quantities(model, lambda layer, q: calls.setdefault(layer, []).append(q.call)):
        model.stream(ids, on_state=lambda *_: None)
    return calls


@pytest.mark.parametrize("kind", SCANS)
def test_maps_reproduce_the_scan_alone(kind):
    """P x equals transformers' own scan without skip and gate, in float64 for every unit of a layer."""
    from repflow.mixers.scan.forms import selective_scan, ssd_scan

    model = load(lively(kind).double(), dtype="float64")
    layer = 0
    units = load_units(model, layer)
    result = repflow.hidden_attention(model, layer, IDS, **units)
    P = result[f"{layer}/signed"]
    calls = scans(model, IDS)[layer]
    wanted, inputs = [], []
    for call in calls:
        form = selective_scan if call.kind == "s6" else ssd_scan
        y = form(*(part.double() for part in (call.x, call.delta, call.A, call.B, call.C)), path="reference")
        wanted.append(y if call.kind == "ssd" else y[..., None])
        inputs.append(call.x if call.kind == "ssd" else call.x[..., None])
    want, x = torch.cat(wanted, 2).numpy(), torch.cat(inputs, 2).double().numpy()
    assert abs(want).max() > 1e-4  # a term of zeros would agree with anything
    np.testing.assert_allclose(np.einsum("buts,bsud->btud", P, x), want, rtol=1e-6, atol=1e-6 * abs(want).max())
    assert np.nanmax(result["error"]) < 1e-5
    assert not np.triu(P, 1).any()


def load_units(model, layer):
    calls = scans(model, IDS)[layer]
    count = sum(call.x.shape[2] for call in calls)
    return {"channels" if calls[0].kind == "s6" else "heads": range(count)}


def test_equation_six_by_hand():
    """P_lj = Σ_n C_l B_j Δ_j exp(−a_n ΣΔ) from the layer's own arguments, entry by entry."""
    model = load(lively("mamba").double(), dtype="float64")
    P = repflow.hidden_attention(model, 1, IDS[:1], channels=[3], curves=False)["1/signed"][0, 0]
    call = scans(model, IDS[:1])[1][0]
    delta, B, C = call.delta[0, :, 3].numpy(), call.B[0].numpy(), call.C[0].numpy()
    a = -call.A[3].numpy()
    for later, earlier in ((0, 0), (4, 4), (5, 2), (17, 0), (2, 5)):
        faded = np.exp(-a * delta[earlier + 1 : later + 1].sum())
        want = float((C[later] * B[earlier] * faded).sum() * delta[earlier]) if later >= earlier else 0.0
        assert P[later, earlier] == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("kind", ["gpt_neo", "gpt_neox"])
def test_an_attention_layer_gives_its_weights(kind):
    model = load(tiny_model(kind))
    result = repflow.hidden_attention(model, [0, 2], IDS)
    network = tiny_model(kind)
    network.set_attn_implementation("eager")
    theirs = network(IDS, output_attentions=True).attentions
    for layer in (0, 2):
        want = theirs[layer].detach().numpy()
        np.testing.assert_allclose(result[f"{layer}/signed"], want, atol=1e-6)
        np.testing.assert_allclose(result[f"{layer}/normalised"], want, atol=1e-6)
    assert result.axes["0/signed"] == ("sample", "unit", "token", "token")
    assert result.provenance["units"]["0"] == {"part": "attention", "kind": "head", "indices": [0, 1, 2, 3], "of": 4}
    assert np.isnan(result["error"]).all()
    entropy = -(want * np.log(np.where(want > 0, want, 1))).sum(-1).mean(-1)
    np.testing.assert_allclose(result["row_entropy"][2], entropy, rtol=1e-5)
    place = np.arange(18)
    distance = (want * (place[:, None] - place)).sum(-1).mean(-1)
    np.testing.assert_allclose(result["mean_distance"][2], distance, rtol=1e-5)


@pytest.mark.parametrize("kind", ["rwkv", "recurrent_gemma"])
def test_other_recurrences(kind):
    result = repflow.hidden_attention(load(tiny_model(kind)), 0, IDS)
    assert np.isfinite(result["row_entropy"][:, :, 0]).all()
    assert np.nanmax(result["error"]) < 1e-5
    assert (result["error"][0] > 0).all()  # against transformers' own float32 code, which rounds in another way
    if kind == "rwkv":  # a softmax
        np.testing.assert_allclose(result["0/signed"].sum(-1), 1)


@pytest.mark.parametrize("kind", ["rwkv", "recurrent_gemma"])
def test_a_layer_that_was_read_wrongly_is_found(kind, monkeypatch):
    from repflow.models.recurrence import readers as recurrence_readers

    name = {"rwkv": "RwkvRecurrence", "recurrent_gemma": "RglruRecurrence"}[kind]
    right = getattr(recurrence_readers, name)

    class Wrong(right):
        def __init__(self, first, second, *rest, **options):
            super().__init__(first, 0.9 * second, *rest, **options)  # bonus, log decay

    monkeypatch.setattr(recurrence_readers, name, Wrong)
    result = repflow.hidden_attention(load(lively(kind) if kind == "rwkv" else tiny_model(kind)), 0, IDS[:1])
    assert result["error"][0, 0] > 1e-3
    (said,) = [finding for finding in result.findings if finding.code == "map_error"]
    assert said.message.startswith(f"block {said.layer + 1}: P x differs from the layer's own term")


def test_a_stack_of_all_kinds():
    model = load(stack(["s6", "softmax_attention", "rwkv4", "gla", "s4d"]))
    result = repflow.hidden_attention(model, [0, 1, 3], stack_ids(batch=2, tokens=12))
    assert np.isfinite(result["row_entropy"][:, :, 0]).all()
    assert np.nanmax(result["error"]) < 1e-4
    assert np.isnan(result["error"][1]).all()
    assert {key: entry["kind"] for key, entry in result.provenance["units"].items()} == {
        "0": "channel", "1": "head", "2": "channel", "3": "head", "4": "channel",
    }  # fmt: skip


def test_signs_are_kept_in_one_form_and_lost_in_the_other():
    result = repflow.hidden_attention(load(lively("mamba")), 0, IDS[:1], channels=[0, 9], curves=False)
    signed, normal = result["0/signed"], result["0/normalised"]
    assert (signed < 0).any()
    np.testing.assert_allclose(normal, abs(signed) / abs(signed).sum(-1, keepdims=True))
    np.testing.assert_allclose(normal.sum(-1), 1)
    assert np.isnan(result["row_entropy"][1:]).all()
    assert list(repflow.hidden_attention(load(lively("mamba")), 0, IDS[:1], forms="signed")) == [
        "row_entropy", "mean_distance", "error", "0/signed",
    ]  # fmt: skip


def test_rows_of_known_maps():
    size = 8
    uniform = torch.ones(size, size).tril()[None]
    rows = row_statistics(-uniform)
    assert rows.entropy.item() == pytest.approx(np.mean([np.log(t) for t in range(1, size + 1)]), rel=1e-6)
    assert rows.distance.item() == pytest.approx(np.mean([t / 2 for t in range(size)]))
    own = row_statistics(torch.eye(size)[None])
    assert (own.entropy.item(), own.distance.item()) == (0, 0)
    empty = torch.eye(size)[None].clone()
    empty[0, 0, 0] = 0
    assert row_statistics(empty).entropy.item() == 0  # a row of zeros is left out
    assert bool(normalised(empty)[0, 0].isnan().all())


def test_a_term_that_is_not_finite_is_no_exact_map(monkeypatch):
    from repflow.models.recurrence.layer import ScanRecurrence

    mixed = ScanRecurrence.mixed
    monkeypatch.setattr(ScanRecurrence, "mixed", lambda self: torch.full_like(mixed(self), torch.nan))
    result = repflow.hidden_attention(load(lively("mamba")), 0, IDS[:1], curves=False)
    assert result["error"][0, 0] == np.inf
    (said,) = [finding for finding in result.findings if finding.code == "map_error"]
    assert said.message == "block 1: P x, or the layer's own term, is not finite"


def test_both_parts_of_a_layer():
    model = load(lively("falcon_h1"))
    assert repflow.hidden_attention(model, 0, IDS).provenance["units"]["0"]["part"] == "recurrence"
    attention = repflow.hidden_attention(model, 0, IDS, part="attention")
    assert attention.provenance["units"]["0"]["part"] == "attention"
    np.testing.assert_allclose(attention["0/signed"].sum(-1), 1, rtol=1e-6)


def test_ragged_prompts_and_storing(tmp_path):
    model = load(lively("mamba2"))
    prompts = [IDS[0].tolist(), IDS[1, :7].tolist()]
    result = repflow.hidden_attention(model, 1, prompts, out=tmp_path, name="maps")
    assert np.isnan(result["1/signed"][1, :, 7:]).all()
    assert np.isfinite(result["1/signed"][1, :, :7, :7]).all()
    alone = repflow.hidden_attention(model, 1, [prompts[1]])
    np.testing.assert_allclose(result["1/signed"][1, :, :7, :7], alone["1/signed"][0], rtol=1e-5, atol=1e-9)
    stored = load_result(tmp_path / "maps")
    assert verify(tmp_path / "maps") == []
    assert stored.config["study"] == "hidden_attention"
    assert stored.config["layers"] == [1]
    np.testing.assert_array_equal(stored["1/signed"], result["1/signed"])
    again = repflow.hidden_attention(model, 1, prompts, out=tmp_path, name="maps")
    np.testing.assert_array_equal(again["row_entropy"], result["row_entropy"])


def test_nothing_is_left_behind():
    model = load(lively("bamba"))
    before = hooks_of(model)
    with pytest.raises(InputError):
        repflow.hidden_attention(model, 0, IDS, heads=99)
    assert hooks_of(model) == before
    assert not any(layer.watchers for layer in model.scans.layers)
    assert model.network.config._attn_implementation == "sdpa"


def hooks_of(model):
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.network.modules()]


REFUSED = {
    "beyond the last layer": ("mamba", {"layer": 4}, "expected a layer from 0 to 3; got 4; mamba has 4 blocks"),
    "negative": ("mamba", {"layer": -1}, "expected a layer from 0 to 3; got -1"),
    "no map": (
        "nemotron_h",
        {"layer": 1},
        "expected a layer with attention or a transition that can be read; got layer 1 (from 0) of "
        "nemotron_h, whose kind is mlp; choose one of 0, 2, 4",
    ),
    "no transition": (
        "gpt_neox",
        {"layer": 0, "part": "recurrence"},
        "expected a layer with a transition that can be read; got layer 0 (from 0) of gpt_neox, whose "
        "kind is attention; this model has none; choose another",
    ),
    "channel beyond": ("mamba", {"layer": 0, "channels": [2, 64]}, "expected channels of block 1 from 0 to 63; got 64"),
    "head beyond": ("gpt_neox", {"layer": 0, "heads": 4}, "expected heads of block 1 from 0 to 3; got 4"),
    "heads of channels": ("mamba", {"layer": 0, "heads": 0}, "expected channels of block 1, whose units they are"),
    "channels of heads": (
        "mamba2",
        {"layer": 0, "channels": 0},
        "got channels; pass heads=...: all channels of a head share one map",
    ),
    "both": ("mamba", {"layer": 0, "heads": 0, "channels": 0}, "expected channels or heads; got both"),
    "none": ("mamba", {"layer": 0, "channels": []}, "expected at least one channel; got none"),
    "form": ("mamba", {"layer": 0, "forms": ["abs"]}, "expected forms signed and normalised; got 'abs'"),
    "part": ("mamba", {"layer": 0, "part": "ssm"}, "expected part recurrence or attention; got 'ssm'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    kind, options, message = REFUSED[case]
    with pytest.raises(InputError) as caught:
        repflow.hidden_attention(load(tiny_model(kind)), tokens=IDS, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("given", [1.5, "last", True, [0.5], [0, None], ["1"]])
def test_what_is_no_index_is_refused(given):
    with pytest.raises(InputError, match=r"expected the number of a layer, or a list of them; got .*; layers are"):
        _indices(given, "layer")


def test_indices_are_one_or_several():
    assert [_indices(entry, "head") for entry in (2, np.int64(2), [1, 2], range(2), np.arange(2))] == [
        [2], [2], [1, 2], [0, 1], [0, 1],
    ]  # fmt: skip


def test_maps_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr("repflow.studies.hidden_attention.MOST_BYTES", 1 << 20)
    with pytest.raises(InputError, match="choose fewer layers, channels or heads, one form, or a shorter prompt"):
        repflow.hidden_attention(load(tiny_model("mamba")), [0, 1, 2], torch.cat([IDS] * 8), channels=range(60))
