"""Shares of one run, stored by several workers, as that run: the same shards under the same names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repflow.core.errors import InputError, teach
from repflow.store.manifest import live_shards, read_manifest
from repflow.store.record import check_same, existing_run, read_record
from repflow.store.run import KINDS, RunFolder
from repflow.store.shard import shard_path

PASSED_OVER = frozenset(["share", "seconds", "split"])
"""Lines of a share that say nothing about the whole: it splits batches itself where its memory is too small."""
PLAN = "plan"


def merge_runs(shares: Sequence[Path], parent: Path, name: str) -> None:
    """Put shards and notes of shares into the run `parent/name`, which is created, or resumed.

    The bytes of shards are not copied where the file system has hard links. Machines, versions or devices that differ
    between shares become a finding of the result, as those of a resumed run do. A share that divided the prompts into
    other batches, as a machine with other memory may do, is left out: the whole run computes what is missing.

    Raises:
        InputError: no share.
        ConfigChangedError: the shares are of different requests, models or prompts; names the key.
        DamagedRunError: a share is damaged.
    """
    if not shares:
        raise InputError(teach("at least one share of a run", "none", "run its shares first"))
    records = [read_record(existing_run(path)) for path in shares]
    first = records[0]
    with RunFolder.open(parent, name, config=first.config, provenance=first.provenance) as whole:
        for path, record in zip(shares, records, strict=True):
            changes = check_same(first, record, path)
            if not _same_plan(whole, path):
                continue
            if changes and {"changes": changes} not in whole.events("resumed"):
                whole.note_changes(changes)
            _add(whole, path)


def _same_plan(whole: RunFolder, share: Path) -> bool:
    """Whether batches of the same name hold the same prompts in both."""
    planned = whole.events(PLAN)
    return not planned or planned == [dict(entry.data) for entry in read_manifest(share).good if entry.kind == PLAN]


def _add(whole: RunFolder, share: Path) -> None:
    entries = read_manifest(share).good
    for entry in entries:
        if entry.kind in KINDS or entry.kind in PASSED_OVER:
            continue
        if dict(entry.data) not in whole.events(entry.kind):  # all shares have the same plan
            whole.record(entry.kind, entry.data)
    for name, line in live_shards(entries).items():
        if not whole.has_shard(name):
            whole.take_shard(line, shard_path(share, name))
