"""Each sentinel finds the leak it is for, and stays quiet without one."""

import sys

import numpy as np
import pytest
import torch

from repflow.core.errors import InputError
from repflow.probes import Split, sentinels, three_way_split
from repflow.probes.sentinels import Occurrences, bag_columns, size_columns
from tests.probes.probe_inputs import random_splits

SAMPLES, CLASSES = 600, 4


def prompts(seed=0):
    """Labels and everything a sentinel sees, none of it related to the label."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(SAMPLES) % CLASSES)
    return {
        "features0": rng.standard_normal((SAMPLES, 8)).astype(np.float32),
        "lengths": rng.integers(90, 100, SAMPLES),
        "counts": rng.integers(5, 8, SAMPLES),
        "token_bags": [rng.integers(0, 300, 40) for _ in range(SAMPLES)],
        "labels": labels,
        "splits": [three_way_split(labels, seed=k) for k in range(3)],
    }


def verdicts(given):
    return {sentinel.name: sentinel for sentinel in sentinels(**given)}


def test_no_leak_no_alarm():
    alarms = [sentinel.name for seed in range(5) for sentinel in verdicts(prompts(seed)).values() if sentinel.leaks]
    assert alarms == []


@pytest.mark.parametrize("leak", ["features0", "lengths", "counts", "token_bags"])
def test_each_sentinel_finds_its_leak(leak):
    inputs = prompts()
    labels = inputs["labels"]
    if leak == "features0":
        inputs[leak][:, 0] += labels
    elif leak == "token_bags":
        inputs[leak] = [np.append(bag, 1000 + label) for bag, label in zip(inputs[leak], labels, strict=True)]
    else:
        # not monotonic in the label: a straight line through the size alone would miss it
        inputs[leak] = inputs[leak] + np.array([30, 0, 20, 10])[labels]
    by_name = verdicts(inputs)
    name = {"features0": "state 0 at the last token", "token_bags": "bag of tokens"}.get(leak, "length and counts")
    assert {key for key, one in by_name.items() if one.leaks} == {name}
    assert by_name[name].accuracy > 0.4


def test_chance_and_error_of_the_verdict():
    sentinel = verdicts(prompts())["length and counts"]
    assert sentinel.chance == 0.25
    times = np.bincount(np.concatenate([s.test for s in prompts()["splits"]]))
    effective = times.sum() ** 2 / (times**2).sum()
    assert sentinel.error == pytest.approx(np.sqrt(0.25 * 0.75 / effective))
    one = prompts() | {"splits": prompts()["splits"][:1]}
    assert verdicts(one)["length and counts"].error == pytest.approx(np.sqrt(0.25 * 0.75 / 120))


def test_unbalanced_labels_alone_are_no_leak():
    inputs = prompts()
    inputs["labels"] = np.where(np.random.default_rng(0).random(SAMPLES) < 0.8, 0, inputs["labels"])
    inputs["splits"] = [three_way_split(inputs["labels"], seed=k) for k in range(2)]
    assert not any(sentinel.leaks for sentinel in sentinels(**inputs))


def test_missing_inputs_are_left_out():
    value = prompts() | {"features0": None, "token_bags": None, "counts": None}
    assert [sentinel.name for sentinel in sentinels(**value)] == ["length and counts"]
    tensor = prompts() | {"features0": torch.randn(SAMPLES, 3), "lengths": None, "counts": None, "token_bags": None}
    assert [sentinel.name for sentinel in sentinels(**tensor)] == ["state 0 at the last token"]


def test_sizes_get_a_column_per_value_or_quantile():
    few = size_columns(np.array([[3.0, 1.0], [4.0, 1.0], [3.0, 2.0]]))
    assert few.shape == (3, 6)
    many = size_columns(np.arange(1000.0)[:, None])
    assert many.shape == (1000, 33)
    np.testing.assert_array_equal(many[:, 1:].sum(1), 1)
    assert np.ptp(many[:, 1:].sum(0)) <= 2


def test_bag_keeps_the_telling_tokens():
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    bags = [np.append(rng.integers(0, 5000, 30), 9000 + label) for label in labels]
    columns = bag_columns(bags, labels, np.arange(100), 2)
    assert columns.shape == (200, 1024)
    assert any(np.array_equal(column, labels) for column in columns.T)


def test_wrong_input_is_taught():
    with pytest.raises(InputError, match="token_bags of 600 samples; got 3"):
        sentinels(**prompts() | {"token_bags": [[1], [2], [3]]})
    with pytest.raises(InputError, match="lengths and counts of 600 samples; got 2"):
        sentinels(**prompts() | {"lengths": [1, 2]})
    with pytest.raises(InputError, match="finite numbers for state 0 at the last token; got 600 of 600"):
        sentinels(**prompts() | {"features0": np.full((SAMPLES, 2), np.nan)})
    with pytest.raises(InputError, match="class numbers of shape"):
        sentinels(**prompts() | {"splits": random_splits(SAMPLES, 2), "labels": np.zeros((3, SAMPLES), int)})


@pytest.mark.parametrize(("samples", "blind", "leaks"), [(10, True, False), (40, True, False), (75, False, True)])
def test_a_leak_in_few_prompts_is_found_or_the_check_says_that_it_is_blind(samples, blind, leaks):
    labels = np.arange(samples) % 2
    [sentinel] = sentinels(None, 100 + 50 * labels, None, None, labels, random_splits(samples, 1))
    assert sentinel.accuracy == 1.0
    assert (sentinel.blind, sentinel.leaks) == (blind, leaks)


def test_prompts_of_a_group_with_one_label_count_once():
    """600 prompts in groups of five: the length gives the group, and each group's label is drawn once."""
    rng = np.random.default_rng(1)
    groups = np.arange(SAMPLES) // 5
    labels = rng.integers(0, 4, SAMPLES // 5)[groups]
    splits = [three_way_split(labels, groups, seed=0)]
    [alone] = sentinels(None, np.full(SAMPLES, 9), None, None, labels, splits)
    [grouped] = sentinels(None, np.full(SAMPLES, 9), None, None, labels, splits, groups=groups)
    assert grouped.accuracy == alone.accuracy
    tested = len(splits[0].test)
    assert alone.error == pytest.approx(np.sqrt(alone.chance * (1 - alone.chance) / tested))
    assert grouped.error == pytest.approx(alone.error * np.sqrt(5))
    with pytest.raises(InputError, match="groups of 600 samples; got 2"):
        sentinels(None, np.full(SAMPLES, 9), None, None, labels, splits, groups=[0, 1])


def test_a_group_whose_labels_were_drawn_one_by_one_is_no_unit():
    labels = np.arange(SAMPLES) % 4
    groups = np.arange(SAMPLES) // 4
    splits = [three_way_split(labels, groups, seed=0)]
    [alone] = sentinels(None, np.full(SAMPLES, 9), None, None, labels, splits)
    [grouped] = sentinels(None, np.full(SAMPLES, 9), None, None, labels, splits, groups=groups)
    assert grouped == alone


def test_luck_with_few_groups_is_no_leak():
    """Twelve groups that are all right by luck are twelve guesses, not sixty."""
    groups = np.arange(300) // 25
    labels = groups % 2
    order = np.arange(300)
    split = Split(order[:150], order[150:200], order[200:])
    lengths = 100 + labels
    assert sentinels(None, lengths, None, None, labels, [split])[0].leaks
    [sentinel] = sentinels(None, lengths, None, None, labels, [split], groups=groups)
    assert (sentinel.accuracy, sentinel.leaks, sentinel.blind) == (1.0, False, True)


def test_tokens_are_sorted_out_once_for_all_seeds(monkeypatch):
    counts = []
    real = Occurrences.of
    monkeypatch.setattr(Occurrences, "of", lambda bags: counts.append(len(bags)) or real(bags))
    sentinels(**prompts() | {"features0": None, "lengths": None, "counts": None})
    assert counts == [SAMPLES]


def test_every_fit_runs_where_it_is_asked_to(monkeypatch):
    asked = []
    module = sys.modules[Occurrences.__module__]  # the package has a function of the same name
    real = module.fit_probes
    monkeypatch.setattr(
        module, "fit_probes", lambda *a, **k: asked.append((k["device"], k["precision"])) or real(*a, **k)
    )
    sentinels(**prompts(), device=torch.device("cpu"))
    assert set(asked) == {(torch.device("cpu"), "float32")}
    assert len(asked) == 2 + len(prompts()["splits"])
