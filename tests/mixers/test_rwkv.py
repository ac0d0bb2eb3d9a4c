"""RWKV-4 and RWKV-5.2 against transformers, flash-linear-attention's naive form, and rwkv.cpp's expected logits."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import RwkvConfig
from transformers.models.rwkv import modeling_rwkv

from repflow.core.errors import InputError
from repflow.mixers import Transition, build, check_mixer
from repflow.mixers.parts.channel_mixing import ChannelMixing
from repflow.mixers.rwkv5 import wkv
from repflow.mixers.scan.forms import recurrence
from tests.mixers.mamba_oracles import loud, relative
from tests.mixers.rwkv_files import read_ggml, stack_weights


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def wide(monkeypatch):
    """transformers' and fla's RWKV cast to float32 inside; let them keep float64."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    real = torch.zeros_like
    monkeypatch.setattr(torch, "zeros_like", lambda x, **kw: real(x, **{k: v for k, v in kw.items() if k != "dtype"}))


def rwkv_config(**options):
    return RwkvConfig(hidden_size=12, num_hidden_layers=4, **options)


@pytest.mark.parametrize("inner", [12, 20])
def test_rwkv4_is_transformers_rwkv(inner, wide):
    theirs = loud(modeling_rwkv.RwkvSelfAttention(rwkv_config(attention_hidden_size=inner), 1).double(), 3)
    with torch.no_grad():
        for name in ("time_decay", "time_first"):
            getattr(theirs, name).copy_(draw(inner, seed=len(name)))
        for name in ("key", "value", "receptance"):
            getattr(theirs, f"time_mix_{name}").uniform_()
    ours = build("rwkv", 12, inner=inner).double()
    ours.load_state_dict(theirs.state_dict())
    x = draw(2, 37, 12)
    assert relative(ours(x), theirs(x)[0]) < 1e-12
    assert relative(ours.readout(recurrence(ours.transition(x)), x), theirs(x)[0]) < 1e-12


def test_rwkv4_initialisation_is_transformers(wide):
    network = modeling_rwkv.RwkvModel(rwkv_config(vocab_size=8))
    for layer, block in enumerate(network.blocks):
        ours = build("rwkv4", 12, layer=layer, layers=4)
        for name in ("time_decay", "time_mix_key", "time_mix_value", "time_mix_receptance"):
            torch.testing.assert_close(getattr(ours, name), getattr(block.attention, name))
        mixing = ChannelMixing(12, layer=layer, layers=4)
        for name in ("time_mix_key", "time_mix_receptance"):
            torch.testing.assert_close(getattr(mixing, name), getattr(block.feed_forward, name))
        # transformers' bonus is 1 by an oversight; RWKV's own is ln .3 and ± .5
        zigzag = [round(float(value) - np.log(0.3), 6) for value in ours.time_first[:4].detach()]
        assert zigzag == [0.0, 0.5, -0.5, 0.0]


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_rwkv5_initialisation_is_that_of_its_training_code(layer):
    """Channel by channel, for 4 layers: a speed of decay that rises along the channels, a bonus with a zigzag."""
    ours, late, last = build("rwkv5", 12, head_dim=4, layer=layer, layers=4), layer / 3, 11
    speed = [-6 + 5 * (channel / last) ** (0.7 + 1.3 * late) for channel in range(12)]
    bonus = [late * (1 - channel / last) + 0.1 * ((channel + 1) % 3 - 1) for channel in range(12)]
    torch.testing.assert_close(ours.time_decay.detach(), torch.tensor(speed).view(3, 4))
    torch.testing.assert_close(ours.time_faaaa.detach(), torch.tensor(bonus).view(3, 4))


def test_rwkv5_norm_is_that_of_an_eighth():
    """The training code divides by 8 before a norm with torch's own 1e-5; of small outputs the constant is a part."""
    mixer, small = build("rwkv5", 12, head_dim=4).double(), 0.01 * draw(5, 12)
    theirs = torch.nn.functional.group_norm(small / 8, 3, eps=1e-5)
    assert relative(mixer.ln_x(small), theirs) < 1e-12


def test_channel_mixing_is_transformers():
    theirs = loud(modeling_rwkv.RwkvFeedForward(rwkv_config(intermediate_size=20), 0).double())
    ours = ChannelMixing(12, 20).double()
    ours.load_state_dict(theirs.state_dict())
    x = draw(2, 9, 12)
    assert relative(ours(x), theirs(x)[0]) < 1e-13


