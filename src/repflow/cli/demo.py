"""`repflow demo`: two tiny models of random weights, measured and compared in under a minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import note, stdout_console
from repflow.cli.measure import RUNS, measure_each, print_comparison
from repflow.studies.measure import MeasureConfig

if TYPE_CHECKING:
    from repflow.results import Result

WIDTH = 128
SHARED: dict[str, Any] = {"vocab_size": 512, "hidden_size": WIDTH, "bos_token_id": 0, "eos_token_id": 0}
# A Transformer block is two residual updates and a Mamba block one: 8 and 16 blocks make as many.
MODELS: dict[str, dict[str, Any]] = {
    "gpt_neox": {
        "model_type": "gpt_neox",
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "intermediate_size": 4 * WIDTH,
        "max_position_embeddings": 512,
        **SHARED,
    },
    "mamba2": {
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
LENGTH, SAMPLES, INIT = 256, 8, "xavier"


def command(
    out: Annotated[Path, typer.Option("--out", help="Folder of runs.")] = RUNS,
) -> None:
    """Compare two tiny random-weight models, a GPT-NeoX and a Mamba-2, on random tokens."""
    folder = out / "demo-models"
    folder.mkdir(parents=True, exist_ok=True)
    note(
        f"demo: a GPT-NeoX and a Mamba-2 of random weights, width {WIDTH}, {SAMPLES} prompts of {LENGTH} random tokens"
    )
    grid = min(config["num_hidden_layers"] for config in MODELS.values())
    code = 0
    results: list[Result] = []
    for name, config in MODELS.items():
        file = folder / f"{name}.json"
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        asked = MeasureConfig(model=f"config:{file}", init=INIT, length=LENGTH, samples=SAMPLES, grid=grid)
        worst, found = measure_each([asked], out, f"demo-{name}")
        code, results = max(code, worst), [*results, *found]
    if len(results) > 1:
        print_comparison(results)
    console = stdout_console()
    console.print(f"results: {out / 'demo-gpt_neox'} and {out / 'demo-mamba2'}", markup=False, soft_wrap=True)
    console.print(
        f"next: repflow list {out}; repflow measure MODEL --task text --text FILE", markup=False, soft_wrap=True
    )
    raise typer.Exit(code)
