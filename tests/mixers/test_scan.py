"""Scans: every fast form against the sequential one in float64, values and gradients, at any length and large delta."""

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from repflow.core.errors import InputError
from repflow.mixers.scan import forms as scan
from repflow.mixers.scan.forms import choose, fast_recurrence, recurrence, selective_scan, ssd_scan
from repflow.mixers.scan.preference import prefer
from repflow.mixers.scan.s6 import selective_scan_chunked
from repflow.mixers.scan.ssd import ssd_scan_chunked
from repflow.mixers.transition import Transition
from tests.mixers.scan_inputs import drawer, s6_inputs, s6_transition, ssd_inputs, ssd_transition

pytestmark = pytest.mark.numeric

LENGTHS = [1, 2, 7, 8, 9, 21]
SHIFTS = [-5.0, 0.0, 30.0]
FORMS = {
    "s6": (s6_inputs, selective_scan, selective_scan_chunked, s6_transition),
    "ssd": (ssd_inputs, ssd_scan, ssd_scan_chunked, ssd_transition),
}


def outputs_and_gradients(run, inputs):
    held = [part.clone().requires_grad_() for part in inputs]
    y, final = run(held)
    draw = drawer(99)
    loss = (y * draw(*y.shape)).sum() + (final * draw(*final.shape)).sum()
    return [y.detach(), final.detach(), *torch.autograd.grad(loss, held)]


def assert_near(got, want, tolerance):
    """Each tensor within a tolerance of its largest entry."""
    for ours, theirs in zip(got, want, strict=True):
        assert bool(torch.isfinite(ours).all())
        assert float((ours - theirs).abs().max()) <= tolerance * max(float(theirs.abs().max()), 1.0)


def test_reference_against_a_filter():
    draw = drawer(0)
    x = draw(1, 50, 1)
    want = lfilter([1.0], [1.0, -0.9], x.flatten().numpy())
    transition = Transition(torch.tensor(0.9, dtype=torch.float64), x[..., None], torch.ones(1), torch.ones(1))
    y, h = recurrence(transition, return_states=True)
    np.testing.assert_allclose(y.flatten().numpy(), want, rtol=1e-12)
    assert h.shape == (1, 50, 1, 1)


@pytest.mark.parametrize("kind", FORMS)
def test_reference_against_the_transition(kind):
    make, form, _, as_transition = FORMS[kind]
    inputs = make(11, seed=1)
    y = form(*inputs[:5], path="reference").flatten(2)
    torch.testing.assert_close(y, recurrence(as_transition(*inputs[:5])), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("kind", FORMS)
def test_chunked_against_the_reference(kind, tokens, shift):
    make, form, chunked, _ = FORMS[kind]
    inputs = make(tokens, seed=tokens, shift=shift)

    def reference(parts):
        return form(*parts[:5], D=parts[5], initial=parts[6], return_final=True, path="reference")

    want = outputs_and_gradients(reference, inputs)
    got = outputs_and_gradients(lambda parts: chunked(*parts, chunk=8), inputs)
    assert_near(got, want, 1e-11)


@pytest.mark.parametrize("kind", FORMS)
def test_default_chunks_and_slabs(kind, monkeypatch):
    make, form, _, _ = FORMS[kind]
    monkeypatch.setattr("repflow.mixers.scan.ssd.SLAB", 2 * 64 * 64 * 4)  # a slab of one chunk
    inputs = make(150, seed=5)
    want = form(*inputs[:5], path="reference")
    torch.testing.assert_close(form(*inputs[:5]), want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(form(*inputs[:5], path="chunked"), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", FORMS)
def test_float32_and_half_come_back_in_their_dtype(kind):
    make, form, _, _ = FORMS[kind]
    inputs = make(40, seed=2)
    want = form(*inputs[:5], path="reference")
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-2)):
        y, final = form(*(part.to(dtype) for part in inputs[:5]), return_final=True)
        assert (y.dtype, final.dtype) == (dtype, torch.float32)
        assert float((y.double() - want).abs().max()) < tolerance * float(want.abs().max())


def test_parts_of_a_sequence_join():
    for kind, (make, form, _, _) in FORMS.items():
        x, delta, A, B, C, D, initial = make(30, seed=4)
        whole, final = form(x, delta, A, B, C, D=D, initial=initial, return_final=True)
        pieces = []
        for part in (slice(0, 11), slice(11, 30)):
            y, initial = form(
                x[:, part], delta[:, part], A, B[:, part], C[:, part], D=D, initial=initial, return_final=True
            )
            pieces.append(y)
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole, msg=kind)
        torch.testing.assert_close(initial, final, msg=kind)


