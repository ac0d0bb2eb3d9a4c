"""The comparison as a Result: ours (row, kind) beside the printed values, the curves behind them, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from repflow.core.results import Finding, Result
from repflow.papers import values as papers
from repflow.studies.reproduce.cells import CellOutcome
from repflow.studies.reproduce.comparison import PROBED, Key, Ours, Verdict, curve, judge, ours, score, verdicts
from repflow.studies.reproduce.flow import Row
from repflow.studies.reproduce.models import STAND_IN, stand_in_label
from repflow.studies.reproduce.plan import ReproducePlan


def make_result(plan: ReproducePlan, outcomes: Sequence[CellOutcome]) -> Result:
    """Hold what was measured against what was printed.

    Args:
        plan: the request.
        outcomes: what became of its cells; a row that needs an unfinished one is NaN.
    """
    kinds = plan.config.states
    measured = {o.cell.key: o.result for o in outcomes if o.result is not None and not o.cell.probes}
    probed = {o.cell.key: o.result for o in outcomes if o.result is not None and o.cell.probes}
    values = []
    for row in plan.rows:
        found = probed if row.quantity in PROBED else measured
        values.append([ours(row, kind, found, plan.tasks, plan.recipe.inits) for kind in kinds])
    untrained = [role for role, model in plan.models.items() if not model.trained]
    arrays = _comparison(plan, values, untrained)
    axes: dict[str, tuple[str, ...]] = {name: ("row", "kind")[: array.ndim] for name, array in arrays.items()}
    _add_curves(arrays, axes, plan, measured, probed)
    labels = _labels(plan, outcomes)
    judged = verdicts(plan.rows, values, kinds, labels, untrained)
    chances = [_chance(row, kinds, probed, plan.tasks) for row in plan.rows]
    facts = _provenance(plan, outcomes, judged, chances) | {"labels": labels}
    return Result(arrays, axes, {}, facts, _findings(plan, outcomes, judged))


def _comparison(plan: ReproducePlan, values: list[list[Ours]], untrained: Sequence[str]) -> dict[str, np.ndarray]:
    """Ours with its interval, the printed interval, the distance, and whether ours is shown within the tolerance."""

    def table(entry: Callable[[Row, Ours], float | None]) -> np.ndarray:
        cells = [[entry(row, value) for value in line] for row, line in zip(plan.rows, values, strict=True)]
        return np.array(cells, dtype=np.float64).reshape(len(plan.rows), len(plan.config.states))  # None is NaN

    return {
        "ours": table(lambda _, value: value.value),
        "ours_low": table(lambda _, value: value.interval[0]),
        "ours_high": table(lambda _, value: value.interval[1]),
        "printed_low": np.array([row.low for row in plan.rows]),
        "printed_high": np.array([row.high for row in plan.rows]),
        "score": table(lambda row, value: score(row, value.value)),
        "within": table(lambda row, value: judge(row, value, untrained=untrained)[0]),
    }


def _labels(plan: ReproducePlan, outcomes: Sequence[CellOutcome]) -> dict[str, str]:
    """What was measured for each of the paper's models."""
    facts = {o.cell.key.model: o.result.provenance["model"] for o in outcomes if o.result is not None}
    return {
        role: stand_in_label(
            role, None if model.own else model.spec, facts.get(role, {}).get("parameters"), trained=model.trained
        )
        for role, model in plan.models.items()
    }


def _chance(row: Row, kinds: Sequence[str], probed: Mapping[Key, Result], tasks: Sequence[str]) -> float | None:
    """Chance level of an accuracy in percent, the mean over tasks."""
    if row.quantity != "accuracy":
        return None
    keys = [Key(row.model, task, row.length, "trained", kinds[0]) for task in tasks if row.task in ("mean", task)]
    found = [float(probed[key]["probe_chance"]) for key in keys if key in probed]
    return 100 * float(np.mean(found)) if found else None


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


def _provenance(
    plan: ReproducePlan, outcomes: Sequence[CellOutcome], judged: Sequence[Verdict], chances: Sequence[float | None]
) -> dict[str, Any]:
    return {
        "title": plan.recipe.title,
        "note": plan.recipe.note,
        "kinds": list(plan.config.states),
        "rows": [asdict(row) | {"chance": chance} for row, chance in zip(plan.rows, chances, strict=True)],
        "models": {role: asdict(model) for role, model in plan.models.items()},
        "lengths": {str(length): tokens for length, tokens in plan.lengths.items()},
        "verdicts": [asdict(verdict) | {"message": verdict.message} for verdict in judged],
        "cells": [
            {"run": f"{plan.folder.name}/{o.cell.name}", "status": o.status, "reason": o.reason} for o in outcomes
        ],
    }


def _findings(plan: ReproducePlan, outcomes: Sequence[CellOutcome], judged: Sequence[Verdict]) -> list[Finding]:
    findings = [Finding("verdict", None, verdict.message) for verdict in judged]
    if any(not model.own for model in plan.models.values()):
        random = any(not model.trained for model in plan.models.values())
        message = f"{'small random' if random else 'other'} models stand for the paper's: {STAND_IN}"
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
