"""Figures: a curve with its band, chance and peak for a probe; what a result is about without asking."""

import numpy as np
import pytest

import repflow  # noqa: F401  registers what results draw with
from repflow.core.errors import InputError
from repflow.core.results import Band, Result
from repflow.report.notebook.html import html, ordered


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
    with pytest.raises(
        InputError, match=r"another axis; got 'probe_chance', the single number 0.25; try probe_accuracy"
    ):
        probed().plot("probe_chance")
    with pytest.raises(InputError, match="a result with a metric over depth"):
        Result({"x": np.array(1.0)}, {"x": ()}).plot()


def test_repr_is_short_and_html_begins_with_what_matters():
    result = probed()
    assert repr(result) == "<Result of m on kvpr: 4 metrics, such as probe_chance ()>"
    assert ordered(result) == ["probe_accuracy", "lens_rank", "probe_chance", "probe/paper/loss"]
    page = html(result)
    assert page.index("probe_accuracy") < page.index("lens_rank") < page.index("probe/paper/loss")


def plain(arrays, axes, provenance=None):
    return Result({k: np.asarray(v) for k, v in arrays.items()}, axes, {"model": "m"}, provenance or {})


def test_layer_by_token_is_a_heat_map_with_positions():
    values = np.random.default_rng(2).uniform(size=(3, 2, 4))
    values[1, :, 2] = np.nan
    result = plain(
        {"layer_cosine": values}, {"layer_cosine": ("layer", "sample", "token")}, {"positions": [0, 8, 16, 24]}
    )
    (heat,) = result.plot("layer_cosine").data
    np.testing.assert_allclose(heat.z, values.mean(1))
    assert list(heat.x) == [0, 8, 16, 24]
    assert list(heat.y) == [1, 2, 3]  # blocks, of which N makes state N
    assert heat.colorscale[0][1] == "#00224e"


@pytest.mark.parametrize(
    ("axis", "about", "places", "title"),
    [
        ("state", {}, [0, 1, 2], "state"),
        ("layer", {}, [1, 2, 3], "layer"),
        ("ssm_layer", {"ssm_layers": [0, 2, 3]}, [1, 3, 4], "block"),
        ("state", {"branch_layers": [0, 2, 3]}, [1, 3, 4], "block"),
        ("layer", {"branch_layers": [0, 1, 2, 4]}, [2, 3, 5], "layer"),
    ],
)
def test_blocks_are_counted_from_1_and_states_from_the_embedding(axis, about, places, title):
    figure = plain({"x": [0.1, 0.2, 0.3]}, {"x": (axis,)}, about).plot("x")
    assert list(figure.data[0].x) == places
    assert figure.layout.xaxis.title.text == title


def test_state_by_state_and_what_stands_before_it_is_a_menu():
    values = np.random.default_rng(3).uniform(size=(2, 3, 3, 4))
    cells = [{"name": n, "config": {"model": n}} for n in ("a", "<b>")]
    result = plain({"cka_matrix": values}, {"cka_matrix": ("cell", "state", "state", "sample")}, {"cells": cells})
    figure = result.plot("cka_matrix")
    assert [trace.visible for trace in figure.data] == [True, False]
    for trace, part in zip(figure.data, values, strict=True):
        np.testing.assert_allclose(trace.z, part.mean(-1))
    (menu,) = figure.layout.updatemenus
    assert [button.label for button in menu.buttons] == ["a", "&lt;b>"]
    assert menu.buttons[1].args[0]["visible"] == [False, True]


def test_prompts_are_not_averaged_in_maps_over_tokens():
    values = np.random.default_rng(4).uniform(size=(2, 1, 3, 3))
    result = plain({"1/signed": values}, {"1/signed": ("sample", "unit", "token", "token")})
    figure = result.plot("1/signed")
    np.testing.assert_allclose(figure.data[1].z, values[1, 0])
    assert figure.layout.yaxis.autorange == "reversed"


def test_one_number_per_prompt_is_dots_with_their_mean():
    values = np.array([0.2, 0.4, 0.9])
    result = plain({"smoothness": values}, {"smoothness": ("sample",)})
    figure = result.plot("smoothness")
    np.testing.assert_allclose(figure.data[0].y, values)
    assert figure.layout.shapes[0].y0 == pytest.approx(0.5)
    assert figure.layout.shapes[1].y0 <= 0.5 <= figure.layout.shapes[1].y1


@pytest.mark.parametrize(
    ("axes", "shape", "lines"),
    [(("distance",), (5,), 1), (("state", "sample", "window"), (4, 3, 2), 2), (("time", "token"), (6, 3), 3)],
)
def test_lines_along_the_axis_that_runs(axes, shape, lines):
    values = np.random.default_rng(5).uniform(size=shape)
    figure = plain({"x": values}, {"x": axes}, {"recency": {"windows": [1, 16]}}).plot("x")
    drawn = [trace for trace in figure.data if trace.name is not None]
    assert len(drawn) == lines
    mean = values.mean(axes.index("sample")) if "sample" in axes else values
    np.testing.assert_allclose(drawn[-1].y, mean[..., -1] if mean.ndim > 1 else mean)
    if "window" in axes:
        assert [trace.name for trace in drawn] == ["window 1", "window 16"]


def test_indices_are_shown_by_the_commonest_never_by_a_mean():
    top = np.array([[[7, 1], [7, 2], [3, 2]], [[0, 5], [4, 5], [0, 5]]])
    result = plain({"top_tokens": top}, {"top_tokens": ("state", "sample", "rank")})
    (heat,) = result.plot("top_tokens").data
    assert np.asarray(heat.z).tolist() == [[7, 2], [0, 5]]
    page = html(result)
    assert "<td>mostly 2</td><td>mostly 5</td>" in page
    counts = html(plain({"positive": [3, 4]}, {"positive": ("layer",)}))
    assert "<td>3</td><td>4</td>" in counts


def test_names_are_text_in_notebooks_too():
    values = np.random.default_rng(6).uniform(size=(3, 2))
    result = Result({"token_similarity": values}, {"token_similarity": ("state", "sample")}, {"model": "<b>x</b>"})
    assert result.plot().layout.title.text == "&lt;b>x&lt;/b>: token_similarity"


def test_studies_with_a_place_on_the_page_draw_what_stands_there():
    from tests.report.study_runs import dynamics_runs, read, recency_runs, theory_runs

    titles, drawn = {}, set()
    for run in [*read(theory_runs()), *read(dynamics_runs()), *read(recency_runs())]:
        figure = run.result.plot()
        figure.to_json()
        titles[run.name] = figure.layout.title.text
        for name in run.result:
            if run.result[name].ndim and (run.study, name) not in drawn:  # another model's is drawn the same way
                run.result.plot(name).to_json()
                drawn.add((run.study, name))
    assert len(drawn) > 60
    assert titles["verify"] == "Closed forms over their simulations"
    assert titles["influence-mamba2"] == "How far back a token reaches"
    assert titles["memory-mamba2"].startswith("How much the decay varies")
    assert titles["needle-gpt_neox"] == "Needle in a haystack"
    curve = next(run for run in read(recency_runs()) if run.name == "influence-mamba2").result
    line = next(trace for trace in curve.plot().data if trace.name == "mamba2")
    np.testing.assert_allclose(line.y, np.nanmean(curve["log_influence"], axis=0))
    assert line.line.color == "#0072b2"
