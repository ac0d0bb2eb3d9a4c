"""Parts of paper 1's findings on probes, context length and model size; see `repflow.paper_parts`."""

from __future__ import annotations

import itertools
from functools import partial

from repflow.paper_parts import FAMILIES, MARGIN, SIZES, STABLE, Clause, Group, both, split_place, values_of
from repflow.paper_reading import SSM, TBM, Probe

LABELS = ("index", "answer")
"""What was probed for: the paper's label first."""
NAMED = {"": "the label", "index": "the gold index", "answer": "the answer's first symbol"}


def _probes(group: Group) -> tuple[str, dict[str, list[tuple[str, Probe]]]]:
    """Label that is decodable in both families, the paper's first, and the probes of it at the group's place."""
    for label in LABELS:
        found = {family: probes_of(group, family, f"{label}/{group.place}") for family in FAMILIES}
        if all(any(probe.decodable for _, probe in found[family]) for family in FAMILIES):
            kept = {family: [(n, probe) for n, probe in found[family] if probe.decodable] for family in FAMILIES}
            return label, kept
    return "", {}


def probes_of(group: Group, family: str, key: str) -> list[tuple[str, Probe]]:
    """Name and probes of a family's models."""
    return [(r.model, r.probes[key]) for r in group.readings if r.family == family and key in r.probes]


def _undecodable(group: Group) -> str:
    """Why nothing can be said of peaks."""
    told = [
        f"{name} {label} {probe.peak_accuracy:.2f} (chance {probe.chance:.2f})"
        for label in LABELS
        for family in FAMILIES
        for name, probe in probes_of(group, family, f"{label}/{group.place}")
    ]
    if not told:
        return "no probes of a Transformer and a state-space model on one task and length"
    return f"nothing is decodable above chance in both families: {', '.join(told)}"


def _all_drop(probes: list[tuple[str, Probe]]) -> bool | None:
    """Whether every peak lies above the last state; None where an interval holds both 0 and a drop that counts."""
    if any(probe.drop_low <= 0 and probe.drop_high < MARGIN for _, probe in probes):
        return False
    return True if all(probe.drop_low > 0 for _, probe in probes) else None


def _lose_less(found: dict[str, list[tuple[str, Probe]]]) -> bool | None:
    """Whether every state-space model's drop lies below every Transformer's, interval against interval."""
    pairs = [(ssm, tbm) for _, ssm in found[SSM] for _, tbm in found[TBM]]
    if any(ssm.drop_low > tbm.drop_high for ssm, tbm in pairs):
        return False
    return True if all(ssm.drop_high < tbm.drop_low for ssm, tbm in pairs) else None


def intermediate_peak(group: Group) -> list[Clause]:
    """F 3.4.1, on linear probes."""
    label, found = _probes(group)
    missing = _undecodable(group)
    drops = {family: [(name, probe.drop) for name, probe in found.get(family, [])] for family in FAMILIES}
    ends = {name: (probe.drop_low, probe.drop_high) for probes in found.values() for name, probe in probes}
    of = NAMED[label]
    clauses = []
    for family, plural in ((TBM, "Transformers"), (SSM, "state-space models")):
        clauses.append(
            group.clause(
                f"{plural}: an earlier state beats the last for {of}, its interval above 0",
                f"peak minus last for {of}",
                drops[family],
                partial(_all_drop, found.get(family, [])),
                missing,
                ends,
            )
        )
    smaller = group.clause(
        "state-space models lose less from the peak to the last state",
        f"peak minus last for {of}",
        both(drops),
        partial(_lose_less, found),
        missing,
        ends,
    )
    return [*clauses, smaller]


def _lengths(group: Group) -> list[str]:
    """Places of the group's task, by length."""
    task = split_place(group.place)[0] if group.place else ""
    held = [set(reading.trained) for reading in group.readings]
    shared = set.intersection(*held) if held else set()
    return sorted((place for place in shared if split_place(place)[0] == task), key=lambda place: split_place(place)[1])


def context_length(group: Group) -> list[Clause]:
    """F 3.4.2, from the shortest to the longest prompts of the task."""
    places = _lengths(group)
    few = "one length only; it takes two (repflow demo --full)"
    ends = (places[0], places[-1]) if len(places) > 1 else None
    changes: list[tuple[str, float]] = []
    falls: list[tuple[str, float]] = []
    for reading in group.readings if ends else ():
        short, long = (reading.trained[place] for place in ends or ())
        for name, letters in (("smoothness", "Sm"), ("stability", "St")):
            a, b = getattr(short, name), getattr(long, name)
            changes.append((f"{letters} {reading.model}", abs(b / a - 1)))
        for label in LABELS:
            pair = [reading.probes.get(f"{label}/{place}") for place in ends or ()]
            if pair[0] is not None and pair[1] is not None and pair[0].decodable:
                fall = pair[0].corrected_last - pair[1].corrected_last
                falls.append((f"{label} {reading.model}", fall))
    n = f" from n = {split_place(ends[0])[1]} to {split_place(ends[1])[1]}" if ends else ""
    undecodable = few if ends is None else "no probes at two lengths that find anything above chance at the shorter"
    return [
        group.clause(
            f"Sm and St change by ≤ {100 * STABLE:.0f} %{n}",
            "relative change",
            changes,
            lambda: max(values_of(changes)) <= STABLE,
            few,
        ),
        group.clause(
            f"the last state's accuracy, corrected for chance, falls by ≥ {MARGIN}{n}",
            "fall of the corrected accuracy",
            falls,
            lambda: min(values_of(falls)) >= MARGIN,
            undecodable,
        ),
    ]


def model_size(group: Group) -> list[Clause]:
    """F 3.4.3, on two sizes of one architecture."""
    missing = "all models are of one size: it takes two of one architecture, probed alike"
    gains: list[tuple[str, float]] = []
    losses: list[tuple[str, float]] = []
    ordered = sorted(group.readings, key=lambda reading: reading.parameters)
    for small, large in itertools.combinations(ordered, 2):
        if small.kind != large.kind or large.parameters < SIZES * small.parameters:
            continue
        for key in small.probes.keys() & large.probes.keys():
            a, b = small.probes[key], large.probes[key]
            if a.decodable or b.decodable:
                name = f"{large.model} over {small.model}, {key}"
                gains.append((name, b.last_accuracy - a.last_accuracy))
                losses.append((name, b.drop - a.drop))
    return [
        group.clause(
            "the larger model's last state probes better", "gain", gains, lambda: min(values_of(gains)) > 0, missing
        ),
        group.clause(
            "but loses more from its peak", "larger drop", losses, lambda: min(values_of(losses)) > 0, missing
        ),
    ]
