"""Hooks: what a lower layer may call of a higher one, registered by the facade (see repflow/__init__.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from repflow.core.errors import InputError

_hooks: dict[str, Callable[..., Any]] = {}


def register_hook(name: str, function: Callable[..., Any]) -> None:
    """Let a higher layer provide `plot` or `html` for results."""
    _hooks[name] = function


def hook(name: str) -> Callable[..., Any]:
    """The function registered under a name."""
    if name not in _hooks:
        raise InputError(f"no {name} hook registered; import repflow (not repflow.core.results alone) to draw results")
    return _hooks[name]
