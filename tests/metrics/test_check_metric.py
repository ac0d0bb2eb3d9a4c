"""check_metric passes what keeps its promises and names the promise that is broken."""

import dataclasses

import pytest
import torch

from repflow import metrics
from repflow.core.catalogue import METRICS
from repflow.core.errors import InputError
from repflow.metrics import check_metric
from repflow.metrics.custom import CUSTOM, register_metric
from repflow.metrics.meter import HeldMeter

ONE_SET = sorted(name for name, facts in METRICS.items() if facts.inputs == 1)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Leave no metric behind."""
    before = dict(CUSTOM)
    yield
    CUSTOM.clear()
    CUSTOM.update(before)


@pytest.mark.parametrize("name", ONE_SET)
def test_every_metric_of_the_catalogue_keeps_its_promises(name):
    report = check_metric(name)
    assert report.name == name
    assert not report.also, "declare it in the catalogue"
    assert {"axes", "range", "padding", "batch", "streaming", "not finite"} <= report.errors.keys()
    assert ("gradient" in report.errors) == METRICS[name].differentiable


def size(hidden):
    return hidden.abs().mean((1, 2))


def test_a_function_of_ones_own():
    report = check_metric(size, low=0, invariances=["token_order"], differentiable=True)
    assert report.axes == ("state",)
    assert report.also == ()
    assert "size (state): 8 checks passed" in str(report)
    register_metric(size, axes=("state",))
    assert check_metric("size").also == ("token_order",)
    assert "also unchanged by token_order" in str(check_metric("size"))


def test_axes_registered_for_a_function_are_used():
    first = register_metric(lambda hidden: hidden[:, :3, 0], axes=("state", "rank"), name="first")
    assert check_metric(first).axes == ("state", "rank")


def counting():
    calls = []

    def drifting(hidden):
        calls.append(1)
        return size(hidden) + len(calls)

    return drifting


def writes(hidden):
    hidden[:, 0] = 0
    return size(hidden)


def filled(hidden):
    return hidden.nan_to_num(0, 0, 0).abs().mean((1, 2))


def brittle(hidden):
    return torch.linalg.eigvalsh(hidden.mT @ hidden)[:, -1] if bool(hidden.isfinite().all()) else int("nan")


def spreading(hidden):
    return hidden.abs().mean((1, 2)) / hidden.abs().mean().clamp(min=1e9) + 0 * hidden.sum()


def kinked(hidden):
    return hidden.detach().square().mean((1, 2)) * hidden.mean((1, 2))


def batched(hidden, *, mask=None):
    """A mean over real tokens, of one sample or of a batch."""
    keep = torch.ones(hidden.shape[1:-1], dtype=torch.bool) if mask is None else mask
    held = torch.where(keep[..., None], hidden, 0).abs().mean(-1)
    return held.sum(-1) / keep.sum(-1)


def leaks_padding(hidden, *, mask=None):
    return hidden.abs().mean((-1, -2))


def leaks_samples(hidden, *, mask=None):
    value = batched(hidden, mask=mask)
    return value / value.max(-1, keepdim=True).values if hidden.ndim == 4 else torch.ones_like(value)


def root(hidden, *, mask=None):
    """Its value is right; its derivative at zero padding is not finite."""
    keep = torch.ones(hidden.shape[1:-1], dtype=torch.bool) if mask is None else mask
    return torch.where(keep, hidden.square().sum(-1).sqrt(), 0).sum(-1) / keep.sum(-1)


def test_a_function_that_takes_batches():
    assert check_metric(batched, axes=("state",), differentiable=True).errors["padding"] < 1e-12


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (
            size,
            {"axes": ("layer",)},
            r"axes \(layer = 4\) \(check 'axes' of size\); got shape \(5,\); declare",
        ),
        (counting(), {"axes": ("state",)}, "the same value when called again .* keep no state between calls"),
        (writes, {"axes": ("state",)}, "states left unchanged .* work on a copy"),
        (size, {"high": 1.0}, r"values within \[-inf, 1\], also on \w+ states \(check 'range' of size\)"),
        (size, {"invariances": ["rotation"]}, r"rotation does not change \(check 'invariance to rotation' of size\)"),
        (leaks_padding, {"axes": ("state",)}, "a value that padding with 0 does not change .* use `mask`"),
        (
            leaks_samples,
            {"axes": ("state",)},
            "the same value of a sample whatever else is in the batch .* no statistic",
        ),
        (filled, {}, r"no finite value that depends on a token of nan \(check 'not finite' of filled\)"),
        (brittle, {"axes": ("state",)}, "NaN for a token that is not finite .* ValueError"),
        (spreading, {"axes": ("state",)}, "values that do not depend on a token of nan as they are"),
        (
            lambda h: h.numpy().mean((1, 2)),
            {"differentiable": True},
            "a value with a gradient to the states .* Can't call numpy",
        ),
        (lambda h: size(h.detach()), {"differentiable": True}, "a value with a gradient to the states"),
        (kinked, {"differentiable": True}, r"a gradient equal to a finite difference \(check 'gradient' of kinked\)"),
        (root, {"axes": ("state",), "differentiable": True}, "no gradient at padding, and a finite one elsewhere"),
        (size, {"invariances": ["rotations"]}, "unknown invariance 'rotations'; did you mean rotation"),
    ],
)
def test_each_broken_promise_is_named(function, options, text):
    with pytest.raises(InputError, match=text):
        check_metric(function, **options)


def test_requests_that_make_no_sense():
    with pytest.raises(InputError, match="unknown metric 'token_nrm'; did you mean token_norm"):
        check_metric("token_nrm")
    with pytest.raises(InputError, match="a metric of one set of states; got mutual_neighbours"):
        check_metric("mutual_neighbours")
    with pytest.raises(InputError, match="a metric's name or a function; got int"):
        check_metric(3)


def test_a_meter_that_differs_from_its_function_is_found(monkeypatch):
    wrong = "tests.metrics.test_check_metric:Off"
    monkeypatch.setitem(METRICS, "effective_rank", dataclasses.replace(METRICS["effective_rank"], meter=wrong))
    with pytest.raises(InputError, match=r"check 'padding' of effective_rank|check 'streaming' of effective_rank"):
        check_metric("effective_rank")


class Off(HeldMeter):
    """effective_rank, a little off."""

    @classmethod
    def for_run(cls, setting):
        return cls({"effective_rank": (("state",), lambda hidden: 1.001 * metrics.effective_rank(hidden))})


def test_a_scale_law_that_does_not_hold_is_found(monkeypatch):
    monkeypatch.setitem(METRICS, "token_norm", dataclasses.replace(METRICS["token_norm"], scales=2))
    with pytest.raises(InputError, match=r"grows with power 2 .* \(check 'scale' of token_norm\)"):
        check_metric("token_norm")
