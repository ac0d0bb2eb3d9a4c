"""Paper figures show the numbers of the page: every line, band, cell and bar is read back from matplotlib."""

import matplotlib as mpl
import numpy as np
import pytest

from repflow.core.errors import InputError
from repflow.report.data.model import Figure, Variant
from repflow.report.draw.palette import model_colour, resolve
from repflow.report.paper.figure import choose_width, draw
from repflow.report.paper.style import style
from tests.report.paper.example import ABSOLUTE, CURVES, MAP, MODELS, NASTY, RELATIVE, bars, lines, maps


@pytest.fixture(autouse=True)
def paper():
    with mpl.rc_context(style("paper")):
        yield


def drawn(figure, **options):
    canvas = draw(figure, figure.variants[0], MODELS, **options)
    canvas.canvas.draw()
    return canvas


def panel(traces, layout=None, **facts):
    figure = Figure("f", "t", "", "", [Variant({}, traces, layout or {})], **facts)
    return drawn(figure).axes[0]


def curves(axes):
    return [line for line in axes.get_lines() if len(line.get_xdata()) == 5]


@pytest.mark.parametrize(("depth", "places"), [("relative", RELATIVE), ("absolute", ABSOLUTE), ("auto", RELATIVE)])
def test_lines_bands_and_gaps(depth, places):
    canvas = drawn(lines(), depth=depth)
    axes = canvas.axes[0]
    assert len(curves(axes)) == 2
    for line, (name, values), model in zip(curves(axes), CURVES.items(), MODELS, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), places)
        np.testing.assert_array_equal(line.get_ydata(), np.array(values, dtype=float))
        assert mpl.colors.to_hex(line.get_color()) == model_colour(model.colour)
        assert line.get_marker() == ("o" if name == NASTY else "s")
    bands = axes.collections
    assert [len(band.get_paths()) for band in bands] == [2, 1]  # the gap cuts the first in two
    corners = bands[1].get_paths()[0].vertices
    low, high = np.array(CURVES["mamba"]) - 0.05, np.array(CURVES["mamba"]) + 0.05
    assert {tuple(np.round(c, 9)) for c in corners} >= {
        *((x, round(y, 9)) for x, y in zip(places, low, strict=True)),
        *((x, round(y, 9)) for x, y in zip(places, high, strict=True)),
    }
    assert axes.get_xlabel() == ("state" if depth == "absolute" else "relative depth")
    strip = list(axes.patches)
    assert [patch.get_x() for patch in strip] == (RELATIVE if depth != "absolute" else ABSOLUTE)[:4]


def test_one_model_is_drawn_over_absolute_depth():
    figure = lines()
    canvas = draw(figure, figure.variants[0], MODELS[:1])
    assert canvas.axes[0].get_xlabel() == "state"


def test_names_are_letters_not_markup():
    canvas = drawn(lines())
    (legend,) = canvas.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[0] == "x_1 \\$\\frac{1}{0}\\$ ^{ [U+202E]oen[U+2028]<b>&[U+0007]"
    shown = [text for text in canvas.findobj(mpl.text.Text) if text.get_text()]
    assert all("$" not in t.get_text().replace("\\$", "") or t.get_text().startswith("$\\math") for t in shown)
    assert canvas.axes[0].get_ylabel() == "similarity_\\$"


def test_heat_maps_with_gaps_headings_and_one_bar():
    canvas = drawn(maps())
    first, second, bar = canvas.axes
    cells = first.collections[0].get_array().reshape(3, 3)
    np.testing.assert_array_equal(cells.filled(np.nan), np.array(MAP, dtype=float))
    assert first.collections[0].get_clim() == (0, 1)
    np.testing.assert_allclose(first.get_xlim(), (-0.5, 2.5))
    assert second.get_title() == "mamba"
    assert "[U+202E]" in first.get_title()
    assert bar.get_ylabel() == "CKA"
    assert canvas.get_figwidth() == 6.75


def test_bars_beside_each_other_with_intervals():
    canvas = drawn(bars())
    axes = canvas.axes[0]
    groups = [c for c in axes.containers if isinstance(c, mpl.container.BarContainer)]
    assert [[bar.get_height() for bar in group] for group in groups] == [[0.2, 0.6], [0.1, 0.9]]
    assert groups[0][0].get_x() + groups[0][0].get_width() <= groups[1][0].get_x() + 0.05
    (interval,) = [c for c in axes.containers if isinstance(c, mpl.container.ErrorbarContainer)]
    (segment,) = interval.lines[2][0].get_segments()
    np.testing.assert_allclose(segment[:, 1], [0.15, 0.3])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["last 1", "last 16"]
    assert canvas.get_figwidth() == 3.25


def test_stacked_bars_stand_on_each_other():
    traces = [{"type": "bar", "x": ["a", "b"], "y": y, "name": str(y)} for y in ([1, 2], [3, None], [4, 5])]
    axes = panel(traces, {"barmode": "stack"})
    assert [[bar.get_y() for bar in group] for group in axes.containers] == [[0, 0], [1, 2], [4, 2]]


def test_logarithmic_axes_take_their_range_as_powers():
    traces = [{"x": [1, 10, 100], "y": [1e-3, None, 10.0]}]
    axes = panel(traces, {"yaxis": {"type": "log", "range": [-4, 2]}, "xaxis": {"type": "log"}})
    assert axes.get_yscale() == axes.get_xscale() == "log"
    np.testing.assert_allclose(axes.get_ylim(), (1e-4, 1e2))


