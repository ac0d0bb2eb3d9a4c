"""Whole journeys: the commands and Python calls that a user types, on the papers' model sizes, start to end.

    python benchmarks/journey.py cells --out FOLDER              # at most 60 cells that cover every pair; resumes
    python benchmarks/journey.py bars --out FOLDER               # whole calls beside the bare forward passes
    python benchmarks/journey.py table --out FOLDER              # what is there so far, as one table
    python benchmarks/journey.py cells --tiny --out FOLDER       # the same set on tiny shapes, also on a CPU

A cell is an entry (a command, or the public Python calls on a live model), a model, where its weights come from (a live
model, a checkpoint folder that this script writes, `config:`), and a dtype. Every two of these meet in some cell; a
command cannot take a live model, so `python` stands for that column. Each cell runs in a process of its own and leaves
a JSON file: exit code, seconds by phase, peak memory, what was printed last. A cell is red when its exit code is not
the expected one. Weights are random: the way is the same.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import itertools
import json
import os
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

SHAPES = {
    "gpt-neo-2.7b": ("gpt_neo", {
        "hidden_size": 2560, "num_layers": 32, "num_heads": 20, "attention_types": [[["global", "local"], 16]],
        "window_size": 256, "max_position_embeddings": 2048, "vocab_size": 50257}),
    "pythia-2.8b": ("gpt_neox", {
        "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 10240,
        "max_position_embeddings": 2048, "vocab_size": 50304,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}),
    "mamba-2.8b": ("mamba", {
        "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, "vocab_size": 50280, "time_step_rank": 160}),
    "mamba2-2.7b": ("mamba2", {
        "hidden_size": 2560, "num_hidden_layers": 64, "head_dim": 64, "num_heads": 80, "state_size": 128, "n_groups": 1,
        "vocab_size": 50288}),
    "mamba2-130m": ("mamba2", {
        "hidden_size": 768, "num_hidden_layers": 24, "head_dim": 64, "num_heads": 24, "state_size": 128, "n_groups": 1,
        "vocab_size": 50288}),
    "hybrid-2.6b": ("bamba", {
        "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 20,
        "num_key_value_heads": 4, "attn_layer_indices": [8, 17, 25], "mamba_n_heads": 80, "mamba_d_head": 64,
        "mamba_d_state": 128, "mamba_n_groups": 1, "max_position_embeddings": 4096, "vocab_size": 50288}),
}  # fmt: skip
TINY_VOCABULARY = 4096  # that of the zoo's tokenizer, which every cell uses
TINY = {
    "gpt-neo-2.7b": ("gpt_neo", {
        "hidden_size": 32, "num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]],
        "window_size": 16, "max_position_embeddings": 512}),
    "pythia-2.8b": ("gpt_neox", {
        "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
        "max_position_embeddings": 512}),
    "mamba-2.8b": ("mamba", {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 4, "time_step_rank": 2}),
    "mamba2-2.7b": ("mamba2", {
        "hidden_size": 32, "num_hidden_layers": 3, "head_dim": 8, "num_heads": 8, "state_size": 8, "n_groups": 1,
        "chunk_size": 16}),
    "mamba2-130m": ("mamba2", {
        "hidden_size": 32, "num_hidden_layers": 3, "head_dim": 8, "num_heads": 8, "state_size": 8, "n_groups": 2,
        "chunk_size": 16}),
    "hybrid-2.6b": ("bamba", {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
        "mamba_chunk_size": 16, "max_position_embeddings": 512}),
}  # fmt: skip
ENTRIES = ("measure", "compare", "probe", "diagnose", "recency", "needle", "memory", "twins", "apply", "python")
DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Cell:
    """One journey."""

    entry: str
    model: str
    source: str
    dtype: str

    @property
    def name(self):
        """Of its file."""
        return f"{self.entry}-{self.model}-{self.source}-{self.dtype}"


def covering():
    """Sixty cells: every entry with every model, with sources and dtypes spread so that every other pair meets too."""
    cells = []
    for (i, entry), (j, model) in itertools.product(enumerate(ENTRIES), enumerate(SHAPES)):
        source = "live" if entry == "python" else ("folder", "config")[(i + j + i // 2) % 2]
        cells.append(Cell(entry, model, source, DTYPES[(i + j + j // 3) % 3]))
    return cells


def missing_pairs(cells):
    """Pairs of values that no cell brings together, but for a live model in a command, which cannot be."""
    values = [tuple(asdict(cell).items()) for cell in cells]
    met = {frozenset(pair) for row in values for pair in itertools.combinations(row, 2)}
    axes = {"entry": ENTRIES, "model": tuple(SHAPES), "source": ("live", "folder", "config"), "dtype": DTYPES}
    wanted = {
        frozenset([(a, x), (b, y)])
        for a, b in itertools.combinations(axes, 2)
        for x in axes[a]
        for y in axes[b]
        if not (a == "entry" and b == "source" and (x == "python") != (y == "live"))
    }
    return wanted - met


@dataclass(frozen=True)
class Size:
    """How much a cell reads: tokens, tokens of key-value prompts, prompts, prompts of probes and of answers."""

    shapes: dict
    length: int
    paired: int
    samples: int
    probed: int
    answered: int


REAL = Size(SHAPES, 512, 300, 4, 60, 8)
SMALL = Size(TINY, 64, 160, 2, 40, 2)


class Workshop:
    """Where cells find their models and leave their runs."""

    def __init__(self, out, size, device=None):
        self.out, self.size, self.device = Path(out), size, device
        self.models = self.out / "models"
        self.models.mkdir(parents=True, exist_ok=True)

    def config(self, model):
        """Configuration of a model."""
        from repflow.models.transformers_own import config_class  # another package may have registered its own

        kind, options = self.size.shapes[model]
        return config_class(kind)(**{"vocab_size": TINY_VOCABULARY, **options})

    def network(self, model, dtype):
        """A live model with random weights, made on its device."""
        import torch
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        with torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu")):
            network = AutoModelForCausalLM.from_config(self.config(model), dtype=getattr(torch, dtype))
        return network.eval()

    def spec(self, cell):
        """What stands for the model on a command line."""
        if cell.source == "folder":
            return str(self.folder(cell.model))
        file = self.models / f"{cell.model}.json"
        if not file.is_file():
            self.config(cell.model).to_json_file(file, use_diff=False)
        return f"config:{file}"

    def folder(self, model):
        """Checkpoint in bfloat16, written once."""
        folder = self.models / model
        if not (folder / "model.safetensors.index.json").is_file() and not (folder / "model.safetensors").is_file():
            part = self.models / f".{model}-{os.getpid()}"
            self.network(model, "bfloat16" if self.size is REAL else "float32").save_pretrained(part)
            with contextlib.suppress(OSError):  # another cell was faster
                part.rename(folder)
        return folder


def tokenizer():
    """Folder of a tokenizer that comes with repflow; its 4,096 entries fit every vocabulary here."""
    import repflow

    return str(Path(repflow.__file__).parent / "models" / "zoo" / "mamba2")


def commands(cell, shop):
    """Command lines of a cell, one after the other, with the exit code expected of each."""
    size, out = shop.size, str(shop.out / "runs" / cell.name)
    spec = shop.spec(cell)
    half = ["--allow-float16"] if cell.dtype == "float16" else []
    where = ["--dtype", cell.dtype, *half, "--out", out, *(["--device", shop.device] if shop.device else [])]
    read = ["--task", "random", "--length", str(size.length), "--samples", str(size.samples), *where]
    pairs = ["--tokenizer", tokenizer(), *where]
    lists = ["--task", "kvpr", "--length", str(size.paired), *pairs]
    probed, answered = str(size.probed), str(size.answered)
    lines = {
        "measure": [["measure", spec, *read], ["report", out, "--out", f"{out}/page.html"]],
        "compare": [["compare", spec, "twin", *read]],
        "probe": [["probe", spec, *lists, "--samples", probed, "--seeds", "2", "--answers", answered, "--recipes",
                   "robust"]],
        "diagnose": [["diagnose", spec, *lists, "--flow-samples", str(size.samples), "--probe-samples", probed,
                      "--probe-seeds", "2", "--answers", answered]],
        "recency": [["recency", spec, *read, "--probes", "2"]],
        "needle": [["needle", spec, "--lengths", str(size.paired), "--samples", str(size.samples), *pairs]],
        "memory": [["memory", spec, *read]],
        "twins": [["twins", spec, "--inits", "xavier", "--lengths", str(size.length), "--seeds", "1", "--task",
                   "random", "--samples", str(size.samples), *where]],
        "apply": [["theory", "apply", spec, *read], ["dynamics", "apply", spec, *read]],
    }  # fmt: skip
    return [(line, expected(cell, line)) for line in lines[cell.entry]]


def expected(cell, line):
    """Exit code that a command should end with: what a theorem does not speak of is refused (2), never a crash."""
    if line[0] == "report" and importlib.util.find_spec("plotly") is None:
        return 2
    refused = {"theory": ("hybrid-2.6b",), "dynamics": ("gpt-neo-2.7b", "pythia-2.8b")}
    return 2 if cell.model in refused.get(line[0], ()) else 0


def run_command(line):
    """One command through the real command line, in this process: exit code and what it wrote to stderr."""
    from repflow.cli.main import app

    wrote = io.StringIO()
    with contextlib.redirect_stderr(wrote), contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            app(line)
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:  # noqa: BLE001  a traceback is what a cell looks for
            traceback.print_exc()
            code = 99
    return code, wrote.getvalue(), printed.getvalue()


def run_python(cell, shop):
    """The public calls on a live model."""
    import numpy as np
    import torch

    import repflow

    network = shop.network(cell.model, cell.dtype)
    size, options = shop.size, {"allow_float16": True} if cell.dtype == "float16" else {}
    ids = torch.randint(
        3, network.config.vocab_size, (size.samples, size.length), generator=torch.Generator().manual_seed(0)
    )
    model = repflow.load(network, tokenizer=tokenizer())
    texts = ["The quick brown fox jumps over the lazy dog.", "What a layer adds is not what it keeps."]
    done = []
    result = repflow.measure(network, ids, **options)
    done.append(("measure", bool(np.isfinite(result["token_similarity"]).any())))
    hidden, mask, _ = repflow.states(model, texts)
    done.append(("states", hidden.shape[1] == 2 and mask.shape[0] == 2))
    other = repflow.compare(model, model, texts, **options)
    done.append(("compare", len(other) > 0))
    probed = repflow.probe(model, "kvpr", length=size.paired, samples=size.probed, seeds=2,
                           answers=size.answered, **options)  # fmt: skip
    done.append(("probe", len(probed) > 0))
    reach = repflow.influence(model, ids[:1], probes=2, **options)
    done.append(("influence", len(reach) > 0))
    return [name for name, good in done if not good]


def run_cell(cell, shop):
    """Run a cell here; a record of how it went."""
    begun = time.perf_counter()
    record = {**asdict(cell), "code": 0, "said": "", "commands": []}
    try:
        if cell.entry == "python":
            bad = run_python(cell, shop)
            record["code"], record["said"] = (1, f"empty: {bad}") if bad else (0, "")
        else:
            for line, wanted in commands(cell, shop):
                code, wrote, _ = run_command(line)
                record["commands"].append(" ".join(line))
                if code == 2 and cell.dtype == "float16" and "no finite value after block" in wrote:
                    record["said"] = "refused: random weights of this size leave float16's range"
                    break
                if code != wanted:
                    record["code"], record["said"] = code or 98, wrote[-1500:]
                    break
    except BaseException:  # noqa: BLE001  the record says it
        record["code"], record["said"] = 99, traceback.format_exc()[-1500:]
    record["seconds"] = time.perf_counter() - begun
    return record | measured_here()


def measured_here():
    """Seconds by phase and peak memory of this process."""
    import resource

    import torch

    from repflow.core.seconds import CLOCK

    gpu = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return {
        "phases": CLOCK.seconds(),
        "gpu_gib": gpu,
        "rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def run_cells(args):
    """Cells that have no green record yet, some side by side, each in a process of its own."""
    out = Path(args.out)
    (out / "cells").mkdir(parents=True, exist_ok=True)
    wanted = list(dict.fromkeys(c for part in args.only for c in covering() if part in c.name))
    open_cells = [c for c in wanted if not _green(out / "cells" / f"{c.name}.json")]
    begun = time.monotonic()
    if not args.tiny:  # checkpoints first, one process each, so that no cell waits for another's
        folders = sorted({c.model for c in open_cells if c.source == "folder"})
        with ThreadPoolExecutor(args.workers) as pool:
            list(pool.map(lambda model: _child(args, "folder", model), folders))

    def one(cell):
        if time.monotonic() - begun > args.seconds:
            return
        _child(args, "cell", cell.name)
        record = _read(out / "cells" / f"{cell.name}.json")
        print(f"{cell.name}: {_verdict(record)}", flush=True)

    with ThreadPoolExecutor(args.workers) as pool:
        list(pool.map(one, open_cells))
    print_table(args)


def _child(args, what, name):
    line = [sys.executable, __file__, what, name, "--out", args.out, *(["--tiny"] if args.tiny else [])]
    line += ["--device", args.device] if args.device else []
    threads = str(max(1, (os.cpu_count() or 1) // args.workers))  # more would wait for one another
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=args.limit, check=False,
                              env={**os.environ, "OMP_NUM_THREADS": threads})  # fmt: skip
        code, said = done.returncode, done.stderr[-1500:]
    except subprocess.TimeoutExpired:
        code, said = 124, f"not finished after {args.limit:.0f} s"
    if code:
        record = {"name": name, "code": code, "said": said, "seconds": None}
        (Path(args.out) / "cells" / f"{name}.json").write_text(json.dumps(record))


def _read(file):
    return json.loads(file.read_text()) if file.is_file() else None


def _green(file):
    record = _read(file)
    return record is not None and record["code"] == 0


def _verdict(record):
    if record is None:
        return "not run"
    if record["code"]:
        return f"RED ({record['code']}) {record['said'].strip().splitlines()[-1:]}"
    return f"{record['seconds']:.1f} s"


def print_table(args):
    """One row per entry, one column per model; seconds, or what went wrong."""
    out = Path(args.out) / "cells"
    records = {(c.entry, c.model): (c, _read(out / f"{c.name}.json")) for c in covering()}
    print(f"| entry | {' | '.join(SHAPES)} |\n|---|{'---|' * len(SHAPES)}")
    for entry in ENTRIES:
        cells = [records[entry, model] for model in SHAPES]
        print(f"| {entry} | {' | '.join(_short(cell, record) for cell, record in cells)} |")
    whole = [record for _, record in records.values() if record is not None]
    red = [record for record in whole if record["code"]]
    print(f"\n{len(whole)} of {len(records)} cells run, {len(red)} red")


def _short(cell, record):
    short = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[cell.dtype]
    if record is None:
        return "–"
    if record["code"]:
        return f"**red {record['code']}** {cell.source} {short}"
    gpu = f", {record['gpu_gib']:.0f} GiB" if record.get("gpu_gib") else ""
    return f"{record['seconds']:.1f} s {cell.source} {short}{gpu}"


def main():
    """Read the arguments and do what they ask."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("cells", "table", "cell", "folder"))
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--out", required=True, help="folder for models, runs and records")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes")
    parser.add_argument("--device", help="cpu or cuda; default the first GPU, else the CPU")
    parser.add_argument("--workers", type=int, default=1, help="cells side by side")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no cell after this many")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a cell is ended")
    parser.add_argument("--only", nargs="*", default=[""], help="cells whose name holds one of these, in this order")
    args = parser.parse_args()
    shop = Workshop(args.out, SMALL if args.tiny else REAL, args.device)
    if args.what == "cells":
        run_cells(args)
    elif args.what == "table":
        print_table(args)
    elif args.what == "folder":
        shop.folder(args.name)
    else:
        cell = next(c for c in covering() if c.name == args.name)
        file = Path(args.out) / "cells" / f"{cell.name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(run_cell(cell, shop), indent=1))


if __name__ == "__main__":
    main()
