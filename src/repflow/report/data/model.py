"""Figures, tables and the page as plain data: what sections give, and what the renderers draw.

A figure is described once, here. The page's script and `repflow.report.draw.plotly` (notebooks, pictures) draw it by
Plotly, `repflow.report.paper.figure` by matplotlib.

Every string is plain text, never HTML: the page shows `<b>` as `<b>`. Two rules for Plotly's strings, which know a few
tags of their own: a line break is written as a newline, and `hovertemplate` and `texttemplate` may hold `<br>`, `<b>`,
`</b>`, `<extra>` and `</extra>`; anything from outside (a model's name, a token) goes into `name`, `text`, `hovertext`
or `customdata`, never into a template. Numbers are Python floats and ints; None, NaN and infinities are gaps.

How a figure finds its state: the names in `when` of its variants become one menu each, with the values in the order in
which they first come; the first variant is shown first. Names that several figures share (`task`, `length`, `states`,
`metric`) have a menu at the top of the page too, which sets all of them. A menu with one value is not shown.

Depth: with `Figure.depth_axis` a trace says in `meta["x"]` where its points lie on either axis, and a shape of the
layout that must move too, a strip of kinds say, carries `meta = {"relative": [x0, x1], "absolute": [x0, x1]}` (and
`"axis": "y"` when it moves along y). A heat map whose depth runs upwards uses `meta["y"]` in the same way. The page
writes the title of a depth axis that has none and sets its range. `meta["model"]` is the label of a `PageModel`, or a
list of them: the trace is hidden when one of them is unchosen, and drawn in its colour unless it brings its own; shapes
and annotations may carry `meta["model"]` too. `Figure.log_axis` gives the y axes a switch between linear and
logarithmic.

Small multiples: give the panels the axes x, x2, ... with y, y2, ..., `layout["grid"] = {"rows": r, "columns": c,
"pattern": "independent"}` and no domains, and their headings as annotations with xref `"x2 domain"` and yref
`"y2 domain"`: a narrow screen then has them under each other, and a panel whose models are unchosen makes room. A
legend, if any, stands above the chart; leave margins and legend to the page.

Colours: a colour of the palette may be named instead of written, so that it follows light and dark: `model:0` ...,
`model:0/0.2` (with opacity, for bands), `ink`, `muted`, `grid`, `paper`, `kind:attention` ..., and as `colorscale`
`sequential` or `diverging`; see `repflow.report.draw.palette`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Link:
    """A cell that leads to a figure, table or section of the same page.

    >>> Link("0.83", "similarity").target
    'similarity'
    """

    text: str
    target: str


Cell = str | float | int | None | Link
"""One cell of a table; None and NaN are shown as a dash."""


@dataclass(frozen=True)
class Variant:
    """One drawn state of a figure.

    Args:
        when: Control name to value, such as {"task": "kvpr", "length": "300"}; {} is always shown.
        traces: Plotly traces of plain lists; None is a gap.
        layout: Plotly layout additions: axis titles, ranges, shapes.
        columns: Names of the columns of the figure's CSV.
        rows: The exact numbers of the figure.
        note: What was thinned, which layer is NaN.
        reading: What it shows, in one sentence with its numbers; by default the page makes one from the traces.
        alt: The same for those who cannot see it, line by line; by default made from the traces.
        basis: What the numbers rest on: task, length, prompts, kind of state.
    """

    when: Mapping[str, str]
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    note: str = ""
    reading: str = ""
    alt: str = ""
    basis: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart with its menus, downloads and text alternative.

    Args:
        id: Anchor on the page, unique, of letters, digits, `-` and `_`.
        title: Heading.
        caption: What is drawn and how to read it, folded below the chart.
        alt: What kind of chart it is, for those who cannot see it; the variant's `alt` has its numbers.
        variants: At least one.
        depth_axis: The x axis (or y, of a heat map) is depth: relative or absolute.
        log_axis: The y axis may be logarithmic.
        models_toggle: Traces of models that are not chosen are hidden.
        height: Pixels of the chart; None lets the page choose.
    """

    id: str
    title: str
    caption: str
    alt: str
    variants: Sequence[Variant]
    depth_axis: bool = False
    log_axis: bool = False
    models_toggle: bool = True
    height: int | None = None


