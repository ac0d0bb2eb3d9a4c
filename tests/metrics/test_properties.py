"""One table of properties that runs over every metric of the catalogue, and the identities between metrics."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repflow import metrics as m
from repflow.core.catalogue import METRICS
from repflow.metrics.flow import FlowMeter
from repflow.metrics.meter import HeldMeter
from repflow.metrics.streaming_cka import CkaMeter
from tests.metrics.inputs import feed, sample_states

FIRST_OF_TWO = {"gram_share", "channel_share"}
"""These return (value, where); the table is about the value."""
ONE_SET = sorted(name for name, facts in METRICS.items() if facts.inputs == 1)
TWO_SETS = sorted(name for name, facts in METRICS.items() if facts.inputs == 2)

shapes = st.tuples(st.integers(4, 6), st.integers(2, 3), st.integers(5, 9), st.integers(2, 6))
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=12, deadline=None)


def measure(name, hidden):
    """The metric of hidden (state, batch, token, width)."""
    if name in TWO_SETS:
        a, b = list(hidden[:, 0]), list(hidden[:, 1])
        return getattr(m, name)(a, b, k=2)
    value = getattr(m, name)(hidden)
    return value[0] if name in FIRST_OF_TWO else value


def draw(seed, shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).cumsum(0) + 0.2)


def same(name, got, want):
    torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9, equal_nan=True, msg=lambda text: f"{name}: {text}")


def rotated(hidden, rng):
    turn, _ = np.linalg.qr(rng.standard_normal((hidden.shape[-1], hidden.shape[-1])))
    return hidden @ torch.from_numpy(turn)


def token_scaled(hidden, rng):
    return hidden * torch.from_numpy(rng.uniform(0.2, 5, (*hidden.shape[:3], 1)))


def shifted(hidden, rng):
    return hidden + torch.from_numpy(rng.standard_normal(hidden.shape[-1]))


CHANGES = {
    "rotation": rotated,
    "scale": lambda hidden, rng: hidden * rng.uniform(0.1, 10),
    "token_scale": token_scaled,
    "shift": shifted,
    "depth_reversal": lambda hidden, rng: hidden.flip(0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", sorted(METRICS))
def test_declared_invariances_hold_and_no_other(name, change):
    broken = []

    @few
    @given(seeds, shapes)
    def check(seed, shape):
        hidden = draw(seed, shape)
        value = measure(name, hidden)
        moved = measure(name, CHANGES[change](hidden, np.random.default_rng(seed + 1)))
        if change in METRICS[name].invariances:
            same(name, moved, value)
        else:
            broken.append(not torch.allclose(moved, value, rtol=1e-6, atol=1e-8, equal_nan=True))

    check()
    assert change in METRICS[name].invariances or any(broken), f"{name} is invariant to {change}: declare it"


@pytest.mark.parametrize("name", sorted(METRICS))
@few
@given(seed=seeds, shape=shapes)
def test_token_order(name, seed, shape):
    """Every metric ignores the order of tokens; per-token values move along with them."""
    assert "token_order" in METRICS[name].invariances
    hidden = draw(seed, shape)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(shape[2]))
    value = measure(name, hidden)
    want = value[..., order] if METRICS[name].axes[-1] == "token" else value
    same(name, measure(name, hidden[:, :, order]), want)


@pytest.mark.parametrize("name", sorted(METRICS))
@few
@given(seed=seeds, shape=shapes, factor=st.floats(0.1, 10))
def test_scale_power(name, seed, shape, factor):
    facts = METRICS[name]
    assert ("scale" in facts.invariances) == (facts.scales == 0)
    if facts.scales is not None:
        hidden = draw(seed, shape)
        same(name, measure(name, factor * hidden), factor**facts.scales * measure(name, hidden))


@pytest.mark.parametrize("name", sorted(METRICS))
@few
@given(
    seed=seeds,
    shape=shapes,
    kind=st.sampled_from(["walk", "sink", "collapsed", "opposite", "tiny", "huge"]),
)
def test_range(name, seed, shape, kind):
    hidden = draw(seed, shape)
    if kind == "sink":
        hidden[:, :, 0] *= 1e3
    elif kind == "collapsed":
        hidden = hidden[:, :, :1] + 1e-6 * hidden
    elif kind == "opposite":
        hidden = hidden[:, :, :1] * torch.tensor([1.0, -1.0] * 5)[: shape[2], None]
    elif kind in ("tiny", "huge"):
        hidden = hidden * {"tiny": 1e-9, "huge": 1e9}[kind]
    value = measure(name, hidden)
    value = value[value.isfinite()]
    assert (value >= METRICS[name].low - 1e-9).all()
    assert (value <= METRICS[name].high + 1e-9).all()


def test_streaming_axes_and_values_are_the_catalogues():
    """Every one-set metric is in some meter's table under its own name, with the axes the catalogue declares."""
    samples = sample_states(7, (6, 9, 5))
    held = HeldMeter({"effective_rank": (("state",), m.effective_rank)})
    tables = {}
    for meter in (FlowMeter(4, 9, keep=frozenset(range(3)), direction=True, printed=True), CkaMeter(), held):
        tables |= feed(meter, samples, [[0, 2], [1]]).compute()
    for name in ONE_SET:
        stored = name if name in tables else f"kept/{name}"
        axes, array = tables[stored]
        assert axes == METRICS[name].axes, name
        assert array.ndim == len(axes), name
        assert array.shape[axes.index("sample")] == 3, name
        finite = array[np.isfinite(array)]
        assert finite.size, name
        assert (finite >= METRICS[name].low - 1e-9).all(), name
        assert (finite <= METRICS[name].high + 1e-9).all(), name
    np.testing.assert_allclose(tables["effective_rank"][1][:, 1], m.effective_rank(samples[1]), rtol=1e-9)


