"""Figures of a page as files for a paper: one file per figure, the same bytes for the same runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, nearest, teach
from repflow.core.visible import visible
from repflow.report.data.model import Figure, Page, Variant
from repflow.report.data.text import plain
from repflow.report.paper.figure import DEPTHS, choose_width, draw
from repflow.report.paper.style import metadata, need_matplotlib, style
from repflow.report.paper.text import slug
from repflow.store.disk import make_folder, write_atomic

CAPTIONS = "captions.txt"


@dataclass(frozen=True)
class FigureRequest:
    """How to draw.

    Attributes:
        format: `pdf`, `svg` or `png`.
        style: `paper`.
        width: `column`, `page`, or `auto`: what the figure needs.
        depth: `relative`, `absolute`, or `auto`: absolute for one model.
        text: of SVG files: `outlines` or `editable`.
        figures: ids of the figures to draw; empty for all.
        choose: control → value, such as {"task": "kvpr"}.
        every: draw every state of a figure, not only the first.
        data: write the numbers of each figure beside it, as CSV.
    """

    format: str = "pdf"
    style: str = "paper"
    width: str = "auto"
    depth: str = "auto"
    text: str = "outlines"
    figures: Sequence[str] = ()
    choose: Mapping[str, str] = field(default_factory=dict)
    every: bool = False
    data: bool = False

    def check(self) -> None:
        """Refuse what can be seen to be wrong before any run is read.

        Raises:
            InputError: An unknown format, style, width, depth or treatment of text.
            MissingExtraError: matplotlib is not installed.
        """
        metadata(self.format, "")
        style(self.style, self.text)
        choose_width(Variant({}, []), self.width)
        if self.depth not in DEPTHS:
            raise InputError(teach(f"depth of {', '.join(DEPTHS)}", repr(self.depth), nearest(self.depth, DEPTHS)))
        need_matplotlib()


@dataclass(frozen=True)
class Drawn:
    """One file to write: its figure and which state of it."""

    name: str
    figure: Figure
    variant: Variant


def figure_files(page: Page, request: FigureRequest) -> list[Drawn]:
    """Which figures are drawn, and the name of each file without its suffix: the figure's id, then what was chosen.

    Raises:
        InputError: The page has no figure, or not the one or the value asked for.
    """
    known = {block.id: block for section in page.sections for block in section.blocks if isinstance(block, Figure)}
    if not known:
        got = f"{len(page.sections)} sections of text and tables"
        raise InputError(teach("runs with something to draw", got, "name runs of `repflow measure`, `probe`, ..."))
    for id in request.figures:
        if id not in known:
            raise InputError(teach("a figure that these runs have", repr(id), nearest(id, known)))
    _check_choice(known, request.choose)
    files: list[Drawn] = []
    for figure in [known[id] for id in request.figures] or list(known.values()):
        fitting = [variant for variant in figure.variants if _fits(variant, request.choose)]
        for variant in fitting if request.every else fitting[:1]:
            files.append(Drawn(_unique(_name(figure, variant), files), figure, variant))
    if not files:
        wanted = " and ".join(f"{key}={value}" for key, value in request.choose.items())
        raise InputError(teach(f"a figure with {wanted}", "none that has all of it", "choose fewer values"))
    return files


def _fits(variant: Variant, choose: Mapping[str, str]) -> bool:
    return all(variant.when.get(key, value) == value for key, value in choose.items())


def _check_choice(figures: Mapping[str, Figure], choose: Mapping[str, str]) -> None:
    values: dict[str, dict[str, None]] = {}
    for figure in figures.values():
        for variant in figure.variants:
            for key, value in variant.when.items():
                values.setdefault(key, {})[value] = None
    for key, value in choose.items():
        if key not in values:
            raise InputError(teach("a choice that a figure of these runs has", repr(key), nearest(key, values)))
        if value not in values[key]:
            raise InputError(teach(f"a value of {key!r}", repr(value), nearest(value, values[key])))


def _name(figure: Figure, variant: Variant) -> str:
    """The figure's id, and what is chosen otherwise than the page opens with."""
    first = figure.variants[0].when
    own = [value for key, value in variant.when.items() if first.get(key) != value]
    return "-".join([figure.id, *map(slug, own)])


def _unique(name: str, files: Sequence[Drawn]) -> str:
    names = {entry.name for entry in files}
    return next(n for n in (name, *(f"{name}-{i}" for i in range(2, len(files) + 3))) if n not in names)


def draw_bytes(drawn: Drawn, page: Page, request: FigureRequest) -> bytes:
    """The file of one figure; no date, no machine, no random id in it."""
    matplotlib = need_matplotlib()
    buffer = io.BytesIO()
    title = visible(drawn.figure.title).encode("utf-8", "replace").decode("utf-8")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # what the reader's own settings say must not change the file
        matplotlib.rcParams.update(style(request.style, request.text))
        canvas = draw(drawn.figure, drawn.variant, page.models, width=request.width, depth=request.depth)
        canvas.savefig(buffer, format=request.format, metadata=metadata(request.format, title))
    return buffer.getvalue()


def write_figures(page: Page, out: Path | str, request: FigureRequest | None = None) -> list[Path]:
    """Draw the figures of a page into a folder.

    Args:
        page: as `repflow report` shows it.
        out: folder, created where missing; files of the same name are replaced as a whole.
        request: how to draw.

    Returns:
        The files, `captions.txt` last: what each file shows, with the sentences of the page.

    Raises:
        InputError: An unknown style, format, figure or choice; nothing is written.
        MissingExtraError: matplotlib is not installed.
    """
    request = request or FigureRequest()
    request.check()
    files = figure_files(page, request)
    folder, written = Path(out), []
    pictures = [(entry, draw_bytes(entry, page, request)) for entry in files]
    make_folder(folder)
    for entry, data in pictures:
        written.append(folder / f"{entry.name}.{request.format}")
        write_atomic(written[-1], data)
        if request.data and entry.variant.columns:
            written.append(folder / f"{entry.name}.csv")
            write_atomic(written[-1], table_bytes(entry.variant))
    written.append(folder / CAPTIONS)
    write_atomic(written[-1], _captions(files, page, request).encode("utf-8", "replace"))
    return written


def table_bytes(variant: Variant) -> bytes:
    r"""Numbers of a figure as CSV, in full; what is missing is empty.

    >>> table_bytes(Variant({}, [], {}, ["layer", "value"], [[0, 0.1], [1, float("nan")]]))
    b'layer,value\r\n0,0.1\r\n1,\r\n'
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([_cell(name) for name in variant.columns])
    writer.writerows([_cell(value) for value in plain(row)] for row in variant.rows)
    return text.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets an apostrophe in front, as on the page."""
    risky = isinstance(value, str) and len(value) > 1 and value[0] in "=+-@\t\r"
    return f"'{value}" if risky else value


def _captions(files: Sequence[Drawn], page: Page, request: FigureRequest) -> str:
    parts = []
    for entry in files:
        chosen = ", ".join(f"{key}: {value}" for key, value in entry.variant.when.items())
        lines = [f"{entry.name}.{request.format}", entry.figure.title + (f" ({chosen})" if chosen else "")]
        lines += [text for text in (entry.figure.caption, entry.variant.note) if text]
        parts.append("\n".join(visible(line) for line in lines))
    warnings = [visible(f"Note: {warning}") for warning in page.warnings]
    return "\n\n".join([*parts, *warnings]) + "\n"
