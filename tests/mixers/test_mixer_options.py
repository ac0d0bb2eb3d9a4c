"""Every option of attention, linear attention, retention, GLA, S4D, H3 and RG-LRU keeps the promises of Mixer."""

import pytest
import torch

from repflow.mixers import build, check_mixer
from repflow.mixers.scan.preference import prefer

CASES = [
    ("softmax_attention", {"heads": 1, "rotary": 0.5}),
    ("softmax_attention", {"kv_heads": 2, "rotary": 0.0, "bias": True, "window": 3}),
    ("softmax_attention", {"kv_heads": 1, "head_dim": 6, "rotary_base": 100.0}),
    ("linear_attention", {"heads": 1}),
    ("linear_attention", {"heads": 1, "state": 1}),
    ("linear_attention", {"heads": 2, "state": 3, "expand": 2.0, "feature_map": "relu"}),
    ("linear_attention", {"feature_map": "identity", "norm": True}),
    ("linear_attention", {"normalise": False}),
    ("retention", {"heads": 1, "norm_kind": "rms", "gate": False}),
    ("retention", {"norm": False, "rotary": False, "decay": [0.5, 1.0, 0.9, 0.1]}),
    ("retention", {"heads": 2, "state": 6, "expand": 1.0, "rotary_base": 10.0}),
    ("gla", {"conv": 3, "heads": 1}),
    ("gla", {"norm": False, "gate": False, "temperature": 0.2, "rank": 2}),
    ("gla", {"heads": 2, "state": 3, "expand": 0.5}),
    ("s4d", {"state": 6, "discretisation": "bilinear", "init": "legs", "gate": False, "skip": False}),
    ("s4d", {"state": 4, "init": "inv", "dropout": 0.5}),
    ("s4d", {"state": 2, "dt_min": 1.0, "dt_max": 2.0}),
    ("h3", {"state": 4, "head_dim": 2, "conv": 0, "discretisation": "zoh"}),
    ("h3", {"state": 4, "head_dim": 4, "conv": 3, "init": "inv"}),
    ("rg_lru", {"conv": 0, "gate": False, "expand": 1.5, "heads": 2}),
    ("rg_lru", {"heads": 1, "a_min": 0.1, "a_max": 0.2}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name}-{number}" for number, (name, _) in enumerate(CASES)])
def test_options_keep_the_promises(name, options):
    torch.manual_seed(1)
    check_mixer(build(name, 8, **options), batch=2, tokens=11, long=140)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("linear_attention", "chunked"),
        ("retention", "chunked"),
        ("gla", "chunked"),
        ("s4d", "fourier"),
        ("h3", "fourier"),
        ("rg_lru", "chunked"),
        ("rwkv4", "chunked"),
        ("rwkv5", "chunked"),
        ("s6", "chunked"),
        ("ssd", "chunked"),
    ],
)
def test_a_preference_for_the_reference_is_followed_and_noted(monkeypatch, name, form):
    torch.manual_seed(0)
    mixer, x = build(name, 8).double(), torch.randn(1, 5, 8, dtype=torch.float64)
    noted = []
    with prefer("auto", lambda path, reason: noted.append(path)):
        fast = mixer(x)
    for fast_form in ("chunked_ssd.ssd_scan_chunked", "gla.gated_scan", "diagonal_ssm.long_convolution", "rwkv5.wkv"):
        monkeypatch.setattr(f"repflow.mixers.{fast_form}", None)
    monkeypatch.setattr("repflow.mixers.scan.chunked._state_form", None)
    monkeypatch.setattr("repflow.mixers.scan.s6.selective_scan_chunked", None)
    with prefer("reference", lambda path, reason: noted.append(path)):
        torch.testing.assert_close(mixer(x), fast, rtol=1e-9, atol=1e-12)
    assert noted == [form, "reference"]


@pytest.mark.parametrize("transform", ["jacrev", "jacfwd"])
@pytest.mark.parametrize("name", ["linear_attention", "retention", "gla", "s4d", "h3", "rg_lru", "softmax_attention"])
def test_jacobians_by_torch_func(name, transform):
    torch.manual_seed(0)
    mixer, x = build(name, 8).double(), torch.randn(1, 5, 8, dtype=torch.float64)
    wanted = torch.autograd.functional.jacobian(mixer, x)
    torch.testing.assert_close(getattr(torch.func, transform)(mixer)(x), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("path", ["auto", "reference", "chunked"])
@pytest.mark.parametrize("name", ["linear_attention", "retention"])
def test_paths_agree(name, path):
    torch.manual_seed(1)
    mixer, x = build(name, 8).double(), torch.randn(2, 9, 8, dtype=torch.float64)
    torch.testing.assert_close(mixer(x, path=path), mixer(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["linear_attention", "retention", "gla", "s4d", "h3", "rg_lru", "softmax_attention"])
def test_weights_survive_saving(name):
    first, second = build(name, 8), build(name, 8)
    x = torch.randn(1, 5, 8)
    assert not torch.equal(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))


@pytest.mark.parametrize("name", ["linear_attention", "retention", "gla", "s4d", "h3", "rg_lru", "softmax_attention"])
def test_float32_is_as_good_as_float32(name):
    torch.manual_seed(2)
    mixer, x = build(name, 8), torch.randn(2, 500, 8)
    with torch.no_grad():
        exact = mixer.double()(x.double())
        rough = mixer.float()(x)
    assert rough.dtype == torch.float32
    assert float((rough - exact).abs().max()) < 2e-5 * float(exact.abs().max())


def test_s4d_drops_whole_channels_behind_its_gelu_while_training():
    mixer = build("s4d", 16, state=4, dropout=0.5).double()
    seen = []
    mixer.output_linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.randn(6, 9, 16, dtype=torch.float64)
    mixer.train()(x)
    mixer.eval()(x)
    gone = seen[0] == 0
    assert torch.equal(gone, gone[:, :1].expand_as(gone))
    assert 0.2 < gone[:, 0].double().mean() < 0.8
    assert torch.allclose(seen[0][~gone], 2 * seen[1][~gone])
