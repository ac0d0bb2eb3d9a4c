"""The plan of a recipe of paper 1: which runs it needs, each with a name that recipes share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, nearest, teach
from repflow.papers import values as papers
from repflow.studies.engine.loading import identity
from repflow.studies.engine.table import study_for
from repflow.studies.measure import MeasureConfig
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.reproduce.comparison import Key
from repflow.studies.reproduce.config import ReproduceConfig
from repflow.studies.reproduce.flow import KINDS, SCALES, Recipe, Row, recipe, rows
from repflow.studies.reproduce.models import StandIn, stand_ins

FLOW_SAMPLES = {"tiny": 4, "zoo": 16, "paper": 100}
"""Prompts per measured cell; the paper does not say how many it used."""
PROBE_TESTS = 2000
"""Test prompts of a probe at scale paper, which does not say how many it took."""
PROBE_PROMPTS = {"tiny": 80, "zoo": 500, "paper": papers.PROBE_TRAINING + PROBE_TESTS}
"""Prompts per probed cell: six of ten train, so that the paper's 20,000 do."""
PROBE_SEEDS = {"tiny": 2, "zoo": 2, "paper": papers.PROBE_SEEDS}
TINY_LENGTHS = dict(zip(papers.LENGTHS, (240, 360, 440, 560), strict=True))
ZOO_LENGTHS = dict(zip(papers.LENGTHS, (256, 340, 448, 512), strict=True))
"""Up to what the built-in models were trained on."""
TINY_BATCH = 80
"""All prompts at once: transformers' own scan walks token by token, so that a batch costs what a prompt does."""
HASH_DIGITS = 8


@dataclass(frozen=True)
class ReproduceCell:
    """One run that a recipe needs.

    Attributes:
        key: what it stands for in the paper.
        name: folder in `OUT/flow-SCALE`.
        config: of `repflow measure` or `repflow probe`.
    """

    key: Key
    name: str
    config: MeasureConfig | ProbeConfig

    @property
    def probes(self) -> bool:
        """Whether it is a run of `repflow probe`."""
        return isinstance(self.config, ProbeConfig)


@dataclass(frozen=True)
class ReproducePlan:
    """Everything a request amounts to, before anything runs.

    Attributes:
        config: the request.
        recipe: its recipe.
        models: what stands for each of the paper's models in it.
        tasks: tasks that are run.
        lengths: the paper's length → tokens that are run for it.
        cells: runs, in the order of running.
        rows: printed values that ours are held against.
        folder: where the cells go.
    """

    config: ReproduceConfig
    recipe: Recipe
    models: dict[str, StandIn]
    tasks: tuple[str, ...]
    lengths: dict[int, int]
    cells: tuple[ReproduceCell, ...]
    rows: tuple[Row, ...]
    folder: Path


def check_request(config: ReproduceConfig) -> Recipe:
    """Refuse what can be seen to be wrong at once, and return the recipe."""
    made = recipe(config.recipe)
    if config.scale not in SCALES:
        raise InputError(teach("--scale tiny, zoo or paper", repr(config.scale), nearest(config.scale, SCALES)))
    if not config.states:
        raise InputError(teach(f"--states {', '.join(KINDS)}", "none", "name at least one"))
    for kind in config.states:
        if kind not in KINDS:
            raise InputError(teach(f"--states {', '.join(KINDS)}", repr(kind), nearest(kind, KINDS)))
    if len(config.lengths) > len(made.lengths):
        got = f"{len(config.lengths)} lengths"
        whole = ", ".join(map(papers.short_length, made.lengths))
        raise InputError(teach(f"at most {len(made.lengths)} lengths for {made.name}", got, f"they stand for {whole}"))
    for name, least in (("samples", 1), ("probe_samples", 10), ("probe_seeds", 1)):
        value = getattr(config, name)
        if value is not None and value < least:
            option = name.replace("_", "-")
            raise InputError(teach(f"--{option} of at least {least}", f"{value}", "or leave it out"))
    return made


