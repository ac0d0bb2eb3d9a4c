"""The comparison as a Result: ours (row, kind) beside the printed values, the curves behind them, and the verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from repflow import papers
from repflow.results import Finding, Result
from repflow.studies.reproduce import ReproducePlan
from repflow.studies.reproduce_compare import PROBED, Key, Verdict, curve, ours, score, verdicts
from repflow.studies.reproduce_run import CellOutcome


def make_result(plan: ReproducePlan, outcomes: Sequence[CellOutcome]) -> Result:
    """Hold what was measured against what was printed.

    Args:
        plan: the request.
        outcomes: what became of its cells; a row that needs an unfinished one is NaN.
    """
    kinds = plan.config.states
    measured = {o.cell.key: o.result for o in outcomes if o.result is not None and not o.cell.probes}
    probed = {o.cell.key: o.result for o in outcomes if o.result is not None and o.cell.probes}
    values = np.full((len(plan.rows), len(kinds)), math.nan)
    for i, row in enumerate(plan.rows):
        found = probed if row.quantity in PROBED else measured
        values[i] = [ours(row, kind, found, plan.tasks, plan.recipe.inits) for kind in kinds]
    scores = [[score(row, float(value)) for value in line] for row, line in zip(plan.rows, values, strict=True)]
    arrays = {
        "ours": values,
        "printed_low": np.array([row.low for row in plan.rows]),
        "printed_high": np.array([row.high for row in plan.rows]),
        "score": np.array(scores, dtype=np.float64).reshape(values.shape),
    }
    axes: dict[str, tuple[str, ...]] = {name: ("row", "kind")[: array.ndim] for name, array in arrays.items()}
    _add_curves(arrays, axes, plan, measured, probed)
    specs = {role: Path(model.spec).name for role, model in plan.models.items() if not model.own}
    judged = verdicts(plan.rows, values, kinds, specs)
    return Result(arrays, axes, {}, _provenance(plan, outcomes, judged), _findings(plan, outcomes, judged))


def _add_curves(
    arrays: dict[str, np.ndarray],
    axes: dict[str, tuple[str, ...]],
    plan: ReproducePlan,
    measured: Mapping[Key, Result],
    probed: Mapping[Key, Result],
) -> None:
    """What a figure draws, under MODEL/TASK/LENGTH/INIT/KIND/METRIC."""
    shown = {"cka": "cka_pooled", "layer_cosine": "layer_cosine", "token_similarity": "token_similarity"}
    for quantity in plan.recipe.quantities:
        for key, result in measured.items() if quantity in shown else ():
            name = _curve_name(key, shown[quantity])
            arrays[name] = curve(result, quantity)
            axes[name] = ("layer",) if quantity == "layer_cosine" else ("state",) * arrays[name].ndim
    for key, result in probed.items():
        name = _curve_name(key, "probe_accuracy")
        arrays[name], axes[name] = curve(result, "probe/paper/accuracy"), ("state",)


def _curve_name(key: Key, metric: str) -> str:
    return "/".join([key.model, key.task, papers.short_length(key.length), key.init, key.kind, metric])


def _provenance(plan: ReproducePlan, outcomes: Sequence[CellOutcome], judged: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "title": plan.recipe.title,
        "note": plan.recipe.note,
        "kinds": list(plan.config.states),
        "rows": [asdict(row) for row in plan.rows],
        "models": {role: asdict(model) for role, model in plan.models.items()},
        "lengths": {str(length): tokens for length, tokens in plan.lengths.items()},
        "verdicts": [asdict(verdict) | {"message": verdict.message} for verdict in judged],
        "cells": [
            {"run": f"{plan.folder.name}/{o.cell.name}", "status": o.status, "reason": o.reason} for o in outcomes
        ],
    }


def _findings(plan: ReproducePlan, outcomes: Sequence[CellOutcome], judged: Sequence[Verdict]) -> list[Finding]:
    findings = [
        Finding("consistent" if verdict.consistent else "not_consistent", None, verdict.message) for verdict in judged
    ]
    if any(not model.own for model in plan.models.values()):
        message = "other models stand for the paper's: nothing here speaks for or against its checkpoints"
        findings.append(Finding("stand_in", None, message))
    if "mdqa" in plan.tasks and plan.config.documents is None:
        message = "mdqa with made-up documents; the paper took those of Liu et al. (2024): --documents FILE"
        findings.append(Finding("made_up_documents", None, message))
    missing = [o for o in outcomes if o.status != "finished"]
    if missing:
        first = f"{missing[0].cell.name}: {missing[0].reason}"
        findings.append(
            Finding("unfinished", None, f"{len(missing)} of {len(outcomes)} runs are missing, such as {first}")
        )
    return findings
