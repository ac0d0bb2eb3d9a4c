"""A result in a notebook: a figure, and a table on demand."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from repflow.core.errors import InputError
from repflow.core.results import Result
from repflow.report.data.labels import label
from repflow.report.draw.metric import DEFAULTS, DEPTH, commonest, metric_figure
from repflow.report.notebook.plot import page_figure
from repflow.report.paper.figure import draw
from repflow.report.paper.style import style
from repflow.report.terminal.cell import number

SHOWN = 30
TEMPLATE = """<div>{% if picture %}<div><b>{{ title }}</b></div>
<img src="data:image/svg+xml;base64,{{ picture }}" alt="{{ alt }}" style="max-width:100%;width:42em;background:#fff">
{% for finding in findings %}<div>finding <b>{{ finding.code }}</b>: {{ finding.message }}</div>
{% endfor %}<details><summary>table</summary>{% else %}<b>{{ title }}</b>{% endif %}
<table><thead><tr><th>metric</th><th>axes</th><th>first</th><th>last</th></tr></thead><tbody>
{% for row in rows %}<tr><td>{{ row.name }}</td><td>{{ row.axes }}</td><td>{{ row.first }}</td><td>{{ row.last }}</td>\
</tr>
{% endfor %}</tbody></table>
{% if more %}<div>and {{ more }} more</div>{% endif %}
{% if picture %}</details>{% else %}
{% for finding in findings %}<div>finding <b>{{ finding.code }}</b>: {{ finding.message }}</div>
{% endfor %}{% endif %}</div>"""


def html(result: Result) -> str:
    """A figure of what the result is about, findings, and a table that opens on demand. All text is escaped.

    The figure is a picture within the HTML, so that notebooks, and pages that nbconvert makes of them, need nothing
    else; it takes matplotlib (extra `figures`), and the table stands alone without it. The table has names, axes, and
    the mean at the first and last place on the first axis; whole numbers, such as indices of tokens and channels, have
    no mean: the commonest stands there. What the result is about comes first, variants with a prefix last.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True)
    names = ordered(result)
    picture, alt = _picture(result)
    return environment.from_string(TEMPLATE).render(
        title=f"{label(result) or 'Result'} {result.config.get('task', '')}".strip(),
        picture=picture,
        alt=alt,
        rows=[_row(result, name) for name in names[:SHOWN]],
        more=max(0, len(names) - SHOWN),
        findings=result.findings,
    )


def _picture(result: Result) -> tuple[str, str]:
    """The figure as SVG in base64, and what it shows; empty where there is none to draw or nothing to draw with."""
    if importlib.util.find_spec("matplotlib") is None:
        return "", ""
    try:
        figure, models = page_figure(result)
        figure = metric_figure(result, None) if figure is None else figure
        with matplotlib_style():
            canvas = draw(figure, figure.variants[0], models, width="page")
            buffer = io.BytesIO()
            canvas.savefig(buffer, format="svg", metadata={"Date": None})
    except InputError:  # one number, or a trace that papers have no counterpart of
        return "", ""
    return base64.b64encode(buffer.getvalue()).decode(), f"{figure.title}. {figure.alt}"


@contextmanager
def matplotlib_style() -> Iterator[None]:
    """Settings of figures for papers, whatever the reader's own are."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = style("paper")
        matplotlib.rcParams.update(settings)
        yield


def ordered(result: Result) -> list[str]:
    """Names as a reader looks for them: what the result is about, other curves over depth, single values, variants.

    >>> axes = {"smoothness": ("sample",), "final_norm/token_norm": ("state",), "token_similarity": ("state",)}
    >>> ordered(Result({name: np.ones(1) for name in axes}, axes))
    ['token_similarity', 'smoothness', 'final_norm/token_norm']
    """

    def place(name: str) -> tuple[int, int, int]:
        about = DEFAULTS.index(name) if name in DEFAULTS else len(DEFAULTS)
        return name.count("/"), about, 0 if set(DEPTH) & set(result.axes[name]) else 1

    return sorted(result, key=place)  # stable: what is alike keeps the order of the run


def _row(result: Result, name: str) -> dict[str, str]:
    array = result[name]
    if array.dtype.kind in "iu":
        ends = [_usual(np.atleast_1d(array), at) for at in (0, -1)]
    else:
        mean = np.atleast_1d(result.mean(name)) if array.dtype.kind == "f" else np.atleast_1d(array)
        ends = [number(_finite_mean(np.asarray(mean[at]))) if len(mean) else "–" for at in (0, -1)]
    axes = ", ".join(f"{axis} {size}" for axis, size in zip(result.axes[name], array.shape, strict=True))
    return {"name": name, "axes": axes, "first": ends[0], "last": ends[1]}


def _usual(values: np.ndarray, at: int) -> str:
    """Whole numbers at one place: the only one, or the commonest; of indices a mean would say nothing.

    >>> _usual(np.array([[3, 7, 7], [5, 5, 5]]), 0), _usual(np.array([4, 6]), -1)
    ('mostly 7', '6')
    """
    distinct = np.unique(values[at]) if len(values) else np.zeros(0, dtype=int)
    if not distinct.size:
        return "–"
    return str(distinct[0]) if distinct.size == 1 else f"mostly {commonest(np.asarray(values[at]).reshape(-1))}"


def _finite_mean(values: np.ndarray) -> float:
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if finite.size else float("nan")
