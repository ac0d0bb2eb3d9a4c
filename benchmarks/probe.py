"""Linear probes on all states and seeds at once, against a loop over states and seeds.

    python benchmarks/probe.py [--device cuda] [--states 65 --samples 20000 --width 2560 --classes 50 --seeds 5]
                               [--recipes paper robust] [--precisions float32 tf32 ieee] [--vary all|init]
                               [--loop] [--json FILE]

`--samples` counts training prompts; validation and test come on top (60 : 20 : 20). Features are made up: noise and a
class mean whose strength rises and falls over depth, at scales growing from 0.15 to 30, as the norms of a residual
stream do. They lie in the host's memory, and times include bringing them to the device. The loop is plain torch:
nn.Linear, cross_entropy, backward, Adam, for each state and seed. It is timed on a few states and one seed, all epochs,
and extrapolated to all; the same start lets its accuracies be compared. Its cost depends on the features' scale: large
logits give subnormal probabilities, which slow a CPU's matrix product down. CPU seconds and memory are the process's
own.
"""

import argparse
import json
import os
import platform
import resource
import time
from pathlib import Path

import numpy as np
import torch

from repflow.probes import ArrayFeatures, fit_probes, three_way_split
from repflow.probes.paper import EPOCHS, RATE, initial

SCALES = (0.15, 30.0)
BAR_RATIO, BAR_MEMORY, BAR_GPU = 4, 1.5, 15


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_bytes():
    """Most resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)


def synchronise(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def make_data(arguments, device):
    """Labels, splits and features (state, sample, width) on the host."""
    generator = torch.Generator(device).manual_seed(0)
    total = round(arguments.samples / 0.6)
    labels = np.arange(total) % arguments.classes
    first = three_way_split(labels, seed=0)
    splits = [
        first if k == 0 or arguments.vary == "init" else three_way_split(labels, seed=k) for k in range(arguments.seeds)
    ]
    target = torch.as_tensor(labels).to(device)
    features = torch.empty(arguments.states, total, arguments.width)
    means = torch.randn(arguments.classes, arguments.width, generator=generator, device=device)
    depth = np.linspace(0, 1, arguments.states)
    scales = np.geomspace(*SCALES, arguments.states)
    for state in range(arguments.states):
        strength = 0.15 * float(np.sin(np.pi * (0.1 + 0.8 * depth[state])))
        noise = torch.randn(total, arguments.width, generator=generator, device=device)
        features[state].copy_(noise.add_(means[target], alpha=strength).mul_(float(scales[state])))
    return features, labels, splits


def measure(features, labels, splits, arguments, device, recipe, precision):
    """One fit: seconds, CPU seconds, peak device memory."""
    synchronise(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    start, used = time.perf_counter(), cpu_seconds()
    fit = fit_probes(
        ArrayFeatures(features),
        labels,
        splits,
        n_classes=arguments.classes,
        recipe=recipe,
        epochs=arguments.epochs,
        device=device,
        precision=precision,
    )
    synchronise(device)
    row = {"recipe": recipe, "precision": precision}
    row["seconds"] = time.perf_counter() - start
    row["cpu_seconds"] = cpu_seconds() - used
    row["converged"] = float(fit.converged.mean())
    row["accuracy"] = fit.accuracy_test.mean(1).round(4).tolist()
    if device.type == "cuda":
        row["device_memory"] = torch.cuda.max_memory_allocated(device) / (features.numel() * 4)
    return fit, row


def loop_probe(x, y, start, arguments):
    """One probe as anybody would write it."""
    probe = torch.nn.Linear(x.shape[1], arguments.classes, device=x.device)
    with torch.no_grad():
        probe.weight.copy_(start[0])
        probe.bias.copy_(start[1])
    optimiser = torch.optim.Adam(probe.parameters(), lr=RATE)
    for _ in range(arguments.epochs):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(probe(x), y).backward()
        optimiser.step()
    return probe


def run_loop(features, labels, splits, arguments, device):
    """The loop on a few states with the first seed; times for all states and seeds are extrapolated."""
    states = np.unique(np.linspace(0, arguments.states - 1, arguments.loop_states).round().astype(int)).tolist()
    weights, biases = initial([0], arguments.classes, arguments.width, torch.float32)
    split, target = splits[0], torch.as_tensor(labels).to(device)
    rows = {part: torch.as_tensor(getattr(split, part)).to(device) for part in ("train", "test")}
    loop_probe(torch.randn(64, arguments.width, device=device), target[:64], (weights[0], biases[0]), arguments)
    seconds, used, accuracy = [], [], []
    for state in states:
        synchronise(device)
        start, before = time.perf_counter(), cpu_seconds()
        mine = features[state].to(device)
        probe = loop_probe(mine[rows["train"]], target[rows["train"]], (weights[0], biases[0]), arguments)
        with torch.no_grad():
            right = (probe(mine[rows["test"]]).argmax(-1) == target[rows["test"]]).double().mean()
        accuracy.append(float(right))
        synchronise(device)
        seconds.append(time.perf_counter() - start)
        used.append(cpu_seconds() - before)
    every = arguments.states * arguments.seeds
    return {
        "states": states,
        "seconds_each": seconds,
        "cpu_seconds_each": used,
        "seconds": float(np.mean(seconds)) * every,
        "cpu_seconds": float(np.mean(used)) * every,
        "accuracy": accuracy,
    }


def compare(row, fit, loop):
    row["loop_ratio"] = loop["seconds"] / row["seconds"]
    row["loop_cpu_ratio"] = loop["cpu_seconds"] / row["cpu_seconds"]
    if row["recipe"] == "paper":
        row["loop_difference"] = float(np.abs(fit.accuracy_test[loop["states"], 0] - loop["accuracy"]).max())


def cell(row, key, form):
    return format(row[key], form) if key in row else "-"


def print_table(report):
    shape = report["shape"]
    print(
        f"{shape['samples']} training prompts x {shape['width']}, {shape['classes']} classes, {shape['states']} states,"
        f" {shape['seeds']} seeds, splits vary: {shape['vary']}; features {report['feature_gib']:.2f} GiB"
    )
    print(report["machine"])
    print("recipe  precision  seconds  CPU s  loop/s  loop/CPU s  device memory  |acc difference|  converged")
    for row in report["fits"]:
        print(
            f"{row['recipe']:7} {row['precision']:9} {row['seconds']:8.1f} {row['cpu_seconds']:6.0f}"
            f" {cell(row, 'loop_ratio', '6.1f'):>6}x {cell(row, 'loop_cpu_ratio', '9.1f'):>9}x"
            f" {cell(row, 'device_memory', '13.2f'):>13}x {cell(row, 'loop_difference', '16.4f'):>16}"
            f" {row['converged']:9.0%}"
        )
    print(f"peak host memory: {report['host_memory']:.2f} times the features")
    if "loop" in report:
        loop = report["loop"]
        each = ", ".join(f"state {s}: {t:.1f}" for s, t in zip(loop["states"], loop["cpu_seconds_each"], strict=True))
        print(f"loop: {loop['seconds']:.0f} s, {loop['cpu_seconds']:.0f} CPU s, from one seed's CPU s: {each}")
    for name, met in report["bars"].items():
        print(f"{name}: {'met' if met else 'NOT met'}")


def bars(report, device):
    paper = [row for row in report["fits"] if row["recipe"] == "paper"]
    out = {f"peak memory at most {BAR_MEMORY} times the features": report["host_memory"] <= BAR_MEMORY}
    if device.type == "cuda" and paper:
        out[f"paper recipe within {BAR_GPU} s"] = paper[0]["seconds"] <= BAR_GPU
    if device.type == "cpu" and paper and "loop" in report:
        out[f"at least {BAR_RATIO} times fewer CPU seconds than the loop"] = paper[0]["loop_cpu_ratio"] >= BAR_RATIO
    return out


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--states", type=int, help="13; 65 on a GPU")
    parser.add_argument("--samples", type=int, default=20000, help="training prompts")
    parser.add_argument("--width", type=int, help="768; 2560 on a GPU")
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--recipes", nargs="+", default=["paper"])
    parser.add_argument("--precisions", nargs="+", help="float32; also tf32 and ieee on a GPU")
    parser.add_argument("--vary", choices=("all", "init"), default="all", help="what a seed redraws")
    parser.add_argument("--loop", action="store_true", help="time the loop too")
    parser.add_argument("--loop-states", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the report here")
    arguments = parser.parse_args()
    gpu = torch.device(arguments.device).type == "cuda"
    arguments.states = arguments.states or (65 if gpu else 13)
    arguments.width = arguments.width or (2560 if gpu else 768)
    arguments.precisions = arguments.precisions or (["float32", "tf32", "ieee"] if gpu else ["float32"])
    return arguments


def main():
    arguments = parse()
    device = torch.device(arguments.device)
    # loads what the first call loads
    warm = ArrayFeatures(torch.randn(2, 300, 16))
    labels = np.arange(300) % 3
    for recipe in arguments.recipes:
        fit_probes(warm, labels, [three_way_split(labels, seed=0)], n_classes=3, recipe=recipe, epochs=2, device=device)
    before = peak_bytes()
    features, labels, splits = make_data(arguments, device)
    made = peak_bytes()
    feature_bytes = features.numel() * 4
    fits = [
        measure(features, labels, splits, arguments, device, recipe, precision)
        for recipe in arguments.recipes
        for precision in arguments.precisions
    ]
    loop = None
    host = (peak_bytes() - before) / feature_bytes
    if arguments.loop:
        loop = run_loop(features, labels, splits, arguments, device)
        for fit, row in fits:
            compare(row, fit, loop)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    report = {
        "shape": {
            k: getattr(arguments, k) for k in ("states", "samples", "width", "classes", "seeds", "vary", "epochs")
        },
        "feature_gib": feature_bytes / 2**30,
        "machine": f"{name}, {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "fits": [row for _, row in fits],
        "host_memory": host,
        "host_memory_made": (made - before) / feature_bytes,
    }
    if loop is not None:
        report["loop"] = loop
    report["bars"] = bars(report, device)
    print_table(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
