"""Tokens a second of classifiers of pixels trained side by side on one GPU: batches, forward, backward, optimiser.

    python benchmarks/pixels.py [--rows mamba:9,mamba+both:3,h3,transformer] [--seeds 1,8] [--profile] [--seconds 240]
                                [--check h3,s4d+mean]

Three layers, width 32, 64 states, 1,025 tokens, batches of 64 images, as in the pixel laboratory, and the strong S4D
(4 layers of 128, alone). A row is trained in each number of models that --seeds names, or in its own. Images are random
bytes that lie on the GPU. First the kernels are held against the stacks' own code in float64 on small models. Prints a
table and JSON lines, which --out FOLDER keeps in pixels.json. With `--device cpu --side 8 --batch 4 --images 40 --steps
1` it runs anywhere, to see that it works.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repflow.models import StackConfig, StackForSequenceClassification
from repflow.models.classifier import Classifier
from repflow.models.stack.replica_classifier import class_form, class_logits
from repflow.models.stack.replicas import ReplicaStack
from repflow.studies.pixels.config import parse_row
from repflow.studies.pixels.study import READ
from repflow.tasks.pixels import Images, PixelLayout
from repflow.training.config import TrainingConfig
from repflow.training.pixels import PixelBatches, PixelRows
from repflow.training.replicas import ReplicaBatches, ReplicaLoss
from repflow.training.step import Stepper

BAR = 20.0
"""Million tokens a second, all models together."""
STRONG = "s4d+mean+dropout+inside"
CHECKED = (
    *("mamba", "mamba+both+middle", "mamba+mlp+positions", "mamba/16+mean"),
    *("h3", "rwkv", "transformer", "s4d+mean"),
)
LARGEST = {"float32": 1e-3, "bfloat16": 0.1}
"""Relative errors of gradients above which a form is called wrong."""


def network(word: str, seed: int, tokens: int, layers: int = 3, width: int = 32) -> StackForSequenceClassification:
    """The classifier of a row."""
    torch.manual_seed(seed)
    frame = parse_row(word).frame(layers, width, tokens)
    own: dict[str, Any] = {"input_channels": 3, "input_range": [0, 1], "num_labels": 10, "vocab_size": 257}
    return StackForSequenceClassification(StackConfig(**own, **frame))


def sources(options: argparse.Namespace, count: int) -> tuple[PixelRows, ReplicaBatches]:
    """Random images on the device, and the batches of each seed."""
    side = options.side
    pixels = np.random.default_rng(0).integers(0, 256, (options.images, side, side, 3), dtype=np.uint8)
    images = Images.checked(pixels, np.arange(options.images) % 10)
    rows = PixelRows(images, PixelLayout(), device=options.device)
    return rows, ReplicaBatches([PixelBatches(rows, options.batch, seed=seed) for seed in range(count)])


def wait(options: argparse.Namespace) -> None:
    """Until the GPU is done."""
    if options.device == "cuda":
        torch.cuda.synchronize()


def seconds(run: Any, options: argparse.Namespace, first: int = 0) -> float:
    """Median of three times of one call, after the graph was recorded."""
    for number in range(6 if options.device == "cuda" else 1):
        run(first + number)
    wait(options)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for number in range(options.steps):
            run(first + number)
        wait(options)
        times.append((time.perf_counter() - start) / options.steps)
    return statistics.median(times)


def measure(word: str, count: int, options: argparse.Namespace, *, layers: int = 3, width: int = 32) -> dict[str, Any]:
    """One row of the table: training and reading."""
    tokens = options.side**2
    rows, source = sources(options, count)
    networks = [network(word, seed, tokens, layers, width) for seed in range(count)]
    stack = ReplicaStack(networks).to(options.device).train()
    config = TrainingConfig(steps=10_000, clip=None, device=options.device)
    stepper = Stepper(stack, ReplicaLoss(), config, torch.device(options.device))
    each = seconds(lambda number: stepper.step(number, source.batch(number)), options)
    read = tokens + ("mean" not in parse_row(word).parts)
    row: dict[str, Any] = {"row": word, "models": count, "layers": layers, "width": width}
    row["form"] = class_form(stack, rows.batch(slice(0, 1)).inputs)
    row["ms_per_step"] = 1e3 * each
    row["million_tokens_per_second"] = count * options.batch * read / each / 1e6
    row["graph"], row["notes"] = stepper.recorded, stepper.notes
    if options.device == "cuda":
        row["gib"] = torch.cuda.max_memory_allocated() / 2**30
    if options.profile:
        row["kernels"] = profiled(stepper, source)
    row["million_tokens_read_per_second"] = reading(networks[0].to(options.device), options) / 1e6
    del stepper, stack
    if options.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return row


def reading(model: StackForSequenceClassification, options: argparse.Namespace) -> float:
    """Tokens a second of one model that is only read, as the laboratory does."""
    classifier, tokens, cuda = Classifier(model), options.side**2, options.device == "cuda"
    size = READ // (model.config.hidden_size * tokens) if cuda else options.batch
    pixels = torch.rand(size, tokens, 3, device=options.device)

    def run(_: int) -> None:
        with torch.no_grad(), torch.autocast(options.device, dtype=torch.bfloat16, enabled=cuda):
            classifier.logits(pixels, PixelLayout(), (options.side, options.side, 3))

    return size * tokens / seconds(run, options)


def profiled(stepper: Stepper, source: ReplicaBatches) -> list[list[Any]]:
    """Microseconds of each kernel in one step and its launches, the longest first."""
    cuda, kinds = torch.cuda.is_available(), torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CUDA if cuda else kinds.CPU]) as profile:
        stepper.step(9, source.batch(9))
        if cuda:
            torch.cuda.synchronize()
    name = "self_device_time_total" if cuda else "self_cpu_time_total"
    events = [[event.key[:90], getattr(event, name), event.count] for event in profile.key_averages()]
    return sorted(events, key=lambda event: -event[1])[:16]


def check(options: argparse.Namespace) -> dict[str, float]:
    """Largest error of logits and gradients against the stacks' own code in float64, by row: float32, then half."""
    errors = {}
    for word in filter(None, options.check.split(",")):
        networks = [network(word, seed, 64, 2) for seed in range(2)]
        slow = ReplicaStack([copy.deepcopy(one).double() for one in networks]).to(options.device).eval()
        x, labels = torch.rand(8, 64, 3, device=options.device), torch.arange(8, device=options.device)
        true = torch.nn.functional.cross_entropy(class_logits(slow, x.double(), form="alone").flatten(0, 1), labels)
        true.backward()
        for half in (False, True):
            fast = ReplicaStack([copy.deepcopy(one) for one in networks]).to(options.device).eval()
            with torch.autocast(options.device, dtype=torch.bfloat16, enabled=half):
                logits = class_logits(fast, x)
            torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels).backward()
            both = zip(fast.named_single(), slow.named_single(), strict=True)
            pairs = [(a.grad.double(), b.grad) for (_, a), (_, b) in both]
            least = 1e-3 * max(float(b.norm()) for _, b in pairs)  # biases of keys have a gradient of 0
            worst = max(float((a - b).norm()) / max(float(b.norm()), least) for a, b in pairs)
            errors[f"{word}, {'bfloat16' if half else 'float32'}"] = worst
            if options.device == "cpu":  # bfloat16 products can end a process there
                break
    return errors


