"""Token reordering: SoftSort against a sort, causal forms against plain loops, the leaky form refused."""

import itertools
import warnings
from functools import partial

import pytest
import torch

from repflow.core.errors import InputError
from repflow.mixers import build, check_mixer
from repflow.mixers.base import Mixer
from repflow.mixers.reorder import Reordered, TokenOrder, soft_sort
from tests.mixers.mamba_oracles import loud, relative

WIDTH = 8
FAMILIES = {"s6": {"state": 4}, "softmax_attention": {"heads": 2}, "h3": {"state": 4}}


def scores(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reordered(name, **options):
    torch.manual_seed(0)
    return loud(Reordered(build(name, WIDTH, **FAMILIES[name]), **options).double()).eval()


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_softsort_is_a_sort_in_the_limit(descending, power):
    values = scores(3, 7)
    P = soft_sort(values, temperature=1e-5**power, power=power, descending=descending)
    assert relative((P @ values[..., None])[..., 0], values.sort(-1, descending=descending).values) < 1e-6
    exact = soft_sort(values, hard=True, descending=descending)
    assert torch.equal((exact @ values[..., None])[..., 0], values.sort(-1, descending=descending).values)
    assert relative(P, exact) < 1e-6


def test_softsort_is_the_printed_formula():
    """Rows of softmax(−|sort(s) 1ᵀ − 1 sᵀ|^p / τ), by two loops."""
    values, tau, p = scores(5), 0.3, 2.0
    said = torch.empty(5, 5, dtype=torch.float64)
    for i, j in itertools.product(range(5), range(5)):
        said[i, j] = torch.exp(-((values.sort().values[i] - values[j]).abs() ** p) / tau)
    assert relative(soft_sort(values, temperature=tau, power=p), said / said.sum(1, keepdim=True)) < 1e-12


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_gradient_of_softsort_by_finite_differences(power):
    values = scores(2, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: soft_sort(s, temperature=0.7, power=power), values)


def test_a_hard_sort_has_the_soft_ones_gradient():
    values, weight = scores(6).requires_grad_(), scores(6, 6, seed=1)
    pair = []
    for hard in (True, False):
        (gradient,) = torch.autograd.grad((soft_sort(values, hard=hard, temperature=0.5) * weight).sum(), values)
        pair.append(gradient)
    assert torch.equal(*pair)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("options", [{"form": "chunks", "chunk": 4}, {"form": "prefix"}], ids=lambda o: o["form"])
def test_causal_forms_keep_every_promise_of_a_mixer(name, options):
    mixer = reordered(name, **options)
    report = check_mixer(mixer, long=30)
    assert {"causality", "length", "gradient"} <= report.errors.keys()
    x = scores(1, 14, WIDTH)
    whole = mixer(x)
    for count in range(1, 14):  # every length, so every place in a chunk
        assert relative(mixer(x[:, :count]), whole[:, :count]) < 1e-9


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"hard": True}, {"form": "prefix"}], ids=["chunks", "hard", "prefix"])
def test_causal_forms_are_checked_at_every_length(name, options):
    """Up to a chunk nothing is sorted, so that no gradient reaches K; beyond it one must."""
    chunk = 4
    mixer = reordered(name, chunk=chunk, **options)
    for tokens in (1, chunk - 1, chunk, chunk + 1, 2 * chunk + 3):
        check_mixer(mixer, tokens=max(tokens, 3), long=tokens)  # the shorter sequence has three at least


@pytest.mark.parametrize(
    ("unused", "words"),
    [
        (lambda tokens: (), "reaches order.K .*got a gradient that is none"),
        (lambda tokens: ("order.K",) if tokens < 8 else (), "no gradient at order.K, unused by 6 tokens"),
        (lambda tokens: ("order.K",), "order.K, unused at any length"),
    ],
    ids=["not named", "named but used", "never used"],
)
def test_wrong_names_of_unused_parameters_are_refused(monkeypatch, unused, words):
    mixer = reordered("s6", chunk=4)
    monkeypatch.setattr(Reordered, "unused", lambda self, tokens: unused(tokens))
    with pytest.raises(InputError, match=words):
        check_mixer(mixer, tokens=4, long=6)


