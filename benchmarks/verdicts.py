"""How often the rule of `repflow.core.verdict` is wrong, and how often it says that what is true holds.

    python benchmarks/verdicts.py [--draws 4000] [--json FILE]

Claims of several parts are drawn whose truth is known: every training, each of another seed, gives every part a margin,
its distance from the threshold on the claim's side. They go through `settle` and `decide`, as the findings' margins do.

| truth | margins of a part over trainings |
|---|---|
| coin | normal around 0: neither true nor false, so that every decisive word is wrong |
| toss | clearly true or clearly false in each training, by the toss of a coin; as far from normal as can be |
| weak link | one part is such a coin, the others are true by 5 standard deviations: "holds" is wrong |
| weak toss | one part is tossed, the others are true: no rule but silence is safe here below five trainings |
| true d | normal, true by d standard deviations: "does not hold" is wrong |
| true 90 % | clearly true in 90 % of trainings, clearly false in the others |
| half | half of the parts true by 5, half false by 5: "holds" and "does not hold" are wrong |
"""

import argparse
import json
from pathlib import Path

import numpy as np

from repflow.core.verdict import DOES_NOT, HOLDS, OPEN, PARTLY, WORDS, Part, decide, power, settle

PARTS, TRAININGS = (2, 4), (3, 4, 6, 8)
SHAPES = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "skewed": lambda rng, shape: np.exp(rng.standard_normal(shape)) - 1,
    "heavy tails": lambda rng, shape: rng.standard_t(3, shape),
    "flat": lambda rng, shape: rng.uniform(-1, 1, shape),
    "alike in all parts": lambda rng, shape: np.broadcast_to(rng.standard_normal((shape[0], 1, shape[2])), shape),
}
"""Spread of margins over trainings, as many above zero as below; shape (draw, part, training)."""
STRONG, CLEAR = 5.0, 0.1


def tossed(rng, shape, share=0.5):
    """Margins near 1 with a probability, else near -1."""
    return np.where(rng.random(shape) < share, 1.0, -1.0) + CLEAR * rng.standard_normal(shape)


def margins(truth, rng, shape, noise="normal"):
    """Margins of a truth, shape (draw, part, training)."""
    if truth == "toss":
        return tossed(rng, shape)
    if truth == "true 90 %":
        return tossed(rng, shape, 0.9)
    made = SHAPES[noise](rng, shape).copy()
    if truth in ("weak link", "weak toss"):
        made[:, 1:] += STRONG
        if truth == "weak toss":
            made[:, 0] = tossed(rng, made[:, 0].shape)
    elif truth == "half":
        made += np.where(np.arange(shape[1]) % 2, STRONG, -STRONG)[:, None]
    elif truth.startswith("true"):
        made += float(truth.split()[1])
    return made


def wrong_words(truth):
    """Decisive words that are wrong of a truth."""
    return (DOES_NOT,) if truth.startswith("true") else (HOLDS, DOES_NOT)


def rates(truth, parts, trainings, *, draws=4000, noise="normal", seed=0):
    """Share of draws that each word is given in, and of wrong decisive ones."""
    drawn = margins(truth, np.random.default_rng(seed), (draws, parts, trainings), noise)
    words = [
        decide([Part("", *settle(row)) for row in claim], asked=trainings, trainings=trainings, units=trainings).word
        for claim in drawn.tolist()
    ]
    found = {word: words.count(word) / draws for word in WORDS}
    return {**found, "wrong": sum(found[word] for word in wrong_words(truth))}


def cases():
    """Truth, parts, trainings and spread of every row."""
    for truth in ("coin", "toss", "weak link", "weak toss", "half", "true 1", "true 2", "true 5", "true 90 %"):
        for parts in PARTS:
            for trainings in TRAININGS:
                for noise in SHAPES if truth in ("coin", "weak link") else ("normal",):
                    yield truth, parts, trainings, noise


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--json", type=Path, help="file to write the table to")
    arguments = parser.parse_args()
    rows = []
    print("| truth | spread | parts | trainings | holds | partly | does not | open | wrong decisive | power at 2 |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for truth, parts, trainings, noise in cases():
        found = rates(truth, parts, trainings, draws=arguments.draws, noise=noise)
        row = {"truth": truth, "spread": noise, "parts": parts, "trainings": trainings, **found}
        row["power"] = round(power(parts, trainings), 4)
        rows.append(row)
        told = (found[HOLDS], found[PARTLY], found[DOES_NOT], found[OPEN], found["wrong"], row["power"])
        print(f"| {truth} | {noise} | {parts} | {trainings} | " + " | ".join(f"{share:.1%}" for share in told) + " |")
    if arguments.json:
        lines = ",\n".join(json.dumps(row) for row in rows)
        arguments.json.write_text(f'{{"draws": {arguments.draws}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