@few
@given(seed=seeds, shape=shapes)
def test_cka_is_symmetric_with_ones_on_the_diagonal(seed, shape):
    value = m.cka_matrix(draw(seed, shape))
    same("cka_matrix", value, value.transpose(0, 1))
    same("cka_matrix", torch.diagonal(value, dim1=0, dim2=1), torch.ones(shape[1], shape[0], dtype=torch.float64))


@few
@given(seed=seeds, shape=shapes)
def test_sharpness_of_directions_is_what_similarity_lacks(seed, shape):
    hidden = draw(seed, shape)
    unit = hidden / hidden.norm(dim=-1, keepdim=True)
    same("sharpness", m.sharpness(unit), 1 - m.token_similarity(hidden))


@few
@given(seed=seeds, shape=shapes)
def test_similarity_bounds_and_means(seed, shape):
    hidden = draw(seed, shape)
    value = m.token_similarity(hidden)
    assert (value >= -1 / (shape[2] - 1) - 1e-12).all()
    same("by_token", m.token_similarity_by_token(hidden).mean(-1), value)
    centred = hidden - hidden.mean(2, keepdim=True)
    assert (m.token_similarity(centred) >= -1 / (shape[2] - 1) - 1e-12).all()
    # the bound is reached when the unit vectors add up to zero
    pair = torch.stack([hidden[:, :, 0], -hidden[:, :, 0]], 2)
    same("similarity of opposites", m.token_similarity(pair), torch.full(shape[:2], -1.0, dtype=torch.float64))
    same("sharpness", m.sharpness(hidden), (1 - m.common_share(hidden)) * shape[2] / (shape[2] - 1))


@few
@given(seed=seeds, shape=shapes, smooth=st.booleans())
def test_two_sided_poincare_bound(seed, shape, smooth):
    """Lemma 1: E / (4 n d S cos²θ) ≤ St_L² ≤ E / (4 n d S sin²θ), θ = π / (2 S), tight from above."""
    states, _, tokens, width = shape
    hidden = draw(seed, shape)
    theta = np.pi / (2 * states)
    if smooth:  # the extremal path cos(π (l + ½) / S)
        path = torch.cos(torch.pi * (torch.arange(states, dtype=torch.float64) + 0.5) / states)
        hidden = path[:, None, None, None] * hidden[:1]
    energy = m.path_energy(hidden) / (4 * tokens * width * states)
    value = m.depth_stability(hidden)
    assert (value <= energy / np.sin(theta) ** 2 * (1 + 1e-12)).all()
    assert (value >= energy / np.cos(theta) ** 2 * (1 - 1e-12)).all()
    if smooth:
        same("equality", value, energy / np.sin(theta) ** 2)


@few
@given(seed=seeds, shape=shapes)
def test_depth_identities(seed, shape):
    hidden = draw(seed, shape)
    assert (m.stability(hidden) ** 2 <= m.depth_stability(hidden) + 1e-12).all()
    two = hidden[:2]
    change = two[1] - two[0]
    same("St at one block", m.stability(two), change.abs().mean((1, 2)) / 2)
    entries = shape[2] * shape[3]
    same("St_1²", m.depth_stability(two), change.square().sum((1, 2)) / (4 * entries))
    same("per entry", m.path_energy(two, per_entry=True), m.path_energy(two) / entries)
    straight = two[0] + torch.arange(5, dtype=torch.float64)[:, None, None, None] * change
    same("a straight path is smooth", m.smoothness(straight), torch.zeros(shape[1], dtype=torch.float64))


@few
@given(seed=seeds, shape=shapes)
def test_effective_rank_bounds(seed, shape):
    hidden = draw(seed, shape)
    value = m.effective_rank(hidden)
    assert (value <= min(shape[2] - 1, shape[3]) + 1e-9).all()
    line = hidden[:, :, :, :1] * torch.ones(shape[3], dtype=torch.float64)
    same("one direction", m.effective_rank(line), torch.ones(shape[:2], dtype=torch.float64))


def test_two_set_metrics_are_declared():
    """What the table measures on two sets of states is marked so, and only `compare` offers it."""
    assert TWO_SETS == ["mutual_neighbours"]
    assert not any(METRICS[name].default for name in TWO_SETS)
