"""Figures in a notebook: what the page draws of a study, or one metric."""

from __future__ import annotations

from typing import Any

from repflow.core.results import Result
from repflow.report.data.context import Context
from repflow.report.data.labels import Labels, page_models
from repflow.report.data.model import Figure, PageModel
from repflow.report.data.runs import StoredRun, study_of
from repflow.report.draw import plotly
from repflow.report.draw.metric import metric_figure
from repflow.report.sections import section_of


def plot(result: Result, name: str | None = None) -> Any:
    """Draw what a result is about, or one metric.

    Args:
        result: What was measured.
        name: A metric. None draws the first figure that the page has of the study, where it has one, else the metric
            that the result is about.

    Returns:
        A plotly figure; what has more than two axes is a heat map with a menu.

    Raises:
        InputError: The metric is one number, which fits in a sentence.
    """
    figure, models = page_figure(result) if name is None else (None, [])
    if figure is not None:
        return plotly.draw(figure, models)
    return plotly.draw(metric_figure(result, name), menu=True)


def page_figure(result: Result) -> tuple[Figure | None, list[PageModel]]:
    """The first figure that the page draws of a result, and its models; None where its study has no section."""
    row = section_of(study_of(result))
    if row is None:
        return None, []
    run = StoredRun("", Labels([result]).of(result)[0], study_of(result), result)
    models = page_models([(run.label, run.facts)])
    content = row.content([run], Context(models))
    blocks = content.blocks if content is not None else []
    return next((block for block in blocks if isinstance(block, Figure) and block.variants), None), models
