"""What the terminal shows: a module per study, found by the study's name, and the tables of other commands.

A study's module is named after it, up to its first dash (`theory-verify` and `theory-apply` share `theory`), those of
laboratories in a folder of their own. It has
`view(result)`, the parts to print of one result, where models may stand side by side `side_by_side(results)`, and for
the table of a grid `cell(result)`, a few numbers by name. So that no command imports a table before it has something to
show, modules are imported here when they are asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repflow.core.errors import InputError, teach

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repflow.core.results import Result


def no_numbers(result: Result) -> dict[str, float]:
    """Nothing for the table of a grid."""
    return {}


@dataclass(frozen=True)
class View:
    """How the terminal shows a study.

    Attributes:
        view: parts to print of one result.
        side_by_side: one table of several results; None where the study has none.
        cell: the few numbers that the table of a grid shows of a result; none where the study names none.
    """

    view: Callable[[Result], list[RenderableType]]
    side_by_side: Callable[[Sequence[Result]], RenderableType] | None = None
    cell: Callable[[Result], dict[str, float]] = no_numbers


def view_of(study: str) -> View:
    """The view of a study.

    Args:
        study: its name, as in a stored config.

    >>> view_of("measure").side_by_side is not None, view_of("theory-apply").side_by_side is not None
    (True, False)

    Raises:
        InputError: The study has no view.
    """
    family = study.split("-")[0]
    places = [f"{__name__}.{family}", f"{__name__}.laboratory.{family}"] if family.isidentifier() else []
    known = next((name for name in places if importlib.util.find_spec(name) is not None), None)
    module = None if known is None else importlib.import_module(known)
    if module is None or not hasattr(module, "view"):
        fix = f"add {__name__.replace('.', '/')}/{family}.py with `view(result)`"
        raise InputError(teach("a study with a view for the terminal", repr(study), fix))
    return View(module.view, getattr(module, "side_by_side", None), getattr(module, "cell", no_numbers))
