"""The folder of a training: its record, its last checkpoint and its log; whole after `kill -9` at any moment.

    training.json                      identity, step, digests of the two files below; sealed, replaced as a whole
    checkpoint-000000500.safetensors   weights, optimiser, random generators, history
    log.jsonl                          a JSON object a line

A checkpoint is written beside the one before it and becomes valid when training.json names it. The log may be longer
than training.json says: what follows was logged after the checkpoint and is logged again, so it is cut off.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from repflow.core.errors import ConfigChangedError, DamagedRunError, InputError, teach
from repflow.store.canonical import seal, unseal
from repflow.store.disk import digest, make_folder, read_bytes, refuse_links, write_atomic
from repflow.store.identity import differences
from repflow.store.lock import Lock
from repflow.training.log import AGAIN, Log

FORMAT = 1
RECORD, LOG, CHECKPOINT = "training.json", "log.jsonl", "checkpoint-"
LOCK = ".training.lock"
"""Not that of runs: `repflow list` would take the folder for a damaged one."""


class TrainingFolder:
    """A folder that one training writes, from `with` to its end.

    Attributes:
        path: of the folder.
        record: what training.json says.
        log: the log, as long as the record says.

    Raises:
        InputError: The folder holds something else.
        ConfigChangedError: It holds another training; names the first key that differs.
        RunLockedError: Another process trains in it.
        DamagedRunError: A file of it was changed or cut.
    """

    def __init__(self, path: Path, identity: dict[str, Any], versions: dict[str, str]) -> None:
        make_folder(path)
        self.path = path
        self._lock = Lock(path, LOCK)
        try:
            record = self._read()
            if record is None:
                self._check_empty()
                record = {"format": FORMAT, "identity": identity, "versions": versions, "step": 0, "checkpoint": None}
                record |= {"log": {"bytes": 0, "sha256": digest(b"")}, "done": False}
                self._write(record)
            self._check_same(record, identity)
            self.record: dict[str, Any] = record
            self._sweep()
            self.log = Log(path / LOG, record["log"]["bytes"], record["log"]["sha256"])
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> TrainingFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.log.close()
        self._lock.release()

    def save(self, tensors: dict[str, Tensor], facts: dict[str, Any], *, done: bool = False) -> None:
        """Make a checkpoint the one to go on from.

        Args:
            tensors: of `repflow.training.snapshot.take`.
            facts: `step` and what else the training wants back, as plain JSON values.
            done: the training is finished.
        """
        self.log.sync()
        raw = save_tensors(tensors)
        name = f"{CHECKPOINT}{facts['step']:09d}{'-final' if done else ''}.safetensors"
        entry = self.record["checkpoint"]
        assert entry is None or entry["file"] != name, "the valid checkpoint is never written over"
        refuse_links(self.path / name)
        write_atomic(self.path / name, raw)
        self.record = {
            **{key: self.record[key] for key in ("format", "identity", "versions")},
            **facts,
            "checkpoint": {"file": name, "bytes": len(raw), "sha256": digest(raw)},
            "log": {"bytes": self.log.size, "sha256": self.log.sha256},
            "done": done,
        }
        self._write(self.record)
        self._sweep()

    def load(self) -> dict[str, Tensor] | None:
        """Tensors of the checkpoint; None before the first."""
        entry = self.record["checkpoint"]
        if entry is None:
            return None
        path = self.path / entry["file"]
        raw = read_bytes(path)
        if raw is None or len(raw) != entry["bytes"] or digest(raw) != entry["sha256"]:
            got = "no such file" if raw is None else f"other bytes ({len(raw)}, stored were {entry['bytes']})"
            raise DamagedRunError(teach(f"the checkpoint of step {self.record['step']} in {path}", got, AGAIN))
        try:
            return load_tensors(raw)
        except SafetensorError as error:
            raise DamagedRunError(teach(f"tensors in {path}", str(error), AGAIN)) from None

    def _read(self) -> dict[str, Any] | None:
        raw = read_bytes(self.path / RECORD)
        if raw is None:
            return None
        record = unseal(raw, indent=1)
        if record is not None and "format" in record and record["format"] != FORMAT:
            remedy = "resume it with the version of repflow that began it, or use another folder"
            raise InputError(teach(f"a training of format {FORMAT} in {self.path}", f"{record['format']!r}", remedy))
        if record is None or not is_record(record):
            got = "a file that was changed or cut, or another program's"
            raise DamagedRunError(teach(f"the record of a training in {self.path / RECORD}", got, AGAIN))
        return record

    def _write(self, record: dict[str, Any]) -> None:
        write_atomic(self.path / RECORD, seal(record, indent=1))

    def _check_empty(self) -> None:
        for other in (self.path / LOG, *self.path.glob(f"{CHECKPOINT}*")):
            if other.exists():
                got = f"{other.name} without {RECORD}"
                remedy = "choose another folder, or take the file away"
                raise InputError(teach(f"a new folder or that of a training at {self.path}", got, remedy))

    def _check_same(self, record: dict[str, Any], identity: dict[str, Any]) -> None:
        for key, before, after in differences(record["identity"], identity):
            remedy = "call it with what it was begun with"
            if key == "first_weights":
                remedy = "give it the model as it was at first, drawn from the same seed"
            raise ConfigChangedError(
                f"training key {key!r}: stored {before}, now {after}; the folder {self.path} holds another training: "
                f"{remedy}, use another folder, or delete this one"
            )

    def _sweep(self) -> None:
        """Remove checkpoints that are no longer, or were never, the one to go on from."""
        entry = self.record["checkpoint"]
        for file in self.path.glob(f"{CHECKPOINT}*.safetensors*"):
            if entry is None or file.name != entry["file"]:
                file.unlink(missing_ok=True)


def is_record(record: dict[str, Any]) -> bool:
    """Whether a record has what it takes to resume from it, each of its type; a folder may come from elsewhere."""
    begun: dict[str, Any] = {
        "format": int,
        "identity": dict,
        "versions": dict,
        "step": int,
        "checkpoint": dict | None,
        "log": dict,
        "done": bool,
    }
    saved: dict[str, Any] = {"evaluated": int, "names": list, "seconds": float, "tokens": int, "stopped": str | None}
    saved |= {"nonfinite": list | None, "callbacks": dict}
    if not _has(record, begun) or not _has(record["log"], {"bytes": int, "sha256": str}) or record["log"]["bytes"] < 0:
        return False
    entry = record["checkpoint"]
    if entry is None:
        return record["step"] == 0 and not record["done"]
    return (
        _has(record, saved)
        and _has(entry, {"file": str, "bytes": int, "sha256": str})
        and re.fullmatch(rf"{CHECKPOINT}\d{{9}}(-final)?\.safetensors", entry["file"]) is not None
        and all(isinstance(name, str) for name in record["names"])
        and isinstance(weights := record.get("loss", {}), dict)
        and all(isinstance(weight, float) for weight in weights.values())
        and (record["nonfinite"] is None or [type(part) for part in record["nonfinite"]] == [int, str])
    )


def _has(values: dict[str, Any], kinds: dict[str, Any]) -> bool:
    # True is an int to isinstance, and nothing here that is a number may be one
    return all(
        name in values and isinstance(values[name], kind) and (kind is bool or not isinstance(values[name], bool))
        for name, kind in kinds.items()
    )
