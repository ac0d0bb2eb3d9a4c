"""The report page: one HTML file that holds its data, its script and Plotly, and asks no other host for anything.

The text of the page is written here and escaped by jinja2; figures are drawn by the page's own script, when they come
into view, from compressed JSON. A content-security policy lets only the two scripts of the page run, by their hash.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from repflow.core.errors import InputError, teach
from repflow.core.visible import visible
from repflow.report.data.model import Block, Figure, Link, Page, Prompts, PromptSample, Section, Table, Text
from repflow.report.data.text import json_text, number, packed, plain
from repflow.report.draw import palette
from repflow.report.page.bundle import compressed, missing, plotly_script
from repflow.version import __version__

SCRIPTS = (
    "text.js",
    "data.js",
    "state.js",
    "chart.js",
    "figure.js",
    "tokens.js",
    "prompts.js",
    "address.js",
    "print.js",
    "main.js",
)
"""Files of the page's script, joined in this order into one."""
BAND = "/0.18"
"""Opacity of a model's band."""
TOKEN_STEPS = 128
"""Colours of tokens by a metric."""
DATA = ("x", "y", "z", "text", "customdata")
_ID = re.compile(r"[A-Za-z][\w-]*\Z", re.ASCII)


def render(page: Page) -> str:
    """The page as one HTML document; the same page gives the same text.

    Args:
        page: Its sections, from `repflow.report.page.build.build_page`.

    >>> from repflow.report.data.model import Page
    >>> render(Page("<b>", "", [], [], [])).count("<title>&lt;b&gt;</title>")
    1

    Raises:
        InputError: Two parts of the page have the same id, an id that cannot be an anchor, or a figure has no variant.
        MissingExtraError: jinja2 or plotly is not installed.
    """
    _check(page)
    environment = _environment()
    script, plotly = _script(), plotly_script(_blocks(page))
    style = _asset("page.css") + _variables()
    return environment.get_template("page.html.j2").render(
        page=page,
        targets=set(_ids(page)),
        policy=_policy(script, plotly),
        style=_markup(style),
        script=_markup(script),
        plotly=_markup(compressed(plotly)),
        settings=_markup(json_text(_settings(page))),
        version=__version__,
    )


def _environment() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise missing("jinja2") from error
    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FunctionLoader(_asset),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(cell=_cell, exact=_exact, packed=lambda value: _markup(packed(value)))
    environment.tests.update(
        figure=lambda block: isinstance(block, Figure),
        table=lambda block: isinstance(block, Table),
        text=lambda block: isinstance(block, Text),
        link=lambda cell: isinstance(cell, Link),
        numeric=lambda cell: isinstance(plain(cell), int | float),
    )
    environment.globals |= {"csv": _table_data, "block_of": _block_of, "standing": _standing, "folded": _folded}
    return environment


def _markup(text: str) -> Any:
    """Text of our own that stands in the page as it is."""
    import markupsafe

    return markupsafe.Markup(text)  # our own files, or JSON without any angle bracket


@functools.cache
def _asset(name: str) -> str:
    return (importlib.resources.files("repflow.report.page") / "assets" / name).read_text(encoding="utf-8")


@functools.cache
def _script() -> str:
    body = "\n".join(_asset(name) for name in SCRIPTS)
    return f'"use strict";\n(function () {{\n{body}\n}})();\n'


def _block_of(page: Page, wanted: str) -> Block | None:
    return next((block for block in _blocks(page) if block.id == wanted), None)


def _standing(section: Section, headline: str) -> list[Block]:
    """Blocks that stand in their section; the headline stands on the first screen."""
    return [block for block in section.blocks if section.is_shown(block) and block.id != headline]


def _folded(section: Section, headline: str) -> list[Block]:
    return [block for block in section.blocks if not section.is_shown(block) and block.id != headline]


