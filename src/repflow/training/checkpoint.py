"""The folder of a training: its record, its last checkpoint and its log; whole after `kill -9` at any moment.

    training.json                      identity, step, digests of the two files below; sealed, replaced as a whole
    checkpoint-000000500.safetensors   weights, optimiser, random generators, history
    log.jsonl                          a JSON object a line

A checkpoint is written beside the one before it and becomes valid when training.json names it. The log may be longer
than training.json says: what follows was logged behind the checkpoint and is logged again, so it is cut off.
"""

from __future__ import annotations

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
from repflow.training.log import Log

FORMAT = 1
RECORD, LOG, CHECKPOINT = "training.json", "log.jsonl", "checkpoint-"
AGAIN = "delete the folder to train from the first step"


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
        self._lock = Lock(path)
        try:
            stored = self._read()
            if stored is None:
                self._check_empty()
                stored = {"format": FORMAT, "identity": identity, "versions": versions, "step": 0, "checkpoint": None}
                stored |= {"log": {"bytes": 0, "sha256": digest(b"")}, "done": False}
                self._write(stored)
            self._check_same(stored, identity)
            self.record: dict[str, Any] = stored
            self._sweep()
            self.log = Log(path / LOG, stored["log"]["bytes"], stored["log"]["sha256"])
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
        told = self.record["checkpoint"]
        if told is None:
            return None
        path = self.path / told["file"]
        raw = read_bytes(path)
        if raw is None or len(raw) != told["bytes"] or digest(raw) != told["sha256"]:
            got = "no such file" if raw is None else f"other bytes ({len(raw)}, stored were {told['bytes']})"
            raise DamagedRunError(teach(f"the checkpoint of step {self.record['step']} in {path}", got, AGAIN))
        try:
            return load_tensors(raw)
        except SafetensorError as error:
            raise DamagedRunError(teach(f"tensors in {path}", str(error), AGAIN)) from None

    def _read(self) -> dict[str, Any] | None:
        raw = read_bytes(self.path / RECORD)
        if raw is None:
            return None
        stored = unseal(raw, indent=1)
        if stored is None:
            raise DamagedRunError(
                teach(
                    f"the record of a training in {self.path / RECORD}",
                    "a file that was changed or cut, or another program's",
                    AGAIN,
                )
            )
        if stored.get("format") != FORMAT:
            remedy = "resume it with the version of repflow that began it, or use another folder"
            raise InputError(
                teach(f"a training of format {FORMAT} in {self.path}", f"{stored.get('format')!r}", remedy)
            )
        return stored

    def _write(self, record: dict[str, Any]) -> None:
        write_atomic(self.path / RECORD, seal(record, indent=1))

    def _check_empty(self) -> None:
        for other in (self.path / LOG, *self.path.glob(f"{CHECKPOINT}*")):
            if other.exists():
                got = f"{other.name} without {RECORD}"
                remedy = "choose another folder, or take the file away"
                raise InputError(teach(f"a new folder or that of a training at {self.path}", got, remedy))

    def _check_same(self, stored: dict[str, Any], identity: dict[str, Any]) -> None:
        for key, before, after in differences(stored["identity"], identity):
            remedy = "call it with what it was begun with"
            if key == "first_weights":
                remedy = "give it the model as it was at first, made behind the same seed"
            raise ConfigChangedError(
                f"training key {key!r}: stored {before}, now {after}; the folder {self.path} holds another training: "
                f"{remedy}, use another folder, or delete this one"
            )

    def _sweep(self) -> None:
        """Remove checkpoints that are no longer, or were never, the one to go on from."""
        told = self.record["checkpoint"]
        for file in self.path.glob(f"{CHECKPOINT}*.safetensors*"):
            if told is None or file.name != told["file"]:
                file.unlink(missing_ok=True)
