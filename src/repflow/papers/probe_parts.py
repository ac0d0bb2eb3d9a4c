"""Parts of paper 1's findings on probes, context length and model size; see `repflow.papers.claims`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from repflow.core.intervals import normal_quantile
from repflow.papers.claims import FAMILIES, NO_ENDS, Clause, Ends, Group, mean_of, split_place, values_of
from repflow.papers.reading import SSM, TBM, Probe, Reading
from repflow.papers.thresholds import MARGIN, SIZES, STABLE
from repflow.papers.values import TABLE_2, checkpoint, short_length

LABELS = ("index", "answer")
"""What was probed for: the paper's label first."""
NAMED = {"": "the label", "index": "the gold index", "answer": "the answer's first symbol"}
PLURAL = {TBM: "Transformers", SSM: "state-space models"}
TEST_PROMPTS = "test prompts"
NO_COUNT = "none: the number of test prompts was not stored"
Probes = Sequence[tuple[str, Probe]]


def probes_of(group: Group, family: str, key: str) -> list[tuple[str, Probe]]:
    """Name and probes of a family's models."""
    return [(r.model, r.probes[key]) for r in group.readings if r.family == family and key in r.probes]


def _decodable(group: Group, families: Sequence[str]) -> tuple[str, dict[str, Probes]]:
    """Label that these families hold in some training, the paper's first, and the group's probes that find it.

    The label is the same in all trainings, or their numbers would not be of one thing.
    """
    key = f"/{group.place}"
    everyone = group.everyone or group.readings
    for label in LABELS:
        holders = [
            {r.training for r in everyone if r.family == family and _finds(r, label + key)} for family in families
        ]
        if set.intersection(*holders):
            decodable: dict[str, Probes] = {
                family: [(name, probe) for name, probe in probes_of(group, family, label + key) if probe.decodable]
                for family in families
            }
            return label, decodable
    return "", {family: [] for family in families}


def _finds(reading: Reading, key: str) -> bool:
    return key in reading.probes and reading.probes[key].decodable


def _undecodable(group: Group, families: Sequence[str], label: str) -> str:
    """Why nothing can be said about peaks: for the label judged in all trainings, or for any where there is none."""
    reasons = [
        f"{name} {one} {probe.peak_accuracy:.2f} (chance {probe.chance:.2f})"
        for one in ([label] if label else LABELS)
        for family in families
        for name, probe in probes_of(group, family, f"{one}/{group.place}")
    ]
    who = " and ".join(PLURAL[family] for family in families)
    if not reasons:
        return f"no probes of {who} on one task and length"
    what = f"{NAMED[label]} is not" if label else "nothing is"
    return f"{what} decodable above chance in {who}: {', '.join(reasons)}"


def _mean_ends(ends: Sequence[Ends], values: Sequence[float]) -> Ends:
    """Interval of a mean of numbers with intervals of their own."""
    half = math.sqrt(sum(((high - low) / 2) ** 2 for low, high in ends)) / len(ends)
    middle = float(np.mean([sum(pair) / 2 for pair in ends]))  # an interval need not lie around its value
    return (middle - half, middle + half) if math.isfinite(half) and values else NO_ENDS


def _drops(group: Group, family: str) -> Clause:
    """Whether an earlier state beats the last in one family, wherever one of its models holds a label."""
    label, decodable = _decodable(group, [family])
    of = NAMED[label]
    text = f"{PLURAL[family]}: an earlier state beats the last for {of}; less than {MARGIN} counts as none"
    drops = [(name, probe.drop) for name, probe in decodable[family]]
    if not drops:
        return Clause(text, group.training, _undecodable(group, [family], label))
    ends = {name: probe.drop_ends for name, probe in decodable[family]}
    interval = _mean_ends(list(ends.values()), values_of(drops))
    over = TEST_PROMPTS if np.isfinite(interval).all() else NO_COUNT
    what = f"peak minus last for {of}"
    return group.answer(text, what, drops, mean_of(drops), interval, over, ends=ends, zone=MARGIN)


def _lose_less(group: Group) -> Clause:
    """Whether state-space models lose less than Transformers, of one label that both hold."""
    label, decodable = _decodable(group, FAMILIES)
    text = "state-space models lose less from the peak to the last state"
    drops = {family: [(name, probe.drop) for name, probe in decodable[family]] for family in FAMILIES}
    if not all(drops.values()):
        return Clause(text, group.training, _undecodable(group, FAMILIES, label))
    ends = {name: probe.drop_ends for probes in decodable.values() for name, probe in probes}
    tbm, ssm = (_mean_ends([ends[name] for name, _ in drops[family]], values_of(drops[family])) for family in FAMILIES)
    half = math.hypot(tbm[1] - tbm[0], ssm[1] - ssm[0]) / 2
    middle = (tbm[0] + tbm[1] - ssm[0] - ssm[1]) / 2
    interval = (middle - half, middle + half)
    over = TEST_PROMPTS if math.isfinite(half) else NO_COUNT
    margin = mean_of(drops[TBM]) - mean_of(drops[SSM])
    what, named = f"peak minus last for {NAMED[label]}", [*drops[TBM], *drops[SSM]]
    return group.answer(text, what, named, margin, interval, over, ends=ends)


def intermediate_peak(group: Group) -> list[Clause]:
    """F 3.4.1, on linear probes: each family wherever its label is decodable, the contrast where both are."""
    return [_drops(group, TBM), _drops(group, SSM), _lose_less(group)]


