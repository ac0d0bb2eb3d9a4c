"""What `repflow diagnose` stated about each model, sentence by sentence, and what it did not measure."""

from __future__ import annotations

from collections.abc import Sequence

from repflow.report.diagnose_page import NOTE, SECTIONS
from repflow.report.page_model import Block, Cell, Link, Section, Table, Text
from repflow.report.page_runs import StoredRun

HOLDS = {True: "yes", False: "no", None: "open"}
TARGETS = {
    "flow": "figure-2",
    "read-out": "figure-7",
    "signature": "figure-2",
    "blocks": "figure-7",
    "layout": "figure-2",
}
"""Figure of each kind of statement."""


def diagnosis_section(runs: Sequence[StoredRun]) -> Section | None:
    """Statements of all diagnoses; None where there are none."""
    diagnosed = [run for run in runs if run.study == "diagnose"]
    if not diagnosed:
        return None
    rows: list[list[Cell]] = []
    for run in diagnosed:
        for statement in run.result.provenance["statements"]:
            kind = str(statement["section"])
            about: Cell = Link(SECTIONS.get(kind, kind), TARGETS.get(kind, "diagnosis"))
            basis = str(statement.get("basis") or "")
            rows.append([run.label, about, str(statement["text"]), basis, HOLDS[statement["holds"]]])
    columns = ("model", "about", "statement", "basis", "holds")
    blocks: list[Block] = [Table("diagnosis-table", "Statement by statement", columns, rows, NOTE)]
    missing = [f"{run.label}: {text}" for run in diagnosed for text in run.result.provenance.get("not_measured", [])]
    blocks += [Text("diagnosis-missing", "Not measured, so not claimed", missing)] if missing else []
    lead = "Where tokens become alike, where the answer can be read and where it is lost, as `repflow diagnose` put it."
    return Section("diagnosis", "Diagnosis", lead, blocks)
