"""Attack: can pixels of another class steer a classifier's answer to it?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.intervals import proportion_interval, student_interval
from repflow.spec.corruption import PAPER, RANDOM_PAIR, TARGET, Region, parse_regions, scaled_region
from repflow.studies.corrupt.config import AttackConfig, check, names
from repflow.studies.corrupt.study import CorruptJob, ImageStudy
from repflow.studies.corrupt.summary import region_facts
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
    summary = """Paste pixels of a target class into other images: how often MODELs then name the target.

    Beside the success rate stand the rate without an attack and that of pixels lent by images of any other class. An
    interrupted run resumes when the same command is rerun.
    """

    def check(self, config: AttackConfig) -> None:
        """Refuse wrong options and images."""
        check(config, config.regions)

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

    def compute(self, job: CorruptJob, sink: Sink, progress: Progress | None) -> Result:
        """Target after target, region after region."""
        return attack_result(job.config, job.subject, sink, progress)

    def names(self, config: AttackConfig) -> Names:
        """Model, study."""
        return names(config, self.name)


def _regions(config: AttackConfig, subject: Subject) -> list[Region]:
    words = config.regions or [scaled_region(word, subject.tokens) for word in PAPER["recency-fig3"]]
    return parse_regions(words, subject.tokens)


def _targets(config: AttackConfig, subject: Subject) -> list[int]:
    """Numbers of the targets; every one has images that lend pixels, and others that receive them."""
    names = config.targets or list(subject.images.classes)
    targets = [subject.images.class_number(name) for name in names]
    if len(set(targets)) < len(targets):
        raise InputError(teach("different targets", ",".join(names), "name each class once"))
    for target in targets:
        count = len(subject.sequences.members(target))
        if not 0 < count < len(subject.images):
            name = subject.images.classes[target]
            expected = f"test images of {name} and of other classes"
            raise InputError(teach(expected, f"{count} of {len(subject.images)} of {name}", "raise --samples"))
    return targets


def attack_result(config: AttackConfig, subject: Subject, sink: Sink, progress: Progress | None) -> Result:
    """Success rates by target and region, with base rates and random pairs."""
    from repflow.core.results import Result

    regions, targets, labels = _regions(config, subject), _targets(config, subject), subject.images.labels
    if not sink.has("clean"):
        sink.keep("clean", {"named": subject.predictions()}, {"samples": []})
    clean = sink.load("clean")["named"]
    rates: dict[str, list[list[float]]] = {"success": [], "random_pair": []}
    bounds: list[list[tuple[float, float]]] = []
    base = []
    for place, target in enumerate(targets):
        others = labels != target
        base.append(float((clean[others] == target).mean()))
        rows: dict[str, list[float]] = {name: [] for name in rates}
        bounds.append([])
        for number, region in enumerate(regions):
            hits = _hits(config, subject, sink, target, region)
            for name, kind in (("success", TARGET), ("random_pair", RANDOM_PAIR)):
                rows[name].append(float(hits[kind][:, others].mean()))
            bounds[-1].append(_interval(hits[TARGET][:, others]))
            if progress is not None:
                done = place * len(regions) + number + 1
                progress(done, len(targets) * len(regions), 2 * done * config.draws * len(labels) * subject.tokens)
        for name in rates:
            rates[name].append(rows[name])
    return Result(*_arrays(rates, bounds, base, (clean == labels).mean()), {}, _facts(config, subject, clean))


def _hits(config: AttackConfig, subject: Subject, sink: Sink, target: int, region: Region) -> dict[str, np.ndarray]:
    """Whether the target is named (draw, image), where it lends the pixels and where another class does."""
    shard = f"target-{target}-{region.start}-{region.end}"
    if not sink.has(shard):
        arrays = {}
        for kind in (TARGET, RANDOM_PAIR):
            draws = range(config.draws)
            named = [subject.replaced(region, kind, seed=config.seed, draw=draw, target=target) for draw in draws]
            arrays[kind] = (np.stack(named) == target).astype(np.uint8)
        sink.keep(shard, arrays, {"samples": []})
    return sink.load(shard)


def _interval(hits: np.ndarray) -> tuple[float, float]:
    """Of the success rate: Wilson's for one draw, Student's over images for the mean of several."""
    one = len(hits) == 1
    band = proportion_interval(hits.sum(), hits.size) if one else student_interval(hits.mean(0))
    return float(band.low), float(band.high)


def _arrays(rates: Any, bounds: Any, base: list[float], clean: float) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arrays = {name: np.array(values) for name, values in rates.items()}
    low, high = np.moveaxis(np.array(bounds), -1, 0)
    arrays |= {"success_low": low, "success_high": high}
    axes: dict[str, Any] = dict.fromkeys(arrays, AXES)
    arrays |= {"base_rate": np.array(base), "clean_accuracy": np.array(clean)}
    return arrays, axes | {"base_rate": ("target",), "clean_accuracy": ()}


def _facts(config: AttackConfig, subject: Subject, clean: np.ndarray) -> dict[str, Any]:
    targets = [subject.images.classes[target] for target in _targets(config, subject)]
    about = {"tokens": subject.tokens, "images": len(clean), "draws": config.draws}
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
