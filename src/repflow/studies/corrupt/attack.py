"""Attack: can pixels of another class steer a classifier's answer to it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.spec.corruption import FIGURES, RANDOM_PAIR, TARGET, Region, parse_regions
from repflow.studies.corrupt.config import AttackConfig, check, check_targets, counted, names
from repflow.studies.corrupt.piece import Piece
from repflow.studies.corrupt.rates import attack_rates
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

        config = counted(config, text=False)
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
            got = f"{count} of {len(subject.images)} images of it"
            remedy = "read more with --samples, or choose a class that the test images have"
            raise InputError(teach(expected, got, remedy))
    return targets


def attack_result(config: AttackConfig, subject: Subject, sink: Sink) -> Result:
    """Success rates by target and region, with base rates and random pairs."""
    from repflow.core.results import Result
    from repflow.interventions.corruption import lenders

    regions, targets, labels = _regions(config, subject), _targets(config, subject), subject.images.labels
    clean = sink.load(CLEAN)["named"]
    shape = (len(targets), len(regions), config.draws, len(labels))
    kinds = (TARGET, RANDOM_PAIR)
    hits, lent = ({kind: np.empty(shape, dtype=int) for kind in kinds} for _ in range(2))
    for place, target in enumerate(targets):
        for number, region in enumerate(regions):
            own = sink.load(_shard(target, region))
            for kind in kinds:
                hits[kind][place, number] = own[kind]
                lent[kind][place, number] = [
                    lenders(subject.sequences, region, kind, seed=config.seed, draw=draw, target=target)
                    for draw in range(config.draws)
                ]
    base = (clean == np.array(targets)[:, None]).astype(np.float64)
    others = labels != np.array(targets)[:, None]
    arrays, axes = attack_rates(base, hits, lent, others)
    arrays["clean_accuracy"], axes["clean_accuracy"] = np.array((clean == labels).mean()), ()
    arrays["examples"], axes["examples"] = _examples(config, subject), EXAMPLE_AXES
    return Result(arrays, axes, {}, _facts(config, subject, clean), image_findings(clean, labels))


def _examples(config: AttackConfig, subject: Subject) -> np.ndarray:
    """The first images of other classes than the first target: as they are, and with pixels of it and of another."""
    target, region = _targets(config, subject)[0], last_region(_regions(config, subject))
    numbers = np.flatnonzero(subject.images.labels != target)[:EXAMPLES].tolist()
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
