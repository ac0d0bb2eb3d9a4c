"""The delta rule inside transformers' models: states, operators and maps against the layers' own code in float64."""

import inspect
import types

import numpy as np
import pytest
import torch

import repflow
from repflow.core.errors import InputError
from repflow.mixers import build
from repflow.mixers.scan.forms import recurrence as sequential
from repflow.mixers.transition import DeltaTransition
from repflow.models import load, ssm_quantities
from repflow.models.recurrence.delta import DeltaRecurrence
from repflow.models.recurrence.own import mixer_recurrence
from repflow.models.recurrence.quantities import recurrent_layers
from repflow.models.recurrence.readers import module_recurrence
from tests.models.tiny_configs import tiny_config, tiny_model

GATED = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid")
OF_KEYS = ("kimi_linear", "bailing_hybrid")
IDS = torch.randint(0, 128, (2, 37), generator=torch.Generator().manual_seed(5))


class Wide:
    """torch, whose float32 is float64: transformers' forms compute in float32 whatever they are given."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def in_float64(function):
    """transformers' own code of a delta rule, run in float64."""
    bare = inspect.unwrap(function)
    scope = {**bare.__globals__, "torch": Wide()}
    return types.FunctionType(bare.__code__, scope, bare.__name__, bare.__defaults__, bare.__closure__)


def read(model, ids=IDS, take=lambda q: q):
    seen = {}
    with ssm_quantities(model, lambda layer, q: seen.setdefault(layer, take(q))):
        model.stream(ids, on_state=lambda *_: None)
    return seen


@pytest.mark.parametrize("model_type", GATED + OF_KEYS)
@torch.no_grad()
def test_outputs_states_and_maps_are_the_layers_own(model_type, monkeypatch):
    model = load(tiny_model(model_type).double())
    assert recurrent_layers(model) == {0: "delta", 2: "delta"}
    home = inspect.getmodule(type(model.blocks[0].linear_attn if model_type in GATED else model.blocks[0].self_attn))
    name = "chunk_kimi_delta_attention" if model_type in OF_KEYS else "torch_chunk_gated_delta_rule"
    # their chunked form of Kimi's rounds its decays to float32 in between; the one for single tokens does not
    true, calls = in_float64(getattr(home, name.replace("chunk", "recurrent"))), []
    monkeypatch.setattr(home, name, keeping(getattr(home, name), true, calls))
    seen = read(model, take=lambda q: q.recurrence)
    assert len(calls) == len(seen) == 2
    for here, (wanted, last) in zip(seen.values(), calls, strict=True):
        wanted = wanted.flatten(2)
        torch.testing.assert_close(here.output(), wanted, rtol=1e-9, atol=1e-11 * float(wanted.abs().max()))
        *_, (_, states) = here.states()
        torch.testing.assert_close(states[:, -1].unflatten(1, (here.units, -1)).mT, last, rtol=1e-9, atol=1e-12)
        y = torch.einsum("uts,sud->tud", here.matrix(torch.arange(here.units), 1), here.inputs(torch.arange(4))[1])
        torch.testing.assert_close(y.flatten(1), wanted[1], rtol=1e-9, atol=1e-11 * float(wanted.abs().max()))
        theirs = here.mixed()  # by their form, in float32
        torch.testing.assert_close(theirs, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


def keeping(function, true, calls):
    """transformers' call as it is, and the same in float64 from its arguments."""

    def run(*args, **kwargs):
        given = {**kwargs, "output_final_state": True}
        calls.append(true(*args, **given))
        return function(*args, **kwargs)

    run.__wrapped__ = inspect.unwrap(function)
    return run


@pytest.mark.parametrize("model_type", ["qwen3_next", "kimi_linear", "minimax", "xlstm"])
def test_hidden_attention_is_exact(model_type):
    found = repflow.hidden_attention(load(tiny_model(model_type)), [0, 2], IDS[:1])
    assert found.provenance["units"]["0"]["part"] == "recurrence"
    assert found.provenance["units"]["0"]["kind"] == "head"
    assert np.nanmax(found["error"]) < 1e-5
    assert np.isfinite(found["error"][[0, 2]]).all()


@torch.no_grad()
def test_lightning_attention():
    """Its decays are those of its slopes; padding neither enters nor changes them."""
    model = load(tiny_model("minimax").double())
    assert recurrent_layers(model) == {0: "lightning", 2: "lightning"}
    for layer, here in read(model, take=lambda q: q.recurrence).items():
        slopes = model.blocks[layer].self_attn.slope_rate.flatten().double()
        torch.testing.assert_close(here.log_decay()[0, 0, :, 0], -slopes)
        wanted = here.mixed()
        torch.testing.assert_close(here.output(), wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))
        assert here.diagonal


@torch.no_grad()
def test_xlstm():
    """Its memory over the normaliser is what its backend gives."""
    model = load(tiny_model("xlstm").double())
    assert recurrent_layers(model) == dict.fromkeys(range(4), "mlstm")
    for here in read(model, take=lambda q: q.recurrence).values():
        wanted = here.mixed()
        torch.testing.assert_close(here.output(), wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))
        assert here.log_decay().shape[2:] == (4, 1)
        assert (here.log_decay() < 0).all()


