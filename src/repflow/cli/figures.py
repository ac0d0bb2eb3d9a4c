"""`repflow figures`: the figures of a report as files for a paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from repflow.cli.console import note, quiet, say
from repflow.cli.help import complete_folder
from repflow.cli.options import AS_JSON
from repflow.cli.report import all_runs
from repflow.cli.study import RUNS
from repflow.core.errors import InputError, teach
from repflow.store.disk import check_place

FIGURES = Path("figures")
RUN = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN]...",
        autocompletion=complete_folder,
        help=f"folders of runs, grids or demos; without one: all in ./{RUNS}",
    ),
]
WIDTH = Annotated[
    str, typer.Option("--width", help="width: column (3.25 in), page (6.75 in), or auto: what a figure needs")
]
DEPTH = Annotated[str, typer.Option("--depth", help="depth axis: relative, absolute, or auto: absolute for one model")]
FIGURE = Annotated[
    list[str] | None, typer.Option("--figure", help="id of a figure to draw; may be given several times")
]
CHOOSE = Annotated[
    list[str] | None, typer.Option("--choose", help="what to draw where a figure has a menu, such as task=kvpr")
]


def command(
    runs: RUN = None,
    out: Annotated[
        Path, typer.Option("--out", help="folder to write to; files of the same name are replaced")
    ] = FIGURES,
    format: Annotated[str, typer.Option("--format", help="file format: pdf, svg or png")] = "pdf",
    style: Annotated[str, typer.Option("--style", help="look: paper")] = "paper",
    width: WIDTH = "auto",
    depth: DEPTH = "auto",
    figure: FIGURE = None,
    choose: CHOOSE = None,
    every: Annotated[bool, typer.Option("--every", help="draw every choice of every menu, one file each")] = False,
    text: Annotated[
        str, typer.Option("--text", help="letters in SVG: outlines (need no font) or editable")
    ] = "outlines",
    data: Annotated[bool, typer.Option("--data", help="write the numbers of each figure as CSV beside it")] = False,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="draw runs of other prompts, kinds of state or dtypes together")
    ] = False,
    as_json: AS_JSON = False,
) -> None:
    """Draw the figures of stored runs for a paper: at column width, fonts embedded, the same bytes for the same runs.

    Files are named by figure (figure-2.pdf); captions.txt says what each shows. Needs matplotlib (extra `figures`).
    """
    from repflow.report.paper.write import FigureRequest, write_figures

    _check_out(out)
    request = FigureRequest(format, style, width, depth, text, tuple(figure or ()), _choices(choose or []), every, data)
    request.check()
    from repflow.report.page.build import build_page

    with quiet():
        page = build_page(runs or all_runs(), allow_mixed=allow_mixed)
        written = write_figures(page, out, request)
    for warning in page.warnings:
        note(f"warning: {warning}")
    if as_json:
        print(json.dumps({"files": [str(path) for path in written], "warnings": list(page.warnings)}), flush=True)
        return
    for path in written:
        say(f"wrote {path}")


def _check_out(out: Path) -> None:
    from repflow.store.record import is_run

    check_place(out)
    if any(is_run(folder) for folder in (out.resolve(), *out.resolve().parents)):
        raise InputError(teach("a folder outside run folders", f"{out}", "a run keeps only what it has stored itself"))


def _choices(words: list[str]) -> dict[str, str]:
    """NAME=VALUE words as a mapping.

    Raises:
        InputError: A word without `=`.
    """
    choices = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise InputError(teach("--choose NAME=VALUE, such as task=kvpr", repr(word), "put = between the two"))
        choices[key] = value
    return choices
