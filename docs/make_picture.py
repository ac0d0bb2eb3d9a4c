"""Draw docs/flow.png, the picture of the README: four architectures of random weights on the same random tokens.

Run `python docs/make_picture.py [FILE]`; it takes about a minute on two cores. Needs matplotlib (extra `dev`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

import repflow

mpl.use("Agg")
from matplotlib import pyplot as plt

WIDTH, LENGTH, SAMPLES, INIT = 128, 256, 16, "xavier"
SHARED: dict[str, Any] = {"vocab_size": 512, "hidden_size": WIDTH, "bos_token_id": 0, "eos_token_id": 0}
MLP: dict[str, Any] = {"intermediate_size": 4 * WIDTH, "num_attention_heads": 4, "max_position_embeddings": 512}
SSM: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 32, "mamba_chunk_size": 64}
MODELS: dict[str, dict[str, Any]] = {
    "GPT-NeoX, 8 blocks": {"model_type": "gpt_neox", "num_hidden_layers": 8, **MLP, **SHARED},
    "Bamba, 4 attention then 4 SSM blocks": {
        "model_type": "bamba",
        "num_hidden_layers": 8,
        "attn_layer_indices": [0, 1, 2, 3],
        "num_key_value_heads": 4,
        **MLP,
        **SSM,
        **SHARED,
    },
    "RWKV-4, 8 blocks": {"model_type": "rwkv", "num_hidden_layers": 8, "attention_hidden_size": WIDTH, **SHARED},
    "Mamba-2, 16 blocks": {
        "model_type": "mamba2",
        "num_hidden_layers": 16,
        "num_heads": 8,
        "head_dim": 32,
        "state_size": 32,
        "n_groups": 1,
        "chunk_size": 64,
        **SHARED,
    },
}
COLOURS = ("#1f5fa8", "#7a3fa0", "#c0721a", "#2b8a4b")


def measure(config: dict[str, Any], folder: Path) -> repflow.Result:
    """Measure one architecture with random weights."""
    file = folder / f"{config['model_type']}.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return repflow.measure(f"config:{file}", "random", init=INIT, length=LENGTH, samples=SAMPLES)


def draw(results: dict[str, repflow.Result], file: Path) -> None:
    """Draw mean and 95 % band by relative depth, one panel per metric."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
    titles = {
        "token_similarity": "token_similarity\nmean cosine between tokens of a prompt",
        "token_similarity_excess": "token_similarity_excess\nwithout what tokens of other prompts share",
    }
    for panel, (metric, title) in zip(panels, titles.items(), strict=True):
        for colour, (label, result) in zip(COLOURS, results.items(), strict=True):
            band = result.band(metric)
            depth = np.linspace(0, 1, len(band.mean))
            panel.fill_between(depth, band.low, band.high, color=colour, alpha=0.25, linewidth=0)
            panel.plot(depth, band.mean, color=colour, marker="o", markersize=3, linewidth=1.4, label=label)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("relative depth (0 embedding, 1 last block)")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )
    figure.savefig(file, dpi=130, metadata={"Software": None})


def main() -> None:
    """Measure and draw."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("flow.png")
    with tempfile.TemporaryDirectory() as folder:
        results = {label: measure(config, Path(folder)) for label, config in MODELS.items()}
    for label, result in results.items():
        for metric in ("token_similarity", "token_similarity_excess"):
            band = result.band(metric)
            ends = f"{band.mean[0]:.3f} to {band.mean[-1]:.3f} [{band.low[-1]:.3f}, {band.high[-1]:.3f}]"
            print(f"{label}: {metric} {ends}")
    draw(results, file)
    print(f"wrote {file} ({file.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
