"""The delta rule: scans against naive forms of flash-linear-attention and transformers, mixers against their layers."""

import pytest
import torch
from torch import nn

from repflow.core.errors import InputError
from repflow.mixers import build, check_mixer
from repflow.mixers.delta.delta_net import DeltaNet
from repflow.mixers.scan.delta import UnitLowerInverse
from repflow.mixers.scan.forms import choose_delta, delta_scan, fast_recurrence, recurrence
from repflow.mixers.scan.preference import prefer
from repflow.mixers.transition import DeltaTransition
from tests.mixers.fla_library import later

fla_delta = later("fla.layers.delta_net")
fla_gated = later("fla.layers.gated_deltanet")
fla_kda = later("fla.layers.kda")
naive_delta_rule = later("fla.ops.delta_rule.naive")
naive_gated_delta_rule = later("fla.ops.gated_delta_rule.naive")
fla_gate = later("fla.ops.kda.gate")
naive_kda = later("fla.ops.kda.naive")

WIDTH, TOKENS = 16, 21
DECAYS = ("none", "head", "key")


def inputs(tokens, *, decay="head", batch=2, key_heads=2, heads=4, keys=4, values=3, seed=0, dtype=torch.float64):
    """q, k, v, beta, log_decay, initial."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    q, k = draw(2, batch, tokens, key_heads, keys)
    v, beta = draw(batch, tokens, heads, values), torch.sigmoid(draw(batch, tokens, heads))
    shape = {"none": None, "head": (batch, tokens, heads), "key": (batch, tokens, heads, keys)}[decay]
    log_decay = None if shape is None else -nn.functional.softplus(draw(*shape))
    return q, k, v, beta, log_decay, draw(batch, heads, values, keys)


def close(got, wanted, tolerance):
    error = float((got - wanted).detach().abs().max())
    assert error <= tolerance * float(wanted.detach().abs().max()), error


def grouped(x, heads=4):
    return x.repeat_interleave(heads // x.shape[2], dim=2)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("tokens", [1, 2, 31, 32, 33, 70])
@pytest.mark.parametrize("chunk", [None, 1, 5, 64])
def test_chunks_are_the_sequential_rule(decay, tokens, chunk):
    q, k, v, beta, log_decay, initial = inputs(tokens, decay=decay)
    given = {"log_decay": log_decay, "initial": initial, "return_final": True, "unit": 1e-6}
    y, last = delta_scan(q, k, v, beta, **given, chunk=chunk, path="chunked")
    wanted, wanted_last = delta_scan(q, k, v, beta, **given, path="reference")
    close(y, wanted, 1e-12)
    close(last, wanted_last, 1e-12)


def test_the_rule_is_flash_linear_attentions():
    q, k, v, beta, gate, _ = (None if part is None else part.float() for part in inputs(40))
    q, k = (nn.functional.normalize(grouped(part), dim=-1) for part in (q, k))
    scaled = q / 2
    naive, _ = naive_gated_delta_rule().naive_recurrent_gated_delta_rule(q, k, v, beta, gate)
    close(delta_scan(scaled, k, v, beta, log_decay=gate), naive, 2e-6)
    first = (part.transpose(1, 2) for part in (q, k, v, beta))
    close(delta_scan(scaled, k, v, beta), naive_delta_rule().delta_rule_recurrence(*first)[0].transpose(1, 2), 2e-6)
    own = gate[..., None] * torch.rand(4)
    close(delta_scan(scaled, k, v, beta, log_decay=own), naive_kda().naive_recurrent_kda(q, k, v, own, beta)[0], 2e-6)


@pytest.mark.parametrize("name", ["qwen3_next", "kimi_linear"])
def test_the_rule_is_that_of_transformers(name):
    """States too: theirs are (key, value)."""
    import importlib

    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    function = module.torch_chunk_gated_delta_rule if name == "qwen3_next" else module.chunk_kimi_delta_attention
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    decay = "head" if name == "qwen3_next" else "key"
    q, k, v, beta, gate, initial = (part.float() for part in inputs(70, decay=decay, key_heads=4))
    wanted, last = function(
        q, k, v, g=gate, beta=beta, initial_state=initial.mT, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    given = {"log_decay": gate, "initial": initial, "return_final": True, "unit": 1e-6}
    y, final = delta_scan(q, k, v, beta, **given)
    close(y / 2, wanted, 5e-6)
    close(final.mT, last, 5e-6)


@pytest.mark.parametrize("decay", DECAYS)
def test_gradients_of_all_inputs(decay):
    given = [None if part is None else part.requires_grad_() for part in inputs(9, decay=decay, batch=1)]

    def run(path, q, k, v, beta, log_decay, initial):
        more = {"initial": initial, "return_final": True, "unit": 1e-6, "chunk": 4}
        y, last = delta_scan(q, k, v, beta, log_decay=log_decay, **more, path=path)
        return (y.sin().sum() + last.cos().sum(), *(p for p in (q, k, v, beta, log_decay, initial) if p is not None))

    gradients = []
    for path in ("chunked", "reference"):
        loss, *leaves = run(path, *given)
        gradients.append(torch.autograd.grad(loss, leaves))
    for got, wanted in zip(*gradients, strict=True):
        close(got, wanted, 1e-10)


def test_inverse_of_a_triangle_and_its_gradients():
    lower = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tril(-1)
    eye = torch.eye(8, dtype=torch.float64)
    close(UnitLowerInverse.apply(lower), torch.linalg.inv(lower + eye), 1e-12)
    # what stands on and above the diagonal does not count
    assert torch.equal(UnitLowerInverse.apply(lower + 5 * eye), UnitLowerInverse.apply(lower))
    lower.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: UnitLowerInverse.apply(x.tril(-1)), (lower,))
    assert torch.autograd.gradgradcheck(lambda x: UnitLowerInverse.apply(x.tril(-1)), (lower,))


def test_equal_keys_lose_no_digits():
    """Powers of the triangle would be binomials there: 64 over 32 is 2e18."""
    q, k, v, beta, _, _ = inputs(64, keys=4, dtype=torch.float32)
    k = torch.ones_like(k) / 2
    given = (q, k, v, torch.ones_like(beta))
    y = delta_scan(*given, chunk=64)
    close(y.double(), delta_scan(*(part.double() for part in given), path="reference"), 1e-5)


@pytest.mark.parametrize("decay", ["head", "key"])
@pytest.mark.parametrize("closed", [-1e4, -torch.inf])
def test_closed_gates_forget_all(decay, closed):
    q, k, v, beta, gate, _ = inputs(40, decay=decay)
    gate[:, 7] = closed
    gate.requires_grad_()
    y = delta_scan(q, k, v, beta, log_decay=gate)
    (slope,) = torch.autograd.grad(y.square().sum(), gate)
    assert slope.isfinite().all()
    rest = tuple(part[:, 7:] for part in (q, k, v, beta))
    close(y[:, 7:], delta_scan(*rest, log_decay=gate[:, 7:]), 1e-12)


@pytest.mark.parametrize("which", ["k", "v", "beta", "gate"])
def test_a_bad_token_leaves_earlier_ones_alone(which):
    q, k, v, beta, gate, _ = inputs(50)
    clean = delta_scan(q, k, v, beta, log_decay=gate)
    part = {"k": k, "v": v, "beta": beta, "gate": gate}[which]
    part.view(2, 50, -1)[0, 40, 0] = torch.nan
    y = delta_scan(q, k, v, beta, log_decay=gate)
    wanted = delta_scan(q, k, v, beta, log_decay=gate, path="reference")
    assert torch.equal(y.isnan(), wanted.isnan())
    assert y[:, :40].isfinite().all()
    assert y[0, 40:].isnan().any()
    close(y[:, :40], clean[:, :40], 1e-12)


def test_transition_is_read_in_three_ways():
    q, k, v, beta, gate, _ = inputs(10, decay="key", batch=1)
    transition = DeltaTransition(gate.exp(), k / 3, v, q, beta)
    y, states = recurrence(transition, return_states=True)
    close(fast_recurrence(transition, chunk=4), y, 1e-12)
    assert states.shape == (1, 10, 12, 4)
    h = torch.zeros(1, 4, 3, 4, dtype=torch.float64)
    for token, operator in enumerate(transition.operators().unbind(1)):
        entry = (beta[:, token, :, None] * v[:, token])[..., None] * grouped(k / 3)[:, token, :, None]
        h = h @ operator.mT + entry
        close(states[:, token], h.flatten(1, 2), 1e-12)
    with prefer("reference"):
        assert torch.equal(fast_recurrence(transition), y)


def test_wrong_scans_teach():
    q, k, v, beta, gate, initial = inputs(5)
    with pytest.raises(InputError, match=r"beta of shape \(2, 5, 4\); got shape \(2, 5\)"):
        delta_scan(q, k, v, beta[..., 0])
    with pytest.raises(InputError, match="heads that divide into the key heads; got 3 heads, 2 key heads"):
        delta_scan(q, k, v[:, :, :3], beta[:, :, :3])
    with pytest.raises(InputError, match=r"values \(batch, token, head, value\) with at least one token"):
        delta_scan(q, k, v[..., 0], beta)
    with pytest.raises(InputError, match=r"log_decay of shape \(2, 5, 4, 4\)"):
        delta_scan(q, k, v, beta, log_decay=gate[..., None])
    with pytest.raises(InputError, match=r"initial of shape \(2, 4, 3, 4\)"):
        delta_scan(q, k, v, beta, initial=initial.mT)
    with pytest.raises(InputError, match="chunk of at least 1 token"):
        delta_scan(q, k, v, beta, chunk=0)
    with pytest.raises(InputError, match="a path among"):
        delta_scan(q, k, v, beta, path="fast")
    assert choose_delta(q, k, v, beta, gate, path="reference").reason == "asked for"


# layers


@pytest.fixture
def x():
    torch.manual_seed(0)  # also for the weights that the oracles draw
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(3))


class Gated(nn.Module):
    """The layer's norm in torch's own operations, in place of its Triton kernel."""

    def __init__(self, layer, activation):
        super().__init__()
        self.weight, self.eps, self.activation = layer.weight, layer.eps, activation

    def forward(self, x, gate=None):
        normed = nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return normed if gate is None else normed * self.activation(gate)


class Plain(nn.Module):
    """The layer's weights in torch's own padded convolution, in place of its Triton kernel."""

    def __init__(self, layer):
        super().__init__()
        self.weight = layer.weight

    def forward(self, x, **_):
        full = nn.functional.conv1d(x.mT, self.weight, padding=self.weight.shape[-1] - 1, groups=x.shape[-1])
        return nn.functional.silu(full[..., : x.shape[1]].mT), None


def without_kernels(oracle, activation=None):
    """Their weights in our names; their layer with torch in place of kernels."""
    nn.init.uniform_(oracle.o_norm.weight)
    weights = oracle.state_dict()
    oracle.o_norm = Gated(oracle.o_norm, activation)
    for name in ("q_conv1d", "k_conv1d", "v_conv1d"):
        if hasattr(oracle, name):
            setattr(oracle, name, Plain(getattr(oracle, name)))
    return weights


def unit(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {}),
        ({"use_gate": True, "allow_neg_eigval": True}, {"gate": True, "negative": True}),
        ({"use_short_conv": False, "use_beta": False, "expand_v": 2.0}, {"conv": 0, "beta": False, "expand": 2.0}),
    ],
)
@pytest.mark.filterwarnings("ignore:ShortConvolution is crucial")
def test_delta_net_is_flash_linear_attentions_layer(monkeypatch, x, theirs, ours):
    def naive(*, q, k, v, beta, **_):
        y, _ = naive_delta_rule().delta_rule_recurrence(*(part.transpose(1, 2) for part in (unit(q), unit(k), v, beta)))
        return y.transpose(1, 2), None

    for kernel in ("chunk_delta_rule", "fused_recurrent_delta_rule"):
        monkeypatch.setattr(fla_delta(), kernel, naive)
    oracle = fla_delta().DeltaNet(hidden_size=WIDTH, num_heads=2, **theirs)
    weights = without_kernels(oracle, nn.functional.silu)
    mixer = build("delta_net", WIDTH, heads=2, **ours)
    mixer.load_state_dict(weights)
    close(mixer(x), oracle(x)[0], 2e-5)


@pytest.mark.parametrize("value_heads", [2, 4])
def test_gated_delta_net_is_flash_linear_attentions_layer(monkeypatch, x, value_heads):
    def naive(*, q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval=False, **_):
        decay = -A_log.exp() * nn.functional.softplus(g + dt_bias)
        strength = beta.sigmoid() * (2 if allow_neg_eigval else 1)
        q, k = (grouped(unit(part), value_heads) for part in (q, k))
        return naive_gated_delta_rule().naive_recurrent_gated_delta_rule(q, k, v, strength, decay)

    for kernel in ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"):
        monkeypatch.setattr(fla_gated(), kernel, naive)
    oracle = fla_gated().GatedDeltaNet(
        hidden_size=WIDTH, num_heads=2, head_dim=8, expand_v=2, num_v_heads=value_heads, allow_neg_eigval=True
    )
    monkeypatch.setattr(oracle, "_use_fused_qkv_conv", lambda **_: False)
    weights = without_kernels(oracle, nn.functional.silu)
    mixer = build("gated_delta_net", WIDTH, heads=2, value_heads=value_heads, negative=True)
    mixer.load_state_dict(weights)
    close(mixer(x), oracle(x)[0], 2e-5)


@pytest.mark.parametrize("value_heads", [2, 4])
def test_kda_is_flash_linear_attentions_layer(monkeypatch, x, value_heads):
    def naive(*, q, k, v, g, beta, A_log, dt_bias, **_):
        return naive_kda().naive_recurrent_kda(
            unit(q), unit(k), v, fla_gate().naive_kda_gate(g, A_log, dt_bias), beta.sigmoid()
        )

    for kernel in ("chunk_kda", "fused_recurrent_kda"):
        monkeypatch.setattr(fla_kda(), kernel, naive)
    oracle = fla_kda().KimiDeltaAttention(hidden_size=WIDTH, num_heads=2, head_dim=8, num_v_heads=value_heads)
    weights = without_kernels(oracle, torch.sigmoid)
    mixer = build("kda", WIDTH, heads=2, value_heads=value_heads)
    mixer.load_state_dict(weights)
    close(mixer(x), oracle(x)[0], 2e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("delta_net", {"negative": True, "conv": 0, "gate": True, "norm": False, "beta": False}),
        ("gated_delta_net", {"value_heads": 8, "negative": True, "gate": False}),
        ("kda", {"value_heads": 8, "rank": 2, "conv": 0, "expand": 2}),
    ],
)
def test_options_pass_the_check(name, options):
    torch.manual_seed(0)
    report = check_mixer(build(name, 16, **options), batch=2, tokens=8, long=70)
    assert "operators" in report.errors
    assert report.expansion <= 1 + 1e-9


class Doubled(DeltaNet):
    """Its recurrence is not that of its forward."""

    def transition(self, x):
        return super().transition(x)._replace(A=torch.full((1, 1, 1, 1), 0.5, dtype=x.dtype))


class Folded(DeltaNet):
    """Its strengths have a head too few."""

    def transition(self, x):
        transition = super().transition(x)
        return transition._replace(beta=transition.beta[..., 1:])


class Growing(DeltaNet):
    """Keys that are longer than 1: memories may grow."""

    def _project(self, x):
        q, k, v, beta = super()._project(x)
        return q, 2 * k, v, beta


def test_wrong_delta_mixers_are_found():
    torch.manual_seed(0)
    with pytest.raises(InputError, match="check 'recurrence' of delta_net"):
        check_mixer(Doubled(16), batch=2, tokens=8, long=20)
    with pytest.raises(InputError, match=r"beta \(2, 8, head\) and A broadcastable .*check 'transition', delta_net"):
        check_mixer(Folded(16), batch=2, tokens=8, long=20)
    report = check_mixer(Growing(16), batch=2, tokens=8, long=8)
    assert report.expansion > 1.2
