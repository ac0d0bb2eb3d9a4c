"""The Triton kernels against the plain reductions and the pure functions, in a process of its own.

Run with TRITON_INTERPRET=1, which Triton reads when it is imported. Prints a JSON object: check → None or what failed.
Each check is a function of this module whose name starts with `check_`; test_fused_kernels.py reports them one by one.
"""

import itertools
import json
import sys
import traceback

import numpy as np
import torch

from repflow import metrics as m
from repflow.metrics import fused, reduce
from repflow.metrics.flow import FlowMeter
from repflow.metrics.reduce import DepthSums
from tests.interpreter import patch_once
from tests.metrics.inputs import feed, pad, sample_states, values

WIDTHS = (5, 48, 96, 130)
DTYPES = (torch.float32, torch.float16)
MIXTURES = {
    "one half-precision embedding": [torch.float16, *[torch.float32] * 5],
    "all in half precision": [torch.float16] * 6,
    "all in float32": [torch.float32] * 6,
    "by turns": [torch.float32, torch.float16] * 3,
}
"""The interpreter cannot do bfloat16: test_compile.py and benchmarks/overhead.py see to it."""


def states_of(seed, dtype, *, count=6, batch=2, token=5, width=48):
    """(state, batch, token, width), a random walk over depth."""
    steps = torch.randn(count, batch, token, width, generator=torch.Generator().manual_seed(seed))
    return steps.cumsum(0).to(dtype)


def run_depth(ops, states, groups, direction):
    """Sums and norms of states taken in by groups."""
    raw = DepthSums.start(states[0])
    turned = DepthSums.start(states[0]) if direction else None
    window, steps, at = [], [], 0
    for size in groups:
        window = [*window[-2:], *states[at : at + size]]
        norms = [step.norm for step in steps[-2:]]
        at += size
        steps += ops.add_states(window, size, norms, raw, turned, last=at == len(states))
    assert at == len(states)
    return raw, turned, steps


def same(got, want, name, *, rtol=2e-5, atol=1e-5):
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text: f"{name}: {text}")


def compare_depth(states, groups, direction, **tolerance):
    got, got_turned, got_steps = run_depth(fused, states, groups, direction)
    want, want_turned, want_steps = run_depth(reduce, states, [1] * len(states), direction)
    label = f"groups {groups}, direction {direction}, {states.dtype}, {tuple(states.shape)}"
    for name in ("bend", "step", "size", "spread", "variance"):
        same(getattr(got, name), getattr(want, name), f"{name}, {label}", **tolerance)
    if direction:
        for name in ("bend", "spread"):
            same(getattr(got_turned, name), getattr(want_turned, name), f"direction {name}, {label}", **tolerance)
    assert got.count == want.count == len(states)
    for index, (a, b) in enumerate(zip(got_steps, want_steps, strict=True)):
        same(a.norm, b.norm, f"norm {index}, {label}", **tolerance)
        assert (a.inner is None) == (b.inner is None) == (index == 0), label
        if a.inner is not None:
            same(a.inner, b.inner, f"inner {index}, {label}", rtol=2e-5, atol=1e-3)