def plan(config: ReproduceConfig, out: str | Path) -> ReproducePlan:
    """Work out the runs and printed values of a request; nothing is loaded or written."""
    made = check_request(config)
    config = replace(config, states=[kind for kind in KINDS if kind in config.states])
    folder = Path(out) / f"flow-{config.scale}"
    models = stand_ins(config.scale, config.models, config.tokenizer, folder / "models")
    models = {role: model for role, model in models.items() if role in made.models}
    if not models:
        expected = f"a --model for one of {', '.join(made.models)}"
        raise InputError(teach(expected, "others", f"{made.name} shows no other model"))
    tasks = tuple(dict.fromkeys(config.tasks)) or made.tasks
    lengths = dict(zip(made.lengths, config.lengths or _default_lengths(config, made), strict=False))
    printed = tuple(rows(made, tuple(models), tasks, lengths))
    cells = tuple(_cells(config, made, models, tasks, lengths))
    for cell in cells:
        _check_cell(cell)
    return ReproducePlan(config, made, models, tasks, lengths, cells, printed, folder)


def _default_lengths(config: ReproduceConfig, made: Recipe) -> list[int]:
    known = {"tiny": TINY_LENGTHS, "zoo": ZOO_LENGTHS}.get(config.scale, {})
    return [known.get(length, length) for length in made.lengths]


def _cells(
    config: ReproduceConfig, made: Recipe, models: dict[str, StandIn], tasks: tuple[str, ...], lengths: dict[int, int]
) -> Iterator[ReproduceCell]:
    """Cells by model and init, so that a model is loaded once."""
    for role, model in models.items():
        for init in made.inits:
            for task in tasks:
                for length, tokens in lengths.items():
                    if not made.has(role, length):
                        continue
                    for kind in config.states:
                        key = Key(role, task, length, init, kind)
                        shared = _shared_options(config, model, task, tokens, init, kind)
                        if made.measures:
                            yield _named(key, _measure(config, made, shared))
                        if made.probes:
                            yield _named(key, _probe(config, shared))


def _shared_options(
    config: ReproduceConfig, model: StandIn, task: str, tokens: int, init: str, kind: str
) -> dict[str, Any]:
    """Options of both studies. Each model fills the length with its own tokens, as the paper's n is in tokens."""
    options: dict[str, Any] = {
        "model": model.spec, "tokenizer": model.tokenizer, "task": task, "length": tokens, "seed": config.seed,
        "init": init, "states": kind, "dtype": config.dtype, "device": config.device, "match": "tokens",
        "scan": config.scan,
        "batch_size": TINY_BATCH if made_here(config) and config.batch_size is None else config.batch_size,
    }  # fmt: skip
    if task == "kvpr":
        options["format"] = config.format
    if task == "mdqa":
        options["documents"] = config.documents
    return options


def made_here(config: ReproduceConfig) -> bool:
    """Whether the tiny models are used."""
    return config.scale == "tiny" and not config.models


def _measure(config: ReproduceConfig, made: Recipe, shared: dict[str, Any]) -> MeasureConfig:
    samples = FLOW_SAMPLES[config.scale] if config.samples is None else config.samples
    return MeasureConfig(**shared, samples=samples, metrics=made.metrics)


def _probe(config: ReproduceConfig, shared: dict[str, Any]) -> ProbeConfig:
    """The paper's probe: raw features, its rate and epochs, seeds that redraw the initialisation alone."""
    counted = config.scale == "paper" and config.probe_samples is None
    return ProbeConfig(
        **shared,
        train=papers.PROBE_TRAINING if counted else None,
        test=PROBE_TESTS if counted else None,
        samples=PROBE_PROMPTS[config.scale] if config.probe_samples is None else config.probe_samples,
        seeds=PROBE_SEEDS[config.scale] if config.probe_seeds is None else config.probe_seeds,
        seeds_vary="init",
        recipes=["paper"],
        epochs=papers.PROBE_EPOCHS,
        rate=papers.PROBE_RATE,
        controls=[],
        answers=0,
        lens=0,
        allow_leak=config.allow_leak,
    )


def _named(key: Key, config: MeasureConfig | ProbeConfig) -> ReproduceCell:
    """A cell with a readable name and a hash of its whole configuration, so that recipes share what is the same."""
    from repflow.store import safe_name

    study = "probe" if isinstance(config, ProbeConfig) else "measure"
    asked = identity(config)
    asked.pop("allow_leak", None)  # says whether a run may go on, not what it is
    text = json.dumps([study, asked], sort_keys=True)
    tag = hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]
    parts = [study, key.model, key.task, str(config.length), *([key.init] if key.init != "trained" else []), key.kind]
    return ReproduceCell(key, safe_name("-".join([*parts, tag])), config)


def _check_cell(cell: ReproduceCell) -> None:
    study_for(cell.config).check_request(cell.config)
