"""How the page was made: settings, versions, digests, machine, and commands that repeat every run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from repflow.core.studies import STUDIES
from repflow.report.data.context import Context
from repflow.report.data.model import Block, Cell, Content, Table, Text
from repflow.report.data.runs import SUMMARY, StoredRun
from repflow.spec.zoo import is_zoo
from repflow.version import __version__

COMMANDS = {row.name: row.command for row in STUDIES if row.command}
"""Study to command; the others have their settings listed."""
POSITIONAL = {"compare": ("model_a", "model_b"), "reproduce": ("recipe",), "dynamics-figure": ("recipe",)}
FLAGS = {
    "flow_run": "--flow",
    "probe_run": "--probe",
    ("reproduce", "models"): "--model",
    ("reproduce", "tasks"): "--task",
    ("reproduce", "lengths"): "--length",
}
"""Options whose name is not the field's."""
REPEATED = ("text", "ablate", "calibration", "match_with", "models")
"""Lists that are given one by one; the others are joined by commas."""
EMPTY = {"controls": "none"}
"""What an empty list is on the command line, where leaving it out means something else."""
SKIPPED = ("study", "model")
MOST_SETTINGS = 400


def section(runs: Sequence[StoredRun], context: Context) -> Content:
    """Settings, versions, digests, machine and commands of every run; findings of the runs too."""
    blocks: list[Block] = [run_table(runs), machine_table(runs)]
    findings = findings_table(runs)
    blocks += [findings] if findings.rows else []
    blocks += [settings_table(runs), Text("made-commands", "Commands to repeat it", commands(runs), mono=True)]
    blocks += (
        [Text("made-warnings", "What is missing or not compared", list(context.warnings))] if context.warnings else []
    )
    built_in = any(is_zoo(str(run.facts.get("spec", ""))) for run in runs)
    lead = (
        f"Made by repflow {__version__} from {len(runs)} stored run{'s' if len(runs) != 1 else ''}, whose digests were "
        f"checked on reading. Every number on this page comes from {'them' if len(runs) != 1 else 'it'}."
    )
    if built_in:
        lead += " Only what built-in models' cards and further trainings say comes with repflow itself."
    return Content(lead, blocks, [], lead)


def run_table(runs: Sequence[StoredRun]) -> Table:
    """Which runs, when, and the digests of what they read."""
    rows: list[list[Cell]] = []
    for run in runs:
        digests = run.result.provenance.get("digests", {})
        digest_text = ", ".join(f"{name} {_digest(value)}" for name, value in digests.items())
        about = [run.label + (f" | {run.other}" if run.other else ""), run.study, run.task, run.length or None]
        rows.append([run.name, *about, run.states if run.task else None, run.dtype or None, digest_text, run.created])
    columns = ("run", "model", "study", "task", "length", "states", "dtype", "digests", "started")
    return Table("made-runs", "Runs", columns, rows, "Digests of weights, prompts and other inputs, first digits.")


def _digest(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}:{_digest(entry)}" for key, entry in value.items())
    return str(value)[:12]


def machine_table(runs: Sequence[StoredRun]) -> Table:
    """Versions and machines, one row per set of them."""
    rows: dict[tuple[Any, ...], int] = {}
    for run in runs:
        about = run.result.provenance
        packages = ", ".join(f"{name} {version}" for name, version in (about.get("packages") or {}).items())
        device = f"{about.get('device', '')} {about.get('device_name', '')}".strip()
        key = (about.get("repflow"), about.get("python"), packages, device, about.get("threads"), about.get("cores"))
        rows[key] = rows.get(key, 0) + 1
    columns = ("repflow", "Python", "packages", "device", "threads", "cores", "runs")
    return Table("made-machine", "Versions and machines", columns, [[*key, count] for key, count in rows.items()])


def findings_table(runs: Sequence[StoredRun]) -> Table:
    """What the runs themselves found worth a reader's attention."""
    rows: list[list[Cell]] = [
        [run.label or run.name, run.name, finding.code, finding.message]  # which says where: a state or a block
        for run in runs
        for finding in run.result.findings
    ]
    columns = ("model", "run", "finding", "what")
    return Table("made-findings", "Findings of the runs", columns, rows)


def settings_table(runs: Sequence[StoredRun]) -> Table:
    """Settings of all runs: what all of a study share once, what differs by run."""
    rows: list[list[Cell]] = []
    for study in dict.fromkeys(run.study for run in runs):
        mine = [run for run in runs if run.study == study]
        names = dict.fromkeys(name for run in mine for name in run.result.config)
        for name in names:
            values = {run.name: _shown(run.result.config.get(name)) for run in mine}
            distinct = dict.fromkeys(values.values())
            if len(distinct) == 1:
                rows.append([study, name, next(iter(distinct)), "all"])
                continue
            for value in distinct:
                having = [run for run, own in values.items() if own == value]
                having_text = ", ".join(having) if len(having) <= 3 else f"{having[0]} and {len(having) - 1} more"
                rows.append([study, name, value, having_text])
    note = (
        f"The first {MOST_SETTINGS} of {len(rows)} settings; each run folder has all."
        if len(rows) > MOST_SETTINGS
        else ""
    )
    return Table("made-settings", "Settings", ("study", "setting", "value", "runs"), rows[:MOST_SETTINGS], note)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def commands(runs: Sequence[StoredRun]) -> list[str]:
    """One command per run that can be run again; cells of twins come with their study's."""
    lines = []
    for run in runs:
        line = command(run) if run.cell_of != SUMMARY else ""
        if line and line not in lines:
            lines.append(line)
    return [*lines, page_command(runs)]


def command(run: StoredRun) -> str:
    """The command line that makes a run again, every setting spelled out; "" for a study without one.

    >>> from repflow.core.results import Result
    >>> command(StoredRun("r", "gpt2", "measure", Result({}, {}, {"model": "gpt2", "samples": 2, "text": ["a b.txt"]})))
    "repflow measure gpt2 --samples 2 --text 'a b.txt'"
    """
    config, words = run.result.config, COMMANDS.get(run.study)
    if words is None:
        return ""
    positional = POSITIONAL.get(run.study, ("model",))
    parts = ["repflow", *words.split(), *(str(config[name]) for name in positional if config.get(name))]
    for name, value in config.items():
        if name not in (*positional, *SKIPPED):
            parts += _option(run.study, name, value)
    return shlex.join(parts)


def _option(study: str, name: str, value: Any) -> list[str]:
    flag = str(FLAGS.get((study, name), FLAGS.get(name, f"--{name.replace('_', '-')}")))
    if value is None or value is False or value == {}:
        return []
    if value is True:
        return [flag]
    if isinstance(value, list):
        if not value:
            return [flag, EMPTY[name]] if name in EMPTY else []
        return (
            [part for entry in value for part in (flag, str(entry))]
            if name in REPEATED
            else [flag, ",".join(map(str, value))]
        )
    return [flag, str(value)]


def page_command(runs: Sequence[StoredRun]) -> str:
    """The command that makes the page from the runs."""
    folders = dict.fromkeys(run.folder if run.cell_of else PurePath(run.name).name for run in runs)
    return shlex.join(["repflow", "report", *folders])
