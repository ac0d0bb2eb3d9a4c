"""All states and seeds at once against one plain torch loop per probe; groups, seeds, input that cannot be fitted."""

import numpy as np
import pytest
import torch

from repflow.core.errors import InputError
from repflow.probes import ArrayFeatures, Split, fit, fit_probes, objective, rows, three_way_split
from repflow.probes.features import KeptFeatures
from repflow.probes.paper import initial
from tests.probes.probe_inputs import class_means, random_splits

SCALES = (0.1, 1.0, 30.0)


def loop_probe(x, y, split, seed, *, classes, epochs=60):
    """nn.Linear, cross_entropy, backward, torch.optim.Adam: one state, one seed."""
    weight, bias = initial([seed], classes, x.shape[1], x.dtype)
    probe = torch.nn.Linear(x.shape[1], classes, dtype=x.dtype)
    with torch.no_grad():
        probe.weight.copy_(weight[0])
        probe.bias.copy_(bias[0])
    optimiser = torch.optim.Adam(probe.parameters(), lr=0.05)

    def loss():
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(probe(x[split.train]), y[split.train])
        value.backward()
        return value

    for _ in range(epochs):
        loss()
        optimiser.step()
    final = float(loss().detach())
    norm = float(torch.cat([p.grad.flatten() for p in probe.parameters()]).norm())
    with torch.no_grad():
        logits = probe(x)
        right = (logits.argmax(-1) == y).numpy()
        likely = torch.log_softmax(logits, -1)[torch.arange(len(y)), y]
    return final, norm, right, float(likely[split.test].mean())


@pytest.mark.parametrize("same_split", [False, True])
@pytest.mark.parametrize("max_rows", [1024, 37])
def test_paper_recipe_is_the_loop(same_split, max_rows, monkeypatch):
    monkeypatch.setitem(fit.CHUNK_ROWS, "cpu", max_rows)
    monkeypatch.setattr(rows, "MIN_ROWS", 20)
    monkeypatch.setattr(objective, "EVALUATION_ROWS", 50)
    x, y = class_means((0.0, 0.4, 0.8), scales=SCALES, samples=150, width=5)
    splits = random_splits(150, 3)
    splits = [splits[0]] * 3 if same_split else splits
    seeds = (4, 5, 11)
    got = fit_probes(ArrayFeatures(x), y, splits, n_classes=3, seeds=seeds, epochs=60)
    for state in range(3):
        for k, (seed, split) in enumerate(zip(seeds, splits, strict=True)):
            loss, norm, right, likely = loop_probe(
                torch.as_tensor(x[state]), torch.as_tensor(y), split, seed, classes=3
            )
            assert got.loss[state, k] == pytest.approx(loss, rel=1e-9, abs=1e-12)
            assert got.gradient[state, k] == pytest.approx(norm, rel=1e-6, abs=1e-12)
            assert got.log_likelihood_test[state, k] == pytest.approx(likely, rel=1e-9, abs=1e-12)
            assert np.array_equal(got.correct_test[k][state], right[split.test])
            assert np.array_equal(got.correct_valid[k][state], right[split.valid])
            for part in ("train", "valid", "test"):
                mine = getattr(got, f"accuracy_{part}")[state, k]
                assert mine == pytest.approx(right[getattr(split, part)].mean())


def test_float32_agrees_with_float64():
    x, y = class_means((0.3, 0.6), samples=400, width=20, scales=(1.0, 10.0))
    splits = random_splits(400, 2)
    wide = fit_probes(ArrayFeatures(x), y, splits, n_classes=3)
    narrow = fit_probes(ArrayFeatures(x.astype(np.float32)), y, splits, n_classes=3)
    assert np.abs(wide.accuracy_test - narrow.accuracy_test).max() <= 1 / 80
    np.testing.assert_allclose(narrow.loss, wide.loss, rtol=1e-3)


def test_half_precision_features_are_widened():
    x, y = class_means((1.5,))
    got = fit_probes(ArrayFeatures(torch.as_tensor(x).bfloat16()), y, random_splits(300, 1), n_classes=3)
    assert got.accuracy_test[0, 0] > 0.9


