"""The random-initialisation half of paper 1's Figure 3 at full size: five architectures, four schemes, three seeds.

    python benchmarks/figure3.py prompts --gpt2 TOKENIZER --neox TOKENIZER --to ids.json     # where the tokenizers are
    python benchmarks/figure3.py run --ids ids.json --to CELLS [--seconds 500]               # where the GPU is; resumes
    python benchmarks/figure3.py table CELLS [--picture figure3.png]

`prompts` makes kvpr and mdqa prompts of at most 2,000 tokens, the same text for all models, and keeps their ids. `run`
draws the weights on the device, runs every prompt once per kind of state and writes one JSON file per (model, scheme,
seed); files that are there are skipped, so that several runs add up. `table` needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

MODELS = ("GPT-Neo-2.7B", "Pythia-2.8B", "Mamba-2.8B", "Mamba2-2.7B", "Mamba2-130M")
SCHEMES = ("default", "gaussian:0.02", "xavier", "he")
TASKS = ("kvpr", "mdqa")
KINDS = ("residual", "branch")
NAMES = ("token_similarity", "token_similarity_excess", "common_share", "layer_cosine", "token_norm")
TINY = {"hidden_size": 64, "num_hidden_layers": 4, "num_layers": 4, "num_attention_heads": 4, "num_heads": 4,
        "intermediate_size": 128, "attention_types": [[["global", "local"], 2]]}  # fmt: skip


def make_prompts(arguments):
    """Ids of the prompts for both tokenizers: same text for all models, so the count of items is the smaller one."""
    from repflow.models.tokenizer import open_tokenizer
    from repflow.tasks import Encoder, TaskOptions, make_task, matched_prompts

    encoders = [Encoder(open_tokenizer(place, trust_remote_code=False, offline=True), "never", None)
                for place in (arguments.gpt2, arguments.neox)]  # fmt: skip
    found = {"tokens": arguments.tokens, "samples": arguments.samples, "seed": arguments.seed, "ids": {}}
    for task in TASKS:
        made = matched_prompts(make_task(task, TaskOptions()), encoders, length=arguments.tokens,
                               samples=arguments.samples, seed=arguments.seed)  # fmt: skip
        for name, prompts in zip(("gpt2", "neox"), made, strict=True):
            found["ids"][f"{task}/{name}"] = [list(map(int, sample.ids)) for sample in prompts.samples]
            print(
                f"{task}, {name}: {len(prompts.samples)} prompts, {min(prompts.lengths)}–{max(prompts.lengths)} tokens"
            )
    Path(arguments.to).write_text(json.dumps(found))


def shape(name, tiny):
    """Configuration of a model of the paper, with a vocabulary large enough for its tokenizer's ids."""
    from transformers import AutoConfig

    from repflow.papers import values as papers

    options = dict(papers.checkpoint(name).config)
    if tiny:
        options |= {key: value for key, value in TINY.items() if key in options}
        if options["model_type"] == "mamba2":
            options |= {"num_heads": 16, "head_dim": 8, "state_size": 16}
    return AutoConfig.for_model(options.pop("model_type"), **options)


def measure_cell(name, scheme, seed, ids, arguments):
    """Every kind of state and task of one draw of the weights, as plain lists: mean over samples and each sample."""
    import torch

    from repflow.capture.measure import MeasureOptions, measure_prompts
    from repflow.models import load
    from repflow.models.weights.initialise import random_model
    from repflow.tasks import id_prompts

    begin = time.perf_counter()
    network = random_model(shape(name, arguments.tiny), scheme, seed=seed, device=arguments.device)
    model = load(network.to(getattr(torch, arguments.dtype)), **arguments.load)
    built = time.perf_counter() - begin
    cell = {"model": name, "scheme": scheme, "seed": seed, "dtype": arguments.dtype, "torch": torch.__version__,
            "layer_kinds": model.layer_kinds, "seconds_to_build": built, "values": {}}  # fmt: skip
    tokenizer = "gpt2" if name.startswith("GPT-Neo") else "neox"
    for task in TASKS:
        prompts = id_prompts(ids[f"{task}/{tokenizer}"], model.vocab_size)
        for kind in KINDS:
            options = MeasureOptions(kind=kind, keep_samples=0, batch_size=arguments.batch)
            result = measure_prompts(model, prompts, options)
            for metric in NAMES:
                values = result[metric]
                if "token" in result.axes[metric]:  # one number per state and sample is enough here
                    import numpy as np

                    values = np.nanmean(values, axis=result.axes[metric].index("token"))
                cell["values"][f"{task}/{kind}/{metric}"] = [[round(float(v), 6) for v in row] for row in values]
    cell["seconds"] = time.perf_counter() - begin
    return cell


