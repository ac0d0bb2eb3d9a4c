"""Softmax and linear attention, retention and GLA against transformers and flash-linear-attention, weights copied."""

import pytest
import torch
from torch import nn

from repflow.mixers import build
from repflow.mixers.gla import gated_scan
from repflow.mixers.parts.rotary import rotate
from repflow.mixers.scan.forms import fast_recurrence, recurrence
from tests.mixers.fla_library import later

fla_gla = later("fla.layers.gla")
fla_linear = later("fla.layers.linear_attn")
fla_retention = later("fla.layers.multiscale_retention")
fla_rotary = later("fla.modules.rotary")
naive_form_of_gla = later("fla.ops.gla.naive")
naive_linear_attn = later("fla.ops.linear_attn.naive")
naive_retention = later("fla.ops.retention.naive")

WIDTH, TOKENS = 16, 21


@pytest.fixture
def x():
    torch.manual_seed(0)  # also for the weights that the oracles draw
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(3))


def close(got, wanted, tolerance=2e-5):
    error = float((got - wanted).detach().abs().max())
    assert error < tolerance * float(wanted.detach().abs().max()), error


def llama(kv_heads):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = LlamaConfig(hidden_size=WIDTH, num_attention_heads=4, num_key_value_heads=kv_heads)
    config._attn_implementation = "eager"
    return LlamaAttention(config, 0), LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_softmax_attention_is_llamas(x, kv_heads):
    oracle, positions = llama(kv_heads)
    ours = build("attention", WIDTH, heads=4, kv_heads=kv_heads)
    ours.load_state_dict(oracle.state_dict())
    embedded = positions(x, torch.arange(TOKENS)[None])
    mask = torch.full((TOKENS, TOKENS), -torch.inf).triu(1)[None, None]
    wanted, weights = oracle(x, position_embeddings=embedded, attention_mask=mask)
    close(ours(x), wanted)
    close(ours.weights(x), weights)


def test_softmax_attention_is_gpt_neox_with_a_quarter_turned(x):
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXRotaryEmbedding

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25}
    config = GPTNeoXConfig(hidden_size=WIDTH * 2, num_attention_heads=4, rope_parameters=rope)
    config._attn_implementation = "eager"
    oracle, positions = GPTNeoXAttention(config, 0), GPTNeoXRotaryEmbedding(config)
    ours = build("attention", WIDTH * 2, heads=4, rotary=0.25, bias=True)
    joint = oracle.query_key_value
    for number, name in enumerate(("q_proj", "k_proj", "v_proj")):
        getattr(ours, name).weight.data = joint.weight.unflatten(0, (4, 3, -1))[:, number].flatten(0, 1).data
        getattr(ours, name).bias.data = joint.bias.unflatten(0, (4, 3, -1))[:, number].flatten().data
    ours.o_proj.load_state_dict(oracle.dense.state_dict())
    double = torch.cat([x, x.flip(1)], dim=-1)
    embedded = positions(double, torch.arange(TOKENS)[None])
    mask = torch.full((TOKENS, TOKENS), -torch.inf).triu(1)[None, None]
    close(ours(double), oracle(double, mask, position_embeddings=embedded)[0])


def test_a_window_sees_its_tokens_alone(x):
    ours = build("attention", WIDTH, heads=2, window=3, rotary=0.0).double()
    x = x.double()
    weights = ours.weights(x)
    for row in range(TOKENS):
        seen = weights[:, :, row] > 0
        assert seen[..., max(0, row - 2) : row + 1].all()
        assert int(seen.sum()) == 2 * 2 * min(3, row + 1)
    values = ours.v_proj(x).unflatten(-1, (2, -1)).transpose(1, 2)
    close(ours(x), ours.o_proj((weights @ values).transpose(1, 2).flatten(2)), 1e-12)
    close(weights.sum(-1), torch.ones(2, 2, TOKENS, dtype=torch.float64), 1e-12)


