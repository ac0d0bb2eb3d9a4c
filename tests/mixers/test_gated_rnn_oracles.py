"""HGRN2, minGRU, minLSTM and mLSTM against flash-linear-attention, minGRU-pytorch and transformers, weights copied."""

import pytest
import torch
from minGRU_pytorch.minGRU import minGRU
from minGRU_pytorch.minLSTM import minLSTM
from torch import nn

from repflow.mixers import build, check_mixer
from repflow.mixers.scan.ssd import head_scan
from tests.mixers.fla_library import later

fla_hgrn2 = later("fla.layers.hgrn2")
naive_gla = later("fla.ops.gla.naive")

WIDTH, TOKENS = 16, 21


@pytest.fixture
def x():
    torch.manual_seed(0)  # also for the weights that the oracles draw
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(3))


def close(got, wanted, tolerance=2e-5):
    error = float((got - wanted).detach().abs().max())
    assert error < tolerance * float(wanted.detach().abs().max()), error


@pytest.mark.parametrize("lower", [0.0, 0.3])
def test_hgrn2_is_flash_linear_attentions_layer(monkeypatch, x, lower):
    def naive(*, q, k, v, gk=None, g=None, **_):
        return naive_gla().naive_recurrent_gla(q, k, v, gk if g is None else g)

    for kernel in ("chunk_gla", "fused_chunk_gla", "fused_recurrent_gla"):
        if hasattr(fla_hgrn2(), kernel):
            monkeypatch.setattr(fla_hgrn2(), kernel, naive)

    def norm_and_project(x, weight, _, matrix, __):
        return nn.functional.linear(nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-5), matrix)

    monkeypatch.setattr(fla_hgrn2(), "swish", nn.functional.silu)
    monkeypatch.setattr(fla_hgrn2(), "rms_norm_linear", norm_and_project)
    oracle = fla_hgrn2().HGRN2Attention(hidden_size=WIDTH, expand_ratio=8, layer_idx=1)
    nn.init.uniform_(oracle.g_norm.weight)
    ours = build("hgrn2", WIDTH, heads=2, state=8, lower=lower)
    ours.load_state_dict(oracle.state_dict())
    close(ours(x), oracle(x, lower_bound=torch.full((WIDTH,), lower) if lower else None)[0])


@pytest.mark.parametrize("expand", [1, 2])
def test_min_rnns_are_the_packages(x, expand):
    for family, oracle in (("min_gru", minGRU), ("min_lstm", minLSTM)):
        theirs = oracle(WIDTH, expansion_factor=float(expand), proj_out=True)
        ours = build(family, WIDTH, expand=expand)
        ours.load_state_dict(theirs.state_dict())
        close(ours(x), theirs(x))
        one_by_one, state = [], None
        for token in x.split(1, dim=1):
            y, state = theirs(token, prev_hidden=state, return_next_prev_hidden=True)
            one_by_one.append(y)
        close(ours(x), torch.cat(one_by_one, 1))


def test_min_rnns_are_means_of_their_candidates(x):
    """A + delta = 1: the hypothesis of Theorem 4.2 with equality."""
    for family in ("min_gru", "min_lstm"):
        transition = build(family, WIDTH, positive=False).double().transition(x.double())
        close(transition.A + transition.delta, torch.ones_like(transition.A), 1e-12)


@pytest.mark.parametrize("weight_mode", ["single", "fused"])
def test_mlstm_is_transformers_layer(x, weight_mode):
    from transformers import xLSTMConfig
    from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

    config = xLSTMConfig(
        hidden_size=WIDTH, num_heads=2, weight_mode=weight_mode, qk_dim_factor=0.5, v_dim_factor=1.0, chunk_size=8,
        mode="inference", eps=1e-6,
    )  # fmt: skip
    oracle = xLSTMLayer(config)
    for parameter in oracle.parameters():
        nn.init.normal_(parameter, std=0.5) if parameter.ndim == 2 else nn.init.uniform_(parameter)
    ours = build("mlstm", WIDTH, heads=2)
    weights = dict(oracle.state_dict())
    if weight_mode == "fused":
        sizes, joint = (8, 8, 16, 16), ("q", "k", "v", "ogate_preact")
        parts = weights.pop("qkv_opreact.weight").split(sizes)
        weights |= {f"{name}.weight": part for name, part in zip(joint, parts, strict=True)}
        for kind in ("weight", "bias"):
            enter, forget = weights.pop(f"ifgate_preact.{kind}").chunk(2)
            weights |= {f"igate_preact.{kind}": enter, f"fgate_preact.{kind}": forget}
    ours.load_state_dict(weights)
    close(ours(x), oracle(x)[0])


def test_mlstm_survives_huge_gates(x):
    """An input gate of e^15 beside e^−15: the scale keeps both."""
    ours = build("mlstm", WIDTH, heads=2)
    nn.init.normal_(ours.igate_preact.weight, std=40.0)
    y = ours(x)
    close(y, ours.double()(x.double()).float(), 1e-4)
    assert y.isfinite().all()


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("hgrn2", {"lower": 0.4, "norm": False}),
        ("min_gru", {"positive": False, "project": False}),
        ("mlstm", {"norm": False, "cap": 2.0}),
    ],
)
def test_options_pass_the_check(family, options):
    torch.manual_seed(0)
    check_mixer(build(family, 16, **options), batch=2, tokens=8, long=70)


def test_head_scan_is_the_double_sum():
    generator = torch.Generator().manual_seed(0)
    entry, keys, queries = torch.randn(3, 1, 7, 2, 3, generator=generator, dtype=torch.float64)
    logs = -torch.rand(1, 7, 2, generator=generator, dtype=torch.float64)
    wanted = torch.zeros_like(entry)
    for t in range(7):
        for s in range(t + 1):
            weight = (queries[:, t] * keys[:, s]).sum(-1) * logs[:, s + 1 : t + 1].sum(1).exp()
            wanted[:, t] += weight[..., None] * entry[:, s]
    close(head_scan(entry, logs, keys, queries, chunk=3), wanted, 1e-12)
