"""Options from a study's Config: a field is an option, its metadata the help text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from rich.markup import escape

from repflow.errors import InputError

C = TypeVar("C")


def with_options(config: type, *, skip: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command every field of a config dataclass as an option; it receives them as keywords.

    Args:
        config: The dataclass; each field's `metadata["help"]` is the help text.
        skip: Fields that the command takes in a way of its own.
    """
    hints = get_type_hints(config)
    made = [_parameter(field, hints[field.name]) for field in fields(config) if field.name not in skip]

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        whole = signature.replace(parameters=[*own, *made])
        command.__signature__ = whole  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in whole.parameters.values()}
        return command

    return add


def _parameter(field: Field[Any], kind: Any) -> inspect.Parameter:
    flag = f"--{field.name.replace('_', '-')}"
    listed = field.default_factory is not MISSING
    option: Any = typer.Option(flag, help=escape(field.metadata["help"]), show_default=not listed)
    if "parser" in field.metadata:
        option.parser, option.metavar = _parsed(field.metadata["parser"]), kind.__name__.upper()
    default = None if listed else field.default
    annotation: Any = Annotated[kind | None if listed else kind, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _parsed(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A field's parser, whose errors are those of a wrong option; it is handed the field's default too."""

    def read(text: Any) -> Any:
        try:
            return parse(text)
        except InputError as error:
            raise typer.BadParameter(str(error)) from None

    return read


def make_config(config: type[C], values: dict[str, Any]) -> C:
    """Build the config from what was typed; a list that was not given keeps its default."""
    lists = {field.name for field in fields(config) if field.default_factory is not MISSING}  # type: ignore[arg-type]
    given = {name: value for name, value in values.items() if not (name in lists and value is None)}
    return config(**given)


def comma_separated(values: Sequence[str] | None) -> list[str] | None:
    """Flatten a repeatable option whose values may also be joined by commas.

    >>> comma_separated(["a,b", "c"])
    ['a', 'b', 'c']
    """
    if values is None:
        return None
    return [part.strip() for value in values for part in value.split(",") if part.strip()]
