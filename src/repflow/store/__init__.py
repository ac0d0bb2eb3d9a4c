"""Run folders: shards, manifest, digests, lock, resume, export. Never imports torch."""

from repflow.store.check import Damage, damaged_shards, heal, verify
from repflow.store.disk import UnwritableError
from repflow.store.exchange import export
from repflow.store.listing import RunSummary, list_runs
from repflow.store.name import check_name, safe_name
from repflow.store.record import Record, is_start, read_record
from repflow.store.run import RunFolder
from repflow.store.study import is_study, load_result, runs_in

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
