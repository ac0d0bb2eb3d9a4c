"""flash-linear-attention, imported by the first test that asks it: collecting tests would take seconds longer."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any


def later(name: str) -> Callable[[], Any]:
    """A function that gives a module of it."""

    def module() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that there is no GPU; its naive forms need none
            return importlib.import_module(name)

    return module