def parsed() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="mamba:1,mamba:9,mamba:16,mamba+both:3,h3:3,transformer:6")
    parser.add_argument("--check", default=",".join(CHECKED), help="rows whose forms are held against float64")
    parser.add_argument("--seeds", default="1,8", help="models side by side, of rows without a number of their own")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--strong", action="store_true", help="the strong S4D too, alone")
    parser.add_argument("--out", default=None)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options, began, table = parsed(), time.perf_counter(), []
    if options.out:
        Path(options.out).mkdir(parents=True, exist_ok=True)
    errors = check(options)
    print(json.dumps({"errors": errors}), flush=True)
    wrong = [words for words, error in errors.items() if not error < LARGEST[words.rpartition(" ")[2]]]
    print(f"WRONG: {'; '.join(wrong)}" if wrong else "all forms are right", flush=True)
    wanted: list[tuple[str, int, dict[str, int]]] = []
    for word, _, own in (part.partition(":") for part in options.rows.split(",") if part):
        wanted += [(word, int(count), {}) for count in (own or options.seeds).split(",")]
    wanted += [(STRONG, 1, {"layers": 4, "width": 128})] if options.strong else []
    for word, count, shape in wanted:
        if time.perf_counter() - began > options.seconds:
            print(f"no time left for {word}, {count} models", flush=True)
            continue
        try:
            table.append(measure(word, count, options, **shape))
        except Exception as error:  # noqa: BLE001 - the other rows are still worth their time
            table.append({"row": word, "models": count, "failed": f"{type(error).__name__}: {str(error)[:300]}"})
        print(json.dumps(table[-1]), flush=True)
        if options.out:
            text = json.dumps({"errors": errors, "rows": table}, indent=1)
            (Path(options.out) / "pixels.json").write_text(text, encoding="utf-8")
    print("row | models | form | ms per step | million tokens/s trained | read, one model | bar")
    for row in table:
        if "failed" in row:
            print(f"{row['row']} | {row['models']} | {row['failed']}")
            continue
        rate = row["million_tokens_per_second"]
        words = "met" if rate >= BAR else f"{BAR / rate:.1f}x below"
        numbers = f"{row['ms_per_step']:.2f} | {rate:.1f} | {row['million_tokens_read_per_second']:.1f}"
        print(f"{row['row']} | {row['models']} | {row['form']} | {numbers} | {words}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
