"""Runs of `repflow probe` on a page: what each asks, which of two answers, and which label comes first."""

from __future__ import annotations

from collections.abc import Sequence

from repflow.core.readout import ReadOut
from repflow.report.data.runs import StoredRun

FIRST = "answer"
"""Label that is shown first, whatever the runs say: what the task asks for, not where it stood."""


def probe_runs(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Runs of `repflow probe`, those for the answer first."""
    probed = [run for run in runs if run.study == "probe" and "probe_accuracy" in run.result]
    return sorted(probed, key=lambda run: run.result.config.get("label") != FIRST)


def probed_label(run: StoredRun) -> str:
    """What is probed for, and where in the prompt."""
    about = run.result.provenance["probe"]
    return str(about["label"]) + ("" if about["position"] == "last" else f", at position {about['position']}")


def question(run: StoredRun) -> tuple[str, ...]:
    """What a probe asks: model, task, length, states and label."""
    return (run.label, run.task, run.length, run.states, probed_label(run))


def weight(run: StoredRun) -> tuple[int, int]:
    """Prompts to fit on, then seeds: of two runs that ask the same, the greater one answers."""
    counts = ReadOut.of(run.result).counts
    return (0, 0) if counts is None else (counts.train, counts.seeds)


def answering(probed: Sequence[StoredRun]) -> list[StoredRun]:
    """Of the runs that ask the same, the one with most training prompts."""
    best: dict[tuple[str, ...], StoredRun] = {}
    for run in probed:
        if question(run) not in best or weight(run) > weight(best[question(run)]):
            best[question(run)] = run
    return [run for run in probed if best[question(run)] is run]
