"""Write the measured parts of docs/laboratories/recall.md from docs/laboratories/recall.json.

Run `python -m docs.make_recall`; nothing is trained here. The JSON file holds what `python -m tools.recall.run table`
keeps of the phases that are there, the nine models that were screened first, and what was tried on a CPU and a GPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from docs.made_parts import PART, filled, table  # noqa: F401  tests read PART
from tools.recall.claims import CLAIMS, DEEP, FACTORS, Study, read_study, shown

DOCS = Path(__file__).parent
PAGE = DOCS / "laboratories" / "recall.md"
NUMBERS: dict[str, Any] = json.loads((DOCS / "laboratories" / "recall.json").read_text(encoding="utf-8"))
NOTHING = "Not run yet."


def first_screen() -> str:
    """The nine models of the first quarter of a screening."""
    rows = []
    for cell in NUMBERS["first-screen"]["cells"]:
        row, layers, _, _, rate, _ = cell["cell"].split(":")
        accuracy = [f"{100 * value:.1f}" for value in cell["accuracy"]]
        rows.append([row, layers, rate, *accuracy, f"{cell['last_loss']:.2f}"])
    return table(["row", "layers", "rate", "16 pairs (%)", "32 pairs (%)", "64 pairs (%)", "last loss"], rows)


def plateau() -> str:
    """What was changed on a CPU, one thing at a time."""
    rows = []
    for tried in NUMBERS["plateau"]:
        left = "not within these" if tried["left_plateau"] is None else f"{tried['left_plateau']:,}"
        accuracy = [f"{100 * value:.0f}" for value in tried["accuracy"]]
        rows.append([tried["change"], f"{tried['steps']:,}", *accuracy, left])
    return table(["changed", "steps", "2 pairs (%)", "4 pairs (%)", "right in 75 % of 2 pairs at step"], rows)


def diagnosis() -> str:
    """On a GPU at the study's size: accuracy of two seeds at each rate, and when half of the queries were right."""
    rows = []
    changes = NUMBERS["diagnosis"]["changes"]
    rates = sorted({model["rate"] for change in changes.values() for model in change["models"]})
    for name, change in changes.items():
        cells = []
        for rate in rates:
            mine = [model for model in change["models"] if model["rate"] == rate]
            cells.append(", ".join(f"{100 * model['accuracy']:.0f}" for model in mine))
        rows.append([name, f"{change['steps']:,}", *cells])
    return table(["changed", "steps", *(f"rate {rate:g}: two seeds (%)" for rate in rates)], rows)


def study() -> Study | None:
    """Trainings of the last phase."""
    return read_study(NUMBERS)


def claims() -> str:
    """Every claim with its rule, verdict and numbers."""
    rows = []
    for claim in CLAIMS:
        word, numbers = claim.verdict(study())
        rows.append([claim.text, claim.rule, f"**{word}**", numbers])
    return table(["claim", "shown where", "verdict", "numbers"], rows)


def accuracy() -> str:
    """Means over seeds with standard deviations."""
    found = study()
    if found is None:
        return NOTHING
    rows = []
    for layers in (2, 4):
        for row in dict.fromkeys(found.rows()):
            mine = [cell for cell in found.cells if (cell["row"], cell["layers"]) == (row, layers)]
            values = 100 * np.array([cell["accuracy"] for cell in mine])
            numbers = [f"{mean:.1f} ± {sd:.1f}" for mean, sd in zip(values.mean(0), values.std(0, ddof=1), strict=True)]
            rows.append([row, str(layers), f"{mine[0]['rate']:g}", str(len(mine)), *numbers])
    return table(["row", "layers", "rate", "seeds", *(f"{pairs} pairs (%)" for pairs in found.pairs)], rows)


def effects() -> str:
    """The factorial model: effects on log-odds with each number of pairs, on reach, on similarity."""
    found = study()
    if found is None:
        return NOTHING
    fits = [found.effects(found.odds(place)) for place in range(len(found.pairs))]
    fits += [found.effects(np.log(found.of("half_reach"))), found.effects(found.last_similarity())]
    names = [*FACTORS, DEEP, *(f"{name}, {DEEP}" for name in FACTORS)]
    heads = ["effect", *(f"{pairs} pairs" for pairs in found.pairs), "ln half reach", "similarity"]
    return table(heads, [[name, *(shown(fit[name]) for fit in fits)] for name in names])


def rates() -> str:
    """The sweep of rates."""
    phase = NUMBERS.get("core-screen")
    if phase is None or phase.get("unfinished"):
        return NOTHING
    rows: dict[tuple[str, int], dict[float, str]] = {}
    for cell in phase["cells"]:
        values = [value for value in cell["accuracy"] if value is not None]
        mean = "diverged" if not values else f"{100 * np.mean(values):.1f}"
        rows.setdefault((cell["row"], cell["layers"]), {})[cell["rate"]] = mean
    heads = sorted({rate for row in rows.values() for rate in row})
    lines = [[row, str(layers), *(by.get(rate, "") for rate in heads)] for (row, layers), by in rows.items()]
    return table(["row", "layers", *(f"rate {rate:g}" for rate in heads)], lines)


def confirmed() -> str:
    """The best two rates of each row with all steps."""
    phase = NUMBERS.get("core-confirm")
    if phase is None or phase.get("unfinished"):
        return NOTHING
    rows = [
        [cell["row"], str(cell["layers"]), f"{cell['rate']:g}", *(f"{100 * value:.1f}" for value in cell["accuracy"])]
        for cell in phase["cells"]
    ]
    return table(["row", "layers", "rate", "16 pairs (%)", "32 pairs (%)", "64 pairs (%)"], rows)


def so_far() -> str:
    """Every seed with the most pairs, and how many seeds have half of 16 pairs right."""
    phase = NUMBERS.get("core-seeds")
    if phase is None:
        return NOTHING
    rows: dict[tuple[str, str, str], list[list[float]]] = {}
    for cell in phase["cells"]:
        row, layers, _, _, rate, _ = cell["cell"].split(":")
        rows.setdefault((row, layers, rate), []).append(cell["accuracy"])
    lines = [
        [
            *key,
            ", ".join(f"{100 * accuracy[-1]:.0f}" for accuracy in seeds),
            f"{sum(accuracy[0] > 0.5 for accuracy in seeds)} of {len(seeds)}",
        ]
        for key, seeds in rows.items()
    ]
    return table(["row", "layers", "rate", "64 pairs, each seed (%)", "seeds with half of 16 pairs right"], lines)


PARTS = {
    "first_screen": first_screen,
    "plateau": plateau,
    "diagnosis": diagnosis,
    "claims": claims,
    "accuracy": accuracy,
    "effects": effects,
    "rates": rates,
    "confirmed": confirmed,
    "so_far": so_far,
}


def page(text: str) -> str:
    """The page with its measured parts replaced."""
    return filled(text, PARTS)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}")
