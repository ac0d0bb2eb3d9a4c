"""The catalogue's row decides what computes a metric; what is asked for by name is computed or refused."""

import sys
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import pytest
import torch

from repflow import metrics
from repflow.capture.measure import MeasureOptions, _check_metrics, _check_table, measure_prompts
from repflow.core.catalogue import DEFAULT_METRICS, METRICS, Metric, metric_of
from repflow.core.errors import InputError, RepflowError
from repflow.metrics.factory import check_computed, make_meters
from repflow.metrics.meter import HeldMeter, Meter, MeterSetting
from tests.capture.inputs import model, prompts

HOME = "toy_metrics"


def loudest(hidden, *, mask=None):
    """Largest entry of a state."""
    real = torch.ones(hidden.shape[1:-1], dtype=torch.bool) if mask is None else mask
    return torch.where(real[..., None], hidden, 0).abs().amax((-1, -2))


@dataclass
class Loudest(Meter):
    """loudest, state by state."""

    def begin(self, batch):
        self._batch, self._rows = batch, []

    def update(self, state, hidden):
        rows = [hidden[row, :length].abs().max() for row, length in enumerate(self._batch.lengths)]
        self._rows.append(torch.stack(rows))

    def end(self):
        for row, sample in enumerate(self._batch.samples):
            self.records[sample] = {"loudest": torch.stack(self._rows)[:, row].numpy()}

    def compute(self):
        return {"loudest": (("state", "sample"), np.stack([record["loudest"] for record in self.ordered()], 1))}


@dataclass
class Unmade(Loudest):
    """A meter with a setting and no for_run."""

    share: float


ROW = Metric(
    "loudest", ("state", "sample"), 0.0, np.inf, "none", frozenset({"token_order"}), "repflow", "largest entry",
    default=False, scales=1, home=HOME,
)  # fmt: skip


@pytest.fixture
def added(monkeypatch):
    """A metric of two files: a module with its function, and its row."""
    module = ModuleType(HOME)
    module.loudest, module.Loudest, module.Unmade = loudest, Loudest, Unmade
    monkeypatch.setitem(sys.modules, HOME, module)

    def add(**changes):
        monkeypatch.setitem(METRICS, "loudest", replace(ROW, **changes))

    return add


def run(*names, **options):
    return measure_prompts(model(dtype="float64"), prompts(), MeasureOptions(metrics=names, batch_size=4, **options))


@pytest.mark.parametrize("meter", ["", f"{HOME}:Loudest"])
def test_a_function_and_a_row_make_a_metric(added, meter):
    added(meter=meter)
    result = run("loudest", "token_norm")
    assert result.axes["loudest"] == ("state", "sample")
    assert "loudest" in result.bands
    assert metrics.loudest is loudest
    assert metrics.check_metric("loudest").also == ()
    kinds = [type(m).__name__ for m in make_meters(MeterSetting(("token_norm", "loudest"), states=5, positions=9))]
    assert kinds == ["FlowMeter", "Loudest" if meter else "HeldMeter"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"meter": METRICS["token_norm"].meter}, "'loudest' from repflow.metrics.flow:FlowMeter; got a table without"),
        ({"meter": f"{HOME}:Missing"}, "'Missing' in module 'toy_metrics', where the catalogue says that metric 'lo"),
        ({"meter": f"{HOME}:loudest"}, "a subclass of repflow.metrics.meter.Meter at 'toy_metrics:loudest'"),
        ({"meter": f"{HOME}:Unmade"}, r"a meter that Unmade.for_run\(setting\) makes; got .*share.*; write for_run"),
        ({"home": "toy_elsewhere"}, "'loudest' in module 'toy_elsewhere'.*ModuleNotFoundError"),
        ({"home": ""}, "'loudest' in module '', where the catalogue says"),
        ({"axes": ("layer", "sample")}, r"metric 'loudest' with axes \(layer = 5\); got shape \(6,\)"),
        ({"axes": ("sample", "state"), "meter": f"{HOME}:Loudest"}, r"with axes \('sample', 'state'\); got \('state'"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_computed_is_refused_before_the_run(added, changes, text):
    added(**changes)
    with pytest.raises(InputError, match=text):
        run("loudest", "token_norm")


def test_every_row_of_the_catalogue_is_computed():
    check_computed(name for name, facts in METRICS.items() if facts.inputs == 1)
    assert [type(m) for m in make_meters(MeterSetting(("effective_rank",), states=5, positions=9))] == [HeldMeter]


@pytest.mark.parametrize(
    ("name", "states", "samples", "keep"),
    [
        ("smoothness", 2, 4, 4),
        ("stability", 1, 4, 4),
        ("paper_stability", 2, 4, 4),
        ("token_similarity_excess", 5, 1, 4),
        ("token_similarity_by_token", 5, 4, 0),
    ],
)
def test_what_a_run_cannot_give_is_refused_by_name(name, states, samples, keep):
    options = MeasureOptions(keep_samples=keep)
    with pytest.raises(InputError, match=rf"at least .* for {name}; got .* leave it out"):
        _check_metrics((name,), states, samples, options)
    _check_metrics((name,), 5, 4, MeasureOptions())
    if name in DEFAULT_METRICS:
        _check_metrics(DEFAULT_METRICS, states, samples, options)


def test_a_meter_that_forgets_a_metric_does_not_pass_in_silence():
    with pytest.raises(RepflowError, match="every requested metric; got a table without effective_rank"):
        _check_table({}, MeasureOptions(metrics=("effective_rank",)))
    _check_table({}, MeasureOptions(metrics=DEFAULT_METRICS))
    _check_table(
        {"kept/token_similarity_by_token": (("state",), np.zeros(2))},
        MeasureOptions(metrics=("token_similarity_by_token",)),
    )


def test_values_belong_to_the_metric_they_come_with():
    assert metric_of("norm>10/gram_share_error") == "gram_share"
    assert metric_of("cka_null_sd") == "cka_matrix"
    assert metric_of("final_norm/top_channels") == "channel_share"
    assert metric_of("own") == "own"
