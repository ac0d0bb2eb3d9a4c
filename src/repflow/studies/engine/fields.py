"""Fields of the studies' configs: an option with its help, and one that means what it means to `repflow measure`."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from repflow.studies.measure import MeasureConfig

_measure = MeasureConfig()


def option(default: Any, help: str) -> Any:
    """A field with its help text."""
    return field(default=default, metadata={"help": help})


def same(name: str) -> Any:
    """The field of that name in `MeasureConfig`: its default and its help; of a list use `said`.

    >>> from dataclasses import make_dataclass
    >>> make_dataclass("Config", [("samples", int, same("samples"))])()
    Config(samples=8)
    """
    return option(getattr(_measure, name), _measure.help(name))


def said(name: str) -> dict[str, str]:
    """What `MeasureConfig` says of a field, as the metadata of another one.

    >>> said("samples")
    {'help': 'number of prompts'}
    """
    return {"help": _measure.help(name)}
