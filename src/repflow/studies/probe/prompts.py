"""Prompts of every seed of a probe: redrawn for each, or the same for all; labels that mean the same in all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, teach
from repflow.core.results import Finding
from repflow.core.tasks import LABELLED
from repflow.studies.engine.prompts import make_prompts
from repflow.studies.probe.classes import rare_classes, rare_findings
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.probe.groups import Groups

if TYPE_CHECKING:
    from repflow.models import Model
    from repflow.tasks import Prompts

KEPT_TOKENS = 20_000_000
"""Prompts of all seeds stay in memory up to this many tokens; beyond it they are made again when they are needed."""


@dataclass
class SeedPrompts:
    """Prompts per seed.

    Attributes:
        parts: for each seed, the number of its prompts: seeds with the same prompts share one.
        classes: name of each class, the same for all seeds.
        digests: digest of each part.
        samples: number of prompts of each part.
        make: makes a part again.
        items: pairs or documents per prompt, None where the task has none.
        findings: classes that were joined or left out, and what the task itself found.
    """

    parts: list[int]
    classes: tuple[str, ...]
    digests: list[str]
    samples: list[int]
    make: Callable[[int], Prompts]
    items: int | None = None
    findings: list[Finding] = field(default_factory=list)
    _kept: dict[int, Prompts] = field(default_factory=dict)

    def part(self, number: int) -> Prompts:
        """Prompts of one part."""
        return self._kept[number] if number in self._kept else self.make(number)

    def seeds_of(self, number: int) -> list[int]:
        """Seeds that read this part."""
        return [seed for seed, part in enumerate(self.parts) if part == number]

    @property
    def n_parts(self) -> int:
        """Number of different sets of prompts."""
        return len(self.digests)

    def digest(self) -> str:
        """Digest of everything that the seeds read, labels included."""
        return hashlib.sha256("|".join([*self.digests, *map(str, self.parts), *self.classes]).encode()).hexdigest()


def given_seed_prompts(prompts: Prompts | Sequence[Prompts], seeds: int, *, join: bool = False) -> SeedPrompts:
    """Ready prompts: one set for all seeds, or one for each; `join` joins classes that are too small to split."""
    from repflow.tasks import Prompts

    sets = [prompts] if isinstance(prompts, Prompts) else list(prompts)
    if len(sets) not in (1, seeds):
        raise InputError(teach(f"prompts for one or for {seeds} seeds", f"{len(sets)}", "pass seeds=... as many"))
    return _collect(sets.__getitem__, len(sets), seeds, join)


def seed_prompts(config: ProbeConfig, model: Model, task: Any = None) -> SeedPrompts:
    """Make the prompts of all seeds with the same number of items, and so of classes, in each.

    Args:
        config: what to make.
        model: whose tokenizer the prompts are for.
        task: a Task object, instead of `config.task`.
    """
    count = config.seeds if config.seeds_vary == "all" else 1
    join = config.label == "answer"  # first symbols are as rare as they are; indices are balanced

    def make(number: int, items: int | None = config.items) -> Prompts:
        mine: Any = replace(config, seed=config.seed + number, items=items)
        return make_prompts(mine, model, task)

    collected = _collect(make, count, config.seeds, join)
    if collected is not None:
        return collected
    # other prompts of the same length may hold one pair more or less: all seeds take what fits all of them
    fewest = min(_items(make(number)) for number in range(count))
    again = _collect(lambda number: make(number, fewest), count, config.seeds, join)
    if again is None:
        raise InputError(teach("the same items in the prompts of all seeds", "different ones", "pass --items"))
    return again


def _collect(make: Callable[[int], Prompts], count: int, seeds: int, join: bool) -> Any:
    """Go through all prompts once; None where seeds differ in their number of items."""
    digests: list[str] = []
    numbers: list[int] = []  # part → seed that made it
    parts: list[int] = []
    labels: list[list[str]] = []  # class name of each prompt, by part
    groups = Groups()
    names: list[tuple[str, ...]] = []
    items: set[int] = set()
    cached: dict[int, Prompts] = {}
    notes: list[Finding] = []
    tokens = 0
    for number in range(count):
        prompts = check_labels(make(number))
        digest = _digest(prompts)
        if digest not in digests:
            digests.append(digest)
            numbers.append(number)
            groups.add(prompts)
            tokens += sum(prompts.lengths)
            cached[len(digests) - 1] = prompts
            names.append(class_names(prompts))
            labels.append([names[-1][prompt.label or 0] for prompt in prompts])
            notes += prompts.findings
            items.add(_items(prompts))
        if tokens > KEPT_TOKENS:
            cached.clear()
        parts.append(digests.index(digest))
    if len(items) > 1:
        return None
    classes = names[0] if len(set(names)) == 1 else tuple(sorted({name for entry in names for name in entry}))
    moved = rare_classes(labels, groups.parts()) if join else {}
    classes = tuple(dict.fromkeys(new for name in classes if (new := moved.get(name, name)) is not None))
    samples = [sum(moved.get(name, name) is not None for name in part) for part in labels]

    def again(part: int) -> Prompts:
        return _renamed(check_labels(make(numbers[part])), classes, moved)

    cached = {part: _renamed(prompts, classes, moved) for part, prompts in cached.items()}
    whole = parts * seeds if count == 1 else parts
    findings = [*rare_findings(labels, moved), *notes]
    return SeedPrompts(whole, classes, digests, samples, again, items.pop() or None, findings, cached)


def _items(prompts: Prompts) -> int:
    return prompts[0].items or 0


def check_labels(prompts: Prompts) -> Prompts:
    """Refuse prompts without labels."""
    without = [sample for sample, prompt in enumerate(prompts) if prompt.label is None]
    if without or not len(prompts):
        got = f"none in sample {without[0]}" if without else "no prompts"
        raise InputError(
            teach("a label for every prompt", got, f"use {', '.join(LABELLED[:-1])} or a JSONL with labels")
        )
    return prompts


def class_names(prompts: Prompts) -> tuple[str, ...]:
    """Name of each class; its number where the task gives none."""
    highest = max(prompt.label or 0 for prompt in prompts)
    if len(prompts.classes) > highest:
        return prompts.classes
    return tuple(map(str, range(highest + 1)))


def _renamed(prompts: Prompts, classes: tuple[str, ...], moved: Mapping[str, str | None]) -> Prompts:
    """The same prompts with labels that count into `classes`; those of a class moved to None are left out."""
    own = class_names(prompts)
    if own == classes:
        return replace(prompts, classes=classes)
    place = {name: number for number, name in enumerate(classes)}
    new = [moved.get(own[prompt.label or 0], own[prompt.label or 0]) for prompt in prompts]
    renamed = [replace(p, label=place[name]) for p, name in zip(prompts, new, strict=True) if name is not None]
    return replace(prompts, samples=tuple(renamed), classes=classes)


def _digest(prompts: Prompts) -> str:
    """Digest of ids, labels and groups: all that a probe depends on."""
    state = hashlib.sha256(prompts.digest().encode())
    for prompt in prompts:
        state.update(f"{prompt.label}|{prompt.group}|{prompt.key}|{prompt.answers}\n".encode())
    return state.hexdigest()