@pytest.mark.parametrize("recipe", ["paper", "robust"])
def test_grouping_of_states_changes_nothing(recipe):
    x, y = class_means(np.linspace(0, 1, 7), samples=200)
    splits = random_splits(200, 2)
    calls = []
    whole = fit_probes(
        ArrayFeatures(x),
        y,
        splits,
        n_classes=3,
        recipe=recipe,
        epochs=40,
        memory=10**9,
        progress=lambda *a: calls.append(a),
    )
    one = fit_probes(ArrayFeatures(x), y, splits, n_classes=3, recipe=recipe, epochs=40, memory=1)
    alone = fit_probes(ArrayFeatures(x[4:5]), y, splits, n_classes=3, recipe=recipe, epochs=40)
    assert calls[-1] == (7, 7)
    for name in ("accuracy_test", "loss", "penalty", "log_likelihood_test"):
        np.testing.assert_allclose(getattr(whole, name), getattr(one, name), rtol=1e-8)
        np.testing.assert_allclose(getattr(whole, name)[4:5], getattr(alone, name), rtol=1e-8)


def test_several_workers_give_what_one_gives():
    x, y = class_means(np.linspace(0, 1, 5))
    splits = random_splits(300, 2)
    threads, seen = torch.get_num_threads(), []
    one = fit_probes(ArrayFeatures(x), y, splits, n_classes=3, epochs=20, memory=1)
    try:
        torch.set_num_threads(3)
        many = fit_probes(
            ArrayFeatures(x), y, splits, n_classes=3, epochs=20, memory=250_000, progress=lambda *a: seen.append(a)
        )
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) > 1
    np.testing.assert_allclose(one.loss, many.loss, rtol=1e-9)


def test_a_mistake_in_a_worker_reaches_the_caller():
    class Broken(ArrayFeatures):
        def state(self, index):
            return super().state(index)[:5] if index == 3 else super().state(index)

    x, y = class_means(np.zeros(5))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(InputError, match=r"state 3 of shape \(300, 12\); got \(5, 12\)"):
            fit_probes(Broken(x), y, random_splits(300, 1), n_classes=3, epochs=1, memory=150_000)
    finally:
        torch.set_num_threads(threads)


def test_a_seed_may_have_prompts_of_its_own():
    """All seeds' prompts on one axis: the same numbers as one call per seed."""
    pairs = [class_means((0.5, 0.2), samples=100, seed=seed) for seed in range(3)]
    own = random_splits(100, 3)
    shifted = [Split(*(part + 100 * k for part in (s.train, s.valid, s.test))) for k, s in enumerate(own)]
    together = fit_probes(
        ArrayFeatures(np.concatenate([x for x, _ in pairs], 1)),
        np.concatenate([y for _, y in pairs]),
        shifted,
        n_classes=3,
        seeds=(7, 8, 9),
        epochs=30,
    )
    for k, (x, y) in enumerate(pairs):
        alone = fit_probes(ArrayFeatures(x), y, [own[k]], n_classes=3, seeds=(7 + k,), epochs=30)
        np.testing.assert_allclose(together.loss[:, k], alone.loss[:, 0], rtol=1e-10)
        assert np.array_equal(together.correct_test[k], alone.correct_test[0])


def test_labels_may_differ_by_seed():
    x, y = class_means((2.0,))
    other = (y + 1) % 3
    splits = [random_splits(300, 1)[0]] * 2
    got = fit_probes(ArrayFeatures(x), np.stack([y, other]), splits, n_classes=3, seeds=(0, 0))
    assert got.accuracy_test.min() > 0.95


@pytest.mark.parametrize("recipe", ["paper", "robust"])
def test_separable_data_is_read_and_noise_is_not(recipe):
    x, y = class_means((0.0, 5.0), samples=1500, classes=5)
    splits = [three_way_split(y, seed=k) for k in range(3)]
    got = fit_probes(ArrayFeatures(x.astype(np.float32)), y, splits, n_classes=5, recipe=recipe)
    assert got.accuracy_test[1].min() == 1
    assert abs(got.accuracy_test[0].mean() - 0.2) < 3 * np.sqrt(0.2 * 0.8 / 900)


def test_a_state_with_nan_is_nan_with_a_reason():
    x, y = class_means((1.0, 1.0, 1.0))
    clean = fit_probes(ArrayFeatures(x), y, random_splits(300, 2), n_classes=3, epochs=10)
    x[1, 17, 3], x[1, 20, 0] = np.nan, np.inf
    for recipe in ("paper", "robust"):
        got = fit_probes(ArrayFeatures(x), y, random_splits(300, 2), n_classes=3, recipe=recipe, epochs=10)
        assert np.isnan(got.accuracy_test[1]).all()
        assert np.isnan(got.loss[1]).all()
        assert not got.converged[1].any()
        assert got.reasons == {1: "2 of 300 samples hold NaN or Inf"}
        if recipe == "paper":
            np.testing.assert_allclose(got.loss[[0, 2]], clean.loss[[0, 2]])


