"""Tables of `repflow theory verify` and `repflow theory apply`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.results import Result
from repflow.core.verdict import DOES_NOT, HOLDS, PARTLY
from repflow.report.terminal.cell import ABSENT
from repflow.report.terminal.fitted import FittedTable

NUMBERS = ("printed", "corrected", "simulation", "gap")


def view(result: Result) -> list[RenderableType]:
    """What the command line shows of either study of theory."""
    return verify_view(result) if result.config["study"] == "theory-verify" else apply_view(result)


def verify_view(result: Result) -> list[RenderableType]:
    """One line per statement, then why printed forms fail, then where theory and data disagree."""
    checks = result.provenance["checks"]
    table = Table(box=box.SIMPLE, title="Closed forms beside simulations", title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("statement", overflow="fold")
    for name in NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for check in checks:
        table.add_row(Text(f"{check['statement']}: {check['setting']}"), *_cells(check), short_verdict(check))
    lines = [
        Text(f"- {check['statement']}, {check['setting']}: {check['verdict']}")
        for check in checks
        if check["kind"] != "data" and not as_printed(check)
    ]
    good = sum(check["passes"] for check in checks if check["kind"] != "data")
    total = sum(check["kind"] != "data" for check in checks)
    caption = "broken of draws: how many drawn systems break an inequality; Table 1: printed St, ratio over its lengths"
    summary = f"{good} of {total} corrected forms agree with the simulation (1 %, or its noise where that is larger)."
    findings = [Text.assemble((f"{finding.code}: ", "yellow"), finding.message) for finding in result.findings]
    return [table, Text(caption), Text(), *lines, Text(), *findings, Text(summary)]


def short_verdict(check: Mapping[str, Any]) -> str:
    """Whether what is printed holds, or ours where nothing is; fails where the corrected form is off as well."""
    if check["kind"] == "data":
        return HOLDS if check["passes"] else PARTLY if _some(check) else DOES_NOT
    if not check["passes"]:
        return "fails"
    return HOLDS if check["printed"] is None or as_printed(check) else DOES_NOT


def as_printed(check: Mapping[str, Any]) -> bool:
    """Whether a closed form holds as it is printed."""
    agrees = check["verdict"].startswith(("as printed", "holds here"))
    return bool(check["passes"] and check["printed"] is not None and agrees)


def corrected(check: Mapping[str, Any]) -> bool:
    """Whether only the corrected form holds."""
    return bool(check["kind"] != "data" and check["passes"] and check["printed"] is not None and not as_printed(check))


def _some(check: Mapping[str, Any]) -> bool:
    """Whether data bear a statement out in part; earlier versions said "agrees in part"."""
    return str(check["verdict"]).startswith((PARTLY, "agrees in part"))


def _cells(check: Mapping[str, Any]) -> list[str]:
    if check["kind"] == "data":
        return ["> 1", ABSENT, f"{check['simulation']:.2f}", ABSENT]
    if check["kind"] == "bound":
        broken = [ABSENT if check[key] is None else f"{int(check[key])} broken" for key in NUMBERS[:2]]
        return [*broken, f"of {int(check['simulation'])}", ABSENT]
    values = [ABSENT if check[key] is None else f"{check[key]:.4g}" for key in NUMBERS[:3]]
    return [*values, ABSENT if check["gap"] is None else f"{check['gap']:+.2%}"]


def apply_view(result: Result) -> list[RenderableType]:
    """Linearisation error first, then one line per layer, the stack, and the hypotheses that fail."""
    facts = result.provenance
    error = result["linearisation"]
    parts: list[RenderableType] = [
        Text(f"{facts['model']['name']}: {facts['reading']}"),
        Text(f"linearisation error (activation taken for x/2): {error.min():.0%} to {error.max():.0%} of the update"),
        _layer_table(result),
        Text(_depth_line(result)),
        *_block_lines(result),
    ]
    if "tightness" in result:
        tight = result["tightness"]
        parts.append(
            Text(f"Theorem 5's bound is {tight.min():.3g} to {tight.max():.3g} times the prediction (β' by layer)")
        )
    finding = next(entry for entry in result.findings if entry.code == "hypotheses")
    parts += [Text(line) for line in _hypothesis_lines(facts["hypotheses"], len(error))]
    verdict = "no ordering of architectures follows" if "not met" in finding.message else finding.message
    return [*parts, Text(verdict)]


def _layer_table(result: Result) -> FittedTable:
    names = {"linearisation": "lin. error", "sigma": "σ", "predicted": "St² predicted", "measured": "St² measured"}
    names |= {name: name.removeprefix("constants/") for name in result if name.startswith("constants/")}
    names |= {name: word for name, word in (("tightness", "bound/pred."), ("printed", "St² printed")) if name in result}
    columns = {word: result[name] for name, word in names.items()}

    def build(shown: Sequence[str], caption: Text) -> Table:
        table = Table(box=box.SIMPLE, caption_justify="left", padding=(0, 1, 0, 0))
        for name in ("block", *shown):
            table.add_column(name, justify="right", no_wrap=True)
        for layer in range(len(result["sigma"])):
            table.add_row(str(layer + 1), *(_layer_cell(name, float(columns[name][layer])) for name in shown))
        table.caption = caption
        return table

    return FittedTable(list(columns), 4, build, "St²: ‖update‖² / (4 tokens · width) of one block, St_L² with L = 1")


def _layer_cell(column: str, value: float) -> str:
    if column == "lin. error":
        return f"{value:.0%}"
    return f"{value:.6f}" if column == "rho" else f"{value:.3g}"  # of ρ the distance from 1 matters


def _depth_line(result: Result) -> str:
    lower, value, upper, walk = (
        float(result[f"depth_{name}"]) for name in ("lower", "stability", "upper", "uncorrelated")
    )
    return (
        f"St_L² of the stack: {value:.4g}, between {lower:.4g} and {upper:.4g} (Lemma 1: the upper bound is "
        f"{upper / value:.1f} times it); uncorrelated increments would give {walk:.4g}"
    )


def _block_lines(result: Result) -> list[Text]:
    """Assumptions 5 to 8 in numbers; none in runs from before they were measured."""
    if "block/lipschitz" not in result:
        return []
    gain, tails, apart = (result[f"block/{name}"] for name in ("lipschitz", "kurtosis", "dependence"))
    return [
        Text(
            f"blocks: Λ at least {gain.min():.3g} to {gain.max():.3g} (product {np.prod(gain):.3g}), kurtosis "
            f"{tails.min():.3g} to {tails.max():.3g}, dependence over lags {apart.min():.3g} to {apart.max():.3g}"
        ),
        Text("Assumption 8 compares two models: theory.uniform_gap of their block/energy, or both runs on one page"),
    ]


def _hypothesis_lines(rows: Sequence[Mapping[str, Any]], layers: int) -> list[str]:
    broken: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if not row["holds"]:
            broken.setdefault(row["name"], []).append(row)
    lines = [
        f"- {name}: {len(blocks)} of {layers} blocks; block {blocks[0]['layer'] + 1}: {blocks[0]['found']}"
        for name, blocks in broken.items()
    ]
    return ["hypotheses not met:", *lines] if lines else ["all hypotheses met"]
