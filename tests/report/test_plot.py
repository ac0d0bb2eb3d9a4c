"""Figures: a curve with its band, chance and peak for a probe; what a result is about without asking."""

import numpy as np
import pytest

import repflow  # noqa: F401  registers what results draw with
from repflow.errors import InputError
from repflow.report.html import html, ordered
from repflow.results import Band, Result


def probed(states=5, seeds=2):
    accuracy = np.random.default_rng(0).uniform(0.3, 0.9, (states, seeds))
    mean = accuracy.mean(1)
    return Result(
        {
            "probe/paper/loss": accuracy,
            "probe_chance": np.array(0.25),
            "probe_accuracy": accuracy,
            "lens_rank": np.ones((states, 3)),
        },
        {
            "probe/paper/loss": ("state", "seed"),
            "probe_chance": (),
            "probe_accuracy": ("state", "seed"),
            "lens_rank": ("state", "sample"),
        },
        {"model": "m", "task": "kvpr"},
        {"probe": {"peak": 3}, "model": {"name": "m"}},
        bands={"probe_accuracy": Band(mean, mean - 0.1, mean + 0.1)},
    )


def test_a_probe_draws_its_curve_with_band_chance_and_peak():
    result = probed()
    figure = result.plot()
    low, high, line = figure.data
    mean = result["probe_accuracy"].mean(1)
    np.testing.assert_allclose(line.y, mean)
    np.testing.assert_allclose(low.y, mean - 0.1)
    np.testing.assert_allclose(high.y, mean + 0.1)
    chance, peak = figure.layout.shapes
    assert (chance.y0, chance.y1) == (0.25, 0.25)
    assert (peak.x0, peak.x1) == (3, 3)
    assert figure.layout.title.text == "m: probe_accuracy"
    assert figure.to_dict() == result.plot("probe_accuracy").to_dict()


def test_seeds_without_a_band_are_a_plain_line():
    result = probed()
    (line,) = result.plot("probe/paper/loss").data
    np.testing.assert_allclose(line.y, result["probe/paper/loss"].mean(1))


def test_cells_are_lines_with_what_differs_as_name():
    values = np.random.default_rng(1).uniform(size=(2, 4, 3))
    cells = [{"name": n, "config": {"model": n, "length": 8, "match_with": []}} for n in ("a", "b")]
    result = Result(
        {"token_similarity": values},
        {"token_similarity": ("cell", "state", "sample")},
        {},
        {"cells": cells, "study": "depth"},
    )
    lines = [trace for trace in result.plot().data if trace.name]
    assert [line.name for line in lines] == ["a, 8", "b, 8"]
    for line, rows in zip(lines, values, strict=True):
        np.testing.assert_allclose(line.y, rows.mean(1))
    assert result.plot().layout.title.text == "depth: token_similarity"


def test_twins_are_dots_with_intervals():
    parts = {"mean": 0.1, "low": -0.1, "high": 0.4}
    arrays = {f"{m}/late_minus_early_{p}": np.full((1, 2, 1), v) for m in ("raw", "excess") for p, v in parts.items()}
    labels = {"ablation": ["none"], "weights": ["trained", "xavier"], "length": [64]}
    result = Result(
        arrays, dict.fromkeys(arrays, ("ablation", "weights", "length")), {"model": "m"}, {"labels": labels}
    )
    raw, _ = result.plot().data
    assert list(raw.y) == ["trained, n = 64", "xavier, n = 64"]
    np.testing.assert_allclose(raw.error_x.array, 0.3)
    np.testing.assert_allclose(raw.error_x.arrayminus, 0.2)


def test_what_has_no_depth_is_refused_with_what_can_be_drawn():
    with pytest.raises(InputError, match=r"a metric over depth; got 'probe_chance' with axes \(\); try probe_accuracy"):
        probed().plot("probe_chance")
    with pytest.raises(InputError, match="a result with a metric over depth"):
        Result({"x": np.array(1.0)}, {"x": ()}).plot()


def test_repr_is_short_and_html_begins_with_what_matters():
    result = probed()
    assert repr(result) == "<Result of m on kvpr: 4 metrics, such as probe_chance ()>"
    assert ordered(result) == ["probe_accuracy", "lens_rank", "probe_chance", "probe/paper/loss"]
    page = html(result)
    assert page.index("probe_accuracy") < page.index("lens_rank") < page.index("probe/paper/loss")