def test_nan_in_rows_that_are_not_used_does_no_harm():
    x, y = class_means((1.0,))
    x[0, 299] = np.nan
    split = random_splits(299, 1)
    assert np.isfinite(fit_probes(ArrayFeatures(x), y, split, n_classes=3, epochs=5).loss).all()


def test_constant_and_huge_features():
    x, y = class_means((1.0, 0.0, 1.0))
    x[1] = 7.0
    x[2, :, 0] += 1e4
    for recipe in ("paper", "robust"):
        got = fit_probes(ArrayFeatures(x.astype(np.float32)), y, random_splits(300, 2), n_classes=3, recipe=recipe)
        assert np.isfinite(got.accuracy_test).all()
        assert got.accuracy_test[1].max() < 0.5
    assert got.accuracy_test[2].min() > 0.8  # robust: one large constant does not drown the rest


def test_convergence_does_not_depend_on_the_features_unit():
    x, y = class_means((1.0, 1.0), samples=600)
    x[1] = x[0] * 1000
    robust = fit_probes(ArrayFeatures(x), y, random_splits(600, 1), n_classes=3, recipe="robust")
    assert robust.converged.all()
    np.testing.assert_allclose(robust.loss[0], robust.loss[1], rtol=1e-6)
    short = fit_probes(ArrayFeatures(x), y, random_splits(600, 1), n_classes=3, epochs=2)
    assert not short.converged.any()


def test_memmap_features(tmp_path):
    x, y = class_means((0.5, 1.0))
    np.save(tmp_path / "x.npy", x)
    stored = ArrayFeatures(np.load(tmp_path / "x.npy", mmap_mode="r"))
    splits = random_splits(300, 1)
    from_disk = fit_probes(stored, y, splits, n_classes=3, epochs=5)
    np.testing.assert_array_equal(from_disk.loss, fit_probes(ArrayFeatures(x), y, splits, n_classes=3, epochs=5).loss)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"recipe": "papr"}, "a recipe; got 'papr'; did you mean paper"),
        ({"precision": "bf16"}, "a precision"),
        ({"epochs": 0}, "at least one epoch"),
        ({"tolerance": 0.0}, "positive rate and tolerance"),
        ({"penalties": ()}, "positive penalties"),
        ({"penalties": (0.0,)}, "separable data has no finite optimum"),
        ({"memory": 0}, "a positive number of bytes"),
        ({"seeds": (1, 2)}, "one seed per split; got 2 and 1"),
        ({"n_classes": 2}, "labels from 0 to 1; got 0 to 2"),
        ({"splits": []}, "one split per seed; got none"),
        ({"labels": np.zeros(4, int)}, r"class numbers of shape \(300,\) or \(1, 300\)"),
        ({"labels": np.ones(300, int)}, "training labels of at least two classes; got only class 1"),
        ({"splits": [Split(np.arange(5), np.arange(5, 9), np.array([300]))]}, "splits of rows below 300"),
    ],
)
def test_wrong_requests_are_taught(change, match):
    x, y = class_means((0.0,))
    request = {"labels": y, "splits": random_splits(300, 1), "n_classes": 3} | change
    with pytest.raises(InputError, match=match):
        fit_probes(ArrayFeatures(x), request.pop("labels"), request.pop("splits"), **request)


def test_features_need_three_axes():
    with pytest.raises(InputError, match=r"\(state, sample, width\); got ndarray of shape \(3, 4\)"):
        ArrayFeatures(np.zeros((3, 4)))


class Noted(ArrayFeatures):
    """Features that note which states were read."""

    def __init__(self, array):
        super().__init__(array)
        self.read = []

    def state(self, index):
        self.read.append(index)
        return super().state(index)


def test_kept_features_are_read_once_for_several_fits_and_give_the_same():
    rng = np.random.default_rng(0)
    array, labels = rng.standard_normal((3, 60, 5)).astype(np.float32), np.arange(60) % 2
    splits = [three_way_split(labels, seed=k) for k in range(2)]
    noted = Noted(array)
    features = KeptFeatures(noted, "cpu")
    for recipe in ("paper", "robust"):
        got = fit_probes(features, labels, splits, n_classes=2, recipe=recipe, epochs=5)
        want = fit_probes(ArrayFeatures(array), labels, splits, n_classes=2, recipe=recipe, epochs=5)
        np.testing.assert_array_equal(got.accuracy_test, want.accuracy_test)
        np.testing.assert_array_equal(got.loss, want.loss)
    assert sorted(noted.read) == [0, 1, 2]
    (
        np.testing.assert_array_equal(array, np.stack([features.state(state) for state in range(3)])),
        "fits leave them alone",
    )
