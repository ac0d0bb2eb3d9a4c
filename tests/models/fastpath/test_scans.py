"""Fast scans inside transformers' models: the same states as transformers' own, two settings side by side, caches."""

import copy

import pytest
import torch

from repflow.core.errors import InputError
from repflow.mixers import build
from repflow.models import load
from repflow.models.fastpath import layer_scan
from repflow.models.fastpath import scans as fastpath
from repflow.models.fastpath.scan_call import NotReadError, ScanCall, read_call
from tests.models.recurrence.scan_models import S6, SSD, lively, scan_function
from tests.sample import SCANS, chosen

pytestmark = pytest.mark.numeric


def states_of(model, ids):
    hidden = []
    model.stream(ids, on_state=lambda _, state: hidden.append(state.clone()))
    return torch.stack(hidden)


@pytest.mark.parametrize("model_type", chosen(S6 + SSD, SCANS))
def test_same_states_and_facts(model_type, ids):
    network = lively(model_type)
    ours, theirs = load(network), load(copy.deepcopy(network), scan="reference")
    fast, slow = states_of(ours, ids), states_of(theirs, ids)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=2e-5 * float(slow.abs().max()))
    kind = "s6" if model_type in S6 else "ssd"
    facts = ours.scans.facts()
    assert facts["asked"] == "auto"
    assert facts[kind]["ran"] == [{"path": "chunked", "reason": "tensors on the cpu"}]
    assert facts[kind]["layers"] == sum("ssm" in kinds for kinds in ours.layer_kinds)
    assert theirs.scans.facts()[kind]["ran"] == [{"path": "transformers", "reason": "asked for"}]
    assert not ours.scans.findings()
    assert not theirs.scans.findings()


@pytest.mark.parametrize("model_type", ["mamba", "mamba2", "zamba", "falcon_h1"])
def test_generation_with_a_cache(model_type, ids):
    network = lively(model_type)
    plain = {"max_new_tokens": 6, "do_sample": False, "use_cache": True, "eos_token_id": None}
    theirs = network.eval().generate(ids, **plain)
    model = load(network, scan="fast")
    ours = model.network.generate(ids, **plain)
    assert torch.equal(ours, theirs)
    assert model.scans.facts()[model.scans.layers[0].kind]["ran"][0]["path"] == "chunked"


@pytest.mark.parametrize("model_type", ["mamba", "mamba2"])
def test_gradients_through_the_model(model_type, ids):
    network = lively(model_type)
    twin = copy.deepcopy(network)
    load(network), load(twin, scan="reference")
    weights = torch.randn(network.config.hidden_size, generator=torch.Generator().manual_seed(1))
    grads = []
    for one in (network, twin):
        embeds = one.get_input_embeddings()(ids).detach().requires_grad_()
        last = one.base_model(inputs_embeds=embeds, use_cache=False).last_hidden_state[:, -1]
        grads.append(torch.autograd.grad((last * weights).sum(), embeds)[0])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-3, atol=1e-5 * float(grads[1].abs().max()))


def test_other_models_of_the_family_stay_with_transformers(ids, monkeypatch):
    untouched = lively("mamba").eval()
    load(lively("mamba"), scan="fast")
    seen = []
    monkeypatch.setattr(layer_scan.LayerScan, "answer", lambda *a: seen.append(a))
    untouched(ids)
    assert not seen


def test_setting_is_checked_and_can_change(ids):
    network = lively("mamba2")
    with pytest.raises(InputError, match="expected scan='auto', reference, fast; got 'fats'; did you mean fast"):
        load(network, scan="fats")
    load(network, scan="reference")
    again = load(network, scan="fast")
    states_of(again, ids)
    hooks = again.blocks[0].mixer._forward_pre_hooks
    assert len(hooks) == 1
    assert again.scans.facts()["ssd"]["ran"][0]["path"] == "chunked"


def test_a_copy_keeps_its_own_record(ids):
    model = load(lively("mamba2"))
    twin = load(copy.deepcopy(model.network), scan="reference")
    states_of(twin, ids)
    assert not any(layer.ran for layer in model.scans.layers)
    assert all(layer.ran for layer in twin.scans.layers)


def test_wrong_fast_scan_is_found_at_load(monkeypatch, ids):
    right = ScanCall.run
    monkeypatch.setattr(ScanCall, "run", lambda call: (right(call)[0] * 1.01, right(call)[1]))
    network = lively("mamba")
    want = states_of(load(copy.deepcopy(network), scan="reference"), ids)
    model = load(network)
    assert torch.equal(states_of(model, ids), want)
    finding = model.findings[-1]
    assert finding.code == "slow_scan"
    assert finding.message.startswith(
        "4 layers, the first of them block 1, ran the transformers scan: the fast scan differs from transformers' by "
        "1.0e-02"
    )