def printed_contrast(place: str) -> str:
    """What the paper's own Table 2 says about F 3.4.1's contrast on this task; "" where it has no such task.

    >>> printed_contrast("kvpr/256")
    "the paper's own Table 2 contradicts it on kvpr at n = 300, 1K, 2K: the mean loss of SSMs exceeds that of TBMs"
    """
    task = split_place(place)[0] if place else ""
    cells = [cell for cell in TABLE_2.values() if cell.task == task]
    against = []
    for length in dict.fromkeys(cell.length for cell in cells):
        loss = {
            family: [c.drop for c in cells if c.length == length and checkpoint(c.model).family == family]
            for family in FAMILIES
        }
        if all(loss.values()) and np.mean(loss[SSM]) > np.mean(loss[TBM]):
            against.append(short_length(length))
    if not against:
        return ""
    where = f"on {task} at n = {', '.join(against)}"
    return f"the paper's own Table 2 contradicts it {where}: the mean loss of SSMs exceeds that of TBMs"


def _lengths(group: Group) -> list[str]:
    """Places of the group's task, by length."""
    task = split_place(group.place)[0] if group.place else ""
    places = [set(reading.trained) for reading in group.readings]
    shared = set.intersection(*places) if places else set()
    return sorted((place for place in shared if split_place(place)[0] == task), key=lambda place: split_place(place)[1])


def context_length(group: Group) -> list[Clause]:
    """F 3.4.2, from the shortest to the longest prompts of the task."""
    places = _lengths(group)
    few = "one length only; it takes two (repflow demo --full)"
    if len(places) < 2:
        n, ends = "", ("", "")
    else:
        ends = (places[0], places[-1])
        n = f" from n = {split_place(ends[0])[1]} to {split_place(ends[1])[1]}"

    def changes(now: Group, letters: str = "") -> list[tuple[str, float]]:
        rows = []
        for reading in now.readings:
            if all(place in reading.trained for place in ends):
                short, long = (reading.trained[place] for place in ends)
                for name, letter in (("smoothness", "Sm"), ("stability", "St")):
                    change = abs(getattr(long, name) / getattr(short, name) - 1)
                    rows += [(f"{letter} {reading.model}", change)] if letters in ("", letter) else []
        return rows

    steady = group.ask(
        f"Sm and St change by ≤ {100 * STABLE:.1f} %{n}",
        "relative change",
        changes,
        lambda now: STABLE - max(mean_of(changes(now, letters)) for letters in ("Sm", "St")),
        few,
    )
    return [steady, *(_falls(group, family, ends, n, few) for family in FAMILIES)]


def _falls(group: Group, family: str, ends: tuple[str, str], n: str, few: str) -> Clause:
    """Whether the last state of a family's models reads less of longer prompts, wherever a label is decodable."""
    text = f"{PLURAL[family]}: the last state's chance-corrected accuracy falls{n}; less than {MARGIN} counts as none"
    if not ends[0]:
        return Clause(text, group.training, few)
    falls, intervals = [], {}
    for reading in group.readings:
        if reading.family == family and (pair := _pair(reading, ends)):
            label, short, long = pair
            name, fall = f"{label} {reading.model}", short.corrected_last - long.corrected_last
            half = normal_quantile() * math.hypot(short.corrected_error, long.corrected_error)
            falls.append((name, fall))
            intervals[name] = (fall - half, fall + half)
    if not falls:
        why = f"no probes of {PLURAL[family]} at two lengths that find anything above chance at the shorter"
        return Clause(text, group.training, why)
    interval = _mean_ends(list(intervals.values()), values_of(falls))
    over = TEST_PROMPTS if np.isfinite(interval).all() else NO_COUNT
    what = "fall of the corrected accuracy"
    return group.answer(text, what, falls, mean_of(falls), interval, over, ends=intervals, zone=MARGIN)


def _pair(reading: Reading, ends: tuple[str, str]) -> tuple[str, Probe, Probe] | None:
    """Label and probes at both lengths, of the first label that is decodable at the shorter."""
    for label in LABELS:
        short, long = (reading.probes.get(f"{label}/{place}") for place in ends)
        if short is not None and long is not None and short.decodable:
            return label, short, long
    return None


def model_size(group: Group) -> list[Clause]:
    """F 3.4.3, on two sizes of one architecture."""
    missing = "all models are of one size: it takes two of one architecture, probed alike"
    pairs = []
    ordered = sorted([*group.readings, *group.sizes], key=lambda reading: reading.parameters)
    for small, large in itertools.combinations(ordered, 2):
        if small.kind != large.kind or large.parameters < SIZES * small.parameters:
            continue
        for key in sorted(small.probes.keys() & large.probes.keys()):
            a, b = small.probes[key], large.probes[key]
            if a.decodable or b.decodable:
                pairs.append((f"{large.model} over {small.model}, {key}", a, b))
    gains = [(name, b.corrected_last - a.corrected_last) for name, a, b in pairs]
    losses = [(name, b.drop - a.drop) for name, a, b in pairs]
    spread = {name: normal_quantile() * math.hypot(a.corrected_error, b.corrected_error) for name, a, b in pairs}
    wider = {
        name: math.hypot(*((probe.drop_ends[1] - probe.drop_ends[0]) / 2 for probe in (a, b))) for name, a, b in pairs
    }
    return [
        _larger(group, "the larger model's last state probes better", "gain", gains, spread, missing),
        _larger(group, "but loses more from its peak", "larger drop", losses, wider, missing),
    ]


def _larger(
    group: Group, text: str, what: str, values: list[tuple[str, float]], halves: dict[str, float], missing: str
) -> Clause:
    if not values or not np.isfinite(values_of(values)).all():
        return Clause(text, group.training, missing)
    ends = {name: (value - halves[name], value + halves[name]) for name, value in values}
    interval = _mean_ends(list(ends.values()), values_of(values))
    over = TEST_PROMPTS if np.isfinite(interval).all() else NO_COUNT
    return group.answer(text, what, values, mean_of(values), interval, over, ends=ends, zone=MARGIN)