@pytest.mark.parametrize("size", [100.0, 2000.0])
def test_rwkv4_is_stable_for_large_keys(size):
    """e^k overflows float32 from k = 89 on, float64 from 710; the weighted mean of values does not."""
    mixer = build("rwkv4", 8)
    with torch.no_grad():
        mixer.key.weight.normal_(0, size)
    x = torch.randn(2, 50, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    out = mixer(x)
    out.square().sum().backward()
    assert bool(out.isfinite().all())
    assert all(bool(p.grad.isfinite().all()) for p in [x, *mixer.parameters()])
    assert relative(out.double(), mixer.double()(x.double())) < 1e-4
    keys = mixer._key_value(x.double(), x.double())[0]
    assert float(keys.detach().abs().max()) > 100


def test_rwkv4_is_not_the_form_that_paper_2_prints():
    """Appendix B: A = e^-w / (e^-w + e^k), delta = e^k / (e^-w + e^k), b = v; no bonus, no past in the denominator."""
    mixer = loud(build("rwkv4", 8).double())
    x = draw(2, 30, 8)
    before = torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
    k, v = mixer._key_value(x, before)
    fade = torch.exp(-torch.exp(mixer.time_decay))
    share = k.exp() / (fade + k.exp())
    printed = recurrence(Transition((1 - share)[..., None], v[..., None], torch.ones(1, 1, 1, 1), share[..., None]))
    r = torch.sigmoid(mixer.receptance(torch.lerp(before, x, mixer.time_mix_receptance)))
    assert relative(mixer.output(r * printed), mixer(x)) > 0.1


def test_rwkv4_first_token_is_its_own_value_whatever_the_bonus():
    mixer = build("rwkv4", 8).double()
    with torch.no_grad():
        mixer.time_first.fill_(-1e4)
    x = draw(1, 1, 8)
    value = mixer.value(x * mixer.time_mix_value)
    gate = torch.sigmoid(mixer.receptance(x * mixer.time_mix_receptance))
    assert relative(mixer(x), mixer.output(gate * value)) < 1e-12


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 50])
def test_rwkv5_is_the_naive_form_of_fla(tokens, wide):
    """fla's RWKV-6 with a decay that does not change is RWKV-5."""
    from fla.ops.rwkv6.recurrent_naive import naive_recurrent_rwkv6

    r, k, v = (draw(2, tokens, 3, 4, seed=seed) for seed in range(3))
    log_decay, bonus = -torch.exp(draw(3, 4, seed=3)), draw(3, 4, seed=4)
    heads_first = [part.transpose(1, 2) for part in (r, k, v)]
    expected, _ = naive_recurrent_rwkv6(
        *heads_first, log_decay[None, :, None].expand(2, 3, tokens, 4), bonus, scale=1.0
    )
    ours = wkv(r, k, v, log_decay.exp()) + (r * bonus * k).sum(-1, keepdim=True) * v
    assert relative(ours, expected.transpose(1, 2)) < 1e-12


@pytest.mark.parametrize("decay", [0.0, 1.0, 1e-30])
def test_rwkv5_chunks_take_any_decay(decay):
    r, k, v = (draw(1, 21, 2, 3, seed=seed).requires_grad_() for seed in range(3))
    w = torch.full((2, 3), decay, dtype=torch.float64, requires_grad=True)
    state, expected = torch.zeros(1, 2, 3, 3, dtype=torch.float64), []
    for t in range(21):
        expected.append(torch.einsum("bhk,bhkv->bhv", r[:, t], state))
        state = w[..., None] * state + k[:, t, :, :, None] * v[:, t, :, None]
    slow, fast = torch.stack(expected, 1), wkv(r, k, v, w)
    assert relative(fast, slow) < 1e-12
    weight = draw(*slow.shape, seed=9)
    for a, b in zip(*(torch.autograd.grad((y * weight).sum(), [r, k, v, w]) for y in (fast, slow)), strict=True):
        assert relative(a, b) < 1e-12


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rwkv4", {}),
        ("rwkv4", {"inner": 5, "layer": 2, "layers": 3}),
        ("rwkv5", {"head_dim": 4}),
        ("rwkv5", {"head_dim": 4, "norm": False, "gate": False, "layer": 1, "layers": 2}),
        ("rwkv5", {"polarize": "one", "head_dim": 4}),
        ("rwkv5", {"polarize": "zero", "head_dim": 4}),
        ("rwkv5", {"polarize": "both", "head_dim": 4}),
    ],
    ids=str,
)
def test_every_form_keeps_the_promises_of_a_mixer(name, options):
    check_mixer(build(name, 8, **options))


def test_wrong_head_size_is_refused():
    with pytest.raises(InputError, match="expected head_dim that divides the width of 8; got 3"):
        build("rwkv5.2", 8, head_dim=3)


@pytest.fixture
def tiny():
    root = Path(os.environ.get("REPFLOW_SHARED", Path(__file__).parents[2].parent / "shared")) / "data" / "rwkv_tiny"
    if not root.is_dir():
        pytest.skip(f"no RWKV checkpoints at {root}")
    return root


@pytest.mark.shared
@pytest.mark.parametrize(("version", "mixer"), [("4v0-660K", "rwkv4"), ("5v2-730K", "rwkv5")])
def test_real_checkpoints_give_the_expected_logits(version, mixer, tiny):
    """rwkv.cpp's own test: the logits behind the three bytes of `"in`."""
    from repflow.models.stack.network import StackConfig, StackForCausalLM

    facts, tensors = read_ggml(tiny / f"tiny-rwkv-{version}-FP32.bin")
    options = {} if mixer == "rwkv4" else {"head_dim": tensors["blocks.0.att.time_decay"].shape[1], "norm_eps": 1e-5}
    config = StackConfig(
        vocab_size=facts["vocab_size"],
        hidden_size=facts["hidden_size"],
        mixers=[{"name": mixer, **options}] * facts["layers"],
        mlp="rwkv",
        mlp_size=tensors["blocks.0.ffn.key.weight"].shape[0],
        norm="layer",
        embedding_norm=True,
    )
    model = StackForCausalLM(config).double().eval()
    model.load_state_dict(stack_weights(tensors, model.state_dict()))
    with torch.no_grad():
        logits = model(torch.tensor([list(b'"in')])).logits[0, -1].numpy()
    expected = np.fromfile(tiny / f"expected-logits-{version}.bin", "<f4")
    assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()
    assert np.abs(expected).max() > 1
