"""WarmProbe: what scikit-learn finds, and a warm start that changes the work and not the result."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from repflow.core.errors import InputError
from repflow.probes import three_way_split
from repflow.tasks import id_prompts
from repflow.training.flow.probe import PENALTY, WarmProbe


def features(seed=0, drift=0.0, states=3, samples=60, width=5):
    draws = np.random.default_rng(seed)
    labels = np.arange(samples) % 2
    noise = draws.normal(size=(states, samples, width))
    signal = labels[:, None] * np.linspace(0, 1.5, states)[:, None, None]
    return noise + signal + drift * np.random.default_rng(9).normal(size=noise.shape), labels


def probe(labels, **options):
    return WarmProbe(labels, three_way_split(labels, seed=0), **options)


def test_it_reads_what_scikit_learn_reads():
    x, labels = features()
    mine = probe(labels)
    accuracy = mine.read(x)["probe_accuracy"][1]
    train, held = mine.split.train, np.concatenate([mine.split.valid, mine.split.test])
    for state in range(3):
        mean, deviation = x[state, train].mean(0), x[state, train].std(0)
        z = (x[state] - mean) / deviation
        # two softmax rows ∓v/2 have the penalty λ/4 ‖v‖², scikit-learn's one row v has ‖v‖² / (2 C n)
        other = LogisticRegression(C=2 / (PENALTY * len(train)), tol=1e-8).fit(z[train], labels[train])
        assert accuracy[state] == other.score(z[held], labels[held])


def test_a_warm_start_takes_fewer_rounds_to_the_same_result():
    first, labels = features()
    later, _ = features(drift=0.02)
    warm, cold = probe(labels), probe(labels, warm=False)
    for one in (warm, cold):
        one.read(first)
    begun = warm.rounds
    assert warm.rounds == cold.rounds
    again, anew = (one.read(later)["probe_accuracy"][1] for one in (warm, cold))
    np.testing.assert_array_equal(again, anew)
    assert warm.rounds < cold.rounds
    assert warm.rounds < begun


def test_a_state_that_is_not_finite_is_nan_and_does_not_spoil_the_next_fit():
    x, labels = features()
    bad = x.copy()
    bad[1, 0, 0] = np.nan
    mine = probe(labels)
    assert np.isnan(mine.read(bad)["probe_accuracy"][1]).tolist() == [False, True, False]
    assert np.isfinite(mine.read(x)["probe_accuracy"][1]).all()


def test_labels_of_one_class_are_refused():
    prompts = id_prompts([[1, 2], [3, 4]], 8)
    with pytest.raises(InputError, match="labels of two classes at least; got 1"):
        WarmProbe.of(prompts, [0, 0], 0)
    with pytest.raises(InputError, match="got 1 for 2 prompts"):
        WarmProbe.of(prompts, [0], 0)
