"""Run folders: shards, manifest, digests, lock, resume, export. Never imports torch.

Names are imported when they are first used: a command that only checks where it would write needs no numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repflow.store.check import Damage, damaged_shards, heal, verify
    from repflow.store.disk import UnwritableError
    from repflow.store.exchange import export
    from repflow.store.listing import RunSummary, list_runs
    from repflow.store.name import check_name, safe_name
    from repflow.store.record import Record, is_start, read_record
    from repflow.store.run import RunFolder
    from repflow.store.study import is_study, load_result, runs_in

_HOMES = {
    "Damage": "check",
    "Record": "record",
    "RunFolder": "run",
    "RunSummary": "listing",
    "UnwritableError": "disk",
    "check_name": "name",
    "damaged_shards": "check",
    "export": "exchange",
    "heal": "check",
    "is_start": "record",
    "is_study": "study",
    "list_runs": "listing",
    "load_result": "study",
    "read_record": "record",
    "runs_in": "study",
    "safe_name": "name",
    "verify": "check",
}

__all__ = [
    "Damage",
    "Record",
    "RunFolder",
    "RunSummary",
    "UnwritableError",
    "check_name",
    "damaged_shards",
    "export",
    "heal",
    "is_start",
    "is_study",
    "list_runs",
    "load_result",
    "read_record",
    "runs_in",
    "safe_name",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'repflow.store' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"repflow.store.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
