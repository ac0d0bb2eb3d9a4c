"""Probes on few prompts: the fit in the training rows' span is the direct fit, in few operations for all states."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler
from torch.utils._python_dispatch import TorchDispatchMode

from repflow.probes import ArrayFeatures, Split, fit, fit_probes, span
from repflow.probes.budget import GPU_GROUP, plan_groups
from repflow.probes.lbfgs import HISTORY, _History
from repflow.probes.rows import plan_rows
from tests.probes.probe_inputs import random_splits

SAMPLES, WIDTH, CLASSES = 60, 256, 4


def wide(states=5, dtype=np.float64, seed=0):
    """More columns than prompts: noise and a class mean, then what real states add to it."""
    rng = np.random.default_rng(seed)
    labels = np.arange(SAMPLES) % CLASSES
    x = rng.standard_normal((states, SAMPLES, WIDTH)) + 0.3 * rng.standard_normal((CLASSES, WIDTH))[labels]
    if states > 1:
        x[1, 1::2] = x[1, ::2]  # prompts that repeat: the rows' rank is half their number
    if states > 2:
        x[2, :, :100] = 7.0  # columns that never change
    if states > 3:
        x[3] = x[3] * 1e-3 + 50.0
    return x.astype(dtype), labels


def ragged_splits():
    """Three seeds with other rows each, the last with fewer of them."""
    first, second, third = random_splits(SAMPLES, 3)
    return [first, second, Split(third.train[:25], third.valid, third.test)]


def both(x, y, splits, monkeypatch, **options):
    fast = fit_probes(ArrayFeatures(x), y, splits, n_classes=CLASSES, recipe="robust", **options)
    with monkeypatch.context() as patch:
        patch.setattr(fit, "fits_span", lambda plan, width, device: False)
        slow = fit_probes(ArrayFeatures(x), y, splits, n_classes=CLASSES, recipe="robust", **options)
    return fast, slow


def test_the_span_gives_the_direct_fit_in_float64(monkeypatch):
    x, y = wide()
    splits = ragged_splits()
    assert span.fits_span(
        plan_rows(splits, np.stack([y] * 3), max_rows=1024, device=torch.device("cpu"), dtype=torch.float64),
        WIDTH,
        torch.device("cpu"),
    )
    fast, slow = both(x, y, splits, monkeypatch)
    for name in ("accuracy_train", "accuracy_valid", "accuracy_test", "penalty"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name
    # the same steps in another basis, not just the same minimum
    np.testing.assert_allclose(fast.gradient, slow.gradient, rtol=1e-6)
    np.testing.assert_allclose(fast.loss, slow.loss, rtol=1e-8)
    np.testing.assert_allclose(fast.log_likelihood_test, slow.log_likelihood_test, rtol=1e-8)
    assert fast.converged.all()


def test_float32_features_are_fitted_in_the_span_in_float64(monkeypatch):
    x, y = wide(dtype=np.float32)
    fast, slow = both(x, y, ragged_splits(), monkeypatch, penalties=(0.01,), tolerance=1e-5)
    np.testing.assert_allclose(fast.loss, slow.loss, rtol=1e-3)
    assert (fast.gradient <= 1e-5).all()


@pytest.mark.parametrize("penalty", [1.0, 0.01])
def test_the_span_is_scikit_learn(penalty):
    x, y = wide()
    splits = ragged_splits()
    got = fit_probes(
        ArrayFeatures(x), y, splits, n_classes=CLASSES, recipe="robust", penalties=(penalty,), tolerance=1e-9
    )
    for state in range(len(x)):
        for k, split in enumerate(splits):
            scaler = StandardScaler().fit(x[state, split.train])
            model = LogisticRegression(C=1 / (penalty * len(split.train)), tol=1e-10, max_iter=20000)
            model.fit(scaler.transform(x[state, split.train]), y[split.train])
            for part, mine, rel in ((split.train, got.loss, 1e-5), (split.test, -got.log_likelihood_test, 1e-4)):
                want = log_loss(y[part], model.predict_proba(scaler.transform(x[state, part])), labels=range(CLASSES))
                assert mine[state, k] == pytest.approx(want, rel=rel)


class Operations(TorchDispatchMode):
    """How many operations are started: each is a launch on a GPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **kwargs or {})