def test_skip_of_every_channel():
    x, delta, A, B, C, _, _ = ssd_inputs(5, seed=3)
    D = drawer(8)(4, 3)
    torch.testing.assert_close(ssd_scan(x, delta, A, B, C, D=D) - ssd_scan(x, delta, A, B, C), D * x)


@pytest.mark.parametrize("kind", FORMS)
def test_underflow_is_zero_and_nan_stays(kind):
    make, form, _, _ = FORMS[kind]
    x, delta, A, B, C, _, _ = (part.float() for part in make(70, seed=6))
    far = form(x, delta * 1e4, A, B, C)
    torch.testing.assert_close(far, form(x, delta * 1e4, A, B, C, path="reference"), rtol=1e-4, atol=1e-2)
    delta[0, 20, 0] = torch.nan
    y = form(x, delta, A, B, C)
    assert bool(torch.isnan(y[0, 20:, 0]).all())
    assert bool(torch.isfinite(y[1]).all())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", ["x", "delta", "B", "C"])
@pytest.mark.parametrize("kind", FORMS)
def test_a_token_that_is_not_finite_leaves_earlier_ones_alone(kind, place, value):
    """As in the sequential form: two such tokens in one chunk, in parts of their own, spoil what is behind them."""
    make, form, chunked, _ = FORMS[kind]
    x, delta, A, B, C, D, initial = make(21, seed=7)
    inputs = {"x": x, "delta": delta, "B": B, "C": C}
    inputs[place][0, 12, 0] = value
    inputs[place][1, 9, ..., -1] = value
    want = form(x, delta, A, B, C, D=D, initial=initial, path="reference")
    got, _ = chunked(x, delta, A, B, C, D, initial, chunk=8)
    assert torch.equal(got.isfinite(), want.isfinite())
    assert bool(want[:, :9].isfinite().all())
    torch.testing.assert_close(got[got.isfinite()], want[want.isfinite()], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("place", ["b", "c", "delta"])
def test_the_matrix_form_leaves_tokens_before_nan_alone(place):
    draw = drawer(3)
    parts = {
        "A": torch.rand(2, 21, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        "b": draw(2, 21, 1, 5), "c": draw(2, 21, 1, 5), "delta": draw(2, 21, 3, 1),
    }  # fmt: skip
    parts[place][0, 12, 0, 0] = torch.nan
    want = recurrence(Transition(**parts))
    got = fast_recurrence(Transition(**parts), chunk=8)
    assert torch.equal(got.isfinite(), want.isfinite())
    torch.testing.assert_close(got[got.isfinite()], want[want.isfinite()], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", FORMS)
def test_autocast_rounds_nothing(kind):
    make, form, _, _ = FORMS[kind]
    inputs = [part.float().requires_grad_() for part in make(70, seed=9)[:5]]
    want = form(*inputs)
    wanted = torch.autograd.grad(want.square().sum(), inputs)
    with torch.autocast("cpu", dtype=torch.float16):
        got = form(*inputs)
    gradients = torch.autograd.grad(got.square().sum(), inputs)
    assert torch.equal(got, want)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6 * float(other.abs().max()))


def test_backward_of_s6_inside_autocast_rounds_nothing():
    inputs = [part.float().requires_grad_() for part in s6_inputs(70, seed=9)[:5]]
    wanted = torch.autograd.grad(selective_scan(*inputs).square().sum(), inputs)
    with torch.autocast("cpu", dtype=torch.float16):
        gradients = torch.autograd.grad(selective_scan(*inputs).square().sum(), inputs)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6 * float(other.abs().max()))


def test_autocast_rounds_no_recurrence():
    draw = drawer(3)
    parts = Transition(draw(1, 90, 1, 1).sigmoid(), draw(2, 90, 1, 4), draw(2, 90, 1, 4), draw(2, 90, 3, 1))
    parts = Transition(*(part.float() for part in parts))
    with torch.autocast("cpu", dtype=torch.float16):
        assert_near(fast_recurrence(parts).double(), recurrence(parts).double(), 1e-5)


@pytest.mark.parametrize("path", ["chunked", "reference"])
@pytest.mark.parametrize("kind", FORMS)
def test_no_samples(kind, path):
    make, form, _, _ = FORMS[kind]
    x, delta, A, B, C, _, _ = make(70, seed=6)
    assert form(x[:0], delta[:0], A, B[:0], C[:0], path=path).shape == x[:0].shape


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_numbers_that_are_not_real_are_refused(kind, dtype):
    make, form, _, _ = FORMS[kind]
    x, delta, A, B, C, _, _ = make(5, seed=6)
    with pytest.raises(InputError, match=f"expected x of real floating-point numbers; got {dtype}"):
        form(x.to(dtype), delta, A, B, C)
    with pytest.raises(InputError, match=f"expected A of real floating-point numbers; got {dtype}"):
        form(x, delta, A.to(dtype), B, C)


def test_second_derivative():
    inputs = [part[:1] if part.ndim == 3 else part for part in s6_inputs(5, seed=9)[:5]]
    held = [part.clone().requires_grad_() for part in inputs]
    assert torch.autograd.gradgradcheck(lambda *parts: selective_scan_chunked(*parts, chunk=2)[0], held)


def test_rows_of_a_jacobian_at_once():
    """Influence takes many gradients of one pass; autograd then runs the backward pass under vmap."""
    for make, form, _, _ in FORMS.values():
        inputs = make(20, seed=10)
        x = inputs[0].requires_grad_()
        rows = drawer(1)(3, *x.shape)
        (got,) = torch.autograd.grad(form(x, *inputs[1:5]), x, rows, is_grads_batched=True)
        (want,) = torch.autograd.grad(form(x, *inputs[1:5], path="reference"), x, rows, is_grads_batched=True)
        torch.testing.assert_close(got, want)


def test_inside_torch_func_the_reference_runs():
    x, delta, A, B, C, _, _ = s6_inputs(6, seed=11)
    rows = torch.func.jacrev(lambda x: selective_scan(x, delta, A, B, C))(x)
    assert rows.shape == (*x.shape, *x.shape)


@pytest.mark.parametrize("complex_valued", [False, True])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_fast_recurrence(tokens, complex_valued):
    draw = drawer(tokens)

    def values(*shape):
        return torch.complex(draw(*shape), draw(*shape)) if complex_valued else draw(*shape)

    decay = values(2, tokens, 3, 4)
    decay = decay / (1 + decay.abs())
    decay[:, tokens // 2] = 0
    delta = draw(2, tokens, 3, 1)
    for A, b, c in (
        (decay, values(2, tokens, 1, 4), values(2, tokens, 1, 4)),  # S6, GLA
        (decay[:1, :, :1, :1], values(2, tokens, 1, 4), values(2, tokens, 1, 4)),  # retention: one matrix product
        (torch.ones(1, dtype=torch.float64), values(2, tokens, 1, 4), values(2, tokens, 1, 4)),  # linear attention
        (decay[0, 0], values(2, tokens, 1, 1), values(4)),  # S4D
    ):
        parts = [part.clone().requires_grad_() for part in (A, b, c, delta)]
        got, want = fast_recurrence(Transition(*parts), chunk=8), recurrence(Transition(*parts))
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        weights = draw(*got.shape)
        ours, theirs = (torch.autograd.grad((y * weights).sum(), parts) for y in (got, want))
        assert_near([part.abs() for part in ours], [part.abs() for part in theirs], 1e-12)


def test_choice_and_reason(monkeypatch):
    inputs = s6_inputs(3, seed=0)[:5]
    assert choose("s6", *inputs) == ("chunked", "tensors on the cpu")
    assert choose("s6", *inputs, path="reference") == ("reference", "asked for")
    assert choose("s6", *(part.float() for part in inputs), path="triton") == (
        "chunked",
        "no Triton kernel: tensors on the cpu",
    )
    monkeypatch.setattr(scan.importlib.util, "find_spec", lambda name: None)
    assert choose("s6", *inputs, path="triton") == ("chunked", "no Triton kernel: Triton is not installed")
    with pytest.raises(InputError, match="got 'chunk'; did you mean chunked"):
        choose("s6", *inputs, path="chunk")


def test_preference():
    inputs, noted = s6_inputs(3, seed=0)[:5], []
    with prefer("reference", lambda *choice: noted.append(choice)):
        selective_scan(*inputs)
        with prefer("auto"):
            assert choose("s6", *inputs).path == "chunked"
        fast_recurrence(s6_transition(*inputs))
    assert noted == [("reference", "asked for")]
    assert choose("s6", *inputs).path == "chunked"


@pytest.mark.parametrize(
    ("place", "shape", "message"),
    [
        (
            0,
            (2, 3),
            r"expected x \(batch, token, channel\) with at least one token and A \(channel, state\); got x \(2, 3\)",
        ),
        (1, (2, 5, 1), r"expected delta of shape \(2, 5, 3\); got shape \(2, 5, 1\)"),
        (3, (2, 5, 7), r"expected B of shape \(2, 5, 4\)"),
        (5, (2,), r"expected D of shape \(3,\)"),
        (6, (2, 4, 3), r"expected initial of shape \(2, 3, 4\)"),
    ],
)
def test_wrong_shapes_of_s6(place, shape, message):
    inputs = s6_inputs(5, seed=0)
    inputs[place] = torch.zeros(shape)
    with pytest.raises(InputError, match=message):
        selective_scan(*inputs[:5], D=inputs[5], initial=inputs[6])


@pytest.mark.parametrize(
    ("place", "shape", "message"),
    [
        (0, (2, 5, 4), "split channels into heads, or use selective_scan"),
        (0, (2, 0, 4, 3), "at least one token"),
        (3, (2, 5, 3, 5), "expected heads that divide into the groups; got 4 heads, 3 groups"),
        (2, (3,), r"expected A of shape \(4,\)"),
    ],
)
def test_wrong_shapes_of_ssd(place, shape, message):
    inputs = ssd_inputs(5, seed=0)
    inputs[place] = torch.zeros(shape)
    with pytest.raises(InputError, match=message):
        ssd_scan(*inputs[:5], D=inputs[5], initial=inputs[6])


def test_wrong_chunks_and_transitions():
    with pytest.raises(InputError, match="a chunk of at least 1 token; got 0"):
        ssd_scan(*ssd_inputs(5, seed=0)[:5], chunk=0)
    one = torch.ones(1, 2, 1, 1)
    with pytest.raises(InputError, match="a chunk of at least 1 token; got -1"):
        fast_recurrence(Transition(one, one, one, one), chunk=-1)
    with pytest.raises(InputError, match="fold heads into the channel axis"):
        recurrence(Transition(one[None], one, one, one))
    with pytest.raises(InputError, match="at least one token"):
        recurrence(Transition(one[:, :0], one[:, :0], one[:, :0], one[:, :0]))
