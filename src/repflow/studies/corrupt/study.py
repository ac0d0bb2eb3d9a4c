"""Corrupt: how much does a model's answer depend on each part of what it reads?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.spec.corruption import AIMED, PIXELS, TEXT, Region, check_replacements
from repflow.store.name import distinct_name
from repflow.studies.corrupt.config import (
    AUTO,
    CorruptConfig,
    Corrupted,
    check_words,
    counted,
    names,
    refuse_set,
    regions_of,
    task_refusal,
)
from repflow.studies.corrupt.piece import Piece, keep_pieces
from repflow.studies.corrupt.summary import accuracy_arrays, chance_of, image_findings, region_facts, shares
from repflow.studies.engine.loading import identity, load_model
from repflow.studies.engine.naming import Names
from repflow.studies.engine.parts import Pictures
from repflow.studies.engine.study import ONE, Job, Study

if TYPE_CHECKING:
    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.studies.corrupt.classifier import Subject
    from repflow.studies.engine.cell import Share
    from repflow.studies.engine.sink import RunSink

CLEAN, INFLUENCE = "clean", "influence"
EXAMPLES = 2
"""Images that are kept before and after."""
EXAMPLE_AXES = ("kind", "sample", "row_pixel", "column_pixel", "channel")


@dataclass
class CorruptJob(Job[Any]):
    """A request with a classifier and its images, or with a language model and its prompts.

    Attributes:
        subject: classifier and images; None for a language model.
        answers: token that answers each prompt of a language model.
    """

    subject: Any = None
    answers: tuple[int, ...] = ()


class ImageStudy(Study[Any, CorruptJob]):
    """What studies of a classifier and its images share; language models go the engine's usual way."""

    one_model = False

    def load(self, config: Corrupted) -> dict[str, Model]:
        """A language model; a classifier is opened with its images."""
        from repflow.models.classifier import classifies

        return {} if classifies(config.model) else {ONE: load_model(config)}

    def stored(self, job: CorruptJob) -> dict[str, Any]:
        """What was requested, and of which model."""
        if job.subject is None:
            return super().stored(job)
        content = {"study": self.name, **identity(job.config)}
        return content | {"model": content["model"] or job.subject.classifier.spec}

    def machine(self, job: CorruptJob) -> dict[str, Any]:
        """What the work runs with."""
        if job.subject is None:
            return super().machine(job)
        from repflow.capture.provenance import machine

        network = job.subject.classifier.network
        dtype = str(network.dtype).removeprefix("torch.")
        return {**machine(str(network.device)), "dtype": dtype, "init": "trained", "ablate": [], "scan": "auto"}

    def digests(self, job: CorruptJob) -> dict[str, Any]:
        """Weights and images, or prompts."""
        if job.subject is None:
            return super().digests(job)
        return {"weights": job.subject.classifier.digest(), "images": job.subject.images.digest()}

    def identities(self, job: CorruptJob) -> dict[str, Any]:
        """Of the classifier, which is none of the engine's models."""
        return {} if job.subject is None else {ONE: job.subject.classifier.identity()}

    def compute(self, job: CorruptJob, sink: Sink, progress: Progress | None) -> Result:
        """Piece after piece, each kept as soon as it is read."""
        keep_pieces(self.pieces(job), sink, job.total, progress)
        return self.assembled(job, sink)

    def shares(self, config: Corrupted, split: int) -> int:
        """Regions and their replacements can be divided at will."""
        return max(1, min(split, self.passes(config, _tokens(config))))

    def share(self, job: CorruptJob, sink: RunSink, share: Share, progress: Progress | None) -> None:
        """Read the pieces of a share."""
        keep_pieces(self.pieces(job), sink, job.total, progress, share)

    def pieces(self, job: CorruptJob) -> Sequence[Piece]:
        """What is to be read."""
        raise NotImplementedError

    def assembled(self, job: CorruptJob, sink: Sink) -> Result:
        """The result of all pieces."""
        raise NotImplementedError

    def reads(self, config: Corrupted) -> tuple[int, int]:
        """Images or prompts with every region replaced, and their tokens, roughly."""
        config, tokens = counted(config, text=config.task not in (AUTO, "pixels")), _tokens(config)
        passes = config.draws * self.passes(config, tokens) + 1
        return config.samples * passes, config.samples * passes * tokens

    def passes(self, config: Any, tokens: int) -> int:
        """Times that all images or prompts are read with something replaced."""
        raise NotImplementedError


