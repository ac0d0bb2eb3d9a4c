"""A result as a small HTML table, for notebooks."""

from __future__ import annotations

import numpy as np

from repflow.core.results import Result
from repflow.report.data.labels import label
from repflow.report.draw.metric import DEFAULTS, DEPTH, commonest
from repflow.report.terminal.cell import number

SHOWN = 30
TEMPLATE = """<div><b>{{ title }}</b>
<table><thead><tr><th>metric</th><th>axes</th><th>first</th><th>last</th></tr></thead><tbody>
{% for row in rows %}<tr><td>{{ row.name }}</td><td>{{ row.axes }}</td><td>{{ row.first }}</td><td>{{ row.last }}</td>\
</tr>
{% endfor %}</tbody></table>
{% if more %}<div>and {{ more }} more</div>{% endif %}
{% for finding in findings %}<div>finding <b>{{ finding.code }}</b>: {{ finding.message }}</div>
{% endfor %}</div>"""


def html(result: Result) -> str:
    """Names, axes, and the mean at the first and last place on the first axis; findings below. All text is escaped.

    Whole numbers, such as indices of tokens and channels, have no mean: the commonest stands there.
    What the result is about comes first, variants with a prefix last.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True)
    names = ordered(result)
    return environment.from_string(TEMPLATE).render(
        title=f"{label(result) or 'Result'} {result.config.get('task', '')}".strip(),
        rows=[_row(result, name) for name in names[:SHOWN]],
        more=max(0, len(names) - SHOWN),
        findings=result.findings,
    )


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
    found = np.unique(values[at]) if len(values) else np.zeros(0, dtype=int)
    if not found.size:
        return "–"
    return str(found[0]) if found.size == 1 else f"mostly {commonest(np.asarray(values[at]).reshape(-1))}"


def _finite_mean(values: np.ndarray) -> float:
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if finite.size else float("nan")