def test_gates_are_moved_where_there_are_any():
    for name in ("softmax_attention", "h3"):
        with pytest.raises(InputError, match=f"gate=True around {name}, which has none"):
            Reordered(build(name, WIDTH, **FAMILIES[name]), form="whole", gate=True)
    with pytest.raises(InputError, match="which has none"):
        Reordered(build("s6", WIDTH, gate=False), form="prefix", gate=True)
    with torch.device("meta"):
        assert Reordered(build("s6", WIDTH), form="whole", gate=True).order.gate


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"hard": True, "descending": True}, {"order": "random"}])
def test_chunks_are_read_behind_sorted_ones(name, options):
    """The fast forms, by a pass over [sorted earlier chunks, own chunk up to the token] for every token."""
    mixer, size = reordered(name, form="chunks", chunk=4, **options), 4
    x = scores(2, 11, WIDTH)
    tokens, gate = mixer.inner.enter(x)
    features = mixer.inner.score_features(tokens)
    rows = []
    for token in range(11):
        start = token // size * size
        parts = [
            mixer.order.matrix(features[:, at : at + size]) @ tokens[:, at : at + size] for at in range(0, start, size)
        ]
        sequence = torch.cat([*parts, tokens[:, start : token + 1]], 1)
        rows.append(mixer.inner.core(sequence)[:, -1:])
    said = mixer.inner.leave(torch.cat(rows, 1), gate)
    assert relative(mixer(x), said) < 1e-9


