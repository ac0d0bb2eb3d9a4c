"""Write the tables of docs/architecture.md from docs/architecture.json, and draw docs/architecture.png.

Run `python -m docs.make_architecture`; nothing is measured here. The JSON file is what
`python -m tools.zoo.architecture summary CELLS --out docs/architecture.json` keeps of the trained cells.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from docs.made_parts import PART, filled  # noqa: F401  tests read PART
from repflow.spec import zoo
from tools.zoo import effects as tables
from tools.zoo.architecture import read_cells
from tools.zoo.variants import VARIANTS

DOCS = Path(__file__).parent
PAGE, PICTURE = DOCS / "architecture.md", DOCS / "architecture.png"
CELLS = read_cells(DOCS / "architecture.json")
PANELS = {
    "Mamba-2: depth, width, state": ("mamba2", "mamba2-shallow", "mamba2-deep", "mamba2-narrow", "mamba2-small-state"),
    "hybrids": ("hybrid", "hybrid-mirror", "mamba2", "gpt-neox"),
    "GPT-NeoX: norms, window": ("gpt-neox", "gpt-neox-frozen-norms", "gpt-neox-window"),
}
COLOURS = {
    "mamba2": "#1f3b73", "mamba2-shallow": "#56b4e9", "mamba2-deep": "#cc79a7", "mamba2-narrow": "#e69f00",
    "mamba2-small-state": "#009e73", "hybrid": "#d55e00", "hybrid-mirror": "#009e73", "gpt-neox": "#6b7280",
    "gpt-neox-frozen-norms": "#56b4e9", "gpt-neox-window": "#e69f00",
}  # fmt: skip


def variants() -> str:
    """What was trained, in a table."""
    rows = ["| variant | changed | blocks | parameters | seeds |", "|---|---|---|---|---|"]
    for name, variant in VARIANTS.items():
        mine = [cell for cell in CELLS if cell["variant"] == name]
        if not mine:  # trained for the demo alone
            continue
        record = mine[0]["record"]
        blocks = len(record["flow"][0]["prose"]["token_similarity"]) - 1
        seeds = ", ".join(str(cell["seed"]) for cell in mine)
        rows.append(f"| {name} | {variant.factor} | {blocks} | {record['parameters']:,} | {seeds} |")
    return "\n".join(rows)


def training() -> str:
    """How they were trained, in a sentence."""
    told = CELLS[0]["record"]
    assert {(c["record"]["steps"], c["record"]["tokens"]) for c in CELLS} == {(told["steps"], told["tokens"])}
    count, device = len(CELLS), told["device_name"]
    return f"{count} trainings of {told['steps']:,} steps ({told['tokens']:,} tokens) each, on one {device}."


def hybrids() -> str:
    """Similarity state by state where kinds of block meet, mean over seeds."""
    names = ("hybrid", "hybrid-mirror")
    curves = {(name, task): np.mean(_curves(name, task), 0) for name in names for task in tables.TASKS}
    heads = ["variant", "prompts", *(str(state) for state in range(len(curves[names[0], "prose"])))]
    rows = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for (name, task), values in curves.items():
        rows.append(f"| {name} | {task} | {' | '.join(f'{value:.2f}' for value in values)} |")
    return "\n".join(rows)


def _curves(name: str, task: str) -> list[list[float]]:
    return [cell["record"]["flow"][-1][task]["token_similarity"] for cell in CELLS if cell["variant"] == name]


def packaged() -> str:
    """At how many states the packaged models lie outside what the seeds gave, on key-value prompts."""
    told = []
    for name in (name for name in VARIANTS if name in zoo.NAMES):
        own = np.asarray(zoo.record(name)["flow"][-1]["kvpr"]["token_similarity"])
        seeds = np.asarray(_curves(name, "kvpr"))
        outside = (own < seeds.min(0)) | (own > seeds.max(0))
        told.append(f"{name} at {outside.sum()} of {len(outside)}")
    return ", ".join(told)


def frozen_norms() -> str:
    """What frozen norms do to similarity after the first block, with an answer that the intervals carry."""
    found = {}
    for task in tables.TASKS:
        curves = [_curves(name, task) for name in ("gpt-neox-frozen-norms", "gpt-neox")]
        found[task] = np.array([frozen[1] - plain[1] for frozen, plain in zip(*curves, strict=True)])
    shown = any(abs(values.mean()) > tables.half_width(values) for values in found.values())
    numbers = ", ".join(f"{tables.difference(values.tolist())} on {task}" for task, values in found.items())
    return (
        f"{'A change is shown' if shown else 'None shown'}: frozen, similarity after the first block moves by {numbers}"
    )


def counts() -> str:
    """How many differences were taken, how many are zero throughout, and how many exclude zero."""
    tables_of = (tables.flow_differences(CELLS), tables.read_differences(CELLS))
    cells = [cell.strip() for text in tables_of for row in text.splitlines()[2:] for cell in row.split("|")]
    taken = [cell for cell in cells if "±" in cell]
    zero, shown = taken.count("+0.000 ± 0.000"), sum("**" in cell for cell in taken)
    others = len(taken) - zero
    return (
        f"Of the {len(taken)} differences that were taken {zero} are zero throughout, since no variant of Mamba-2 "
        f"retrieves; of the other {others}, {shown} exclude zero, where some {0.05 * others:.0f} would by luck alone"
    )


PARTS = {
    "counts": counts,
    "packaged": packaged,
    "frozen_norms": frozen_norms,
    "variants": variants,
    "hybrids": hybrids,
    "training": training,
    "flow": lambda: tables.flow_table(CELLS),
    "flow_differences": lambda: tables.flow_differences(CELLS),
    "read": lambda: tables.read_table(CELLS),
    "read_differences": lambda: tables.read_differences(CELLS),
}


def page(text: str) -> str:
    """The page with its measured parts made again."""
    return filled(text, PARTS)


def draw(file: Path) -> None:
    """Draw similarity by depth: means over seeds, with a band from the lowest to the highest."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, 3, figsize=(11, 6), sharey="row", sharex=True, layout="constrained")
    for row, (task, words) in enumerate({"prose": "prose", "kvpr": "key-value prompts"}.items()):
        for panel, (title, names) in zip(panels[row], PANELS.items(), strict=True):
            for name in names:
                _line(panel, name, task)
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
            if row == 0:
                panel.set_title(title, fontsize=10)
                panel.legend(fontsize=7.5, frameon=False)
            else:
                panel.set_xlabel("relative depth")
        panels[row, 0].set_ylabel(f"token similarity, {words}")
    figure.savefig(file, dpi=110, metadata={"Software": None})


def _line(panel: Any, name: str, task: str) -> None:
    mine = _curves(name, task)
    depth = np.linspace(0, 1, len(mine[0]))
    panel.plot(depth, np.mean(mine, 0), color=COLOURS[name], linewidth=1.5, label=name)
    panel.fill_between(depth, np.min(mine, 0), np.max(mine, 0), color=COLOURS[name], alpha=0.18, linewidth=0)


def main() -> None:
    """Write page and picture."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw(PICTURE)
    print(f"wrote {PAGE.name} and {PICTURE.name} ({PICTURE.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
