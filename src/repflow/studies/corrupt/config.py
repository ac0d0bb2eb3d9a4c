"""Options of `repflow corrupt` and `repflow attack`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from repflow.core.errors import InputError, teach
from repflow.spec.corruption import (
    FIGURES,
    PIXELS,
    PRINTED,
    TEXT,
    Region,
    check_regions,
    check_replacements,
    parse_regions,
)
from repflow.studies.engine.naming import Names, spell, weight_words
from repflow.studies.engine.parts import (
    Batches,
    OneModel,
    Pictures,
    Prompting,
    ablation_names,
    defaults,
    listed,
    option,
    unread,
    words,
)

AUTO = "auto"
ALSO_OF_IMAGES = {"task", "seed", "samples"}
"""Options of prompts that choose images too."""
OF_CLASSIFIERS = {"model", "device", "dtype", "allow_float16"}
"""Options of loading a language model that load a classifier too."""
REGIONS = ("windows", "first:32", "last:32")
IMAGES, PROMPTS = 256, 32
"""Read unless a request says how many: text is read a hundred times over by default, and takes a CPU long."""


@dataclass
class Regions:
    """Which tokens are replaced."""

    regions: list[str] = listed(
        "tokens that are replaced: START:END, first:K, middle:K, last:K, windows (all of them side by side) or "
        "windows:K, paper (those of its Tables 1 and 3), one of the two (recency-table1), repeated or comma separated",
        REGIONS,
    )
    draws: int = option(1, "times that random replacements are drawn")


@dataclass
class Replacing(Regions):
    """By what they are replaced, and how much each counts."""

    replace: list[str] = listed(
        f"by what: {', '.join(PIXELS)}, target:CLASS for pixels; {', '.join(TEXT)} for text; default all that fit"
    )
    influence: int = option(16, "images whose gradient says how much each token of an image counts; 0 for none")


ALL = "all"
"""Every class as a target."""


@dataclass
class Targets:
    """Classes that an attack aims at."""

    targets: list[str] = listed("classes to steer to, by name or number, or all, which is the default")


def check_targets(targets: list[str]) -> None:
    """Refuse every class beside some of them."""
    if ALL in targets and len(targets) > 1:
        got = ",".join(targets)
        raise InputError(teach(f"--targets {ALL}, or some classes", got, f"leave {ALL} or the others out"))


@dataclass
class Corrupted(Regions, Batches, Pictures, Prompting, OneModel):
    """What both studies have."""

    @property
    def states(self) -> str:
        """No states are read; the checks of loading ask for their kind."""
        return "residual"


@dataclass
@defaults(
    {
        "task": "auto (images for a classifier, else kvpr), pixels, text, random, kvpr, mdqa or FILE.jsonl",
        "samples": f"test images, or prompts; default {IMAGES} images, {PROMPTS} prompts",
        "batch_size": "images or prompts per forward pass; default by length",
        "seed": "seed of drawn images, of prompts, and of what replaces tokens",
    },
    task=AUTO,
    samples=None,  # left open until it is known whether images or text are read
)
class CorruptConfig(Replacing, Corrupted):
    """What to replace; the fields are the command line's options and the `config` of the Result."""

    def __post_init__(self) -> None:
        """Lists in one form, so that the same request makes the same run."""
        self.regions, self.replace = words(self.regions), words(self.replace)
        self.ablate = ablation_names(self.ablate)


@dataclass
@defaults(
    {
        "task": "auto or pixels: attacks are on images",
        "samples": f"test images; default {IMAGES}",
        "batch_size": "images per forward pass; default by length",
        "seed": "seed of drawn images, and of which images lend their pixels",
    },
    task=AUTO,
    samples=None,  # left open until it is known whether images or text are read
    regions=listed(
        "tokens that another image lends: START:END, first:K, middle:K, last:K, windows:K, paper (those of its Figure "
        "3, first and last quarter and 480 of 1,024), fewer (smaller ones), recency-table1, repeated or comma "
        "separated; default paper"
    ),
)
@unread(*(entry.name for entry in fields(Prompting) if entry.name not in ALSO_OF_IMAGES))
@unread(*(entry.name for entry in fields(OneModel) if entry.name not in OF_CLASSIFIERS))
class AttackConfig(Targets, Corrupted):
    """What to attack; the fields are the command line's options and the `config` of the Result."""

    def __post_init__(self) -> None:
        """Lists in one form, so that the same request makes the same run."""
        self.regions, self.targets = words(self.regions), words(self.targets)
        self.targets = [] if self.targets == [ALL] else self.targets
        if PRINTED in self.regions:  # by the figure's name, as the same word stood for the tables in stored runs
            own = [part for word in self.regions for part in (FIGURES if word == PRINTED else (word,))]
            self.regions = [] if own == list(FIGURES) else own
        self.ablate = ablation_names(self.ablate)


