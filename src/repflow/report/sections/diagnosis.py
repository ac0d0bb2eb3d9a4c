"""What `repflow diagnose` stated about each model, sentence by sentence, and what it did not measure."""

from __future__ import annotations

from collections.abc import Sequence

from repflow.core.readout import ReadOut
from repflow.report.data.context import Context
from repflow.report.data.model import Block, Cell, Content, Link, Table, Text
from repflow.report.data.probed import answering, probe_runs, question
from repflow.report.data.runs import StoredRun
from repflow.report.terminal.diagnose import NOTE, SECTIONS

HOLDS = {True: "yes", False: "no", None: "open"}
TARGETS = {
    "flow": "figure-2",
    "read-out": "figure-7",
    "signature": "figure-2",
    "blocks": "figure-7",
    "layout": "figure-2",
}
"""Figure of each kind of statement."""
PROBED = ("read-out", "blocks")
"""Kinds of statement that rest on a probe."""
PROBED_CODES = ("peak_to_last", "accuracy_by_kind", "best_state_kind")
"""Further statements that do."""


def answered_by(run: StoredRun, runs: Sequence[StoredRun]) -> StoredRun | None:
    """The probed run with more training prompts that asks what a diagnosis states of its own: the verdict takes it."""
    read_out = run.result.provenance.get("read_out")
    if read_out is None:
        return None
    key = (run.label, run.task, run.length, read_out["label"])
    for other in answering(probe_runs(runs)):
        name, task, length, states, label = question(other)
        own = ReadOut.of(other.result).to_json()
        if (name, task, length, label) == key and states == "residual" and own["prompts"] != read_out["prompts"]:
            return other
    return None


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Statements of all diagnoses; None where there are none."""
    diagnosed = [run for run in runs if run.study == "diagnose"]
    if not diagnosed:
        return None
    rows: list[list[Cell]] = []
    answered: list[str] = []
    for run in diagnosed:
        larger = answered_by(run, runs)
        if larger is not None:
            counts = ReadOut.of(larger.result).counts
            answered.append(f"{run.label}: what {run.name} states of probes, as {larger.name} asked the same, {counts}")
        for statement in run.result.provenance["statements"]:
            kind = str(statement["section"])
            if larger is not None and (kind in PROBED or statement["code"] in PROBED_CODES):
                continue
            about: Cell = Link(SECTIONS.get(kind, kind), TARGETS.get(kind, "diagnosis"))
            basis = str(statement.get("basis") or "")
            rows.append([run.label, about, str(statement["text"]), basis, HOLDS[statement["holds"]]])
    columns = ("model", "about", "statement", "basis", "holds")
    blocks: list[Block] = [Table("diagnosis-table", "Statement by statement", columns, rows, NOTE)]
    missing = [f"{run.label}: {text}" for run in diagnosed for text in run.result.provenance.get("not_measured", [])]
    blocks += [Text("diagnosis-missing", "Not measured, so not claimed", missing)] if missing else []
    blocks += [Text("diagnosis-answered", "Left out, as a larger run answers", answered)] if answered else []
    lead = "Where tokens become alike, where the answer can be read and where it is lost, as `repflow diagnose` put it."
    return Content(lead, blocks)