@pytest.mark.parametrize(("conv", "head_dim", "tokens"), [(None, 1, 33), (0, 2, 8), (3, 2, 13)])
def test_h3_behind_chunks_equals_a_pass_per_chunk(conv, head_dim, tokens):
    torch.manual_seed(0)
    mixer = loud(build("h3", WIDTH, state=4, conv=conv, head_dim=head_dim).double())
    inputs = [scores(2, count, WIDTH, seed=count).requires_grad_() for count in ((tokens - 1) // 4 * 4, tokens)]
    ends = []
    for way in (mixer.core_behind, partial(Mixer.core_behind, mixer)):
        y = way(*inputs, 4)
        ends.append([y, *torch.autograd.grad(y.square().sum(), [*inputs, *mixer.parameters()])])
    assert all(relative(fast, plain) < 1e-9 for fast, plain in zip(*ends, strict=True))


@pytest.mark.parametrize("form", ["whole", "chunks", "prefix"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_identity_order_is_the_plain_mixer(name, form):
    mixer = reordered(name, form=form, order="identity", chunk=4)
    x = scores(2, 10, WIDTH)
    assert relative(mixer(x), mixer.inner(x)) < 1e-9
    assert mixer.order.K is None
    check_mixer(mixer, long=20)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("restore", [False, True])
def test_the_papers_form_by_a_sort_of_the_channels(restore, gate):
    """Algorithm 1 with a hard sort: u in order of ⟨K, S_Δ u⟩, scan, and gates and outputs moved or not."""
    mixer = reordered("s6", form="whole", hard=True, restore=restore, gate=gate)
    s6, x = mixer.inner, scores(1, 9, WIDTH)
    u, z = s6._project(x)
    step = s6.dt_proj(s6.x_proj(u)[..., : s6.dt_rank])
    order = (step @ mixer.order.K)[0].argsort()
    y, back = s6.core(u[:, order]), order.argsort()
    # put back, the gate meets its own token either way
    said = s6._finish(y[:, back], z) if restore else s6._finish(y, z[:, order] if gate else z)
    assert relative(mixer(x), said) < 1e-9


def test_each_prefix_is_sorted_by_itself():
    for restore in (False, True):
        mixer = reordered("s6", form="prefix", hard=True, restore=restore)
        s6, x = mixer.inner, scores(1, 7, WIDTH)
        u, z = s6._project(x)
        importance = (s6.score_features(u) @ mixer.order.K)[0]
        for token in range(7):
            order = importance[: token + 1].argsort()
            y = s6.core(u[:, order])
            place = int((order == token).nonzero()) if restore else token
            said = s6._finish(y[:, place], z[:, token])
            assert relative(mixer(x)[:, token], said) < 1e-9


@pytest.mark.parametrize("order", ["sorted", "random"])
def test_the_leaky_form_is_refused_unless_named(order):
    mixer = reordered("s6", form="whole", order=order)
    assert mixer.order.looks_ahead
    with pytest.raises(InputError, match=r"check 'causality' of reordered"):
        check_mixer(mixer, long=20)
    report = check_mixer(mixer, long=20, leaky=True)
    assert "causality" not in report.errors
    assert report.errors["gradient"] < 1e-5


def test_a_random_order_is_fixed_and_longer_ones_begin_alike():
    order, other = TokenOrder(4, order="random"), TokenOrder(4, order="random", seed=1)
    x = torch.zeros(2, 20, 4)
    assert torch.equal(order.matrix(x), order.matrix(x + 1))
    assert not torch.equal(order.matrix(x), other.matrix(x))
    assert torch.equal(order.scores(x)[:, :7], order.scores(x[:, :7]))


@pytest.mark.parametrize("order", ["identity", "random"])
def test_scores_of_a_control_stay_where_a_recorded_step_reads_them(order):
    control, x = TokenOrder(4, order=order), torch.zeros(2, 20, 4)
    with torch.inference_mode():
        first = control.scores(x)
    place = first.data_ptr()
    for count in (3, 40, 20):
        again = control.scores(torch.zeros(2, count, 4))
    assert again.data_ptr() == place
    assert not again.is_inference()


BAD = {
    "temperature 0": ({"temperature": 0.0}, "hard=True"),
    "temperature nan": ({"temperature": float("nan")}, "temperature above 0"),
    "power 0": ({"power": 0.0}, "power above 0"),
    "form": ({"form": "chunk"}, "did you mean chunks"),
    "order": ({"order": "sort"}, "did you mean sorted"),
    "chunk": ({"chunk": 0}, "chunk of at least 1"),
    "gate": ({"gate": True}, "gates and outputs in order"),
    "restore": ({"restore": False}, "gates and outputs in order"),
    "leaky": ({"leaky": True}, "this form is causal"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_options_are_refused(case):
    options, words = BAD[case]
    with pytest.raises(InputError, match=words):
        TokenOrder(4, **options)


def test_scores_without_an_order_are_refused():
    for bad in ("nan", "inf", "-inf"):
        for values in (torch.tensor([0.0, float(bad)]), torch.tensor([[0.0, 1.0], [0.0, float(bad)]])):
            with pytest.raises(InputError, match=f"{bad} at token 1"):
                soft_sort(values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match="nan at token 0"):
            soft_sort(torch.tensor([float("nan"), 1.0], requires_grad=True))
    with pytest.raises(InputError, match=r"scores \(..., token\); got a number without axes; .* scores\[None\]"):
        soft_sort(torch.tensor(1.0))
    tied = torch.tensor([1.0, 1.0, 0.0])
    with pytest.raises(InputError, match="1 pairs of equal scores"):
        soft_sort(tied, ties="refuse")
    seen = torch.tensor([True, False, True])
    assert soft_sort(tied, ties="refuse", seen=seen, hard=True).argmax(-1).tolist()[:2] == [2, 0]
    order = TokenOrder(1, ties="refuse")
    with pytest.raises(InputError, match="pairs of equal scores"):
        order.matrix(torch.ones(1, 3, 1))
    assert soft_sort(tied, hard=True).argmax(-1).tolist() == [2, 0, 1]
    assert soft_sort(tied, temperature=1e-3)[1].tolist() == [0.5, 0.5, 0.0]


def test_scores_are_not_rounded_by_autocast():
    """In bfloat16 256 scores within one binade have 128 values at most, so that a sort leaves most in place."""
    order, features = TokenOrder(1, hard=True), 1 + torch.arange(256.0)[:, None] / 257
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        order.K.fill_(1.0)
        P = order.matrix(features.flip(0))
    assert P.argmax(-1).tolist() == list(range(255, -1, -1))
