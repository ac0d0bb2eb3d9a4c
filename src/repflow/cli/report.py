"""`repflow report`: one page from stored runs; reads run folders only, never a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repflow.cli.console import note, say
from repflow.cli.help import complete_folder
from repflow.cli.options import AS_JSON
from repflow.cli.study import RUNS
from repflow.core.errors import InputError, teach

if TYPE_CHECKING:
    from repflow.report.data.model import Page

PAGE = "report.html"
SUFFIXES = (".html", ".htm")


def command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            autocompletion=complete_folder,
            help=f"folders of runs, grids or demos; without one: all in ./{RUNS}",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help=f"file to write, or a folder to write {PAGE} into; an older page is replaced")
    ] = Path(PAGE),
    allow_mixed: Annotated[
        bool,
        typer.Option("--allow-mixed", help="draw runs of different prompts, kinds of state or dtypes in one chart"),
    ] = False,
    papers: Annotated[
        bool, typer.Option("--papers", help="also compare the runs with the papers' claims, as the demo's page does")
    ] = False,
    as_json: AS_JSON = False,
) -> None:
    """Write one page from the RUNs: first numbers, figures, prompts. It opens in any browser and needs no network.

    Runs that are missing, damaged or not comparable are named on the page.
    """
    target = _target(out)
    page = write_page(runs or all_runs(), target, allow_mixed=allow_mixed, papers=papers)
    for warning in page.warnings:
        note(f"warning: {warning}")
    if as_json:
        from repflow.report.page.twin import page_json

        print(json.dumps({"page": str(target), **page_json(page)}, allow_nan=False), flush=True)
    else:
        say(f"wrote {target}")


def write_page(runs: Sequence[Path], target: Path, *, allow_mixed: bool = False, papers: bool = False) -> Page:
    """Write the page of some runs to a file as a whole; its data."""
    from repflow.report.page.build import build_page
    from repflow.report.page.render import render
    from repflow.store.disk import check_place, make_folder, write_atomic

    check_place(target.parent)
    page = build_page(runs, allow_mixed=allow_mixed, papers=papers)
    text = render(page).encode()
    make_folder(target.parent)
    write_atomic(target.resolve(), text)  # a link stays, and what it names is written
    return page


def _target(out: Path) -> Path:
    """The file to write."""
    from repflow.store.record import is_run

    if any(is_run(folder) for folder in (out.resolve(), *out.resolve().parents)):
        raise InputError(teach("a file outside run folders", f"{out}", "a run keeps only what it has stored itself"))
    if out.is_dir():
        return out / PAGE
    if out.suffix.lower() not in SUFFIXES:
        raise InputError(
            teach("--out with a name that ends in .html, or a folder that exists", f"{out}", f"try {PAGE}")
        )
    return out


def all_runs() -> list[Path]:
    """The folder of runs of this place."""
    if not RUNS.is_dir() or not any(RUNS.iterdir()):
        remedy = "name run folders, or run `repflow measure` or `repflow demo` first"
        raise InputError(teach("the folders of runs to report on", f"none, and no runs in ./{RUNS}", remedy))
    return [RUNS]
