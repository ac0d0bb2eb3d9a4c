"""The robust recipe against scikit-learn and scipy, and its choice of penalty."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from repflow.probes import ArrayFeatures, fit_probes, robust
from repflow.probes.lbfgs import minimise
from tests.probes.probe_inputs import class_means, random_splits

STRENGTHS, SCALES = (0.0, 0.5, 1.5), (100.0, 1.0, 0.01)


def sklearn_probe(x, y, split, penalty):
    scaler = StandardScaler().fit(x[split.train])
    model = LogisticRegression(C=1 / (penalty * len(split.train)), tol=1e-8, max_iter=5000)
    model.fit(scaler.transform(x[split.train]), y[split.train])
    return model, scaler


@pytest.mark.parametrize("penalty", [1.0, 0.01, 1e-3])
def test_one_penalty_is_scikit_learn(penalty):
    x, y = class_means(STRENGTHS, scales=SCALES)
    x += 3.0
    splits = random_splits(300, 2)
    got = fit_probes(ArrayFeatures(x), y, splits, n_classes=3, recipe="robust", penalties=(penalty,), tolerance=1e-8)
    for state in range(3):
        for k, split in enumerate(splits):
            model, scaler = sklearn_probe(x[state], y, split, penalty)
            z = scaler.transform(x[state])
            assert got.loss[state, k] == pytest.approx(
                log_loss(y[split.train], model.predict_proba(z[split.train])), rel=1e-5
            )
            want = log_loss(y[split.test], model.predict_proba(z[split.test]))
            assert -got.log_likelihood_test[state, k] == pytest.approx(want, rel=1e-4)
            assert np.array_equal(got.correct_test[k][state], model.predict(z[split.test]) == y[split.test])
            assert got.penalty[state, k] == penalty


def test_default_tolerance_is_scikit_learn_within_noise():
    x, y = class_means(np.linspace(0, 1, 4), samples=600)
    splits = random_splits(600, 2)
    x32 = x.astype(np.float32)
    got = fit_probes(ArrayFeatures(x32), y, splits, n_classes=3, recipe="robust")
    assert got.converged.all()
    for state in range(4):
        for k, split in enumerate(splits):
            model, scaler = sklearn_probe(x[state], y, split, got.penalty[state, k])
            want = model.score(scaler.transform(x[state][split.test]), y[split.test])
            assert got.accuracy_test[state, k] == pytest.approx(want, abs=2 / len(split.test))


def buried_signal(samples=600, width=64, classes=4, rank=20, strength=0.03, seed=0):
    """A class mean of small variance under a few strong directions that all prompts share, as a residual stream has."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) % classes)
    shared = rng.standard_normal((samples, rank)) @ rng.standard_normal((rank, width))
    means = strength * rng.standard_normal((classes, width))
    return (shared + means[labels] + 0.3 * strength * rng.standard_normal((samples, width)))[None], labels


def test_penalty_is_the_best_on_validation_of_all():
    x, y = class_means((0.0, 0.5, 3.0))
    [split] = splits = random_splits(300, 1)
    got = fit_probes(ArrayFeatures(x), y, splits, n_classes=3, recipe="robust", tolerance=1e-7)
    for state in range(3):
        losses = {}
        for penalty in robust.PENALTIES:
            model, scaler = sklearn_probe(x[state], y, split, penalty)
            losses[penalty] = log_loss(
                y[split.valid], model.predict_proba(scaler.transform(x[state][split.valid]))
            )  # fmt: skip
        assert losses[got.penalty[state, 0]] == pytest.approx(min(losses.values()), abs=0.01)


def test_a_likelihood_that_falls_before_it_rises_does_not_end_the_search():
    x, y = buried_signal()
    [split] = splits = random_splits(600, 1)
    got = fit_probes(ArrayFeatures(x), y, splits, n_classes=4, recipe="robust")
    scores, losses = [], []
    for penalty in robust.PENALTIES:
        model, scaler = sklearn_probe(x[0], y, split, penalty)
        z = scaler.transform(x[0])
        scores.append(model.score(z[split.test], y[split.test]))
        losses.append(log_loss(y[split.valid], model.predict_proba(z[split.valid])))
    assert any(b > a for a, b in pairwise(losses)), "falls first"
    assert scores[0] < 0.5 < 0.9 < max(scores)
    assert got.accuracy_test[0, 0] >= scores[int(np.argmin(losses))] - 0.03


