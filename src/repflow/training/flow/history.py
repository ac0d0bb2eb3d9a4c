"""The history of a meter: what it read at which step, in memory and as one run that the other commands understand.

On disk a history is a run folder (study `training`) with a shard per step, on the disk before the next step is trained.
Its result is stored again as the history grows, and once more at the end, so that `repflow report`, `list`, `compare`
and `export` read it as one thing, also while the training goes on or after it was killed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from repflow.core.errors import ConfigChangedError, RunLockedError
from repflow.core.results import Finding, Result
from repflow.metrics.meter import Table
from repflow.store import RunFolder
from repflow.store.canonical import plain
from repflow.store.record import is_run, read_record

STUDY = "training"
GROWTH = 1.25
"""The stored result is behind the shards by a fifth of the history at most."""
SHARD = "step-"
COPIES = 1000
"""Trainings of one name in a folder, at most."""


@dataclass
class FlowHistory:
    """Readings by step.

    Attributes:
        config: what is read, as stored.
        provenance: of what, with what.
        findings: what a reader should know, such as the first step with a state that is not finite.
        steps: read so far, ascending.
    """

    config: dict[str, Any]
    provenance: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    _tables: list[Table] = field(default_factory=list, repr=False)

    def add(self, step: int, table: Table) -> None:
        """Keep a reading; those of the same step and later ones belonged to a training that was set back."""
        earlier = sum(before < step for before in self.steps)
        del self.steps[earlier:], self._tables[earlier:]
        self.steps.append(step)
        self._tables.append(table)

    def curves(self, name: str) -> np.ndarray:
        """A metric by step, mean over prompts: (step, state), (step, layer) or (step,)."""
        return self.result().mean(name)

    def result(self) -> Result:
        """The whole history as a Result whose arrays have the axis `step` first; a reading that lacks one is NaN."""
        arrays: dict[str, np.ndarray] = {"step": np.array(self.steps, dtype=np.int64)}
        axes: dict[str, tuple[str, ...]] = {"step": ("step",)}
        for name in sorted({name for table in self._tables for name in table}):
            named, sample = next(table[name] for table in self._tables if name in table)
            rows = [table[name][1] if name in table else np.full(sample.shape, np.nan) for table in self._tables]
            arrays[name] = np.stack(rows).astype(np.float32)
            axes[name] = ("step", *named)
        result = Result(arrays, axes, dict(self.config), dict(self.provenance), list(self.findings))
        result.provenance["steps"] = list(self.steps)
        for name, named in axes.items():
            if "sample" in named:
                result.band(name)
        return result


class HistoryFolder:
    """The run folder of a history, open from its first reading to `close`.

    Attributes:
        run: the folder.
    """

    def __init__(self, out: Path, name: str, history: FlowHistory, step: int) -> None:
        """Go on with the history of the same training, or begin one.

        Args:
            out: folder of runs.
            name: of the run; a number is put behind it where a history of another training has it.
            history: what is read; filled with what the folder holds from before this step.
            step: of the first reading.
        """
        self._saved = 0
        self.run, before = _opened(out, name, history, step)
        for stored in before:
            shard = _shard(stored)
            if stored >= step:
                self.run.discard_shard(shard, f"the training was set back to step {step}")
            else:
                named = self.run.shard_meta(shard)["axes"]
                arrays = self.run.read_shard(shard)
                history.add(stored, {key: (tuple(named[key]), array) for key, array in arrays.items()})

    def write(self, history: FlowHistory, step: int, table: Table) -> None:
        """Store one reading, and where the history has grown enough its result."""
        arrays = {name: np.ascontiguousarray(array) for name, (_, array) in table.items()}
        meta = {"samples": 1, "step": step, "axes": {name: list(named) for name, (named, _) in table.items()}}
        self.run.write_shard(_shard(step), arrays, meta)
        if len(history.steps) >= GROWTH * self._saved:
            self.save(history)
            self.run.mark_unfinished("the training goes on")

    def save(self, history: FlowHistory) -> None:
        """Store the result of what was read so far."""
        self.run.finish(history.result())
        self._saved = len(history.steps)

    def close(self, history: FlowHistory) -> None:
        """Store the result and let others write."""
        try:
            self.save(history)
        finally:
            self.run.close()


def _shard(step: int) -> str:
    return f"{SHARD}{step:09d}"


def _steps_in(run: RunFolder) -> list[int]:
    return sorted(int(name.removeprefix(SHARD)) for name in run.shards())


def _opened(out: Path, name: str, history: FlowHistory, step: int) -> tuple[RunFolder, list[int]]:
    """The latest folder of this name that this training can go on with, else a new one; and the steps it holds."""
    names = [name, *(f"{name}-{number}" for number in range(2, COPIES))]
    there = [one for one in names if (out / one).exists()]
    for one in reversed(there):
        if not is_run(out / one) or read_record(out / one).config != plain(history.config, "config"):
            continue
        try:
            run = RunFolder.open(out, one, config=history.config, provenance=history.provenance)
        except (RunLockedError, ConfigChangedError):  # another training writes to it, or it read other prompts
            continue
        before = _steps_in(run)
        if any(stored < step for stored in before):
            return run, before
        run.close()
    fresh = next(one for one in names if one not in there)
    return RunFolder.open(out, fresh, config=history.config, provenance=history.provenance), []


def scalars(table: Table, prefix: str) -> dict[str, float]:
    """Numbers for a logger: each metric's mean over prompts and depth, and that of its last state or layer.

    >>> scalars({"token_similarity": (("state", "sample"), np.array([[0.0, 0.25], [0.5, 0.75]]))}, "flow/")
    {'flow/token_similarity': 0.375, 'flow/token_similarity_last': 0.625}
    """
    numbers: dict[str, float] = {}
    for name, (axes, array) in table.items():
        values = Result({name: np.asarray(array)}, {name: axes}).mean(name)
        numbers[prefix + name] = _mean(values)
        if axes[:1] in (("state",), ("layer",)):
            numbers[f"{prefix}{name}_last"] = _mean(values[-1])
    return numbers


def _mean(values: Any) -> float:
    return float(np.mean(values)) if np.isfinite(values).all() else float("nan")
