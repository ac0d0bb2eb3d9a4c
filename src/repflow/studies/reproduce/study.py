"""Reproduce: paper 1's figures and tables, ours beside the printed values, and which kind of state lies nearest them.

Each model, task, length, init and kind of state is a run of its own in `OUT/flow-SCALE`, shared between recipes and
resumed when it was cut; the comparison is the run `OUT/NAME`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, nearest, teach
from repflow.papers import values as papers
from repflow.studies.engine.loading import identity
from repflow.studies.engine.naming import Names
from repflow.studies.engine.opening import keep_result
from repflow.studies.engine.parts import Batches, Leaks, Machine, Scans, Seed, Templates, defaults, listed, option
from repflow.studies.engine.study import BaseStudy
from repflow.studies.engine.table import study_for
from repflow.studies.measure import MeasureConfig
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.reproduce import agreement as reproduce_check
from repflow.studies.reproduce.flow import CHECK, DYNAMICS, KINDS, RECIPES, SCALES, Recipe, Row, recipe, rows
from repflow.studies.reproduce.models import StandIn, make_tiny, stand_ins
from repflow.studies.reproduce.recency import RECENCY
from repflow.version import __version__

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.studies.reproduce.cells import Label
    from repflow.studies.reproduce.comparison import Key

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


@dataclass
@defaults(
    {
        "format": "template of kvpr: paper (as printed in appendix B), or liu2024 (valid JSON)",
        "allow_leak": "probe although a sentinel reads the label without the model",
        "seed": "seed of prompts, splits and random weights",
        "tokenizer": "tokenizer for all models, where they have none",
    },
    format="paper",
)
class ReproduceConfig(Batches, Scans, Machine, Seed, Leaks, Templates):
    """What to reproduce; the fields are the command line's options and the `config` of the Result."""

    recipe: str = option("flow-fig1", f"{', '.join([*RECIPES, CHECK, *RECENCY, *DYNAMICS])}")
    scale: str = option(
        "tiny",
        "tiny (small random models made here), zoo (the built-in trained ones), or paper (its checkpoints, lengths and "
        "counts)",
    )
    states: list[str] = listed("kinds of state, repeated or comma separated: residual, branch, hf-tuple", KINDS)
    models: list[str] = listed("ROLE=SPEC, a checkpoint for one of the paper's models, repeated; then only those run")
    tasks: list[str] = listed("tasks instead of the recipe's, repeated; random for a model without a tokenizer")
    lengths: list[int] = listed("tokens per prompt instead of the recipe's lengths, in their order, repeated")
    samples: int | None = option(None, "prompts per measured run; the paper does not say how many it used")
    probe_samples: int | None = option(None, "prompts per probed run, 80 % train; scale paper: 20,000, and 2,000 test")
    probe_seeds: int | None = option(None, "repetitions of each probe; the paper's are 5")


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
    from repflow.studies.reproduce.comparison import Key

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
        "batch_size": TINY_BATCH if _made_here(config) and config.batch_size is None else config.batch_size,
    }  # fmt: skip
    if task == "kvpr":
        options["format"] = config.format
    if task == "mdqa":
        options["documents"] = config.documents
    return options


def _made_here(config: ReproduceConfig) -> bool:
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


def run_name(config: ReproduceConfig) -> str:
    """Name of the run that holds the comparison: recipe, scale and a hash of the request."""
    tag = hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()[:HASH_DIGITS]
    return f"{config.recipe}-{config.scale}-{tag}"


def run(
    config: ReproduceConfig,
    *,
    out: str | Path,
    name: str | None = None,
    progress: Progress | None = None,
    label: Label | None = None,
) -> Result:
    """Run what is missing of a recipe, compare and store.

    Args:
        config: what to reproduce.
        out: folder of runs.
        name: name of the run that holds the comparison.
        progress: called after each batch of any cell.
        label: gives the callback for a cell from its number, the number of cells, and the cell; instead of `progress`.

    Returns:
        Result: ours (row, kind), printed (row) and scores, with rows, cells and verdicts under `provenance`. It is
        stored once every cell is finished; `provenance["cells"]` says which are not, and why.
    """
    if config.recipe == CHECK:
        return _store(reproduce_check.run(), config, {"repflow": __version__}, out, name)
    from repflow.studies.engine.provenance import machine
    from repflow.studies.reproduce.cells import run_cells
    from repflow.studies.reproduce.result import make_result

    made = plan(config, out)
    if _made_here(config):
        make_tiny(made.folder / "models", list(made.models))
    outcomes = list(run_cells(made, label or (None if progress is None else lambda *_: progress)))
    result = make_result(made, outcomes)
    result.config = identity(config)
    finished = [outcome.result for outcome in outcomes if outcome.result is not None]
    if len(finished) < len(outcomes):
        return result
    return _store(result, config, machine(str(finished[0].provenance["device"])), out, name)


def _store(
    result: Result, config: ReproduceConfig, provenance: dict[str, Any], out: str | Path, name: str | None
) -> Result:
    result.config = identity(config)
    return keep_result(result, out, name or run_name(config), provenance)


class Reproduce(BaseStudy[ReproduceConfig]):
    """Figures and tables of the papers, ours beside what is printed. Made of other studies' runs."""

    name = "reproduce"
    config = ReproduceConfig
    named = False
    one_model = False

    def check(self, config: ReproduceConfig) -> None:
        """Refuse what no recipe is."""
        recipe(config.recipe)

    def run(
        self,
        config: ReproduceConfig,
        *,
        models: Mapping[str, Model] | None = None,
        given: Any = None,
        out: str | Path | None = None,
        name: str | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Run what is missing of a recipe, compare and store."""
        return run(config, out="runs" if out is None else out, name=name, progress=progress)

    def names(self, config: ReproduceConfig) -> Names:
        """Recipe, scale and a hash of the request."""
        name = run_name(config)
        return Names(name, name, name)


STUDY = Reproduce()
