"""Batch plans: every sample once, like lengths together, sizes within the memory, and cuts after out-of-memory."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repflow.capture import Plan, make_plan
from repflow.capture.plan import BATCH_TOKENS, MAX_GROUP
from repflow.core.errors import InputError
from repflow.metrics.flow import HELD_STATES, meter_bytes

SHAPE = {"width": 64, "itemsize": 4}
lengths_of = st.lists(st.integers(2, 3000), min_size=1, max_size=40)


def everyone(plan):
    return sorted(sample for batch in plan.batches for sample in batch)


@settings(max_examples=80, deadline=None)
@given(lengths=lengths_of, size=st.none() | st.integers(1, 9))
def test_every_sample_runs_once_beside_samples_of_like_length(lengths, size):
    plan = make_plan(lengths, batch_size=size, **SHAPE)
    assert everyone(plan) == list(range(len(lengths)))
    most = size or max(1, min(len(lengths), BATCH_TOKENS // max(lengths)))
    assert [len(batch) for batch in plan.batches[:-1]] == [most] * (len(plan.batches) - 1)
    assert 1 <= len(plan.batches[-1]) <= most
    spans = [(min(lengths[i] for i in batch), max(lengths[i] for i in batch)) for batch in plan.batches]
    assert all(low >= high for (low, _), (_, high) in pairwise(spans)), "longest first, no overlap"
    assert all(list(batch) == sorted(batch) for batch in plan.batches)
    assert plan.group == 1
    assert plan == make_plan(lengths, batch_size=size, **SHAPE)


@settings(max_examples=60, deadline=None)
@given(
    lengths=lengths_of,
    size=st.none() | st.integers(1, 9),
    share=st.floats(1, 20),
    direction=st.booleans(),
    grid=st.booleans(),
)
def test_batches_fit_the_memory_given(lengths, size, share, direction, grid):
    longest, extra = max(lengths), {"direction": direction, "grid": grid}
    one = meter_bytes(1, longest, 64, 4, 1, **extra)
    budget = int(share * one)
    plan = make_plan(lengths, batch_size=size, meter_memory=budget, **extra, **SHAPE)
    largest = max(map(len, plan.batches))
    assert meter_bytes(largest, longest, 64, 4, plan.group, **extra) <= budget
    assert everyone(plan) == list(range(len(lengths)))


def test_too_little_memory_says_how_much_it_takes():
    need = meter_bytes(1, 2048, 64, 4, 1)
    text = f"meter_memory of at least {need / 2**20:.0f} MiB for one sample of 2048 tokens and width 64; got 1 MiB"
    with pytest.raises(InputError, match=f"{text}; raise it or shorten the prompts"):
        make_plan([100, 2048], meter_memory=1 << 20, **SHAPE)


@pytest.mark.parametrize("size", [0, -2])
def test_batch_size_below_one_is_refused(size):
    with pytest.raises(InputError, match=f"a batch size of at least 1; got {size}; pass batch_size=1 or more"):
        make_plan([4, 5], batch_size=size, **SHAPE)


@pytest.mark.parametrize("direction", [False, True])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_states_are_grouped_only_where_it_pays_and_within_the_default_of_six_states(itemsize, direction):
    shape = {"width": 2560, "itemsize": itemsize, "direction": direction}
    assert make_plan([2048] * 8, **shape).group == 1
    plan = make_plan([2048] * 8, grouped=True, batch_size=8, **shape)
    budget = HELD_STATES * 8 * 2048 * 2560 * 2 * itemsize
    assert 1 <= plan.group <= MAX_GROUP
    if plan.group > 1 or not direction:  # the opt-in sums alone may take all of it
        assert meter_bytes(8, 2048, 2560, itemsize, plan.group, direction=direction) <= budget
    if plan.group < MAX_GROUP:
        assert meter_bytes(8, 2048, 2560, itemsize, plan.group + 1, direction=direction) > budget
    if not direction:
        assert plan.group > 2, "the default must leave room to group states"


def test_a_plan_survives_the_manifest():
    plan = make_plan([9, 3, 5, 9, 4], batch_size=2, **SHAPE).split(1, 1)
    stored = json.loads(json.dumps(plan.to_json()))
    assert stored["samples"] == 5
    assert Plan.from_json(stored) == plan
    assert Plan.from_json({"batches": [[2, 0]], "group": 4}) == Plan(((2, 0),), 4)


def test_a_cut_concerns_this_batch_and_the_later_ones():
    plan = Plan(((0, 1, 2, 3), (4, 5, 6, 7, 8), (9,)), group=3)
    assert plan.split(1, 2) == Plan(((0, 1, 2, 3), (4, 5), (6, 7), (8,), (9,)), group=3)
    assert plan.split(0, 4).batches == ((0, 1, 2, 3), (4, 5, 6, 7), (8,), (9,))


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 40), size=st.integers(1, 16), data=st.data())
def test_repeated_cuts_lose_nobody(count, size, data):
    plan = make_plan([8] * count, batch_size=size, **SHAPE)
    for _ in range(3):
        at = data.draw(st.integers(0, len(plan.batches) - 1))
        half = max(1, len(plan.batches[at]) // 2)
        before, plan = plan, plan.split(at, half)
        assert plan.batches[:at] == before.batches[:at]
        assert max(map(len, plan.batches[at:])) <= half
        assert [s for b in plan.batches for s in b] == [s for b in before.batches for s in b], "same order"
    assert everyone(plan) == list(range(count))
