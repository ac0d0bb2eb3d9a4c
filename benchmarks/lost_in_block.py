"""How often probes call something lost that is not, and how often they find a real loss: a simulation.

    python benchmarks/lost_in_block.py [--draws 100] [--prompts 40 100 300] [--seeds 3 5] [--vary split|all]
                                       [--blocks 8] [--width 16] [--json FILE]

Features of a model's states are made up, then fitted and judged by the code that `repflow probe` runs: `fit_probes` on
every state and split, `block_changes`, a fit on half the training prompts where a claim would rest on it, and
`block_claims`; `summarise` and `peak_loss` for the loss from the peak to the last state. Two classes, a shift of the
mean along one direction; the accuracy given is the best that any read-out could reach.

Where nothing is lost, a claim is false:
- own noise: every state holds the label equally well, each with noise of its own, so that refits differ most;
- stream: the same, the noise of neighbouring states correlated (0.8), as in a residual stream.
Where something is lost, a claim is found at the right block:
- all: the label is gone behind the middle block;  half: half of the shift is.
Neither: buried: behind the middle block the label is all there, under 30 times stronger noise in other directions. An
endless number of prompts reads it as well as before; a few do not, and no number of seeds can tell.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import torch
from scipy.special import ndtri

from repflow.core.intervals import proportion_interval
from repflow.probes import (
    ArrayFeatures,
    Split,
    block_changes,
    block_claims,
    fit_probes,
    half_training,
    peak_loss,
    states_to_refit,
    summarise,
    three_way_split,
)

BEST = (0.5, 0.6, 0.75, 0.9, 0.98)
"""Best accuracies where nothing is lost."""
KNOWN = 0.98
"""Best accuracy before a loss."""
CASES = [
    *(("own noise", best) for best in BEST),
    *(("stream", best) for best in BEST[1:]),
    ("all", KNOWN),
    ("half", KNOWN),
    ("buried", KNOWN),
]
NULL = ("own noise", "stream")
CORRELATION = 0.8
BURIED = 30.0
TABLES = ("accuracy_train", "accuracy_valid", "accuracy_test", "loss", "gradient", "converged", "penalty")


def make_features(generator, case, best, labels, draws, states, width):
    """Made-up states, (draw, state, sample, width)."""
    shape = (draws, states, len(labels), width)
    noise = generator.standard_normal(shape)
    if case != "own noise":
        for state in range(1, states):
            fresh = np.sqrt(1 - CORRELATION**2) * noise[:, state]
            noise[:, state] = CORRELATION * noise[:, state - 1] + fresh
    shift = np.full(states, ndtri(best))
    behind = slice(states // 2 + 1, None)
    shift[behind] *= {"all": 0.0, "half": 0.5}.get(case, 1.0)
    noise[..., 0] += shift[:, None] * (2 * labels - 1)
    if case == "buried":
        noise[:, behind, :, 1:] *= BURIED
        turn = np.linalg.qr(generator.standard_normal((width, width)))[0]
        noise[:, behind] = noise[:, behind] @ turn
    return noise.astype(np.float32)


def make_splits(labels, seeds, vary):
    """Splits of one set of prompts, or of a set for each seed, all on one axis of samples."""
    count = len(labels) // (seeds if vary == "all" else 1)
    splits = []
    for seed in range(seeds):
        start = seed * count if vary == "all" else 0
        split = three_way_split(labels[start : start + count], seed=seed)
        splits.append(Split(split.train + start, split.valid + start, split.test + start))
    return splits


def part_of(fit, states):
    """The fit of some states."""
    tables = {name: getattr(fit, name)[states] for name in (*TABLES, "log_likelihood_test")}
    rows = {name: [entry[states] for entry in getattr(fit, name)] for name in ("correct_valid", "correct_test")}
    return dataclasses.replace(fit, **tables, **rows, reasons={})


def judge(features, labels, splits):
    """Claims per draw: (draw, block) of -1, 0 and 1, and (draw,) whether the peak is said to beat the last state."""
    draws, states = features.shape[:2]
    options = {"n_classes": 2, "recipe": "robust", "memory": 1 << 28}
    fit = fit_probes(ArrayFeatures(features.reshape(-1, *features.shape[2:])), labels, splits, **options)
    every = [part_of(fit, slice(draw * states, (draw + 1) * states)) for draw in range(draws)]
    changes = [block_changes(one) for one in every]
    summaries = [summarise(one) for one in every]
    asked = [draw for draw in range(draws) if states_to_refit(summaries[draw], changes[draw])]
    blocks, beaten = np.zeros((draws, states - 1), int), np.zeros(draws, bool)
    if asked:
        halved = [half_training(split, labels, seed=seed) for seed, split in enumerate(splits)]
        rows = ArrayFeatures(features[asked].reshape(-1, *features.shape[2:]))
        half = fit_probes(rows, labels, halved, **options)
        for place, draw in enumerate(asked):
            mine = part_of(half, slice(place * states, (place + 1) * states))
            blocks[draw] = block_claims(changes[draw], block_changes(mine))
            beaten[draw] = peak_loss(summaries[draw], mine).shown
    return blocks, beaten


def run_case(case, best, prompts, seeds, arguments, number):
    """One row of the table."""
    states = arguments.blocks + 1
    total = prompts * (seeds if arguments.vary == "all" else 1)
    labels = np.arange(total) % 2
    generator = np.random.default_rng([20261116, number, prompts, seeds])
    features = make_features(generator, case, best, labels, arguments.draws, states, arguments.width)
    splits = make_splits(labels, seeds, arguments.vary)
    started = time.process_time()
    blocks, beaten = judge(features, labels, splits)
    lost = blocks < 0
    right = np.zeros(states - 1, bool)
    if case not in NULL:
        right[states // 2] = True
    wrong = (lost & ~right).any(1)
    return {
        "case": case,
        "best": best,
        "prompts": prompts,
        "train": len(splits[0].train),
        "test": len(splits[0].test),
        "seeds": seeds,
        "draws": arguments.draws,
        "false": float(wrong.mean()),
        "found": float((lost & right).any(1).mean()) if right.any() else None,
        "gained": float((blocks > 0).any(1).mean()),
        "peak_beats_last": float(beaten.mean()),
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def pooled(rows):
    """False claims over all cases without a loss, by prompts and seeds, with Wilson's interval."""
    out = []
    for prompts, seeds in dict.fromkeys((row["prompts"], row["seeds"]) for row in rows):
        mine = [row for row in rows if (row["prompts"], row["seeds"]) == (prompts, seeds) and row["case"] in NULL]
        draws = sum(row["draws"] for row in mine)
        entry = {"prompts": prompts, "seeds": seeds, "draws": draws}
        for name in ("false", "peak_beats_last"):
            count = round(sum(row[name] * row["draws"] for row in mine))
            band = proportion_interval(count, draws)
            entry[name] = {"share": float(band.mean), "low": float(band.low), "high": float(band.high)}
        entry["worst"] = max(row["false"] for row in mine)
        out.append(entry)
    return out


