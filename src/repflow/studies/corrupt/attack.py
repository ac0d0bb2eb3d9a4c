"""Attack: can pixels of another class steer a classifier's answer to it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.intervals import proportion_interval, student_interval
from repflow.spec.corruption import FIGURES, RANDOM_PAIR, TARGET, Region, parse_regions
from repflow.studies.corrupt.config import AttackConfig, check, check_targets, names
from repflow.studies.corrupt.piece import Piece
from repflow.studies.corrupt.study import (
    CLEAN,
    EXAMPLE_AXES,
    EXAMPLES,
    CorruptJob,
    ImageStudy,
    image_facts,
    last_region,
)
from repflow.studies.corrupt.summary import image_findings, region_facts
from repflow.studies.engine.naming import Names
from repflow.studies.engine.study import ONE

if TYPE_CHECKING:
    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.studies.corrupt.classifier import Subject

AXES = ("target", "region")


class Attack(ImageStudy):
    """Can pixels of another class steer a classifier's answer to it?"""

    name = "attack"
    config = AttackConfig
    counts = "attacks"
    usual = ()  # no built-in model classifies images
    usual_words = ""
    summary = """Paste pixels of a target class into other images: how often MODELs then name the target.

    Beside the success rate stand the rate without an attack and that of pixels lent by images of any other class. An
    interrupted run resumes when the same command is rerun.
    """

    def check(self, config: AttackConfig) -> None:
        """Refuse wrong options and images."""
        check(config, config.regions)
        check_targets(config.targets)

    def prepare(
        self, config: AttackConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> CorruptJob:
        """Classifier and images; every class needs an image."""
        if ONE in models:
            got = f"{config.model}, a language model"
            raise InputError(teach("a classifier of images", got, "repflow corrupt replaces tokens of text"))
        from repflow.studies.corrupt.classifier import open_subject

        subject = open_subject(config, given)
        regions = _regions(config, subject)
        targets = _targets(config, subject)
        config = replace(config, task="pixels")
        return CorruptJob(config, {}, None, len(regions) * len(targets), subject=subject)

    def pieces(self, job: CorruptJob) -> Sequence[Piece]:
        """Target after target, region after region."""
        config, subject = job.config, job.subject
        tokens = len(subject.images.labels) * subject.tokens
        pieces = [Piece(CLEAN, lambda: {"named": subject.predictions()}, tokens)]
        for target in _targets(config, subject):
            for region in _regions(config, subject):
                read = partial(_hits, config, subject, target, region)
                pieces.append(Piece(_shard(target, region), read, 2 * config.draws * tokens))
        return pieces

    def assembled(self, job: CorruptJob, sink: Sink) -> Result:
        """By target and region."""
        return attack_result(job.config, job.subject, sink)

    def passes(self, config: AttackConfig, tokens: int) -> int:
        """Regions times targets, ten by default, each by the target's pixels and by others."""
        return 2 * len(parse_regions(config.regions or FIGURES, tokens)) * (len(config.targets) or 10)

    def names(self, config: AttackConfig) -> Names:
        """Model, study."""
        return names(config, self.name)


def _regions(config: AttackConfig, subject: Subject) -> list[Region]:
    return parse_regions(config.regions or FIGURES, subject.tokens)


def _targets(config: AttackConfig, subject: Subject) -> list[int]:
    """Numbers of the targets; every one has images that lend pixels, and others that receive them."""
    names = config.targets or list(subject.images.classes)
    targets = subject.images.class_numbers(names)
    for target in targets:
        count = len(subject.sequences.members(target))
        if not 0 < count < len(subject.images):
            name = subject.images.classes[target]
            expected = f"test images of {name} and of other classes"
            raise InputError(teach(expected, f"{count} of {len(subject.images)} of {name}", "raise --samples"))
    return targets


def attack_result(config: AttackConfig, subject: Subject, sink: Sink) -> Result:
    """Success rates by target and region, with base rates and random pairs."""
    from repflow.core.results import Result

    regions, targets, labels = _regions(config, subject), _targets(config, subject), subject.images.labels
    clean = sink.load(CLEAN)["named"]
    hits: dict[str, Any] = {kind: np.empty((len(targets), len(regions), len(labels))) for kind in (TARGET, RANDOM_PAIR)}
    for place, target in enumerate(targets):
        for number, region in enumerate(regions):
            own = sink.load(_shard(target, region))
            for kind, part in hits.items():
                part[place, number] = own[kind].mean(0)
    base = (clean == np.array(targets)[:, None]).astype(np.float64)
    others = labels != np.array(targets)[:, None]
    arrays, axes = _arrays(base, hits[TARGET], hits[RANDOM_PAIR], others)
    arrays["clean_accuracy"], axes["clean_accuracy"] = np.array((clean == labels).mean()), ()
    arrays["examples"], axes["examples"] = _examples(config, subject), EXAMPLE_AXES
    return Result(arrays, axes, {}, _facts(config, subject, clean), image_findings(clean, labels))


def _examples(config: AttackConfig, subject: Subject) -> np.ndarray:
    """The first images of other classes than the first target: as they are, and with pixels of it and of another."""
    target, region = _targets(config, subject)[0], last_region(_regions(config, subject))
    numbers = np.flatnonzero(subject.images.labels != target)[:EXAMPLES]
    draw = {"seed": config.seed, "draw": 0, "target": target}
    changed = [[subject.example(n, region, kind, **draw) for n in numbers] for kind in (TARGET, RANDOM_PAIR)]
    return np.array([[subject.example(n) for n in numbers], *changed])


def _shard(target: int, region: Region) -> str:
    return f"target-{target}-{region.start}-{region.end}"


def _hits(config: AttackConfig, subject: Subject, target: int, region: Region) -> dict[str, np.ndarray]:
    """Whether the target is named (draw, image), where it lends the pixels and where another class does."""
    arrays = {}
    for kind in (TARGET, RANDOM_PAIR):
        draws = range(config.draws)
        named = [subject.replaced(region, kind, seed=config.seed, draw=draw, target=target) for draw in draws]
        arrays[kind] = (np.stack(named) == target).astype(np.uint8)
    return arrays


def _arrays(
    base: np.ndarray, success: np.ndarray, pair: np.ndarray, others: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Rates with their intervals, by target and as the mean of all targets.

    Args:
        base: 1 where the target is named without an attack (target, image).
        success: share of the draws in which it is named with the target's pixels (target, region, image).
        pair: the same with pixels of another class.
        others: images of other classes than the target (target, image), which are attacked.
    """
    arrays: dict[str, np.ndarray] = {}
    axes: dict[str, Any] = {}
    weights = others / others.sum(1, keepdims=True) / len(others)  # of an image in the mean of all targets' rates
    kinds = {"success": success, "random_pair": pair, "excess": success - pair, "base_rate": base}
    for name, values in kinds.items():
        band = [rate_band(part[..., mask], name) for part, mask in zip(values, others, strict=True)]
        each = weights[:, None] if values.ndim == 3 else weights
        mean = rate_band((values * each).sum(0) * values.shape[-1], name)
        for end, by_target, all_targets in zip(("", "_low", "_high"), zip(*band, strict=True), mean, strict=True):
            arrays[name + end], axes[name + end] = np.array(by_target), AXES[: values.ndim - 1]
            arrays[f"mean_{name}{end}"], axes[f"mean_{name}{end}"] = np.array(all_targets), AXES[1 : values.ndim - 1]
    return arrays, axes


def rate_band(values: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over images (..., image) with its interval: Wilson's of a rate of right or wrong, Student's of any other.

    For Student's two images are added, one at each end of what can be, as Bonett and Price do for differences: an
    interval without them has no width where nothing was named, and covers 10 to 90 % where little was.
    """
    mean = np.asarray(values.mean(-1))
    if name != "excess" and ((values == 0) | (values == 1)).all():
        band = proportion_interval(values.sum(-1), values.shape[-1])
        return mean, np.asarray(np.minimum(band.low, mean)), np.asarray(np.maximum(band.high, mean))
    ends = (-1.0 if name == "excess" else 0.0, 1.0)
    band = student_interval(np.concatenate([values, np.broadcast_to(ends, (*values.shape[:-1], 2))], -1), axis=-1)
    low, high = (np.clip(bound, *ends) for bound in (band.low, band.high))
    return mean, np.asarray(np.minimum(low, mean)), np.asarray(np.maximum(high, mean))


def _facts(config: AttackConfig, subject: Subject, clean: np.ndarray) -> dict[str, Any]:
    targets = [subject.images.classes[target] for target in _targets(config, subject)]
    about = image_facts(config, subject, clean == subject.images.labels)
    about |= {"example_region": str(last_region(_regions(config, subject))), "example_target": targets[0]}
    return {
        "model": subject.classifier.facts(),
        **region_facts(_regions(config, subject), (), subject.images.classes),
        "targets": targets,
        "attack": about,
    }


STUDY = Attack()
check_request = STUDY.check_request
run_name = STUDY.run_name


def run(config: AttackConfig, *, subject: Any = None, out: str | Path | None = None, name: str | None = None) -> Result:
    """Run `repflow attack`; see `repflow.studies.corrupt.study.run`."""
    return STUDY.run(config, models=None if subject is None else {}, given=subject, out=out, name=name)