def test_failing_kernel_falls_back(monkeypatch, ids):
    def broken(_):
        raise RuntimeError("no kernel image\nlong story")

    monkeypatch.setattr(ScanCall, "run", broken)
    model = load(lively("mamba"))
    states_of(model, ids)
    reason = "the fast scan failed on this machine: no kernel image"
    assert model.scans.facts()["s6"]["ran"] == [{"path": "transformers", "reason": reason}]


def test_installed_kernel_comes_first_on_a_gpu(monkeypatch):
    monkeypatch.setattr(layer_scan, "_kernel_installed", lambda: True)
    monkeypatch.setattr(layer_scan, "_on_gpu", lambda args: True)
    assert layer_scan.left_alone("auto", ()) == "mamba_ssm is installed"
    assert layer_scan.left_alone("fast", ()) is None


def s6_arguments():
    x = torch.randn(1, 4, 6)
    return [x, x, -torch.ones(4, 3), torch.randn(1, 3, 6), torch.randn(1, 3, 6)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cu_seqlens": torch.tensor([0, 3])}, "packed sequences"),
        ({"hidden_states": torch.ones(1, 4, 6, dtype=torch.complex64)}, "hidden_states of dtype torch.complex64"),
        ({"hidden_states": torch.ones(1, 4, 6, device="meta")}, "tensors on the device meta"),
        ({"A": -torch.ones(4)}, "not one input map for all channels"),
        ({"hidden_states": torch.ones(1, 4, 0)}, "no tokens"),
    ],
)
def test_calls_left_to_transformers(change, reason):
    function = scan_function("mamba", "mamba_selective_scan")
    names = ("hidden_states", "dt", "A", "B", "C")
    with pytest.raises(NotReadError, match=reason):
        read_call("s6", function, (), dict(zip(names, s6_arguments(), strict=True)) | change)


def test_shapes_that_do_not_fit_run_transformers_form(ids):
    layer = layer_scan.LayerScan("s6", 0, "auto")
    arguments = s6_arguments()
    arguments[1] = arguments[1][:, :1]  # transformers broadcasts one step size over the channels
    got = layer.answer("s6", scan_function("mamba", "mamba_selective_scan"), tuple(arguments), {})
    assert got.shape == (1, 4, 6)
    ((path, reason),) = layer.ran
    assert path == "transformers"
    assert "expected delta of shape (1, 6, 4); got shape (1, 6, 1)" in reason


def test_a_subclass_of_a_layer_is_fast_too(ids):
    network = lively("mamba")
    theirs = load(copy.deepcopy(network), scan="reference")
    for block in network.backbone.layers:
        block.mixer.__class__ = type("Mine", (type(block.mixer),), {})
    ours = load(network)
    fast, slow = states_of(ours, ids), states_of(theirs, ids)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=2e-5 * float(slow.abs().max()))
    assert ours.scans.facts()["s6"]["ran"] == [{"path": "chunked", "reason": "tensors on the cpu"}]


def test_forward_mode_differentiation_is_transformers(ids):
    model = load(lively("mamba"))
    base, embeds = model.network.base_model, model.network.get_input_embeddings()(ids).detach()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(embeds, torch.ones_like(embeds))
        last = base(inputs_embeds=dual, use_cache=False).last_hidden_state
        tangent = torch.autograd.forward_ad.unpack_dual(last).tangent

    def run(embeds):
        return base(inputs_embeds=embeds, use_cache=False).last_hidden_state

    _, wanted = torch.func.jvp(run, (embeds,), (torch.ones_like(embeds),))
    torch.testing.assert_close(tangent, wanted, rtol=1e-4, atol=1e-5 * float(wanted.detach().abs().max()))
    reasons = [entry["reason"] for entry in model.scans.facts()["s6"]["ran"]]
    assert "inside forward-mode differentiation" in reasons


def test_own_mixers_follow_the_setting():
    block = torch.nn.ModuleList([build("s6", 8), build("retention", 8)])
    x = torch.randn(2, 5, 8)
    outputs = []
    for setting in ("reference", "auto"):
        scans = fastpath.install(block, [block], setting)
        outputs.append([mixer(x) for mixer in block])
        path = "reference" if setting == "reference" else "chunked"
        assert [entry["path"] for entry in scans.facts()["own"]["ran"]] == [path]
    for slow, fast in zip(*outputs, strict=True):
        torch.testing.assert_close(slow, fast, rtol=1e-4, atol=1e-6)