def shown(rows, sums):
    lines = ["| nothing is lost: prompts | seeds | draws | lost in block N | worst case | peak beats last |"]
    lines.append("|---|---|---|---|---|---|")
    for row in sums:
        false, peak = row["false"], row["peak_beats_last"]
        lines.append(
            f"| {row['prompts']} | {row['seeds']} | {row['draws']:,} | {false['share']:.1%} [{false['low']:.1%}, "
            f"{false['high']:.1%}] | {row['worst']:.1%} | {peak['share']:.1%} [{peak['low']:.1%}, {peak['high']:.1%}] |"
        )
    lines += ["", "| behind the middle block | prompts | seeds | lost there | lost elsewhere | peak beats last |"]
    lines.append("|---|---|---|---|---|---|")
    lines += [
        f"| {row['case']} | {row['prompts']} | {row['seeds']} | {row['found']:.0%} | {row['false']:.1%} "
        f"| {row['peak_beats_last']:.0%} |"
        for row in rows
        if row["found"] is not None
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--prompts", type=int, nargs="+", default=[40, 100, 300])
    parser.add_argument("--seeds", type=int, nargs="+", default=[5])
    parser.add_argument("--vary", choices=("split", "all"), default="split")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # many small problems: threads would wait for one another
    rows = []
    for prompts in arguments.prompts:
        for seeds in arguments.seeds:
            for number, (case, best) in enumerate(CASES):
                rows.append(run_case(case, best, prompts, seeds, arguments, number))
                print({k: v for k, v in rows[-1].items() if v is not None}, flush=True)
    sums = pooled(rows)
    print(shown(rows, sums))
    if arguments.json:
        asked = {name: value for name, value in vars(arguments).items() if name != "json"}
        arguments.json.write_text(json.dumps({"asked": asked, "pooled": sums, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
