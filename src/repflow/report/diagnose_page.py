"""The diagnosis as one page of text and as one JSON object; reads a stored Result, computes nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repflow.report.tables import label
from repflow.results import Result

WIDTH = 100
SECTIONS = {
    "flow": "Flow between tokens",
    "read-out": "What can be decoded",
    "signature": "Published failure signatures",
    "layout": "Where the kinds of block sit",
}
NAMES = {
    "early_similarity": "high similarity early",
    "late_similarity": "high similarity late",
    "peak_to_last": "loss from peak to last",
}
NOTE = (
    "Decodable means that a linear read-out finds it on prompts it was not trained on. Intervals are 95 % over prompts;"
    " a verdict is given only where the whole interval lies on one side."
)


def diagnosis_text(result: Result) -> str:
    """One page of plain text."""
    config = result.config
    model = result.provenance.get("model", {})
    kind = f", {model['type']}, {model['layers']} blocks" if model else ""
    lines = [f"Diagnosis of {label(result)}{kind} on {config.get('task')} at {config.get('length')} tokens", ""]
    statements = result.provenance["statements"]
    for section, title in SECTIONS.items():
        mine = [statement for statement in statements if statement["section"] == section]
        if mine:
            lines += [title, *(_signatures(mine) if section == "signature" else _sentences(mine)), ""]
    lines += ["Not measured, so not claimed", *_items(result.provenance["not_measured"]), ""]
    for finding in result.findings:
        lines += _items([f"finding {finding.code}: {finding.message}"])
    if result.findings:
        lines.append("")
    return "\n".join([*lines, *textwrap.wrap(NOTE, WIDTH)])


def _sentences(statements: Sequence[dict[str, Any]]) -> list[str]:
    return _items([statement["text"] for statement in statements])


def _signatures(statements: Sequence[dict[str, Any]]) -> list[str]:
    """Both verdicts in one line, then the sentences with their numbers."""
    lines = []
    for code in dict.fromkeys(statement["code"] for statement in statements):
        mine = [statement for statement in statements if statement["code"] == code]
        verdicts = ", ".join(f"{_basis(s['basis'])}: {_verdict(s['holds'])}" for s in mine)
        lines += _items([f"{NAMES.get(code, code)}: {verdicts}"])
        lines += [f"    {line}" for s in mine for line in textwrap.wrap(s["text"], WIDTH - 4)]
    return lines


def _basis(basis: str) -> str:
    return "as published" if basis == "published" else "as judged"


def _verdict(holds: bool | None) -> str:
    return "not decided" if holds is None else "yes" if holds else "no"


def _items(texts: Sequence[str]) -> list[str]:
    return [
        line
        for text in texts
        for line in textwrap.wrap(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False)
    ]


def diagnosis_json(result: Result, run: Path | None = None) -> dict[str, Any]:
    """One object with every statement and the numbers behind it; NaN is null."""
    whole = result.to_json()
    provenance = whole["provenance"]
    return {
        "run": None if run is None else str(run),
        "model": whole["config"].get("model"),
        "task": whole["config"].get("task"),
        "statements": provenance["statements"],
        "not_measured": provenance["not_measured"],
        "thresholds": provenance["thresholds"],
        "runs": provenance.get("runs", {}),
        "metrics": {
            name: {key: entry[key] for key in ("axes", "shape", "values")} for name, entry in whole["metrics"].items()
        },
        "findings": whole["findings"],
        "provenance": {name: provenance[name] for name in ("model", "digests") if name in provenance},
    }
