"""Tables of the study of what architecture decides: means over seeds with Student's 95 % intervals.

Variants of one seed read the same batches, so that differences are taken seed by seed before their interval is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from repflow.papers.reading import training_of
from tools.zoo.variants import VARIANTS

T975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}
"""Student's 97.5 % quantile by number of seeds."""
TASKS = ("prose", "kvpr")
PLACE = "kvpr/256"
"""Task and length of the probes that the table shows."""
CURVES = ("token_similarity", "token_similarity_excess")
"""Curves of a cell that its summary keeps."""
PAIRS = (*((name, variant.base) for name, variant in VARIANTS.items() if name != variant.base),
         ("hybrid-mirror", "hybrid"))  # fmt: skip
"""Variants and what they are compared with."""


def interval(values: Sequence[float]) -> str:
    """Mean and half the width of its 95 % interval.

    >>> interval([0.10, 0.20, 0.30])
    '0.20 ± 0.25'
    >>> interval([0.5]), interval([-0.001])
    ('0.50', '0.00')
    """
    known = np.asarray([value for value in values if math.isfinite(value)], dtype=float)
    if not len(known):
        return "not measured"
    mean = f"{known.mean():z.2f}"
    return mean if len(known) not in T975 else f"{mean} ± {half_width(known):.2f}"


def half_width(values: np.ndarray) -> float:
    """Half the width of Student's 95 % interval of a mean."""
    return float(T975[len(values)] * values.std(ddof=1) / math.sqrt(len(values)))


def difference(values: Sequence[float]) -> str:
    """Mean of differences with its interval, marked where that excludes zero.

    >>> difference([0.10, 0.20, 0.30]), difference([0.19, 0.20, 0.21])
    ('+0.200 ± 0.248', '**+0.200 ± 0.025**')
    """
    known = np.asarray(values, dtype=float)
    if len(known) not in T975:
        return "not measured"
    half = half_width(known)
    text = f"{known.mean():+z.3f} ± {half:.3f}"
    return f"**{text}**" if abs(known.mean()) > half else text