def run(arguments):
    """Measure what is not there yet, model by model, until the time is over."""
    import torch

    torch.set_float32_matmul_precision("high")  # TF32: 1e-3 relative, far below what the figure can show
    given = json.loads(Path(arguments.ids).read_text())
    folder = Path(arguments.to)
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    for name in arguments.models:
        for seed in range(arguments.seeds):
            for scheme in SCHEMES:
                file = folder / f"{name}_{scheme.replace(':', '-')}_{seed}.json"
                if file.exists():
                    continue
                if time.perf_counter() - begin > arguments.seconds:
                    print("out of time; run again with the same folder to go on")
                    return
                try:
                    cell = measure_cell(name, scheme, seed, given["ids"], arguments)
                except torch.OutOfMemoryError as error:
                    print(f"{name} {scheme} {seed}: {str(error).splitlines()[0]}", flush=True)
                    continue
                spare = file.with_suffix(".part")
                spare.write_text(json.dumps(cell))
                spare.replace(file)
                values = cell["values"]["kvpr/residual/token_similarity"]
                middle = [statistics.fmean(values[i]) for i in (1, len(values) // 2, -1)]
                print(f"{name:13} {scheme:14} seed {seed}: {cell['seconds']:6.1f} s, similarity "
                      + " → ".join(f"{v:.3f}" for v in middle), flush=True)  # fmt: skip
                if arguments.device != "cpu":
                    torch.cuda.empty_cache()


def read(folder):
    """All cells of a folder."""
    files = sorted(Path(folder).glob("*.json"))
    if not files:
        sys.exit(f"expected cells in {folder}; got none; make them with `figure3.py run`")
    return [json.loads(file.read_text()) for file in files]


def curve(cells, key):
    """Mean over tasks and samples per state and seed: (seed, state)."""
    import numpy as np

    return np.array([np.mean([np.mean(cell["values"][f"{task}/{key}"], axis=1) for task in TASKS], axis=0)
                     for cell in cells])  # fmt: skip


def table(arguments):
    """Markdown: share of blocks inside the printed range, and similarity at the quarters of the depth."""
    from repflow.papers import values as papers

    cells = read(arguments.cells)
    quotes = {q.subject: q for q in papers.QUOTES if q.quantity == "token_similarity" and "Figure 3" in q.place
              and q.init != "trained"}  # fmt: skip
    print("| model | scheme | states | first block | middle | last block | spread over seeds | in the printed range |")
    print("|---|---|---|---|---|---|---|---|")
    for name in MODELS:
        for scheme in SCHEMES:
            mine = [cell for cell in cells if (cell["model"], cell["scheme"]) == (name, scheme)]
            for kind in KINDS if mine else ():
                values = 100 * curve(mine, f"{kind}/token_similarity")
                blocks = values[:, 1:] if kind == "residual" else values
                mean = blocks.mean(0)
                quote = quotes.get(name) or (quotes.get("Mamba2-2.7B") if name.startswith("Mamba") else None)
                printed = "no range printed"
                if quote is not None:
                    inside = ((mean >= quote.low) & (mean <= quote.high)).mean()
                    printed = f"{inside:.0%} of blocks in {quote.low:.0f}–{quote.high:.0f} %"
                spread = (blocks.max(0) - blocks.min(0)).max()
                ends = " | ".join(f"{mean[i]:.1f} %" for i in (0, len(mean) // 2, -1))
                print(f"| {name} | {scheme} | {kind} | {ends} | {spread:.1f} | {printed} |")
    if arguments.picture:
        picture(cells, arguments.picture)


def picture(cells, file):
    """Similarity over relative depth, one panel per kind of state and scheme, one line per model, seeds as a band."""
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(
        len(KINDS), len(SCHEMES), figsize=(14, 6), sharex=True, sharey=True, layout="constrained"
    )
    for row, kind in enumerate(KINDS):
        for column, scheme in enumerate(SCHEMES):
            panel = axes[row, column]
            for name, colour in zip(MODELS, ("#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#CC79A7"), strict=True):
                mine = [cell for cell in cells if (cell["model"], cell["scheme"]) == (name, scheme)]
                if not mine:
                    continue
                values = 100 * curve(mine, f"{kind}/token_similarity")
                depth = np.linspace(0, 1, values.shape[1])
                panel.plot(depth, values.mean(0), color=colour, label=name)
                panel.fill_between(depth, values.min(0), values.max(0), color=colour, alpha=0.25, linewidth=0)
            panel.set_ylim(-5, 105)
            panel.grid(alpha=0.3)
            if row == 0:
                panel.set_title(scheme)
            else:
                panel.set_xlabel("relative depth")
            if column == 0:
                panel.set_ylabel(f"{kind} states:\ninter-token similarity, %")
    axes[0, -1].legend(fontsize=8)
    figure.savefig(file, dpi=110)
    print(f"picture: {file}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("prompts")
    one.add_argument("--gpt2", required=True, help="folder or file of GPT-2's tokenizer (GPT-Neo)")
    one.add_argument("--neox", required=True, help="folder or file of GPT-NeoX-20B's tokenizer (Pythia, Mamba)")
    one.add_argument("--to", required=True, help="file for the ids")
    one.add_argument("--tokens", type=int, default=2000)
    one.add_argument("--samples", type=int, default=8)
    one.add_argument("--seed", type=int, default=0)
    one.set_defaults(call=make_prompts)
    two = commands.add_parser("run")
    two.add_argument("--ids", required=True)
    two.add_argument("--to", required=True, help="folder of the cells")
    two.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    two.add_argument("--seeds", type=int, default=3)
    two.add_argument("--device", default="cuda")
    two.add_argument("--dtype", default="float32")
    two.add_argument("--batch", type=int, default=4)
    two.add_argument("--scan", help="auto, reference or fast; default: repflow's own")
    two.add_argument("--seconds", type=float, default=1e9, help="start no cell after this time")
    two.add_argument("--tiny", action="store_true", help="tiny shapes, to try the script on a CPU")
    two.set_defaults(call=run)
    three = commands.add_parser("table")
    three.add_argument("cells")
    three.add_argument("--picture")
    three.set_defaults(call=table)
    arguments = parser.parse_args()
    arguments.load = {"scan": arguments.scan} if getattr(arguments, "scan", None) else {}
    arguments.call(arguments)


if __name__ == "__main__":
    main()
