"""How often the 95 % intervals of `repflow.core.intervals` hold the truth, on values whose truth is known.

    python benchmarks/coverage.py [--trials 40000] [--json FILE]

| values | truth | drawn as |
|---|---|---|
| normal | mean 1 | normal, mean 1, standard deviation 0.2 |
| lognormal | mean exp(1/2) | exponential of a standard normal |
| lognormal, median | median 1 | the same, for the interval of a geometric mean |
| exponential | mean 1 | exponential |
| weak rate | mean 1 | normal, mean 1, standard deviation 3: a decay that few prompts can show |
| 8 probes | 1 | means of chi-squares by their degrees of freedom: ‖vᵀJ‖² of a Jacobian of so many equal directions |

The percentile bootstrap is what repflow used before.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from repflow.core.intervals import (
    Band,
    normal_quantile,
    positive_interval,
    rate_interval,
    student_interval,
    student_quantile,
)

COUNTS = (2, 3, 4, 8, 16, 64)
DRAWS = 1000
PROBES, RANKS = 8, (1, 2, 4, 16, 64)
VALUES = {
    "normal": (1.0, lambda rng, shape: rng.normal(1.0, 0.2, shape)),
    "lognormal": (float(np.exp(0.5)), lambda rng, shape: rng.lognormal(0.0, 1.0, shape)),
    "lognormal, median": (1.0, lambda rng, shape: rng.lognormal(0.0, 1.0, shape)),
    "exponential": (1.0, lambda rng, shape: rng.exponential(1.0, shape)),
    "weak rate": (1.0, lambda rng, shape: rng.normal(1.0, 3.0, shape)),
}
"""Truth, and (prompt, trial) values."""


def percentile_bootstrap(values, chunk=2000):
    """Percentiles of resampled means; all trials share their draws, which changes nothing for any one of them."""
    count = len(values)
    weights = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=DRAWS) / count
    parts = range(0, values.shape[1], chunk)
    ends = [np.quantile(weights @ values[:, at : at + chunk], [0.025, 0.975], axis=0) for at in parts]
    low, high = np.concatenate(ends, axis=1)
    return Band(values.mean(0), low, high)


METHODS = {
    "percentile bootstrap": percentile_bootstrap,
    "Student": student_interval,
    "Student, log": lambda values: student_interval(values, log=True),
    "positive": positive_interval,
    "rate": rate_interval,
}
OF_MEANS = ("percentile bootstrap", "Student", "positive", "rate")
RUNS = [
    *[(method, values) for values in ("normal", "lognormal", "exponential") for method in OF_MEANS],
    ("Student, log", "lognormal, median"),
    ("Student", "weak rate"),
    ("rate", "weak rate"),
]


def coverage(method, values, count, trials, seed=0):
    """Share of trials whose interval holds the truth; NaN where the method gives none."""
    truth, draw = VALUES[values]
    band = METHODS[method](draw(np.random.default_rng([seed, count]), (count, trials)))
    held = (band.low <= truth) & (band.high >= truth)
    return float(held.mean()) if np.isfinite(band.low).any() else float("nan")


def probe_coverage(rank, trials, seed=0):
    """Coverage of ln influence ± quantile · its standard error from eight probes: normal quantile, Student's."""
    squares = np.random.default_rng([seed, rank]).chisquare(rank, (PROBES, trials)) / rank
    mean, error = squares.mean(0), squares.std(0, ddof=1) / np.sqrt(PROBES)
    away = np.abs(0.5 * np.log(mean)) / (error / (2 * mean))
    return [float((away <= limit).mean()) for limit in (normal_quantile(), float(student_quantile(PROBES - 1)))]


def measure(trials):
    """Every row, as stored."""
    rows = [
        {"method": method, "values": values, "coverage": [_plain(coverage(method, values, n, trials)) for n in COUNTS]}
        for method, values in RUNS
    ]
    probes = {str(rank): [round(share, 4) for share in probe_coverage(rank, trials)] for rank in RANKS}
    return {"trials": trials, "counts": list(COUNTS), "rows": rows, "probes": probes}


def _plain(share):
    return round(share, 4) if np.isfinite(share) else None


def table(made):
    """Coverage in percent, as docs/concepts.md prints it.

    >>> row = {"method": "Student", "values": "normal", "coverage": [None, 0.9512]}
    >>> print(table({"counts": [2, 3], "rows": [row]}))
    | values | interval | 2 | 3 |
    |---|---|---|---|
    | normal | Student | – | 95.1 |
    """
    head = ["values", "interval", *map(str, made["counts"])]
    lines = [head, ["---"] * len(head)]
    for row in made["rows"]:
        cells = ["–" if share is None else f"{100 * share:.1f}" for share in row["coverage"]]
        lines.append([row["values"], row["method"], *cells])
    shown = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([shown[0], shown[1].replace(" ", ""), *shown[2:]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=40_000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    made = measure(asked.trials)
    print(table(made))
    for rank, (normal, student) in made["probes"].items():
        ends = f"{100 * normal:.1f} % at 1.96 standard errors, {100 * student:.1f} % at 2.365"
        print(f"8 probes, {rank} directions: {ends}")
    if asked.json:
        asked.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
