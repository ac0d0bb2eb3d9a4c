"""Plotly's script for a page: the small build where it draws all figures, else the whole one of Plotly's package.

The small build is assets/plotly-cartesian.min.js, the npm package plotly.js-cartesian-dist-min 4.1.1 as it was
published (MIT, assets/plotly-LICENSE). The whole one, the only one that the Python package has, is three times as
long; reading and starting it was two thirds of the time that a page took to open.
"""

from __future__ import annotations

import base64
import functools
import gzip
import importlib.resources
from collections.abc import Iterable

from repflow.core.errors import MissingExtraError, teach
from repflow.report.data.model import Block, Figure

CARTESIAN = frozenset(
    {
        "bar",
        "box",
        "contour",
        "heatmap",
        "histogram",
        "histogram2d",
        "histogram2dcontour",
        "image",
        "pie",
        "scatter",
        "scatterternary",
        "violin",
    }
)
"""Types of traces that the small build draws."""


def plotly_script(blocks: Iterable[Block]) -> str:
    """The script that draws all figures among these blocks.

    >>> len(plotly_script([])) < 2_000_000
    True

    Raises:
        MissingExtraError: A figure needs the whole script and plotly is not installed.
    """
    figures = (block for block in blocks if isinstance(block, Figure))
    types = {trace.get("type", "scatter") for figure in figures for one in figure.variants for trace in one.traces}
    return _cartesian() if types <= CARTESIAN else _whole()


@functools.cache
def compressed(script: str) -> str:
    """A script as base64 of gzip: the page unpacks it and adds it as it was, so that the policy knows its hash."""
    return base64.b64encode(gzip.compress(script.encode(), compresslevel=9, mtime=0)).decode()


def missing(package: str) -> MissingExtraError:
    """The error of a package that the page needs."""
    return MissingExtraError(
        teach("jinja2 and plotly for the report", f"no {package}", "run `pip install plotly jinja2` and try again")
    )


@functools.cache
def _cartesian() -> str:
    file = importlib.resources.files("repflow.report.page") / "assets" / "plotly-cartesian.min.js"
    return file.read_text(encoding="utf-8")


@functools.cache
def _whole() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise missing("plotly") from error
    return str(get_plotlyjs())