def _tokens(config: Corrupted) -> int:
    """Of an image or a prompt, as far as the request says."""
    side = config.images.partition(":")[2] if config.images.startswith("drawn:") else ""
    pixels = (int(side) if side.isdecimal() else 32) ** 2 // (config.patch or 1) ** 2
    return pixels if config.task in (AUTO, "pixels") else config.length


class Corrupt(ImageStudy):
    """How much does a model's answer depend on each part of what it reads?"""

    name = "corrupt"
    config = CorruptConfig
    counts = "parts"
    summary = """Replace parts of what MODELs read: accuracy of a classifier, log-odds of a language model's answer.

    A classifier is a stack of repflow or an image classifier of transformers. An interrupted run resumes when the same
    command is rerun.
    """

    def check(self, config: CorruptConfig) -> None:
        """Refuse wrong options, images, tasks and files."""
        check_words(config)

    def prepare(
        self, config: CorruptConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> CorruptJob:
        """Classifier and images, or prompts of one length."""
        if ONE in models:
            config = counted(config, text=True)
            return self._text_job(replace(config, task="kvpr" if config.task == AUTO else config.task), models)
        from repflow.studies.corrupt.classifier import open_subject

        if config.task not in (AUTO, "pixels"):
            raise task_refusal(config)
        config = counted(config, text=False)
        subject = open_subject(config, given)
        config = replace(config, task="pixels", replace=config.replace or list(PIXELS))
        check_replacements(config.replace, PIXELS)
        subject.images.class_numbers([kind.removeprefix(AIMED) for kind in config.replace if kind.startswith(AIMED)])
        for kind in config.replace:
            subject.check_lenders(kind)
        regions = regions_of(config, subject.tokens)
        return CorruptJob(config, {}, None, len(regions) * len(config.replace), subject=subject)

    def _text_job(self, config: CorruptConfig, models: dict[str, Model]) -> CorruptJob:
        from repflow.interventions.corruption import check_prompts_lend
        from repflow.studies.corrupt.text import equal_prompts

        if config.task == "pixels":
            got = f"{config.model}, a language model"
            raise InputError(teach("a classifier for --task pixels", got, "pass --task kvpr, mdqa, text or FILE.jsonl"))
        refuse_set(config, Pictures, "images", f"{config.model}, a language model")
        if config.influence != CorruptConfig().influence:
            got = f"--influence for {config.model}, a language model"
            raise InputError(teach("no option of images", got, "leave it out; repflow recency measures influence"))
        config = replace(config, replace=config.replace or list(TEXT))
        check_replacements(config.replace, TEXT)
        prompts, answers = equal_prompts(config, models[ONE])
        if "other" in config.replace:
            check_prompts_lend(len(prompts))
        parts = len(regions_of(config, prompts.lengths[0])) * len(config.replace)
        return CorruptJob(config, models, prompts, parts, answers=answers)

    def pieces(self, job: CorruptJob) -> Sequence[Piece]:
        """Every replacement of every region."""
        if job.subject is None:
            from repflow.studies.corrupt.text import text_pieces

            return text_pieces(job.config, job.model, job.prompts, job.answers)
        return image_pieces(job.config, job.subject)

    def assembled(self, job: CorruptJob, sink: Sink) -> Result:
        """By replacement and region."""
        if job.subject is None:
            from repflow.studies.corrupt.text import text_result

            return text_result(job.config, job.prompts, sink)
        return image_result(job.config, job.subject, sink)

    def passes(self, config: CorruptConfig, tokens: int) -> int:
        """Regions times replacements."""
        kinds = config.replace or (PIXELS if config.task in (AUTO, "pixels") else TEXT)
        return len(regions_of(config, tokens)) * len(kinds)

    def names(self, config: CorruptConfig) -> Names:
        """Model, study, task."""
        return names(config, self.name)


def image_pieces(config: CorruptConfig, subject: Subject) -> list[Piece]:
    """Classes that are named: of images as they are, and with each region replaced; then influence."""
    tokens = len(subject.images.labels) * subject.tokens
    pieces = [Piece(CLEAN, lambda: {"named": subject.predictions()}, tokens)]
    pieces += [
        Piece(_shard(kind, region), partial(_drawn, config, subject, region, kind), config.draws * tokens)
        for kind in config.replace
        for region in regions_of(config, subject.tokens)
    ]
    if config.influence:
        pieces.append(Piece(INFLUENCE, lambda: {INFLUENCE: subject.influence(config.influence)}, 0))
    return pieces


def _shard(kind: str, region: Region) -> str:
    return distinct_name(f"{kind.replace(':', '-', 1)}-{region.start}-{region.end}")


def _drawn(config: CorruptConfig, subject: Subject, region: Region, kind: str) -> dict[str, np.ndarray]:
    return {"named": subject.drawn(region, kind, seed=config.seed, draws=config.draws)}


def image_result(config: CorruptConfig, subject: Subject, sink: Sink) -> Result:
    """Accuracy and drops by replacement and region."""
    from repflow.core.results import Result

    regions, labels = regions_of(config, subject.tokens), subject.images.labels
    clean = sink.load(CLEAN)["named"]
    named = np.array([[sink.load(_shard(kind, region))["named"] for region in regions] for kind in config.replace])
    right = (named == labels).mean(2)
    arrays, axes = accuracy_arrays((clean == labels).astype(np.float64), right, chance_of(labels))
    classes = len(subject.images.classes)
    arrays["predicted"] = shares(named.swapaxes(2, 3).reshape(*named.shape[:2], -1), classes)
    axes["predicted"] = ("replacement", "region", "class")
    arrays["predicted_clean"], axes["predicted_clean"] = shares(clean, classes), ("class",)
    arrays["examples"], axes["examples"] = _examples(config, subject, regions)
    if config.influence:
        arrays[INFLUENCE], axes[INFLUENCE] = geometric_mean(sink.load(INFLUENCE)[INFLUENCE]), ("token",)
    facts = _facts(config, subject, regions, clean == labels)
    return Result(arrays, axes, {}, facts, image_findings(clean, labels, named))


def geometric_mean(influence: np.ndarray) -> np.ndarray:
    """Influence of tokens (token,) from that of several images (image, token): the mean of logarithms.

    >>> geometric_mean(np.array([[1.0, 2.0], [4.0, 2.0]])).tolist()
    [2.0, 2.0]
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(np.log(influence).mean(0)))


def _examples(config: CorruptConfig, subject: Subject, regions: list[Region]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The first images as they are and with the last region replaced in every way: (replacement, sample, ...)."""
    region = last_region(regions)
    kinds = [("", {}), *((kind, {"seed": config.seed, "draw": 0}) for kind in config.replace)]
    shown = [
        [subject.example(number, region if kind else None, kind, **draw) for number in _shown(subject)]
        for kind, draw in kinds
    ]
    return np.array(shown), EXAMPLE_AXES


def last_region(regions: Sequence[Region]) -> Region:
    """The one that examples show: the longest of those at the end."""
    return max(regions, key=lambda entry: (entry.end, len(entry)))


def _shown(subject: Subject) -> range:
    return range(min(EXAMPLES, len(subject.images)))


def _facts(config: CorruptConfig, subject: Subject, regions: list[Region], right: np.ndarray) -> dict[str, Any]:
    return {
        "model": subject.classifier.facts(),
        **region_facts(regions, config.replace, subject.images.classes),
        "corrupt": {**image_facts(config, subject, right), "example_region": str(last_region(regions))},
    }


def image_facts(config: Corrupted, subject: Subject, right: np.ndarray) -> dict[str, Any]:
    """What both studies say of the images.

    Args:
        config: the request.
        subject: classifier and images.
        right: whether an image is named right as it is (image,).
    """
    from repflow.core.intervals import proportion_interval

    band = proportion_interval(right.sum(), len(right))
    return {
        "tokens": subject.tokens,
        "images": len(subject.images),
        "draws": config.draws,
        "chance": chance_of(subject.images.labels),
        "clean": [float(band.mean), float(band.low), float(band.high)],
        "layout": {"order": subject.layout.order, "grey": subject.layout.grey, "patch": subject.layout.patch},
        "source": Path(config.images).name,
    }


STUDY = Corrupt()
check_request = STUDY.check_request
run_name = STUDY.run_name


def run(
    config: CorruptConfig, *, subject: Any = None, out: str | Path | None = None, name: str | None = None
) -> Result:
    """Run `repflow corrupt`.

    Args:
        config: what to replace.
        subject: a classifier's network or a `Subject`, instead of the model that the config names.
        out: folder of runs; None keeps the result in memory only.
        name: of the run.
    """
    return STUDY.run(config, models=None if subject is None else {}, given=subject, out=out, name=name)