def test_operations_do_not_grow_with_the_states(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    x, y = wide(1, np.float32)
    counts = []
    for states in (1, 16):
        features = ArrayFeatures(np.repeat(x, states, 0))
        with Operations() as seen:
            fit_probes(features, y, ragged_splits(), n_classes=CLASSES, recipe="robust", memory=10**9)
        counts.append(seen.count)
    # reading a state from the features takes a few operations for each; the rounds of the fit take none
    assert counts[1] - counts[0] <= 15 * 12


@pytest.mark.parametrize("recipe", ["paper", "robust"])
def test_a_gpu_takes_all_states_of_few_prompts_at_once(recipe, monkeypatch):
    """33 or 65 states of 100 prompts and width 2560, 5 seeds and 50 classes, beside a model of some gigabytes."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (100 * 2**30, 139 * 2**30))
    labels = np.arange(100) % 50
    plan = plan_rows(
        random_splits(100, 5), np.stack([labels] * 5), max_rows=8192, device=torch.device("cpu"), dtype=torch.float32
    )
    for states in (33, 65):
        features = ArrayFeatures(np.broadcast_to(np.float32(0), (states, 100, 2560)))
        options = {"n_classes": 50, "recipe": recipe, "split": False, "device": torch.device("cuda")}
        assert plan_groups(features, plan, memory=None, **options) == (states, 1)
        small = plan_groups(features, plan, memory=2**20, **options)
        assert small.size < states, "a budget that was asked for holds"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (2**20, 139 * 2**30))
    assert plan_groups(features, plan, memory=None, **options).size < 65, "what is free holds"
    assert GPU_GROUP > 2**30


def two_loops(steps, changes, gradient, scale):
    """- H g by the recursion (Nocedal and Wright, algorithm 7.4), pairs oldest first."""
    out, shares = gradient.clone(), []
    for s, y in reversed(list(zip(steps, changes, strict=True))):
        share = (s @ out) / (s @ y)
        out -= share * y
        shares.append(share)
    out *= scale
    for (s, y), share in zip(zip(steps, changes, strict=True), reversed(shares), strict=True):
        out += (share - (y @ out) / (s @ y)) * s
    return -out


def test_the_compact_form_is_the_two_loop_recursion():
    """Problems whose histories differ: one takes every step, one misses some, one has not begun."""
    generator = torch.Generator().manual_seed(0)
    size = 30
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    curvature = root @ root.T / size + 0.1 * torch.eye(size, dtype=torch.float64)
    history = _History(torch.zeros(3, size, dtype=torch.float64))
    by_problem = [[], [], []]
    for turn in range(2 * HISTORY + 3):
        step = torch.randn(3, size, generator=generator, dtype=torch.float64)
        chosen = torch.tensor([True, turn % 3 != 1, False])
        history.add(chosen, step, step @ curvature)
        for problem, took in enumerate(chosen.tolist()):
            by_problem[problem] = [
                *by_problem[problem],
                (turn, step[problem], curvature @ step[problem]) if took else None,
            ]
        gradient = torch.randn(3, size, generator=generator, dtype=torch.float64)
        got = history.direction(gradient)
        for problem in range(3):
            pairs = [pair for pair in by_problem[problem][-HISTORY:] if pair is not None]
            steps, changes = [p[1] for p in pairs], [p[2] for p in pairs]
            scale = (steps[-1] @ changes[-1]) / changes[-1].square().sum() if pairs else 1.0
            want = two_loops(steps, changes, gradient[problem], scale)
            torch.testing.assert_close(got[problem], want, rtol=1e-8, atol=1e-10)
