"""Write the measured parts of docs/laboratories/remedies.md from docs/laboratories/depth.json.

Run `python -m docs.make_remedies`; nothing is trained here. Remedies and hybrids are in the same file as depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from docs.made_parts import PART, filled, table  # noqa: F401  tests read PART
from docs.make_depth import DOCS, NOTHING, NUMBERS, claim_table, command_list, phase_table, shapes
from repflow.core.intervals import bracketed, student_interval
from tools.depth.claim import read_study
from tools.depth.plan import BASES, HYBRIDS, PLANS
from tools.depth.remedies import CORE, EXTENSION, HYBRID_CLAIMS, MORE_PRIMARY, ORDER, PRIMARY, SECONDARY

PAGE = DOCS / "laboratories" / "remedies.md"


def sizes() -> str:
    """Widths that give all rows one size."""
    models = list(shapes(PLANS["hybrids"], [*BASES, *HYBRIDS.values()]))
    rows = [[f"`{row}`", str(layers), str(width), f"{count / 1e6:.2f}"] for row, layers, width, count in models]
    return table(["row", "layers", "width", "parameters (millions)"], rows)


def strengths() -> str:
    """What was screened: perplexity on the validation text over the base's."""
    rates, screen = NUMBERS.get("remedies-rates"), NUMBERS.get("remedies-screen")
    if rates is None or screen is None:
        return NOTHING
    rows = []
    for cell in screen["cells"]:
        base = next(own for own in BASES if cell["row"].startswith(own))
        plain = [c for c in rates["cells"] if (c["row"], c["rate"]) == (base, cell["rate"])]
        rows.append([f"`{cell['row']}`", _ratio(cell, plain[0] if plain else {})])
    return table(["row", "perplexity over the base's"], rows)


def _ratio(cell: Mapping[str, Any], plain: Mapping[str, Any]) -> str:
    own, usual = cell.get("validation_loss"), plain.get("validation_loss")
    return "diverged" if own is None or usual is None else f"{np.exp(own - usual):.3f}"


def values() -> str:
    """Loss, recall and similarity by row, means over seeds."""
    rows = []
    for name in (CORE, EXTENSION, ORDER, "hybrids-screen"):
        study = read_study(NUMBERS, name)
        for kind in [] if study is None else dict.fromkeys(study.kinds()):
            places = [place for place, own in enumerate(study.kinds()) if own == kind]
            cells = [name, f"`{kind[0]}`", str(len(places))]
            for number, scale, digits in (("loss", 1, 3), ("recall", 100, 1), ("similarity", 1, 2)):
                band, form = student_interval(scale * study.of(number)[places]), f".{digits}f"
                there = np.isfinite(band.mean)
                words = f"{float(band.mean):{form}}{bracketed(float(band.low), float(band.high), form)}"
                cells.append(words if there else "not read")
            rows.append(cells)
    return table(["phase", "row", "seeds", "loss (nats)", "recall (%)", "similarity"], rows) if rows else NOTHING


PARTS = {
    "sizes": sizes,
    "primary": lambda: claim_table(PRIMARY),
    "secondary": lambda: claim_table(SECONDARY),
    "hybrids": lambda: claim_table(HYBRID_CLAIMS),
    "more": lambda: claim_table(MORE_PRIMARY),
    "phases": lambda: phase_table("remedies"),
    "hybrid_phases": lambda: phase_table("hybrids"),
    "strengths": strengths,
    "values": values,
    "commands": lambda: command_list(["remedies", "hybrids"]),
}


def page(text: str) -> str:
    """The page with its measured parts replaced."""
    return filled(text, PARTS)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}")