def _policy(*scripts: str) -> str:
    """Content-security policy: these scripts and no others, no connection, pictures only from the page itself.

    Plotly sets style attributes, so that styles are allowed; they cannot load anything.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _variables() -> str:
    """The palette as variables of the style sheet, for light and dark."""

    def block(dark: int) -> str:
        entries = [f"--{name}: {colours[dark]};" for name, colours in palette.INK.items()]
        entries += [f"--model-{at}: {colour};" for at, colour in enumerate((palette.LIGHT, palette.DARK)[dark])]
        return f"color-scheme: {('light', 'dark')[dark]}; " + " ".join(entries)

    return (
        f":root {{ {block(0)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {block(1)} }} }}\n"
        f":root[data-theme=dark] {{ {block(1)} }}\n"
    )


def _settings(page: Page) -> dict[str, Any]:
    """What the script must know before any figure is drawn."""
    return {
        "title": page.title,
        "models": [
            {
                "label": model.label,
                "colour": model.colour,
                "dash": palette.model_dash(model.colour),
                "marker": palette.model_marker(model.colour),
                "layers": model.layers,
                "kinds": model.kinds,
            }
            for model in page.models
        ],
        "figures": [_figure_settings(block) for block in _blocks(page) if isinstance(block, Figure)],
        "prompts": [_prompt_settings(block) for block in _blocks(page) if isinstance(block, Prompts)],
        "palette": _palette(page),
    }


def _palette(page: Page) -> dict[str, Any]:
    """Every name of the palette that the page uses, for light and dark; maps; grounds of tokens with their text."""
    names = {*palette.INK, *(f"model:{index}{band}" for index in range(len(palette.LIGHT)) for band in ("", BAND))}
    names |= {f"model:{model.colour}{band}" for model in page.models for band in ("", BAND)}
    for block in _blocks(page):
        for variant in block.variants if isinstance(block, Figure) else ():
            names.update(_colour_names([variant.traces, variant.layout]))
    grounds = [palette.between("sequential", step / (TOKEN_STEPS - 1)) for step in range(TOKEN_STEPS)]
    return {
        "colours": {name: [palette.css(name), palette.css(name, dark=True)] for name in sorted(names)},
        "scales": {name: palette.colourmap(name) for name in ("sequential", "diverging")},
        "tokens": [[ground, palette.readable_on(ground)] for ground in grounds],
    }


def _colour_names(value: Any, key: str = "") -> Iterator[str]:
    """Names of the palette inside traces and layouts; where a colour may stand, the key says so."""
    if isinstance(value, str):
        if key.endswith("color") and palette.is_name(value):
            yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _colour_names(part, str(name))
    elif isinstance(value, list | tuple) and value and not isinstance(value[0], int | float):
        for part in value if key not in DATA else ():
            yield from _colour_names(part, key)


def _figure_settings(figure: Figure) -> dict[str, Any]:
    first = figure.variants[0]
    grid = first.layout.get("grid")
    return {
        "id": figure.id,
        "title": figure.title,
        "alt": figure.alt,
        "whens": [dict(variant.when) for variant in figure.variants],
        "depth": figure.depth_axis,
        "log": figure.log_axis,
        "starts_log": figure.log_axis and first.layout.get("yaxis", {}).get("type") == "log",
        "models": figure.models_toggle,
        "height": figure.height,
        "rows": grid.get("rows", 1) if grid else 1,
        "panels": len({trace.get("xaxis", "x") for trace in first.traces}) if grid else 1,
    }


def _prompt_settings(prompts: Prompts) -> dict[str, Any]:
    def about(sample: PromptSample) -> dict[str, Any]:
        return {"model": sample.model, "label": sample.label, "tokens": len(sample.tokens)}

    return {"id": prompts.id, "title": prompts.title, "samples": [about(sample) for sample in prompts.samples]}


def _blocks(page: Page) -> Iterator[Block]:
    for section in page.sections:
        yield from section.blocks


def _ids(page: Page) -> list[str]:
    return [part.id for part in _parts(page)]


def _parts(page: Page) -> Iterable[Section | Block]:
    for section in page.sections:
        yield section
        yield from section.blocks


def _check(page: Page) -> None:
    ids = Counter(_ids(page))
    for name, times in ids.items():
        if times > 1 or not _ID.match(name) or name.startswith(("page-", "data-")):
            raise InputError(
                teach(
                    "ids of letters, digits, - and _, each once and not beginning with page- or data-",
                    f"{name!r}, {times} times",
                    "rename that section, figure, table or text",
                )
            )
    for block in _blocks(page):
        if isinstance(block, Figure) and not block.variants:
            raise InputError(teach("at least one variant", f"none in figure {block.id!r}", "leave the figure out"))
    labels = Counter(model.label for model in page.models)
    if twice := [label for label, times in labels.items() if times > 1]:
        raise InputError(teach("one label per model", f"{twice[0]!r} more than once", "give the runs other names"))


def _cell(cell: Any) -> str:
    """What a table shows."""
    value = plain(cell)
    if value is None:
        return "–"
    return number(value) if isinstance(value, int | float) else str(value)


def _exact(cell: Any) -> Any:
    """What a table's CSV holds."""
    return cell.text if isinstance(cell, Link) else plain(cell)


def _table_data(table: Table) -> dict[str, Any]:
    return {"columns": list(table.columns), "rows": [[_exact(cell) for cell in row] for row in table.rows]}