def late_rise(similarity: Sequence[float]) -> float:
    """Similarity after the last block less that after the middle one; similarity by state, embedding first.

    >>> round(late_rise([0.1, 0.2, 0.3, 0.4, 0.7]), 2)
    0.4
    """
    return float(similarity[-1]) - float(similarity[len(similarity) // 2])


def last_quarter(similarity: Sequence[float]) -> float:
    """Similarity after the last block less that after three quarters of them: a rise behind a fall in the middle.

    >>> round(last_quarter([0.1, 0.9, 0.3, 0.4, 0.7]), 2)
    0.3
    """
    return float(similarity[-1]) - float(similarity[round(0.75 * (len(similarity) - 1))])


def homogenised(similarity: Sequence[float]) -> float:
    """Relative depth of the state whose tokens are most alike.

    >>> homogenised([0.1, 0.9, 0.3])
    0.5
    """
    return int(np.argmax(similarity)) / (len(similarity) - 1)


def table(cells: list[dict[str, Any]]) -> str:
    """Flow of every variant, then retrieval and read-out, then differences, as Markdown."""
    parts = (flow_table, flow_differences, read_table, read_differences)
    return "\n\n".join(part(cells) for part in parts)


def compact(cell: dict[str, Any]) -> dict[str, Any]:
    """What the tables need of a cell, in the cell's own shape: curves before and after, retrieval, loss, probes."""
    record = cell["record"]
    facts = {name: record[name] for name in ("parameters", "steps", "tokens", "device_name")}
    flow = [
        {"step": entry["step"]} | {task: {name: _short(entry[task][name]) for name in CURVES} for task in TASKS}
        for entry in (record["flow"][0], record["flow"][-1])
    ]
    short = {name: cell[name] for name in ("variant", "factor", "seed", "evaluation")}
    short["record"] = {**facts, "flow": flow}
    if "reading" in cell:
        probes = cell["reading"]["probes"]
        short["reading"] = {"probes": {name: {"accuracy": _short(probes[name]["accuracy"])} for name in probes}}
    return short


def fault(cell: Any) -> str:
    """What keeps a cell from its tables and its summary; "" where nothing does.

    >>> fault(3), fault({"seed": 0})
    ('3', "no 'variant'")
    """
    if not isinstance(cell, dict):
        return f"{cell!r:.40}"
    try:
        if cell["variant"] not in VARIANTS:
            return f"the unknown variant {cell['variant']!r}"
        if not isinstance(cell["seed"], int):
            return f"the seed {cell['seed']!r}"
        compact(cell), settings(cell), flow_table([cell]), read_table([cell])
    except KeyError as error:
        return f"no {error}"
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return f"what cannot be read ({error})"
    return ""


def settings(cell: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name of a cell, and by words what cells of one table share; a summary keeps fewer of them."""
    record, facts = cell["record"], {"steps": cell["record"]["steps"]}
    if config := record.get("config"):
        facts |= {"batch": config["batches"]["batch"], "size": config["size"], "data": training_of(record).data}
    facts["tokens"] = record["tokens"]
    facts[f"parameters of {cell['variant']}"] = record["parameters"]
    sets = cell["evaluation"]["retrieval"]
    facts["held-out prompts"] = prompt_counts({name: counts["of"] for name, counts in sets.items()})
    if "prompts" in cell:
        facts["prompts of the probes"] = cell["prompts"]
    return f"{cell['variant']} with seed {cell['seed']}", facts


def prompt_counts(sets: Mapping[str, int]) -> str:
    """Numbers of held-out prompts in words.

    >>> prompt_counts({"kvpr-512": 200, "kvpr-256": 100})
    '100 of kvpr-256, 200 of kvpr-512'
    """
    return ", ".join(f"{count} of {name}" for name, count in sorted(sets.items()))


def _short(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _of(cells: list[dict[str, Any]], variant: str) -> list[dict[str, Any]]:
    return [cell for cell in cells if cell["variant"] == variant]


def _similarity(cell: dict[str, Any], task: str, when: int, name: str = CURVES[0]) -> list[float]:
    curve: list[float] = cell["record"]["flow"][when][task][name]
    return curve


def flow_table(cells: list[dict[str, Any]]) -> str:
    """Similarity between tokens by depth, after and before training."""
    heads = ("variant", "changed", "seeds", "prompts", "first block", "middle", "last block", "late rise",
             "last quarter", "most alike at depth", "excess at the last block",
             "last block before training")  # fmt: skip
    lines = [_row(heads), "|" + "---|" * len(heads)]
    for variant in VARIANTS:
        mine = _of(cells, variant)
        for task in TASKS if mine else ():
            curves = [_similarity(cell, task, -1) for cell in mine]
            values = [
                [curve[1] for curve in curves],
                [curve[len(curve) // 2] for curve in curves],
                [curve[-1] for curve in curves],
                [late_rise(curve) for curve in curves],
                [last_quarter(curve) for curve in curves],
                [homogenised(curve) for curve in curves],
                [_similarity(cell, task, -1, "token_similarity_excess")[-1] for cell in mine],
                [_similarity(cell, task, 0)[-1] for cell in mine],
            ]
            columns = [interval(column) for column in values]
            lines.append(_row([variant, VARIANTS[variant].factor, str(len(mine)), task, *columns]))
    return "\n".join(lines)


def read_table(cells: list[dict[str, Any]]) -> str:
    """Retrieval of whole values, loss on prose, and probes."""
    sets = sorted({name for cell in cells for name in cell["evaluation"]["retrieval"]})
    heads = ("variant", *sets, "prose, nats", "best probe of the answer", "at the last block",
             "best probe of the index", "at the last block")  # fmt: skip
    lines = [_row(heads), "|" + "---|" * len(heads)]
    for variant in VARIANTS:
        mine = _of(cells, variant)
        if not mine:
            continue
        columns = [interval([_share(cell, name) for cell in mine]) for name in sets]
        columns.append(interval([cell["evaluation"]["prose"]["nats_per_token"] for cell in mine]))
        probed = [cell["reading"]["probes"] for cell in mine if "reading" in cell]
        for label in ("answer", "index"):
            accuracies = [probes[f"{label}/{PLACE}"]["accuracy"] for probes in probed]
            columns += [interval([max(curve) for curve in accuracies]), interval([curve[-1] for curve in accuracies])]
        lines.append(_row([variant, *columns]))
    return "\n".join(lines)


def _share(cell: dict[str, Any], name: str) -> float:
    counts = cell["evaluation"]["retrieval"][name]
    return float(counts["exact"]) / float(counts["of"])


def flow_differences(cells: list[dict[str, Any]]) -> str:
    """Similarity between tokens of each variant less that of what it is compared with, seed by seed."""
    numbers: dict[str, Callable[[Sequence[float]], float]] = {
        "first block": lambda curve: curve[1],
        "last block": lambda curve: curve[-1],
        "late rise": late_rise,
        "last quarter": last_quarter,
    }
    return _difference_table(
        cells,
        {
            f"{words}, {task}": partial(_flow_number, task=task, number=number)
            for task in TASKS
            for words, number in numbers.items()
        },
    )


def read_differences(cells: list[dict[str, Any]]) -> str:
    """Retrieval, loss and probes of each variant less those of what it is compared with, seed by seed."""
    return _difference_table(
        cells,
        {
            **{name: partial(_share, name=name) for name in sorted(cells[0]["evaluation"]["retrieval"])},
            "prose, nats": lambda cell: float(cell["evaluation"]["prose"]["nats_per_token"]),
            "answer at the last block": partial(_last_probe, label="answer"),
            "index at the last block": partial(_last_probe, label="index"),
        },
    )


def _difference_table(cells: list[dict[str, Any]], columns: Mapping[str, Callable[[dict[str, Any]], float]]) -> str:
    lines = [_row(["variant", "less", *columns]), "|" + "---|" * (len(columns) + 2)]
    for variant, base in PAIRS:
        mine, other = ({cell["seed"]: cell for cell in _of(cells, name)} for name in (variant, base))
        seeds = sorted(mine.keys() & other.keys())
        if not seeds:
            continue
        gaps = [[number(mine[seed]) - number(other[seed]) for seed in seeds] for number in columns.values()]
        cells_shown = [difference([value for value in values if math.isfinite(value)]) for values in gaps]
        lines.append(_row([variant, base, *cells_shown]))
    return "\n".join(lines)


def _flow_number(cell: dict[str, Any], task: str, number: Callable[[Sequence[float]], float]) -> float:
    return float(number(_similarity(cell, task, -1)))


def _last_probe(cell: dict[str, Any], label: str) -> float:
    """Accuracy of the last state's probe; NaN where the cell was not probed."""
    probes = cell.get("reading", {}).get("probes", {})
    return float(probes[f"{label}/{PLACE}"]["accuracy"][-1]) if probes else math.nan
