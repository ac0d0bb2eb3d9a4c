"""What may be called a loss: chance is the floor, refits and half the training rows must agree."""

import dataclasses
import importlib.util
import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from repflow.probes import (
    Split,
    block_changes,
    block_claims,
    floored_change,
    half_training,
    peak_loss,
    states_to_refit,
    summarise,
    three_way_split,
)
from repflow.probes.claims import survives
from tests.probes.probe_inputs import random_splits
from tests.probes.test_summary import made_fit, readings


def _benchmark():
    """benchmarks/lost_in_block.py, which is not part of the package."""
    path = Path(__file__).parents[2] / "benchmarks" / "lost_in_block.py"
    spec = importlib.util.spec_from_file_location("lost_in_block", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lost_in_block = _benchmark()


def fits(accuracies, half=None, *, samples=600, seeds=5, classes=2):
    """Fits at given accuracies with all and with half of the training rows."""
    splits = random_splits(samples, seeds)
    whole = made_fit(readings(accuracies, seeds, samples, shared=0.5), splits, classes=classes)
    other = made_fit(readings(half or accuracies, seeds, samples, seed=1, shared=0.5), splits, classes=classes)
    return whole, other


def claimed(accuracies, half=None, **options):
    whole, other = fits(accuracies, half, **options)
    return block_claims(block_changes(whole), block_changes(other)).tolist()


def test_a_loss_and_a_gain_are_claimed():
    assert claimed([0.5, 0.95, 0.95, 0.55]) == [1, 0, -1]


def test_no_claim_from_one_seed():
    assert claimed([0.5, 0.95, 0.95, 0.55], seeds=1) == [0, 0, 0]


def test_a_loss_that_half_the_rows_do_not_show_is_not_claimed():
    assert claimed([0.95, 0.7], [0.8, 0.79]) == [0]


def test_a_loss_that_more_rows_would_make_vanish_is_not_claimed():
    """25 points with half the rows, 12 with all of them: the state takes more rows to read."""
    assert claimed([0.95, 0.83], [0.95, 0.70], samples=3000) == [0]
    assert claimed([0.95, 0.83], [0.95, 0.81], samples=3000) == [-1]


def test_below_chance_is_not_a_loss():
    """From chance to far below it: a probe that reads nothing cannot read less."""
    assert claimed([0.5, 0.1]) == [0]
    changes = block_changes(fits([0.5, 0.1])[0])
    assert changes.change[0] > -0.1


def test_a_loss_stops_at_chance():
    """The case of the report: 1.000 before, 0.250 after, chance .5 is 100 chance-corrected points, not 150."""
    change, low, high = floored_change(np.array([1.0]), np.array([0.25]), (np.array([-1.0]), np.array([-0.5])), 0.5)
    assert (change[0], low[0], high[0]) == (-0.5, -0.5, -0.25)
    whole, _ = fits([1.0, 0.25])
    summary = summarise(whole)
    assert summary.drop == pytest.approx(0.5, abs=0.01)
    assert summary.drop_high <= 0.5 + 1e-12
    assert summary.drop / (1 - summary.chance) <= 1


def test_nan_stays_nan():
    changed = floored_change(np.array([0.9, np.nan]), np.array([np.nan, 0.9]), (np.zeros(2), np.zeros(2)), 0.5)
    assert np.isnan(changed[0]).all()


def test_peak_to_last_must_survive_half_the_rows_too():
    whole, other = fits([0.5, 0.95, 0.6])
    summary = summarise(whole)
    assert summary.beats
    assert states_to_refit(summary, None) == [1, 2]
    assert peak_loss(summary, other).shown
    assert not peak_loss(summary, None).shown
    assert not peak_loss(summary, fits([0.5, 0.6, 0.6])[0]).shown


def test_only_states_of_a_claim_are_fitted_again():
    whole, _ = fits([0.9, 0.9, 0.9, 0.5, 0.5])
    changes = block_changes(whole)
    assert states_to_refit(dataclasses.replace(summarise(whole), beats=False), changes) == [2, 3]
    level, _ = fits([0.9] * 5)
    assert states_to_refit(summarise(level), block_changes(level)) == []


def test_what_was_not_fitted_does_not_survive():
    nothing = np.array([np.nan])
    assert not survives(np.array([-0.5]), nothing, nothing, nothing).any()


def test_half_of_the_training_rows_keeps_groups_and_labels():
    labels = np.repeat(np.arange(4), 50)
    groups = np.arange(200) // 2
    split = three_way_split(labels, groups, seed=3)
    half = half_training(split, labels, groups, seed=3)
    assert set(half.train) < set(split.train)
    np.testing.assert_array_equal(half.valid, split.valid)
    np.testing.assert_array_equal(half.test, split.test)
    assert len(half.train) == pytest.approx(len(split.train) / 2, abs=2)
    np.testing.assert_allclose(np.bincount(labels[half.train]), np.bincount(labels[split.train]) / 2, atol=2)
    rest = set(split.train) - set(half.train)
    assert not {groups[row] for row in half.train} & {groups[row] for row in rest}
    other = half_training(split, labels, groups, seed=4)
    assert set(other.train) != set(half.train)
    assert isinstance(half, Split)


@pytest.mark.parametrize("prompts", [40, 100, 300])
def test_false_claims_are_rare(prompts):
    """A short version of benchmarks/lost_in_block.py: nothing is lost, fresh noise in every state."""
    asked = Namespace(draws=24, blocks=6, width=8, vary="split")
    row = lost_in_block.run_case("own noise", 0.75, prompts, 5, asked, number=0)
    assert row["false"] <= 0.05
    assert row["peak_beats_last"] <= 0.05


def test_a_real_loss_is_found():
    asked = Namespace(draws=12, blocks=6, width=8, vary="split")
    row = lost_in_block.run_case("all", 0.98, 300, 5, asked, number=1)
    assert row["found"] >= 0.75
    assert row["false"] <= 0.05


def test_the_stored_simulation_keeps_its_promise():
    """The table in the docs: under 5 % false claims at 40, 100 and 300 prompts, the interval's upper end included."""
    stored = json.loads((Path(lost_in_block.__file__).with_suffix(".json")).read_text())
    assert {row["prompts"] for row in stored["pooled"]} == {40, 100, 300}
    for row in stored["pooled"]:
        assert row["draws"] >= 800
        assert row["false"]["high"] <= 0.05
        assert row["peak_beats_last"]["high"] <= 0.05
        assert row["worst"] <= 0.05
