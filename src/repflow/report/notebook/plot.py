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
        return _shown(plotly.draw(figure, models))
    return _shown(plotly.draw(metric_figure(result, name), menu=True))


_sent = {"plotly.js": False}


def _shown(figure: Any) -> Any:
    """A plotly figure that shows itself as HTML, so that it is there in whatever is made of a notebook.

    Plotly's own way leaves it to the notebook to have plotly.js; nbconvert's pages have none and stay blank. Its script
    comes with the first figure of a session, 4.5 MB, and serves all others.
    """
    import plotly.graph_objects as go

    class NotebookFigure(go.Figure):  # type: ignore[misc]
        """A figure of `Result.plot`."""

        _ipython_display_ = None  # it would come before the bundle below

        def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, str]:
            script, _sent["plotly.js"] = not _sent["plotly.js"], True
            return {"text/html": self.to_html(full_html=False, include_plotlyjs=script)}

    return NotebookFigure(figure)


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
