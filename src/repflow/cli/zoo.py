"""`repflow zoo`: the built-in models, their cards, and where they are. Needs no torch."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from repflow.cli.console import guarded, stdout_console
from repflow.cli.help import Command
from repflow.cli.options import AS_JSON
from repflow.spec.zoo import NAMES

app = typer.Typer(help="The built-in models: list them, print a card, or say where one is.", no_args_is_help=True)
NAME = Annotated[str, typer.Argument(metavar="NAME", help=f"one of {', '.join(NAMES)}")]


def list_command(
    as_json: AS_JSON = False,
) -> None:
    """List the built-in models: what they are, their size, and what was measured of them."""
    from repflow.report.terminal.zoo import zoo_rows, zoo_table

    if as_json:
        print(json.dumps(zoo_rows(), allow_nan=False), flush=True)
        return
    console = stdout_console()
    console.print(zoo_table())
    there = [row["spec"] for row in zoo_rows()]  # a folder of one's own may hold fewer than six
    models = [spec for spec in ("zoo:gpt-neox", "zoo:mamba2") if spec in there] or there[:2]
    console.print(f"use: repflow measure {' '.join(models)} --task kvpr --length 256", markup=False, highlight=False)


def card_command(name: NAME, as_json: AS_JSON = False) -> None:
    """Print the card of a built-in model: data, training, held-out results, probes, what it is not good for."""
    from repflow.spec.zoo import card

    text = card(name)
    print(json.dumps({"model": name, "card": text}) if as_json else text, end="\n" if as_json else "", flush=True)


def path_command(name: NAME, as_json: AS_JSON = False) -> None:
    """Print the folder of a built-in model, in Hugging Face format, once its files match their digests."""
    from repflow.spec.zoo import checked_folder

    folder = str(checked_folder(name))
    print(json.dumps({"model": name, "path": folder}) if as_json else folder, flush=True)


app.command("list", cls=Command)(guarded(list_command))
app.command("card", cls=Command)(guarded(card_command))
app.command("path", cls=Command)(guarded(path_command))