def test_names_on_the_left_make_a_dot_plot_of_fitting_height():
    words = [f"Theorem {i}: with a rather long setting" for i in range(9)]
    figure = Figure("f", "t", "", "", [Variant({}, [{"mode": "markers", "x": list(range(9)), "y": words}])])
    canvas = drawn(figure)
    assert [label.get_text() for label in canvas.axes[0].get_yticklabels()] == words
    assert canvas.get_figwidth() == 6.75
    assert canvas.get_figheight() > 1.8


def test_a_value_between_two_gaps_is_seen():
    axes = panel([{"mode": "lines", "x": list(range(5)), "y": [1.0, 2.0, None, 3.0, None]}])
    dots = [line for line in axes.get_lines() if line.get_marker() == "."]
    assert [line.get_ydata().tolist() for line in dots] == [[3.0]]


def test_a_second_axis_over_the_first():
    traces = [{"y": [1, 2]}, {"y": [30, 40], "yaxis": "y2"}]
    figure = Figure("f", "t", "", "", [Variant({}, traces, {"yaxis2": {"overlaying": "y", "side": "right"}})])
    first, second = drawn(figure).axes
    assert first.get_position().bounds == second.get_position().bounds
    assert second.get_ylim()[1] > 30


def test_small_multiples_name_their_axes_at_the_edge():
    traces = [{"y": [1, 2], "xaxis": f"x{i or ''}", "yaxis": f"y{i or ''}"} for i in (0, 2, 3, 4, 5)]
    layout = {"grid": {"rows": 3, "columns": 2, "pattern": "independent"}, "yaxis": {"title": {"text": "up"}}}
    layout |= {"xaxis4": {"title": {"text": "along"}}, "xaxis5": {"title": {"text": "along"}}}
    figure = Figure("f", "t", "", "", [Variant({}, traces, layout)])
    axes = drawn(figure).axes
    assert [a.get_ylabel() for a in axes] == ["up", "", "", "up", ""]
    assert [a.get_xlabel() for a in axes] == ["", "", "along", "along", "along"]


def test_panels_that_match_have_one_range():
    traces = [{"x": [0, 1], "y": [0, 2]}, {"x": [0, 1], "y": [-5, 1], "xaxis": "x2", "yaxis": "y2"}]
    layout = {"grid": {"rows": 1, "columns": 2}, "yaxis2": {"matches": "y"}}
    canvas = drawn(Figure("f", "t", "", "", [Variant({}, traces, layout)]))
    first, second = (axes.get_ylim() for axes in canvas.axes)
    assert first == second
    assert first[0] <= -5
    assert first[1] >= 2


def test_an_image_has_its_own_colours_and_its_first_row_at_the_top():
    pixels = [[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [9, 9, 9]]]
    traces = [{"type": "image", "z": pixels}]
    axes = drawn(Figure("f", "t", "", "", [Variant({}, traces, {"yaxis": {"autorange": "reversed"}})])).axes[0]
    assert axes.get_images()[0].get_array().tolist() == pixels
    bottom, top = axes.get_ylim()
    assert bottom > top


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InputError, match="a trace of scatter, scattergl, heatmap, bar, image; got 'pie'"):
        panel([{"type": "pie"}])
    with pytest.raises(InputError, match="a heat map of rows of equal length"):
        panel([{"type": "heatmap", "z": [1.0, 2.0]}])
    with pytest.raises(InputError, match="a colour such as model:0"):
        resolve("url(x)")
    with pytest.raises(InputError, match=r"a width of auto, column, page; got 'colum'; did you mean column"):
        choose_width(Variant({}, []), "colum")
    with pytest.raises(InputError, match="a depth axis of auto, relative, absolute; got 'deep'"):
        draw(lines(), lines().variants[0], MODELS, depth="deep")
    with pytest.raises(InputError, match="a style of paper; got 'poster'"):
        style("poster")


def test_lone_points_keep_their_size_and_their_place_behind_the_last_layer():
    where = {"relative": [1.04], "absolute": [5.0]}
    own = {"type": "scatter", "mode": "markers", "y": [0.5], "meta": {"model": None, "x": where}, "x": [1.04]}
    point = own | {"marker": {"symbol": "star", "size": 13, "line": {"width": 2, "color": "ink"}}}
    axes = panel([point], depth_axis=True)
    (mark,) = axes.get_lines()
    assert mark.get_markersize() == 6.5
    assert axes.get_xlim()[1] > 1.04, "the final norm stands behind the last layer"
    assert tuple(mark.get_markeredgecolor()) == resolve("ink")


def test_words_of_axes_fit_the_panel():
    traces = [{"type": "scatter", "mode": "markers", "x": [0.1, 0.3], "y": ["Theorem 1:\nn = 8", "b"]}]
    axes = panel(
        traces, {"xaxis": {"type": "log"}, "yaxis": {"title": {"text": "a title that is longer than the panel"}}}
    )
    assert [text.get_text() for text in axes.get_yticklabels()] == ["Theorem 1: n = 8", "b"]
    assert max(map(len, axes.get_ylabel().split("\n"))) <= 28
    assert "0.2" in [text.get_text() for text in axes.get_xticklabels()], "not 200m"
