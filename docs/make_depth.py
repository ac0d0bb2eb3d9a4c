"""Write the measured parts of docs/laboratories/depth.md from docs/laboratories/depth.json.

Run `python -m docs.make_depth`; nothing is trained here. The JSON file holds what `python -m tools.depth.run table`
keeps of the phases that are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.made_parts import PART, filled, table  # noqa: F401  tests read PART
from repflow.core.intervals import bracketed, student_interval
from tools.depth.claim import Claim, read_study
from tools.depth.depths import CLAIMS, CORE
from tools.depth.plan import CONTEXTS, DEPTHS, PLANS, Plan

DOCS = Path(__file__).parent
PAGE = DOCS / "laboratories" / "depth.md"
NUMBERS: dict[str, Any] = json.loads((DOCS / "laboratories" / "depth.json").read_text(encoding="utf-8"))
NOTHING = "Not run yet."
IDS = 257 + 1024
"""Bytes, the end of a document, and ids of recall."""


def claim_table(claims: Sequence[Claim], numbers: Mapping[str, Any] = NUMBERS) -> str:
    """Every claim with its rule, verdict and numbers."""
    rows = []
    for claim in claims:
        word, said = claim.verdict(read_study(numbers, claim.study))
        rows.append([claim.text, claim.rule, f"**{word}**", said])
    return table(["claim", "shown where", "verdict", "numbers"], rows)


def phase_table(study: str, numbers: Mapping[str, Any] = NUMBERS) -> str:
    """Every phase of a study: how many of its models are trained, where."""
    rows = []
    for name, plan in PLANS.items():
        if plan.study != study:
            continue
        for phase in plan.phases:
            known = numbers.get(plan.name(phase))
            done = "not run" if known is None else f"{len(known['cells'])} of {known['models']} models"
            how = "" if known is None else f"{known['device']}, {known['steps']:,} steps"
            rows.append([f"`{phase} --study {name}`", done, how])
    return table(["phase", "trained", "on"], rows)


def shapes(plan: Plan, rows: Sequence[str]) -> Iterator[tuple[str, int, int, int]]:
    """Row, layers, width and parameters of every kind of model of a plan."""
    from repflow.spec.architecture import Numbers
    from repflow.studies.architecture.size import count_parameters, matched_width

    numbers, (goal, depth) = Numbers(head_dim=16), plan.settings.match
    for row in rows:
        for layers in plan.settings.layers:
            width = matched_width(row, goal, layers, plan.settings.width, IDS, numbers, goal_layers=depth)
            yield row, layers, width, count_parameters(row, layers, width, IDS, numbers)


def sizes() -> str:
    """Widths that give all depths one size."""
    models = list(shapes(PLANS["depth"], ["mamba", "mamba2", "transformer"]))
    rows = [[row, str(layers), str(width), f"{count / 1e6:.2f}"] for row, layers, width, count in models]
    return table(["row", "layers", "width", "parameters (millions)"], rows)


def claims() -> str:
    """Those of depth."""
    return claim_table(CLAIMS)


def phases() -> str:
    """What has been trained."""
    return phase_table("depth")


def values() -> str:
    """Loss, recall, similarity and reach by row, depth and context, means over seeds."""
    rows = []
    for name in (CORE, "depth-mamba2-seeds", "depth-transformer-seeds"):
        study = read_study(NUMBERS, name)
        for kind in [] if study is None else dict.fromkeys(study.kinds()):
            places = [place for place, own in enumerate(study.kinds()) if own == kind]
            cells = [f"{len(places)}"]
            for number, scale, digits in (("loss", 1, 3), ("recall", 100, 1), ("similarity", 1, 2), ("reach", 1, 2)):
                band = student_interval(scale * study.of(number)[places])
                form = f".{digits}f"
                cells.append(f"{float(band.mean):{form}}{bracketed(float(band.low), float(band.high), form)}")
            rows.append([kind[0], str(kind[1]), f"{kind[2]:,}", *cells])
    heads = ["row", "layers", "context", "seeds", "loss (nats)", "recall (%)", "similarity", "ln half reach"]
    return table(heads, rows) if rows else NOTHING


def rates() -> str:
    """What was screened: loss at the end of training, text and recall alike."""
    known = NUMBERS.get("depth-screen")
    if known is None:
        return NOTHING
    rows = []
    tried = sorted({cell["rate"] for cell in known["cells"]})
    for layers in DEPTHS:
        for context in CONTEXTS:
            mine = {
                c["rate"]: c["last_loss"] for c in known["cells"] if (c["layers"], c["length"]) == (layers, context)
            }
            losses = [mine.get(rate) for rate in tried]
            shown = ["diverged" if value is None else f"{value:.3f}" for value in losses]
            rows.append([str(layers), f"{context:,}", *shown])
    return table(["layers", "context", *(f"rate {rate:g}" for rate in tried)], rows)


def command_list(studies: Sequence[str]) -> str:
    """One command for every model of some studies that is trained."""
    lines = []
    for name, phase in sorted(NUMBERS.items()):
        if name.split("-")[0] in studies:
            words = [str(cell["cell"]) for cell in phase["cells"]]
            lines.append(f"`{phase['command']}` with CELL one of {', '.join(f'`{word}`' for word in words)}")
    return "\n\n".join(lines) if lines else NOTHING


def commands() -> str:
    """Those of depth."""
    return command_list(["depth"])


PARTS = {"sizes": sizes, "claims": claims, "phases": phases, "values": values, "rates": rates, "commands": commands}


def page(text: str) -> str:
    """The page with its measured parts replaced."""
    return filled(text, PARTS)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}")
