"""Classes too small to split: joined into one, or left out where even that one is too small."""

from __future__ import annotations

from collections.abc import Sequence

from repflow.core.results import Finding

LEAST = 3
"""Groups a class needs: one each for training, validation and test."""
OTHER = "other"


def rare_classes(labels: Sequence[Sequence[str]], groups: Sequence[Sequence[int]]) -> dict[str, str | None]:
    """New name of each class that some part holds in fewer than three groups: `other`, or None to leave it out.

    Args:
        labels: class name of each prompt, by part.
        groups: group of each prompt, by part.

    >>> rare_classes([["a"] * 3 + ["b", "c", "c"]], [range(6)])
    {'b': 'other', 'c': 'other'}
    >>> rare_classes([["a"] * 3 + ["b"]], [range(4)])
    {'b': None}
    """
    tallies = []
    for names, mine in zip(labels, groups, strict=True):
        groups_of: dict[str, set[int]] = {}
        for name, group in zip(names, mine, strict=True):
            groups_of.setdefault(name, set()).add(group)
        tallies.append(groups_of)
    rare = sorted({name for groups_of in tallies for name, members in groups_of.items() if len(members) < LEAST})
    others = [set[int]().union(*(groups_of.get(name, set()) for name in rare)) for groups_of in tallies]
    new = OTHER if all(not members or len(members) >= LEAST for members in others) else None
    return dict.fromkeys(rare, new)


def rare_findings(labels: Sequence[Sequence[str]], moved: dict[str, str | None]) -> list[Finding]:
    """What was done with the rare classes."""
    if not moved:
        return []
    count = sum(name in moved for part in labels for name in part)
    done = "were left out" if None in moved.values() else f"are one class {OTHER!r}"
    text = f"{count} prompts of {len(moved)} classes in fewer than {LEAST} groups {done}: {', '.join(moved)}"
    return [Finding("rare_classes", None, text)]
