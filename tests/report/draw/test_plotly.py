"""One description of a figure: Plotly and matplotlib draw the same lines, texts stay texts, variants become a menu."""

import numpy as np
import pytest

from repflow.report.data.model import Figure, PageModel, Variant
from repflow.report.draw.metric import metric_figure
from repflow.report.draw.plotly import draw, inert
from repflow.report.paper.figure import draw as draw_paper
from tests.report.stored_runs import compared, measured, probed


@pytest.mark.parametrize("result", [measured(), probed(), compared()], ids=["measure", "probe", "compare"])
def test_every_metric_is_drawn_by_both_renderers(result):
    for name in result:
        if not result[name].ndim:
            continue
        figure = metric_figure(result, name)
        for variant in figure.variants[:2]:
            draw_paper(figure, variant).canvas.draw()
        drawn = draw(figure, menu=True)
        assert len(drawn.data) == sum(len(variant.traces) for variant in figure.variants)


def test_both_renderers_draw_the_same_values():
    result = measured()
    figure = metric_figure(result, "token_similarity")
    page, paper = draw(figure), draw_paper(figure, figure.variants[0])
    (line,) = [line for line in paper.axes[0].lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 5]
    np.testing.assert_allclose(line.get_ydata(), page.data[-1].y)
    np.testing.assert_allclose(page.data[-1].y, result.mean("token_similarity"), rtol=1e-6)


def test_variants_are_a_menu_and_names_stay_names():
    figure = Figure(
        "f", "<i>t</i>", "", "",
        [Variant({"m": name}, [{"type": "scatter", "y": [1.0], "name": name}]) for name in ("a", "<b>")],
    )  # fmt: skip
    drawn = draw(figure, menu=True)
    assert [trace.visible for trace in drawn.data] == [True, False]
    assert [button.label for button in drawn.layout.updatemenus[0].buttons] == ["a", "&lt;b>"]
    assert drawn.data[1].name == "&lt;b>"
    assert drawn.layout.title.text == "&lt;i>t&lt;/i>"
    assert len(draw(figure).data) == 1
    assert inert("line\nbreak \u202e") == "line<br>break [U+202E]"


def test_traces_take_the_colour_of_their_model_and_templates_keep_their_tags():
    models = [PageModel("a", 0, 4), PageModel("b", 1, 4)]
    places = {"relative": [0.0, 1.0], "absolute": [0.0, 4.0]}
    trace = {"type": "scatter", "y": [1.0, 2.0], "meta": {"model": "b", "x": places}, "hovertemplate": "%{y}<br><u>"}
    drawn = draw(Figure("f", "", "", "", [Variant({}, [trace])], depth_axis=True), models)
    assert drawn.data[0].line.color == "#d55e00"
    assert list(drawn.data[0].x) == [0.0, 1.0]
    assert drawn.layout.xaxis.title.text == "relative depth"
    assert drawn.data[0].hovertemplate == "%{y}<br>&lt;u>"
