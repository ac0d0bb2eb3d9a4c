"""Draw docs/flow.png, the picture of the README: built-in models, trained and with random weights, on the same prompts.

Run `python docs/make_picture.py [FILE]`; it takes a minute or two on two cores. Needs matplotlib (extra `dev`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

import repflow
from repflow.report.draw.palette import model_colour

mpl.use("Agg")
from matplotlib import pyplot as plt

TASK, LENGTH, SAMPLES = "kvpr", 256, 16
INITS = {"trained": "trained", "xavier": "random weights (xavier)"}
MODELS = {
    "gpt-neo": "GPT-Neo, 8 blocks",
    "gpt-neox": "GPT-NeoX, 8 blocks",
    "mamba": "Mamba, 16 blocks",
    "mamba2": "Mamba-2, 16 blocks",
    "hybrid": "10 Mamba-2 then 3 attention blocks",
    "hybrid-mirror": "3 attention then 10 Mamba-2 blocks",
}
METRIC = "token_similarity"
MARKERS = "osD^Px"


def measure(name: str, init: str) -> repflow.Result:
    """Measure one model."""
    return repflow.measure(f"zoo:{name}", TASK, init=init, length=LENGTH, samples=SAMPLES)


def draw(results: dict[tuple[str, str], repflow.Result], file: Path) -> None:
    """Draw mean and 95 % band by relative depth, one panel per kind of weights."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
    for panel, (init, title) in zip(panels, INITS.items(), strict=True):
        for place, (name, label) in enumerate(MODELS.items()):
            colour, marker = model_colour(place), MARKERS[place]
            band = results[name, init].band(METRIC)
            depth = np.linspace(0, 1, len(band.mean))
            panel.fill_between(depth, band.low, band.high, color=colour, alpha=0.25, linewidth=0)
            panel.plot(depth, band.mean, color=colour, marker=marker, markersize=3, linewidth=1.4, label=label)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("relative depth (0 embedding, 1 last block)")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("token similarity")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    figure.savefig(file, dpi=130, metadata={"Software": None})


def main() -> None:
    """Measure and draw."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("flow.png")
    results = {(name, init): measure(name, init) for init in INITS for name in MODELS}
    for (name, init), result in results.items():
        band = result.band(METRIC)
        print(f"{name}, {init}: {' '.join(f'{value:.2f}' for value in band.mean)}")
    draw(results, file)
    print(f"wrote {file} ({file.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