@dataclass(frozen=True)
class Table:
    """A table; its numbers are shown with four significant digits and downloaded in full.

    With `stacked` the cells of a row stand below each other with their columns' names: for rows of sentences; with
    `narrow` only where the window is narrow: for tables that a reader on a telephone should not have to push about.
    """

    id: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    stacked: bool = False
    narrow: bool = False


@dataclass(frozen=True)
class Text:
    """Paragraphs of plain text; with `mono`, lines as they stand, such as commands."""

    id: str
    title: str
    paragraphs: Sequence[str]
    mono: bool = False


@dataclass(frozen=True)
class PromptSample:
    """One kept prompt of one model, for the explorer.

    Args:
        model: Label of a `PageModel`.
        label: What the menu says, such as "kvpr, 300 tokens, sample 4".
        tokens: The tokens as text, control characters as they are.
        metrics: Name to values of (row, token), a row per state (0 is the embedding) or per layer (first is 1); a
            metric with `layers` rows is per layer, one with `layers + 1` per state. None is a gap.
        text: One line about the sample: its answer, say.
        note: What was thinned.
    """

    model: str
    label: str
    tokens: Sequence[str]
    metrics: Mapping[str, Sequence[Sequence[float | None]]]
    text: str = ""
    note: str = ""


@dataclass(frozen=True)
class Prompts:
    """The explorer of kept prompts."""

    id: str
    title: str
    samples: Sequence[PromptSample]
    caption: str = ""


Block = Figure | Table | Text | Prompts


@dataclass(frozen=True)
class Content:
    """What a section shows.

    Args:
        lead: What the section is for; it stands with what is folded away.
        blocks: Figures, tables and texts.
        shown: Ids of the blocks that stand on the page, the others being folded away; None for the first one alone.
        reading: A sentence that stands under the heading, where no figure says what there is to see.
        facts: Numbers for the first screen, where it has room.
    """

    lead: str
    blocks: Sequence[Block]
    shown: Sequence[str] | None = None
    reading: str = ""
    facts: Sequence[Card] = ()


@dataclass(frozen=True)
class Section:
    """A part of the page with its entry in the navigation; see `Content`."""

    id: str
    title: str
    lead: str
    blocks: Sequence[Block]
    shown: Sequence[str] | None = None
    reading: str = ""
    facts: Sequence[Card] = ()

    def is_shown(self, block: Block) -> bool:
        """Whether a block stands on the page, the rest being folded away."""
        return block.id in (self.shown if self.shown is not None else [one.id for one in self.blocks[:1]])


@dataclass(frozen=True)
class PageModel:
    """A model of the page.

    Args:
        label: As in the runs; unique.
        colour: Index into the palette's model colours.
        layers: Number of blocks L.
        kinds: Kind of each block, such as ["attention", "ssm", ...]; empty when unknown.
    """

    label: str
    colour: int
    layers: int
    kinds: Sequence[str] = ()


@dataclass(frozen=True)
class Card:
    """One number of the first screen.

    Args:
        title: What it is, such as "Farthest reach".
        value: The number, "" where nothing was measured.
        text: Whose it is and where, or what was not measured.
        basis: What it rests on: task, length, prompts.
        target: Id of the figure that it comes from.
        command: What measures it, where nothing was measured.
    """

    title: str
    value: str
    text: str
    basis: str = ""
    target: str = ""
    command: str = ""


@dataclass(frozen=True)
class Page:
    """The whole report.

    Args:
        title: Heading.
        subtitle: The page in one sentence.
        models: With a colour each.
        warnings: What is missing, damaged or not comparable.
        sections: In their order.
        headline: Id of the figure on the first screen, "" for none; it belongs to one of the sections.
        cards: Numbers of the first screen.
    """

    title: str
    subtitle: str
    models: Sequence[PageModel]
    warnings: Sequence[str]
    sections: Sequence[Section]
    headline: str = ""
    cards: Sequence[Card] = ()