def check_groups_of_one_to_eight_states():
    for size in range(1, 9):
        for direction in (False, True) if size in (1, 4) else (True,):
            states = states_of(size, torch.float32, count=9, batch=1, token=2)
            groups = [size] * (9 // size) + ([9 % size] if 9 % size else [])
            compare_depth(states, groups, direction)


def check_first_and_last_in_one_call():
    for count in (1, 2, 3, 8):
        compare_depth(states_of(count, torch.float32, count=count), [count], direction=True)


def check_more_states_than_one_kernel_takes():
    compare_depth(states_of(3, torch.float32, count=11, batch=1), [11], direction=True)
    compare_depth(states_of(4, torch.float32, count=12, batch=1), [2, 10], direction=False)


def check_widths():
    for width in (*WIDTHS, 300, 1100):
        for dtype in DTYPES:
            compare_depth(states_of(width, dtype, count=4, batch=1, token=2, width=width), [3, 1], direction=True)


def check_sums_far_from_zero():
    """Welford's form must survive: a large common offset and small steps."""
    states = states_of(5, torch.float32, count=6) * 0.01 + 300
    compare_depth(states, [4, 2], direction=False, rtol=1e-3, atol=1e-4)


def check_one_token():
    for dtype in DTYPES:
        compare_depth(states_of(6, dtype, count=5, batch=1, token=1), [2, 3], direction=True)


def check_padding_of_nan_stays_where_it_is():
    states = states_of(7, torch.float32)
    states[:, 1, 3:] = torch.nan
    compare_depth(states, [4, 2], direction=True)


def check_a_token_of_norm_zero_has_no_direction():
    for width in (48, 130):
        states = states_of(8, torch.float32, count=4, width=width)
        states[1, 0, 2] = 0  # of (state, sample, token)
        got, turned, _ = run_depth(fused, states, [2, 2], True)
        assert bool(turned.spread[0, 2].isnan()), width
        assert bool(turned.bend[0, 2].isnan()), width
        others = torch.ones(2, 5, dtype=torch.bool)
        others[0, 2] = False
        assert bool(turned.spread[others].isfinite().all()), width
        assert bool(got.spread.isfinite().all()), width


def column_inputs(seed, batch, token, states=1):
    """What the meter hands to `column_sums`: two masks and two rows of inverse norms, signs, the tokens they see."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(0, 2, (states, batch, 2, token), generator=generator).float()
    inverse = torch.rand(states, batch, 2, token, generator=generator)
    signs = torch.randint(-1, 2, (batch, 32, token), generator=generator).float()
    others = torch.rand(states, batch, token, generator=generator) < 0.8
    return torch.cat([masks, inverse], 2), signs, others


def check_column_sums():
    for width in (*WIDTHS, 200):
        for token in (1, 5, 70):
            for dtype in DTYPES:
                state = states_of(width, dtype, count=1, token=token, width=width)[0]
                weights, signs, others = column_inputs(9, 2, token)
                lengths = torch.tensor([token, (token + 1) // 2], dtype=torch.int32)
                state[1, (token + 1) // 2 :] = torch.nan
                got = fused.column_sums([state], weights, signs, others, lengths)
                want = reduce.column_sums([state], weights.double(), signs.double(), others, lengths)
                for a, b, name in zip(got, want, ("sums", "energy"), strict=True):
                    same(a.double(), b, f"{name} {width} {token} {dtype}", rtol=1e-5, atol=1e-5 * float(b.abs().max()))


def check_column_sums_of_float32_states_are_right_to_their_own_rounding():
    """Three bfloat16 parts of a number carry all its bits: two of them alone are 1e-5 off."""
    state = states_of(12, torch.float32, count=1, token=64, width=64)[0]
    inputs, lengths = column_inputs(12, 2, 64), torch.tensor([64, 40], dtype=torch.int32)
    wide = [part.double() if part.is_floating_point() else part for part in inputs]
    want, _ = reduce.column_sums([state.double()], *wide, lengths)
    errors = []
    for ops in (fused, reduce):
        got, _ = ops.column_sums([state], *inputs, lengths)
        errors.append(float((got.double() - want).norm() / want.norm()))
    assert errors[0] <= 2 * errors[1], errors


def check_column_sums_of_long_prompts_are_split():
    state = states_of(10, torch.float32, count=1, batch=1, token=1100, width=48)[0]
    inputs, lengths = column_inputs(10, 1, 1100), torch.tensor([1030], dtype=torch.int32)
    got, want = (ops.column_sums([state], *inputs, lengths) for ops in (fused, reduce))
    for a, b in zip(got, want, strict=True):
        same(a, b, "split", atol=1e-3)


def product_inputs(seed, width, token, states=1):
    """What the meter hands to `token_products`: 4 tops, 32 probes, one more vector, a mean, the tokens that count."""
    generator = torch.Generator().manual_seed(seed)
    tops, probes = (torch.randn(states, 2, n, width, generator=generator) for n in (4, 32))
    last, mean = (torch.randn(states, 2, width, generator=generator) for _ in range(2))
    return tops, probes, last, mean, torch.rand(states, 2, token, generator=generator) < 0.8


def check_several_states_in_one_call():
    # more than one kernel takes, so that a second call is needed
    states = list(states_of(12, torch.float16, count=11, width=48))
    lengths = torch.tensor([5, 3], dtype=torch.int32)
    weights, signs, others = column_inputs(12, 2, 5, states=11)
    inputs = product_inputs(12, 48, 5, states=11)
    sums, energy = fused.column_sums(states, weights, signs, others, lengths)
    products = fused.token_products(states, *inputs, lengths)
    for i, state in enumerate(states):
        at = slice(i, i + 1)
        alone = fused.column_sums([state], weights[at], signs, others[at], lengths)
        same(sums[i], alone[0][0], f"sums {i}", rtol=0, atol=0)
        same(energy[i], alone[1][0], f"energy {i}", rtol=0, atol=0)
        apart = fused.token_products([state], *(g[at] for g in inputs), lengths)
        for name, a, b in zip(products._fields, products, apart, strict=True):
            same(a[i], b[0], f"{name} {i}", rtol=0, atol=0)


def check_token_products():
    for width in WIDTHS:
        for token in (1, 5, 70):
            for dtype in DTYPES:
                state = states_of(width, dtype, count=1, token=token, width=width)[0]
                lengths = torch.tensor([token, token // 2 + 1], dtype=torch.int32)
                state[1, token // 2 + 1 :] = torch.nan
                *vectors, others = product_inputs(width, width, token)
                got = fused.token_products([state], *vectors, others, lengths)
                want = reduce.token_products([state], *(v.double() for v in vectors), others, lengths)
                real = torch.arange(token) < lengths[:, None]
                for name, a, b in zip(got._fields, got, want, strict=True):
                    if name == "last":
                        a, b = (torch.where(real, x, 0) for x in (a, b))
                    bound = 3e-5 * float(b.abs().max())
                    same(a.double(), b, f"{name} {width} {token} {dtype}", rtol=1e-4, atol=bound)


def check_meter_against_the_pure_functions():
    names = ("token_similarity", "common_share", "sharpness", "stability", "smoothness", "path_energy")
    turned = ("direction_smoothness", "direction_stability", "relative_stability")
    for dtype, width, group in ((torch.float32, 48, 1), (torch.float32, 130, 4), (torch.float16, 96, 3)):
        samples = sample_states(width, (4, 1, 6), n_states=4, width=width, dtype=dtype)
        assert fused.usable(samples[0])
        meter = FlowMeter(4, 6, group=group, direction=True, keep=frozenset({0}), grid=2)
        got = values(feed(meter, samples, [[0, 1], [2]], final=samples))
        hidden, mask = pad([s.double() for s in samples], garbage=0.5)
        for name in (*names, *turned):
            for drop, prefix in (("none", ""), ("norm>10", "norm>10/")):
                want = getattr(m, name)(hidden, mask=mask, drop=drop).numpy()
                label = f"{prefix}{name} group {group} width {width} {dtype}"
                np.testing.assert_allclose(got[prefix + name], want, rtol=2e-4, atol=2e-5, err_msg=label)
        excess = m.token_similarity_excess(hidden, mask=mask).numpy()
        np.testing.assert_allclose(got["token_similarity_excess"], excess, rtol=2e-4, atol=2e-5)
        share, top = m.gram_share(hidden, mask=mask)
        np.testing.assert_allclose(got["gram_share"], share, rtol=2e-4)
        np.testing.assert_array_equal(got["top_tokens"], top)
        np.testing.assert_allclose(got["channel_share"], m.channel_share(hidden, mask=mask)[0], rtol=2e-4)


def mixed_states(kinds, seed, **sizes):
    """States of the kinds given, and the same numbers in float64."""
    states = states_of(seed, torch.float32, count=len(kinds), **sizes)
    mixed = [state.to(kind) for state, kind in zip(states, kinds, strict=True)]
    return mixed, torch.stack([state.double() for state in mixed])


def check_sums_over_depth_of_mixed_dtypes():
    cuts = itertools.cycle([[1, 5], [4, 2], [1] * 6])
    for (name, kinds), cut in zip(MIXTURES.items(), cuts, strict=False):
        mixed, wide = mixed_states(kinds, 20)
        for groups in ([6], cut):
            got, got_turned, got_steps = run_depth(fused, mixed, groups, True)
            want, want_turned, want_steps = run_depth(reduce, wide, [1] * 6, True)
            for field in ("bend", "step", "size", "spread", "variance"):
                same(getattr(got, field).double(), getattr(want, field), f"{field}, {name}, {groups}")
            for field in ("bend", "spread"):
                same(getattr(got_turned, field).double(), getattr(want_turned, field), f"direction {field}, {name}")
            for a, b in zip(got_steps, want_steps, strict=True):
                same(a.norm.double(), b.norm, f"norm, {name}")
                if b.inner is not None:
                    same(a.inner.double(), b.inner, f"inner, {name}", atol=1e-3)


def check_column_sums_and_products_of_mixed_dtypes():
    lengths = torch.tensor([5, 3], dtype=torch.int32)
    weights, signs, others = column_inputs(21, 2, 5, states=6)
    inputs = product_inputs(21, 48, 5, states=6)
    real = torch.arange(5) < lengths[:, None]
    for name, kinds in MIXTURES.items():
        mixed, wide = mixed_states(kinds, 21)
        got = fused.column_sums(mixed, weights, signs, others, lengths)
        want = reduce.column_sums(list(wide), weights.double(), signs.double(), others, lengths)
        for a, b, field in zip(got, want, ("sums", "energy"), strict=True):
            same(a.double(), b, f"{field}, {name}", rtol=1e-5, atol=1e-5 * float(b.abs().max()))
        products = fused.token_products(mixed, *inputs, lengths)
        *vectors, seen = inputs
        exact = reduce.token_products(list(wide), *(v.double() for v in vectors), seen, lengths)
        for field, a, b in zip(products._fields, products, exact, strict=True):
            if field == "last":
                a, b = (torch.where(real, x, 0) for x in (a, b))
            same(a.double(), b, f"{field}, {name}", rtol=1e-4, atol=1e-5 * float(b.abs().max()))


def check_meter_of_mixed_dtypes_against_the_pure_functions():
    """A half-precision embedding before a float32 stream, as `residual_in_fp32` makes it."""
    names = ("token_similarity", "common_share", "sharpness", "stability", "smoothness", "path_energy")
    first, every_second = [torch.float16, *[torch.float32] * 3], [torch.float32, torch.float16] * 2
    for kinds, groups in ((first, (1, 4)), (every_second, (3,))):
        for group in groups:
            samples = sample_states(96, (4, 1, 6), n_states=4, width=96, dtype=torch.float32)
            rounded = [
                torch.stack([state.to(kind).double() for state, kind in zip(sample, kinds, strict=True)])
                for sample in samples
            ]
            meter = FlowMeter(4, 6, group=group, direction=True, keep=frozenset({0}), grid=2)
            got = values(feed(meter, samples, [[0, 1], [2]], kinds=kinds))
            hidden, mask = pad(rounded, garbage=0.5)
            for name in (*names, "direction_smoothness", "direction_stability", "relative_stability"):
                want = getattr(m, name)(hidden, mask=mask).numpy()
                np.testing.assert_allclose(got[name], want, rtol=2e-4, atol=2e-5, err_msg=f"{name} group {group}")
            share, top = m.gram_share(hidden, mask=mask)
            np.testing.assert_allclose(got["gram_share"], share, rtol=2e-4)
            np.testing.assert_array_equal(got["top_tokens"], top)


def check_zero_token_in_the_meter():
    samples = sample_states(73, (6, 4), width=48, dtype=torch.float32)
    samples[0][1, 2] = 0
    got = values(feed(FlowMeter(4, 6, group=2), samples, [[0, 1]]))
    assert np.isnan(got["token_similarity"][:, 0]).tolist() == [False, True, False, False]
    assert np.isfinite(got["token_similarity"][:, 1]).all()


def check_what_the_kernels_do_not_take():
    assert fused.usable(torch.zeros(1, 2, fused.MAX_WIDTH))
    assert not fused.usable(torch.zeros(1, 2, fused.MAX_WIDTH + 1))
    assert not fused.usable(torch.zeros(1, 2, 8, dtype=torch.float64))
    assert not fused.usable(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8, dtype=torch.float64))
    assert fused.usable(*(torch.zeros(1, 2, 8, dtype=kind) for kind in fused.PRECISIONS))


def outcomes():
    """Run every check."""
    errors = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                check()
                errors[name] = None
            except Exception:  # noqa: BLE001  every failure is reported by the test of that name
                errors[name] = traceback.format_exc(limit=-3)
    return errors


if __name__ == "__main__":
    torch.set_num_threads(1)
    patch_once()
    json.dump(outcomes(), sys.stdout)
