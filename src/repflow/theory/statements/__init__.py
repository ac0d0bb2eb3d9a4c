"""Statements of the papers: a module for each, with its checks, and the one table that says which there are.

A module declares `CHECKS`: part of `theory verify` → function of a `Session` that gives `Check`s. That of a new theorem
also declares its closed forms, `FORMS` (name → function), and their simulations, `TWINS` (name → `Twin`); they are then
known to `repflow.theory.NAME`, `hypotheses` and `simulate`. So a new theorem is a module here and its row in `MODULES`.
"""

from __future__ import annotations

from collections.abc import Callable

from repflow.theory.check import Check, Session
from repflow.theory.simulate import FORMS, TWINS
from repflow.theory.statements import delta_rule, flow, printed_table, state_space

MODULES = (
    flow,
    state_space,
    delta_rule,
    printed_table,
)
"""In the order of `theory verify`."""


def groups() -> dict[str, Callable[[Session], list[Check]]]:
    """Checks by the part of the papers they belong to."""
    return {name: check for module in MODULES for name, check in module.CHECKS.items()}


def register() -> None:
    """Let closed forms and simulations of these modules be found by name."""
    for module in MODULES:
        FORMS.update(getattr(module, "FORMS", {}))
        TWINS.update(getattr(module, "TWINS", {}))