def test_rotation_is_flash_linear_attentions(x):
    heads = x.unflatten(-1, (2, 8))
    rates = 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
    angles = torch.outer(torch.arange(TOKENS).float(), rates)
    close(rotate(heads), fla_rotary().rotary_embedding_ref(heads, angles.cos(), angles.sin()))


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(
    ("feature_map", "normalise"),
    [("elu", True), ("elu", False), ("relu", True), ("relu", False), ("identity", False)],
)
def test_linear_attention_is_flash_linear_attentions_layer(monkeypatch, x, feature_map, normalise, norm):
    monkeypatch.setattr("repflow.mixers.linear_attention.EPSILON", 1e-10)  # theirs; ReLUs can leave nearly nothing
    for kernel in ("chunk_linear_attn", "fused_recurrent_linear_attn"):
        monkeypatch.setattr(fla_linear(), kernel, naive_linear)
    oracle = fla_linear().LinearAttention(
        hidden_size=WIDTH,
        num_heads=2,
        expand_v=2.0,
        feature_map=feature_map,
        do_feature_map_norm=normalise,
        output_norm="rmsnorm" if norm else "identity",
    )
    if norm:
        oracle.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        nn.init.uniform_(oracle.norm.weight)
    ours = build(
        "linear_attention", WIDTH, heads=2, expand=2.0, feature_map=feature_map, normalise=normalise, norm=norm
    )
    ours.load_state_dict(oracle.state_dict())
    close(ours(x), oracle(x)[0])


def naive_linear(*, cu_seqlens, **arguments):
    return naive_linear_attn().naive_recurrent_linear_attn(**arguments)


def test_retention_decays_and_scales_as_naive_retention():
    q, k, v = torch.randn(3, 2, TOKENS, 4, 6, generator=torch.Generator().manual_seed(1))
    ours = build("retention", 24, heads=4, state=6)
    ours._project = lambda x: (q * 6**-0.5, k, v)
    wanted = naive_retention().naive_retention(*(part.transpose(1, 2) for part in (q, k, v))).transpose(1, 2).flatten(2)
    close(recurrence(ours.transition(q)), wanted)
    ours.readout = lambda y, x: y
    close(ours(q.flatten(2)), wanted)


@pytest.mark.parametrize("gate", [True, False])
def test_retention_is_flash_linear_attentions_layer(monkeypatch, x, gate):
    for kernel in ("chunk_retention", "fused_recurrent_retention"):
        monkeypatch.setattr(fla_retention(), kernel, naive_retention_layout)
    oracle = fla_retention().MultiScaleRetention(
        hidden_size=WIDTH, num_heads=2, expand_v=2.0, use_output_gate=gate, fuse_norm=False
    )
    oracle.rotary.forward = reference_rotary
    oracle.g_norm = nn.RMSNorm(WIDTH, eps=1e-5)
    nn.init.uniform_(oracle.g_norm.weight)
    ours = build("retention", WIDTH, heads=2, norm_kind="rms", gate=gate)
    ours.load_state_dict({name.replace("g_norm", "norm"): value for name, value in oracle.state_dict().items()})
    close(ours(x), oracle(x)[0])


def naive_retention_layout(*, q, k, v, **_):
    return naive_retention().naive_retention(*(part.transpose(1, 2) for part in (q, k, v))).transpose(1, 2), None


def reference_rotary(q, k, **_):
    size = q.shape[-1]
    angles = torch.outer(torch.arange(q.shape[1]).float(), 10_000.0 ** (-torch.arange(0, size, 2) / size))
    return tuple(fla_rotary().rotary_embedding_ref(part, angles.cos(), angles.sin()) for part in (q, k))


def test_retention_is_a_complex_decay(x):
    """RetNet's (γ e^{iθ})^{t−s}: with one pair of keys the double sum of the paper."""
    ours = build("retention", WIDTH, heads=1, state=2, decay=[0.9]).double()
    x = x.double()
    q, k = (torch.view_as_complex(layer(x).contiguous()) for layer in (ours.q_proj, ours.k_proj))
    v = ours.v_proj(x)
    turn = 0.9 * torch.exp(torch.tensor(1j, dtype=torch.complex128))  # θ = base^0 = 1
    wanted = torch.zeros_like(v)
    for t in range(TOKENS):
        for s in range(t + 1):
            wanted[:, t] += (q[:, t].conj() * k[:, s] * turn.conj() ** (t - s)).real[:, None] * v[:, s] / 2**0.5
    close(recurrence(ours.transition(x)), wanted, 1e-12)


