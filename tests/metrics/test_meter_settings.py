"""Meters merge only where their settings agree: records of unlike meters in one table would be a wrong number."""

import pytest
import torch

from repflow.core.errors import InputError
from repflow.metrics.centre import CentredSimilarity
from repflow.metrics.flow import FlowMeter
from repflow.metrics.meter import HeldMeter
from repflow.metrics.streaming_cka import CkaMeter, RowPooledCka
from tests.metrics.inputs import feed, sample_states

SAMPLES = sample_states(0, [6, 7], n_states=4)
CENTER = torch.randn(4, SAMPLES[0].shape[-1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def norm(hidden):
    return hidden.norm(dim=-1).mean(-1)


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        (FlowMeter(4, 8), FlowMeter(4, 8, "norm>2"), "drop = 'norm>10' and 'norm>2'"),
        (FlowMeter(4, 8), FlowMeter(4, 9), "positions = 8 and 9"),
        (FlowMeter(4, 8), FlowMeter(4, 8, grid=2), "grid = None and 2"),
        (FlowMeter(4, 8), FlowMeter(4, 8, direction=True), "direction = False and True"),
        (CkaMeter(), CkaMeter(unbiased=False), "unbiased = True and False"),
        (RowPooledCka(4), RowPooledCka(4, unbiased=False), "unbiased = True and False"),
        (CentredSimilarity(CENTER), CentredSimilarity(CENTER + 1), "center = a tensor"),
        (HeldMeter({"a": (("state",), norm)}), HeldMeter({"b": (("state",), norm)}), "functions"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*biased.*")
def test_other_settings_are_refused_and_nothing_is_taken(one, other, named):
    first, second = feed(one, SAMPLES, [[0]]), feed(other, SAMPLES, [[1]])
    with pytest.raises(InputError, match="meters of the same settings") as caught:
        first.merge(second)
    assert named in str(caught.value)
    assert list(first.records) == [0]


def test_settings_that_only_say_how_may_differ():
    first = feed(FlowMeter(4, 8, keep=frozenset([0]), group=1), SAMPLES, [[0]])
    first.merge(feed(FlowMeter(4, 8, keep=frozenset([1]), group=3), SAMPLES, [[1]]))
    assert sorted(first.records) == [0, 1]
    pooled = feed(RowPooledCka(4), SAMPLES, [[0]])
    pooled.merge(feed(RowPooledCka(4, budget_bytes=1 << 28), SAMPLES, [[1]]))
    same = feed(CentredSimilarity(CENTER), SAMPLES, [[0]])
    same.merge(feed(CentredSimilarity(CENTER.clone()), SAMPLES, [[1]]))
    assert sorted(same.records) == [0, 1]
