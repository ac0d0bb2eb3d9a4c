"""Recurrences by unit: against mixers' own transitions, transformers' own layers, sequential loops in float64, hand."""

import math

import pytest
import torch
from torch import nn

from repflow.core.errors import InputError
from repflow.mixers import build
from repflow.mixers.base import Mixer
from repflow.mixers.build import families
from repflow.mixers.transition import Transition
from repflow.models import load, ssm_quantities
from repflow.models.recurrence.layer import Operator, contractive_share, largest_step, operator_matrix
from repflow.models.recurrence.own import mixer_recurrence
from repflow.models.recurrence.quantities import recurrent_layers
from repflow.models.recurrence.readers import RwkvRecurrence
from tests.models.recurrence.scan_models import lively, tiny_zamba
from tests.models.tiny_configs import tiny_model

OWN = {
    "s6": {},
    "s6 polarized": {"polarize": "both", "state": 5},
    "s6 added": {"polarize": "both", "state": 3, "pole_states": "added"},
    "s6 printed": {"polarize": "both", "state": 3, "pole_states": "added", "zero_rate": -1000.0},
    "s6 placebo": {"polarize": "both", "state": 5, "placebo": True},
    "s6 signed": {"eigenvalues": "mixed"},
    "ssd": {"head_dim": 4, "groups": 2, "state": 6},
    "ssd polarized": {"polarize": "both", "state": 5, "head_dim": 4},
    "linear_attention": {"heads": 2},
    "retention": {"heads": 2},
    "gla": {"heads": 2},
    "s4d": {"state": 6},
    "h3": {"state": 4, "head_dim": 2},
    "rwkv4": {},
    "rwkv5": {"head_dim": 4},
    "rwkv5 polarized": {"head_dim": 4, "polarize": "both"},
    "rg_lru": {"heads": 2},
    "delta_net": {"heads": 2, "negative": True},
    "gated_delta_net": {"heads": 2, "value_heads": 4},
    "kda": {"heads": 2},
    "hgrn2": {"heads": 2, "lower": 0.2},
    "min_gru": {"expand": 2},
    "min_lstm": {"positive": False},
    "mlstm": {"heads": 2},
}
DELTA = ("delta_net", "gated_delta_net", "kda")
"""Their transition is not diagonal: see test_delta."""


def made(name):
    torch.manual_seed(hash_free(name))
    mixer = build(name.split()[0], 8, **OWN[name]).double()
    for parameter in mixer.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.4)
    return mixer, torch.randn(2, 9, 8, dtype=torch.float64)


def hash_free(name):
    return sum(map(ord, name))


def loop(matrix_parts, x):
    """y_t by the plainest loop, for one unit: parts A, e, c (token, state)."""
    A, e, c = matrix_parts
    h, outputs = torch.zeros(A.shape[-1], dtype=torch.complex128), []
    for t in range(len(x)):
        h = A[t] * h + e[t] * x[t]
        outputs.append((c[t] * h).sum().real)
    return torch.stack(outputs)


def test_every_recurrent_family_is_tried():
    assert {name.split()[0] for name in OWN} == {f for f in families() if f != "softmax_attention"}


@pytest.mark.parametrize("name", OWN)
@torch.no_grad()
def test_readout_of_own_mixers(name):
    """What the states give, read out by the mixer itself, is the mixer's output."""
    mixer, x = made(name)
    recurrence = mixer_recurrence(mixer, x)
    if name == "rwkv4":  # its mean has the bonus in already
        r = torch.sigmoid(mixer.receptance(torch.lerp(shifted(x), x, mixer.time_mix_receptance)))
        torch.testing.assert_close(mixer.output(r * recurrence.output()), mixer(x), rtol=1e-9, atol=1e-11)
        return
    y = recurrence.output()
    if name == "mlstm":  # divided by the normaliser already
        y = torch.nn.functional.pad(y.unflatten(2, (2, -1)), (0, 1)).flatten(2)
        gate = torch.sigmoid(mixer.ogate_preact(x))
        out = mixer.multihead_norm(y.unflatten(2, (2, -1))[..., :-1]) * gate
        torch.testing.assert_close(mixer.out_proj(out), mixer(x), rtol=1e-9, atol=1e-11)
        return
    torch.testing.assert_close(mixer.readout(y, x), mixer(x), rtol=1e-9, atol=1e-11)


def shifted(x):
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