def regions_of(config: CorruptConfig, tokens: int) -> list[Region]:
    """Regions of a request, for sequences of some tokens; of the usual ones those that fit.

    >>> len(regions_of(CorruptConfig(), 1024)), len(regions_of(CorruptConfig(), 16))
    (32, 16)
    """
    chosen = config.regions
    if chosen == list(REGIONS):
        chosen = [word for word in chosen if int(word.partition(":")[2] or 0) <= tokens]
    return parse_regions(chosen, tokens)


C = TypeVar("C", bound=Corrupted)


def counted(config: C, *, text: bool) -> C:
    """A request with the number of images or prompts that it leaves open."""
    return config if config.samples is not None else replace(config, samples=PROMPTS if text else IMAGES)


def check(config: Corrupted, regions: list[str]) -> None:
    """Refuse what can be seen to be wrong before a model is loaded."""
    from repflow.core.tasks import NAMES
    from repflow.spec.request import check_least
    from repflow.studies.engine.loading import check_loading
    from repflow.studies.engine.prompts import check_prompting
    from repflow.tasks.pixels.layout import PixelLayout
    from repflow.tasks.pixels.source import check_source

    check_loading(config)
    config = counted(config, text=config.task not in (AUTO, "pixels"))
    check_least([("--draws", config.draws, 1), ("--samples", config.samples, 1), ("--patch", config.patch, 1)])
    if regions:
        check_regions(regions)
    check_source(config.images)
    PixelLayout("row" if config.order is None else config.order)
    if config.task in (AUTO, "pixels"):
        return
    if isinstance(config, AttackConfig):
        known = f"--task {AUTO} or pixels"
        raise InputError(teach(known, repr(config.task), "repflow corrupt replaces tokens of text"))
    assert "pixels" in NAMES
    check_prompting(config)
    if config.model and Path(config.model).expanduser().is_dir():  # before a run is named, which asks for a tokenizer
        from repflow.models.classifier import classifies

        if classifies(config.model):
            raise task_refusal(config)


def task_refusal(config: Corrupted) -> InputError:
    """Error of a task of text for a classifier of images."""
    got = f"{str(config.task)!r} for {config.model}, a classifier of images"
    return InputError(teach(f"--task {AUTO} or pixels", got, "leave --task out, and choose --images"))


def refuse_set(config: Corrupted, part: type, what: str, model: str, taken: Collection[str] = ()) -> None:
    """Refuse options that say nothing to a model, rather than leave them aside.

    Args:
        config: the request.
        part: has these options.
        what: they are of: prompts, images or language models.
        model: in words.
        taken: those of them that mean something all the same.
    """
    usual = type(config)()
    for name in (entry.name for entry in fields(part) if entry.name not in taken):
        if getattr(config, name) != getattr(usual, name):
            got = f"--{name.replace('_', '-')} for {model}"
            raise InputError(teach(f"no options of {what}, which this model does not read", got, "leave it out"))


def check_words(config: CorruptConfig) -> None:
    """`check`, and the replacements."""
    from repflow.spec.request import check_least

    check(config, config.regions)
    check_least([("--influence", config.influence, 0)])
    if not config.regions:
        check_regions(config.regions)
    if config.replace:
        known = PIXELS if config.task == "pixels" else TEXT if config.task != AUTO else (*PIXELS, TEXT[0])
        check_replacements(config.replace, known)


def _of_images(config: Corrupted) -> bool:
    """Whether a request is of images, as far as can be seen."""
    if isinstance(config, AttackConfig) or config.task != AUTO or not config.model:
        return isinstance(config, AttackConfig) or config.task == "pixels"
    from repflow.models.classifier import classifies

    return classifies(config.model)


def names(config: Corrupted, study: str) -> Names:
    """Names of a run: model, study and images or task; eight digits stand for all other options.

    >>> names(CorruptConfig(model="zoo:mamba2", images="drawn:16"), "corrupt").current.rpartition("-")[0]
    'zoo-mamba2-corrupt'
    """
    if config.samples == IMAGES and _of_images(config):  # the same request, by whichever words
        config = replace(config, samples=type(config)().samples)
    task = [] if config.task == AUTO else [config.task.rpartition("/")[2].removesuffix(".jsonl")]
    return spell(config, [*weight_words(config), study, *task], ("init", "init_seed", "ablate", "task"))