def test_each_seed_is_scaled_by_its_own_training_rows():
    """A seed whose training rows differ in scale from its neighbour's still gets scikit-learn's answer."""
    x, y = class_means((0.7,))
    x[0, :150] *= 5
    first, second = random_splits(150, 1)[0], random_splits(150, 1)[0]
    moved = type(second)(*(part + 150 for part in (second.train, second.valid, second.test)))
    got = fit_probes(ArrayFeatures(x), y, [first, moved], n_classes=3, recipe="robust", penalties=(0.01,))
    for k, split in enumerate((first, moved)):
        model, scaler = sklearn_probe(x[0], y, split, 0.01)
        want = log_loss(y[split.train], model.predict_proba(scaler.transform(x[0][split.train])))
        assert got.loss[0, k] == pytest.approx(want, abs=1e-3)


def test_lbfgs_solves_problems_of_very_different_shape():
    generator = torch.Generator().manual_seed(0)
    roots = torch.randn(6, 8, 8, generator=generator, dtype=torch.float64)
    curvature = roots @ roots.mT + torch.logspace(-2, 2, 6, dtype=torch.float64)[:, None, None] * torch.eye(8)
    goal = torch.randn(6, 8, generator=generator, dtype=torch.float64)

    def bowls(point, active):
        pull = (curvature @ (point - goal)[..., None])[..., 0]
        return ((point - goal) * pull).sum(-1) / 2, pull

    start = torch.zeros(6, 8, dtype=torch.float64)
    active = torch.tensor([True] * 5 + [False])
    minimum = minimise(bowls, start, active=active, tolerance=1e-9)
    assert minimum.rounds < 200
    np.testing.assert_allclose(minimum.point[:5], goal[:5], atol=1e-6)
    assert (minimum.point[5] == 0).all()
    assert minimum.gradient[:5].max() <= 1e-9


def test_lbfgs_shortens_steps_that_overshoot():
    def walls(point, active):  # steep far out: a full first step lands far beyond the minimum
        return torch.cosh(10 * point).sum(-1), 10 * torch.sinh(10 * point)

    start = torch.tensor([[0.7, -0.5], [0.01, 0.02]], dtype=torch.float64)
    minimum = minimise(walls, start, active=torch.tensor([True, True]), tolerance=1e-8)
    assert minimum.point.abs().max() < 1e-8


def test_lbfgs_stops_where_the_dtype_ends():
    start = torch.full((1, 50), 3.0)
    minimum = minimise(
        lambda x, active: (1e4 + x.square().sum(-1), 2 * x), start, active=torch.tensor([True]), tolerance=0.0
    )
    assert minimum.rounds <= 300
    assert minimum.point.abs().max() < 0.1


def hard_features(samples=60, width=64, classes=4, seed=0):
    """States as random and badly scaled models give them, (kind, sample, width)."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((6, samples, width))
    noise[0] = 1.0 + 1e-3 * noise[0]  # a small spread around a large common vector
    noise[1, :, :3] *= 1e4  # massive channels
    noise[2] = rng.standard_normal((samples, 4)) @ rng.standard_normal((4, width)) + 1e-4 * noise[2]  # few directions
    noise[3] += 1e4 * rng.standard_normal((samples, 1))  # one direction above all others
    noise[4] = rng.standard_t(1.5, (samples, width))  # heavy tails
    noise[5, 0] *= 1e4  # one prompt unlike all others
    return noise.astype(np.float32), np.arange(samples) % classes


def test_features_of_random_models_converge_to_scikit_learn():
    """More columns than prompts, scales from 1e-3 to 1e4, in float32: the robust recipe ends at its minimum."""
    x, y = hard_features()
    splits = random_splits(60, 2)
    got = fit_probes(ArrayFeatures(x), y, splits, n_classes=4, recipe="robust")
    assert got.converged.all()
    for penalty in (1.0, 0.01):
        one = fit_probes(ArrayFeatures(x), y, splits, n_classes=4, recipe="robust", penalties=(penalty,))
        assert one.converged.all()
        for state in range(len(x)):
            for k, split in enumerate(splits):
                model, scaler = sklearn_probe(x[state].astype(np.float64), y, split, penalty)
                want = log_loss(y[split.train], model.predict_proba(scaler.transform(x[state][split.train])))
                # a gradient of 1e-3 leaves the objective within 1e-6 / (2 penalty) of its minimum
                assert one.loss[state, k] == pytest.approx(want, abs=0.01)