@torch.no_grad()
def test_xlstm_with_joint_projections():
    """transformers cannot initialise a whole model of these, only a layer."""
    from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

    torch.manual_seed(0)
    layer = xLSTMLayer(tiny_config("xlstm", weight_mode="fused", mode="inference")).double()
    here = module_recurrence(layer, (torch.randn(2, 9, 64, dtype=torch.float64),), {})
    wanted = here.mixed()
    torch.testing.assert_close(here.output(), wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))


def recurrence_of(name, **options):
    torch.manual_seed(3)
    mixer = build(name, 12, heads=3, **options).double()
    for parameter in mixer.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.5)
    return mixer_recurrence(mixer, torch.randn(2, 11, 12, dtype=torch.float64))


@pytest.mark.parametrize("name", ["delta_net", "gated_delta_net", "kda"])
@torch.no_grad()
def test_maps_are_products_of_operators(name):
    here = recurrence_of(name)
    _, k, _, q, beta = here.parts
    units = torch.tensor([2, 0])
    P = here.matrix(units, 1)
    for row, unit in enumerate(units):
        for t in range(11):
            for s in range(t + 1):
                left = here.operators(s, t, unit[None], 1)[0] @ (beta[1, s, unit] * k[1, s, unit])
                assert float(P[row, t, s] - q[1, t, unit] @ left) == pytest.approx(0, abs=1e-12)
    y, states = sequential(here.parts, return_states=True)
    torch.testing.assert_close(here.output(), y, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(torch.cat([h for _, h in here.states(chunk=4)], 1), states, rtol=1e-10, atol=1e-12)
    initial = torch.randn(2, here.units * here.dim, 4, dtype=torch.float64)
    *_, (_, last) = here.states(initial=initial)
    through = torch.stack([here.operators(-1, 10, torch.arange(3), sample) for sample in range(2)])
    carried = initial.unflatten(1, (3, -1)) @ through.mT
    torch.testing.assert_close(last[:, -1], states[:, -1] + carried.flatten(1, 2), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("name", "options"), [("gated_delta_net", {}), ("kda", {}), ("delta_net", {"negative": True})])
@torch.no_grad()
def test_norms_bound_the_operators(name, options):
    here = recurrence_of(name, **options)
    norms = torch.linalg.matrix_norm(here.parts.operators(), ord=2).log()
    bound = here.log_norm()
    assert (bound >= norms - 1e-12).all()
    if name != "kda":
        torch.testing.assert_close(bound, norms, rtol=1e-9, atol=1e-12)


def test_a_head_with_one_key_is_a_number():
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    here = DeltaRecurrence(DeltaTransition(one / 2, one, one, one, 0.75 * one[..., 0]))
    assert here.log_norm().exp().item() == pytest.approx(0.125)
    longer = DeltaRecurrence(DeltaTransition(one, 2 * one, one, one, one[..., 0]))
    assert longer.log_norm().exp().item() == pytest.approx(3.0)


@torch.no_grad()
def test_traces_are_lengths_of_what_operators_leave():
    here = recurrence_of("kda")
    lengths = here.traces([0, 4], 1)
    assert lengths.shape == (2, 11, 3)
    assert lengths[1, :4].isnan().all()
    torch.testing.assert_close(lengths[:, [0, 4]].diagonal(), torch.ones(3, 2, dtype=torch.float64))
    for row, source in enumerate([0, 4]):
        key = here.parts.k[1, source]
        for token in range(source, 11):
            left = here.operators(source, token, torch.arange(3), 1) @ (key / key.norm(dim=-1, keepdim=True))[..., None]
            torch.testing.assert_close(lengths[row, token], left[..., 0].norm(dim=-1))


def test_what_is_diagonal_alone_is_not_given():
    here = recurrence_of("kda")
    assert not here.diagonal
    assert here.met().isnan().all()
    assert here.met(slice(1, 4)).shape == (2, 3)
    assert here.rates() is None
    with pytest.raises(InputError, match="a recurrence whose transition is diagonal; got the delta rule; use matrix"):
        here.operator(torch.arange(1))


def test_memory_says_what_carries_over():
    from repflow.studies.memory.study import MemoryConfig, run

    config = MemoryConfig(model="m", task="random", length=40, samples=3)
    result = run(config, model=load(tiny_model("kimi_linear")))
    assert np.isfinite(result["write_strength"][[0, 2]]).all()
    assert np.isnan(result["write_strength"][[1, 3]]).all()
    assert (result["trace_half_life"][[0, 2]] <= result["half_life"][[0, 2]] + 1).all()
    assert np.isnan(result["contractive_share"]).all()
    assert np.isnan(result["spread_bound"]).all()
    assert np.isfinite(result["spread_state"][[0, 2]]).all()
    said = {finding.code: finding.message for finding in result.findings}
    assert "contraction" not in said
    assert said["delta_rule"].startswith("2 layers have the delta rule: A is the decay beside it; write strength 0.")
    assert said["delta_rule"].endswith("A + Delta <= 1 does not apply to them")
    assert [entry["kind"] for entry in result.provenance["transitions"]] == ["delta", None, "delta", None]
    assert result.provenance["transitions"][0]["unit"] == "head"