@pytest.mark.parametrize("name", [name for name in OWN if name not in ("rwkv4", "mlstm", *DELTA)])
@torch.no_grad()
def test_transition_is_the_mixers(name):
    mixer, x = made(name)
    recurrence = mixer_recurrence(mixer, x)
    want = mixer.transition(x)
    full = torch.broadcast_shapes(*(part.shape for part in want))
    for ours, theirs, part in zip(recurrence.transition(), want, want._fields, strict=True):
        ours, theirs = ours.expand(full), theirs.expand(full)
        later = slice(1, None) if part == "A" and name == "rg_lru" else slice(None)  # 0 at the first token, or anything
        torch.testing.assert_close(ours[:, later], theirs[:, later], rtol=1e-12, atol=1e-14)
    pieces = [recurrence.transition(slice(i, i + 2)) for i in range(0, 9, 2)]
    for index, part in enumerate(want):
        whole = torch.cat([p[index].expand(*([-1] * 1), min(2, 9 - 2 * i), -1, -1) for i, p in enumerate(pieces)], 1)
        if not (name == "rg_lru" and index == 0):
            torch.testing.assert_close(whole, part.expand_as(whole))
    decay = want.A.abs().expand(*full[:3], -1)[:, :, :: recurrence.dim]
    ours = recurrence.log_decay().exp().expand_as(decay)
    torch.testing.assert_close(ours[:, 1:], decay[:, 1:].to(ours.dtype), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", OWN)
@torch.no_grad()
def test_matrix_makes_the_output_of_inputs(name):
    mixer, x = made(name)
    recurrence = mixer_recurrence(mixer, x)
    assert recurrence.units * recurrence.dim == recurrence.mixed().shape[-1]
    units = torch.arange(recurrence.units)
    want = torch.unflatten(recurrence.mixed(), 2, (recurrence.units, recurrence.dim))
    for sample in range(2):
        P = recurrence.matrix(units, sample)
        assert P.dtype == torch.float64
        assert not P.triu(1).any()
        y = torch.einsum("uts,sud->tud", P, recurrence.inputs(units)[sample])
        torch.testing.assert_close(y, want[sample], rtol=1e-9, atol=1e-11)
    some = units.flip(0)[:2]
    torch.testing.assert_close(recurrence.matrix(some, 1), recurrence.matrix(units, 1)[some])


@pytest.mark.parametrize(
    "name", [name for name in OWN if name not in ("rwkv4", "rg_lru", "min_gru", "min_lstm", *DELTA)]
)
@torch.no_grad()
def test_own_mixers_keep_nothing_of_tokens_times_channels_times_states(name):
    """No tensor that the recurrence holds is as large as the states of all tokens."""
    mixer, x = made(name)
    recurrence = mixer_recurrence(mixer, x)
    shape = torch.broadcast_shapes(*(part.shape for part in recurrence.transition()))
    assert shape[3] > 1
    values = [value for value in vars(recurrence).values() if isinstance(value, torch.Tensor)]
    if getattr(recurrence, "call", None) is not None:
        values += [part for part in vars(recurrence.call).values() if isinstance(part, torch.Tensor)]
    assert values
    assert max(part.numel() for part in values) < shape.numel()


class Strange(Mixer):
    """A mixer that repflow does not know: h_t = h_{t−1} / 2 + x_t² and its sum over two states."""

    family = "strange"

    def transition(self, x):
        half = x.new_tensor([0.5, 0.25])
        return Transition(half, x.square()[..., None], x[..., None], x.new_tensor([1.0, 2.0]))


@torch.no_grad()
def test_a_mixer_of_ones_own_has_a_map_of_what_tokens_give():
    x = torch.randn(2, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    recurrence = mixer_recurrence(Strange(3), x)
    P = recurrence.matrix(torch.arange(3), 1)
    gap = (torch.arange(7)[:, None] - torch.arange(7)).clamp(min=0)
    want = x[1].T[:, :, None] * x[1].T.square()[:, None] * (0.5**gap + 2 * 0.25**gap).double().tril()
    torch.testing.assert_close(P, want)
    torch.testing.assert_close(P.sum(-1).T, recurrence.mixed()[1])
    assert (recurrence.inputs(torch.arange(3)) == 1).all()


@pytest.mark.parametrize("name", ["s6", "ssd", "rg_lru", "gla", "s4d"])
@torch.no_grad()
def test_matrix_against_a_loop(name):
    mixer, x = made(name)
    recurrence = mixer_recurrence(mixer, x)
    unit = torch.tensor([1])
    A, e, c, inputs, _ = recurrence.operator(unit)
    parts = [part.expand(2 if part.shape[0] > 1 else 1, 9, 1, -1)[0, :, 0].to(torch.complex128) for part in (A, e, c)]
    want = loop(parts, inputs[0, :, 0, 0])
    torch.testing.assert_close(recurrence.matrix(unit, 0)[0] @ inputs[0, :, 0, 0].double(), want)


def test_softmax_rows_of_rwkv_by_hand():
    """Two tokens: row 2 weighs e^{k_1} against e^{u + k_2}, without decay; row 3 decays k_1 once."""
    k = torch.tensor([[[0.5], [-1.0], [2.0]]])
    recurrence = RwkvRecurrence(torch.tensor([0.7]), torch.tensor([0.3]), k, torch.tensor([[[1.0], [2.0], [4.0]]]))
    P = recurrence.matrix(torch.tensor([0]), 0)[0]
    row = [math.exp(0.5 - 0.7), math.exp(-1.0), math.exp(2.3)]
    assert P[1].tolist() == pytest.approx([math.exp(0.5) / (math.exp(0.5) + math.exp(-0.7)), P[1, 1].item(), 0])
    assert P[2].tolist() == pytest.approx([w / sum(row) for w in row])
    A = recurrence.log_decay().exp().flatten()
    den = [math.exp(0.5), math.exp(0.5 - 0.7) + math.exp(-1.0)]
    assert A[:2].tolist() == pytest.approx([0, math.exp(-0.7) * den[0] / den[1]])
    assert torch.equal(recurrence.met(), torch.ones(1, 3))


def watch(model, ids, take, hooks=()):
    """Quantities of a pass, and the tensors that hooks keep."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks]
    values = []
    with ssm_quantities(model, lambda layer, q: values.append(take(q))):
        model.stream(ids, on_state=lambda *_: None)
    for handle in handles:
        handle.remove()
    return values


def test_rwkv_against_its_own_layer(ids):
    model = load(tiny_model("rwkv"))
    attentions = [block.attention for block in model.blocks]
    gates, gated = [], []
    hooks = [(a.receptance, lambda m, i, o: gates.append(o.sigmoid())) for a in attentions]
    hooks += [(a.output, lambda m, i, o: gated.append(i[0])) for a in attentions]

    def take(q):
        assert (q.kind, q.call, q.tokens) == ("rwkv", None, 20)
        units = torch.arange(q.recurrence.units)
        P = torch.stack([q.recurrence.matrix(units, sample) for sample in range(3)])
        return q.output(), torch.einsum("buts,bsu->btu", P, q.recurrence.inputs(units)[..., 0].double())

    for (out, by_matrix), gate, want in zip(watch(model, ids, take, hooks), gates, gated, strict=True):
        assert float(want.abs().max()) > 1e-3
        torch.testing.assert_close(gate * out, want, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(gate * by_matrix.float(), want, rtol=1e-4, atol=1e-6)


def test_recurrent_gemma_against_its_own_layer(ids):
    model = load(tiny_model("recurrent_gemma"))
    assert recurrent_layers(model) == dict.fromkeys((0, 1, 3, 4), "rg_lru")
    units, outputs = [block.temporal_block.rg_lru for i, block in enumerate(model.blocks) if i % 3 != 2], []
    hooks = [(unit, lambda m, i, o: outputs.append(o)) for unit in units]
    for (kind, out, matrix, x), want in zip(
        watch(model, ids, lambda q: (q.kind, q.output(), q.recurrence.matrix(torch.arange(32), 2),
                                     q.recurrence.inputs(torch.arange(32))[2, ..., 0].double()), hooks),
        outputs, strict=True,
    ):  # fmt: skip
        assert kind == "rg_lru"
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(torch.einsum("uts,su->tu", matrix, x).float(), want[2], rtol=1e-4, atol=1e-6)


def test_cached_state_is_refused(ids):
    model = load(tiny_model("rwkv"))
    message = "a prompt from its first token on; got a call that goes on from a cached"
    with pytest.raises(InputError, match=message), ssm_quantities(model, lambda _, q: q.decay()):
        model.network(ids, use_cache=True)


def test_zamba_has_a_recurrence_per_head(ids):
    model = load(lively("zamba"))
    assert tiny_zamba().config.n_mamba_heads == 2
    parts = watch(model, ids, lambda q: (q.layer, q.part, q.recurrence.units))
    assert parts[:2] == [(0, 0, 32), (0, 1, 32)]


@pytest.mark.parametrize(("rate", "want"), [(2, 0.796812), (3, 0.940480), (4, 0.980173), (16, 0.99999989)])
def test_largest_step_is_the_root(rate, want):
    step = float(largest_step(torch.tensor(float(rate))))
    assert step == pytest.approx(want, abs=1e-6)
    assert math.exp(-rate * step) + step == pytest.approx(1, abs=1e-15)


def test_a_of_one_never_meets_the_hypothesis_however_small_the_step():
    """In float32 exp(−1e-5) + 1e-5 rounds to 1: a sum would say that it is met."""
    delta = torch.tensor([[[1e-5, 1e-5]]])
    assert float(torch.exp(-delta[0, 0, 0]) + delta[0, 0, 0]) <= 1
    assert contractive_share(largest_step(torch.tensor([[1.0], [2.0]])), delta).item() == 0.5
    assert contractive_share(largest_step(torch.tensor([[1.0], [2.0]])), torch.tensor([[[0.5, 0.9]]])).item() == 0


def test_decays_of_zero_lose_nothing():
    A, one = torch.tensor([0.5, 0.0, 0.5]).view(1, 3, 1, 1), torch.ones(1, 3, 1, 1)
    want = [[1, 0, 0], [0, 1, 0], [0, 0.5, 1]]
    assert operator_matrix(Operator(A, one, one, one), 0, 3)[0].tolist() == want
    two = A.expand(1, 3, 1, 2)
    half = 0.5 * one.expand(1, 3, 1, 2)
    assert operator_matrix(Operator(two, one.expand(1, 3, 1, 2), half, one), 0, 3)[0].tolist() == want
