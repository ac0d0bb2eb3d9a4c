"""Write the measured parts of docs/guides/zoo.md from the records beside the built-in models, and draw docs/zoo.png.

Run `python -m docs.make_zoo`; nothing is measured here, so it takes seconds. Needs matplotlib (extra `dev`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from docs.made_parts import PART, filled, table  # noqa: F401  tests read PART
from repflow.spec.zoo import SHAPES, available, record

DOCS = Path(__file__).parent
PAGE, PICTURE = DOCS / "guides" / "zoo.md", DOCS / "zoo.png"
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
NAMES = available()
COLOURS = ("#9aa5b1", "#56b4e9", "#e69f00", "#1f3b73")


def models() -> str:
    """The six models and what was measured of each on held-out data."""
    sets = list(record(NAMES[0], "evaluation")["retrieval"])
    rows = []
    for name in NAMES:
        training, evaluation = record(name), record(name, "evaluation")
        shares = [f"{entry['exact'] / entry['of']:.1%}" for entry in evaluation["retrieval"].values()]
        prose = f"{evaluation['prose']['nats_per_token']:.3f}"
        rows.append([f"`zoo:{name}`", SHAPES[name], f"{training['parameters']:,}", prose, *shares])
    return table(["model", "what", "parameters", "prose, nats per token", *sets], rows)


def training() -> str:
    """How they were trained, in a sentence."""
    told = record(NAMES[0])
    config, windows, data = told["config"], told["windows"], told["data"]
    return (
        f"{told['steps']:,} steps of {config['batches']['batch']} windows of {data['window']} tokens each "
        f"({windows['prose']} of prose, {windows['kvpr']} of key-value pairs, {windows['mdqa']} of numbered documents),"
        f" {told['tokens']:,} tokens, seed {config['seed']}, AdamW at {config['rate']:g}, products in bfloat16, on one "
        f"{told['device_name']}: {min(record(name)['seconds'] for name in NAMES):.0f} to "
        f"{max(record(name)['seconds'] for name in NAMES):.0f} s a model."
    )


def probes() -> str:
    """Best and last state of the linear probes."""
    rows = []
    for name in NAMES:
        for label, words in (("answer", "first symbol of the value"), ("index", "index of the pair")):
            told = record(name, "probe")
            if not told:
                continue
            entry = told["labels"][label]
            values = entry["accuracy"]
            best = int(np.argmax(values))
            numbers = [f"{number:.2f}" for number in (values[best], values[-1], entry["chance"])]
            size = f"{told['samples']:,} × {told['seeds']}"
            rows.append([name, size, words, f"{best} of {len(values) - 1}", *numbers])
    return table(["model", "prompts × seeds", "label", "best state", "there", "last", "chance"], rows)


def flow() -> str:
    """Similarity between tokens by relative depth, over training."""
    heads = [f"{100 * depth:.0f} %" for depth in DEPTHS]
    rows = []
    for name in NAMES:
        for kind in ("prose", "kvpr"):
            for entry in record(name)["flow"]:
                cells = [f"{value:.2f}" for value in at_depths(entry[kind]["token_similarity"])]
                rows.append([name, kind, f"{entry['step']:,}", *cells])
    return table(["model", "prompts", "step", *heads], rows)


def at_depths(values: list[float]) -> np.ndarray:
    """A curve at the relative depths of the table."""
    return np.interp(DEPTHS, np.linspace(0, 1, len(values)), values)


PARTS = {"models": models, "training": training, "probes": probes, "flow": flow}


def page(text: str) -> str:
    """The page with its measured parts replaced."""
    return filled(text, PARTS)


def draw(file: Path) -> None:
    """Draw similarity by depth at each of the four steps, one panel per model."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, 3, figsize=(9, 5), sharey=True, sharex=True, layout="constrained")
    for panel in panels.flat[len(NAMES) :]:
        panel.set_axis_off()
    for panel, name in zip(panels.flat, NAMES, strict=False):
        for colour, entry in zip(COLOURS, record(name)["flow"], strict=True):
            values: list[Any] = entry["kvpr"]["token_similarity"]
            depth = np.linspace(0, 1, len(values))
            style = {"color": colour, "marker": "o", "markersize": 2.5, "linewidth": 1.4}
            panel.plot(depth, values, label=f"step {entry['step']:,}", **style)
        panel.set_title(name, fontsize=10)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[-1]:
        panel.set_xlabel("relative depth")
    for panel in panels[:, 0]:
        panel.set_ylabel("token similarity")
    handles = panels.flat[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(file, dpi=120, metadata={"Software": None})


def main() -> None:
    """Write page and picture."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw(PICTURE)
    print(f"wrote {PAGE.name} and {PICTURE.name} ({PICTURE.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