def test_retention_norm_is_torch_group_norm(x):
    ours = build("retention", WIDTH, heads=2, gate=False).double()
    nn.init.normal_(ours.norm.weight)
    nn.init.normal_(ours.norm.bias)
    x = x.double()
    y = fast_recurrence(ours.transition(x))
    group = nn.functional.group_norm(y.flatten(0, 1), 2, ours.norm.weight.flatten(), ours.norm.bias.flatten(), eps=1e-5)
    close(ours(x), ours.o_proj(group.unflatten(0, x.shape[:2])), 1e-10)


def test_retention_keeps_its_decay_in_half_precision():
    ours = build("retention", 16, heads=8).bfloat16()
    decay = ours._decay(torch.zeros(1, dtype=torch.bfloat16))
    assert (1 - decay).log2().tolist() == [-5.0 - head for head in range(8)]


@pytest.mark.parametrize(("conv", "gate"), [(0, True), (0, False), (3, True)])
def test_gla_is_flash_linear_attentions_layer(monkeypatch, x, conv, gate):
    for kernel in ("chunk_gla", "fused_recurrent_gla"):
        monkeypatch.setattr(fla_gla(), kernel, naive_gla)
    oracle = fla_gla().GatedLinearAttention(
        hidden_size=WIDTH, num_heads=2, use_output_gate=gate, fuse_norm=False, use_short_conv=bool(conv), conv_size=conv
    )
    oracle.g_norm = nn.RMSNorm(WIDTH // 2, eps=1e-5)
    nn.init.uniform_(oracle.g_norm.weight)
    oracle.gate_fn = nn.functional.silu  # its own is a Triton kernel
    weights = {name.replace("g_norm", "norm"): value for name, value in oracle.state_dict().items()}
    for name in ("q_conv1d", "k_conv1d", "v_conv1d") if conv else ():
        setattr(oracle, name, short_convolution(getattr(oracle, name)))
    ours = build("gla", WIDTH, heads=2, conv=conv, gate=gate)
    ours.load_state_dict(weights)
    close(ours(x), oracle(x)[0])


def naive_gla(*, q, k, v, gk=None, g=None, **_):
    return naive_form_of_gla().naive_recurrent_gla(q, k, v, gk if g is None else g)


def short_convolution(layer):
    """The layer's weights in torch's own padded convolution, in place of its Triton kernel."""

    class Plain(nn.Module):
        def forward(self, x, **_):
            full = nn.functional.conv1d(x.mT, layer.weight, padding=layer.weight.shape[-1] - 1, groups=x.shape[-1])
            return nn.functional.silu(full[..., : x.shape[1]].mT), None

    return Plain()


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
def test_gated_scan_is_naive_gla(tokens, chunk):
    generator = torch.Generator().manual_seed(tokens)
    q, k, g = torch.randn(3, 2, tokens, 3, 4, generator=generator)
    v = torch.randn(2, tokens, 3, 5, generator=generator)
    g = nn.functional.logsigmoid(g)
    wanted, _ = naive_form_of_gla().naive_recurrent_gla(q, k, v, g)
    close(gated_scan(q / 2, k, v, g, chunk=chunk), wanted)


def test_gated_scan_survives_closed_gates():
    """A gate that closes within a chunk: q exp(G) · k exp(−G) would be 0 · inf."""
    parts = torch.randn(4, 1, 40, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q, k, v, g = (part.clone().requires_grad_() for part in (*parts[:3], -parts[3].abs()))
    with torch.no_grad():
        g[:, 7] = -1e4
        g[:, 20:22, 0] = -torch.inf
    y = gated_scan(q, k, v, g)
    gradients = torch.autograd.grad(y.square().sum(), (q, k, v, g))
    assert all(bool(part.isfinite().all()) for part in (y, *gradients))
    alone = gated_scan(*(part[:, 7:20] for part in (q, k, v, g)))
    close(y[:, 7:20], alone, 1e-12)
    rough = gated_scan(*(part.detach().float() for part in (q, k, v, g)))
    close(rough, y, 1e-5)
