"""Defer an import that another package makes at its start and a command seldom needs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _StandIn(ModuleType):
    """A stand-in for a module whose functions import it when they are called.

    Any other attribute imports the real module immediately.
    """

    def __init__(self, name: str, functions: tuple[str, ...]) -> None:
        super().__init__(name)
        for function in functions:
            setattr(self, function, _calling(name, function))

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # what the import system asks a module
            raise AttributeError(attribute)
        return getattr(_real(self.__name__, self), attribute)


def _calling(module: str, function: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), function)(*args, **kwargs)

    call.__name__ = call.__qualname__ = function
    call.__doc__ = f"{module}.{function}, imported when it is called."
    return call


def _real(name: str, stand_in: ModuleType) -> ModuleType:
    if sys.modules.get(name) is stand_in:
        del sys.modules[name]
    return importlib.import_module(name)


@contextmanager
def deferred(module: str, *functions: str) -> Iterator[None]:
    """Until the end of the block, imports of these functions of a module do not import the module.

    transformers takes one function of scipy.optimize into the losses of object detectors, and 320 modules with it. The
    functions work afterwards as the real ones do.

    >>> with deferred("zipfile", "is_zipfile"):
    ...     from zipfile import is_zipfile
    >>> is_zipfile("no such file")
    False
    """
    if module in sys.modules:
        yield
        return
    stand_in = sys.modules[module] = _StandIn(module, functions)
    try:
        yield
    finally:
        if sys.modules.get(module) is stand_in:
            del sys.modules[module]
