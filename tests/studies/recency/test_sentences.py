"""What a recency run says in words, of planted numbers: which side, and from where on."""

from types import SimpleNamespace

import numpy as np
import pytest

from repflow.core.results import Result
from repflow.studies.recency import findings
from repflow.studies.recency.measured import Side
from repflow.studies.recency.ratio import influence_ratio
from repflow.theory.influence_curve import WINDOWS, exponential_fit

DISTANCES = np.arange(40)
SPREAD = np.array([-0.001, 0.0, 0.001])
"""Of κ, over three prompts."""


def curves(kappa, spread=SPREAD):
    return -(kappa + spread)[:, None] * DISTANCES


def influence(name, kappa, spread=SPREAD):
    arrays, axes = {"log_influence": curves(kappa, spread)}, {"log_influence": ("sample", "distance")}
    config = {"model": name, "task": "random", "length": 40, "samples": 3}
    return Result(arrays, axes, config, {"digests": {"prompts": "one"}}, [])


@pytest.mark.parametrize(
    ("first", "second", "spread", "said"),
    [
        (0.3, 0.1, 0.01, "a is the more local of the two"),
        (0.1, 0.3, 0.01, "b is the more local of the two"),
        (0.11, 0.1, 0.1, "neither is the more local: the interval contains 0"),
        (0.1, 0.11, 0.1, "neither is the more local: the interval contains 0"),
    ],
)
def test_of_two_models_the_one_that_falls_faster_is_the_more_local(first, second, spread, said):
    ratio = influence_ratio(influence("a", first, spread * np.array([-1, 0, 1])), influence("b", second, 0 * SPREAD))
    facts = ratio.provenance["ratio"]
    assert facts["paired"]
    assert facts["kappa"] == pytest.approx(first - second)
    (finding,) = ratio.findings
    assert finding.message.startswith(f"influence of a over b: κ = {first - second:.4g} [")
    assert finding.message.endswith(said)


@pytest.mark.parametrize(
    ("trained", "random", "said"),
    [
        (0.2, 0.1, "training makes the decay 2.00 times faster, the intervals do not overlap"),
        (0.1, 0.2, "training makes the decay 2.00 times slower, the intervals do not overlap"),
        (0.1, 0.1005, "training is not shown to change the decay"),
        (0.1005, 0.1, "training is not shown to change the decay"),
    ],
)
def test_a_twin_says_what_training_does_to_the_decay(trained, random, said):
    one, other = (exponential_fit(curves(kappa)) for kappa in (trained, random))
    text = findings._twin("he", one, other)
    assert text == f"trained κ = {trained:.4g}, random twin (he) κ = {random:.4g}: {said}"


def test_without_a_decay_a_twin_is_not_compared():
    growing, falling = (exponential_fit(curves(kappa)) for kappa in (-0.1, 0.1))
    for one, other in ((growing, falling), (falling, growing)):
        assert findings._twin("he", one, other).count("training") == 0


@pytest.mark.parametrize(
    ("middle", "shape"), [(0.25, "both ends count more than the middle"), (-0.25, "no U-shape"), (np.nan, None)]
)
def test_reach_names_the_shape_and_the_shares(middle, shape):
    share = {1: 0.1, 16: 0.25, 64: 0.5, 256: 1.0}
    shares = np.array([[share.get(window, np.nan)] * 3 for window in WINDOWS])
    table = {
        "recent_share": (("window", "sample"), shares),
        "lost_in_the_middle": (("sample",), np.full(3, middle)),
        "half_reach": (("sample",), np.array([2.0, 2.0, 5.0])),
    }
    text = findings._reach(Side(table, [], 0, 0))
    assert text.startswith("half of the influence comes from the last 3.0 [")
    for window in WINDOWS:
        told = f"{100 * share.get(window, 0):.0f} % in the last {window}"
        assert (told in text) == (window > 1 and window in share), window
    assert text.endswith(")") if shape is None else text.endswith(f"lost-in-the-middle index {middle:+.2f}: {shape}")


@pytest.mark.parametrize(
    ("least", "kinds", "said"),
    [
        (0.15, ["ssm", "ssm"], "; the curve falls 1.33 times as fast, so the bound is sharp"),
        (0.05, ["ssm", "ssm"], "; the curve falls 4 times as fast, so the bound is loose"),
        (
            0.4,
            ["ssm", "attention"],
            "; the curve falls 0.5 times as fast: attention layers, which the theorem does not",
        ),
        (0.4, ["ssm", "ssm"], "; the curve falls 0.5 times as fast: the theorem bounds one layer up to a constant"),
        (0.0, ["ssm", "ssm"], ": no decay is promised"),
    ],
)
def test_the_theorem_stands_beside_the_fit(least, kinds, said):
    """Of the second layer, whose largest A decays most slowly; an entry that is not finite promises nothing."""
    table = {"theorem_kappa": (("layer", "head"), np.array([[0.9, np.inf], [least, 0.7]]))}
    fit = exponential_fit(curves(0.2))
    code, layer, text = findings._bound(SimpleNamespace(layer_kinds=kinds), Side(table, [fit], 0, 0), fit)
    assert (code, layer) == ("loose_bound", 1)
    assert text.startswith(f"Theorem 3.1 allows κ ≥ {least:.3g} (layer 2 has the largest A, {np.exp(-least):.6g})")
    assert said in text
    still = exponential_fit(curves(0.01, 0.1 * np.array([-1, 0, 1])))
    if least:
        assert findings._bound(SimpleNamespace(layer_kinds=kinds), Side(table, [still], 0, 0), still)[2].endswith(
            "the fitted curve is not shown to decay at all"
        )
