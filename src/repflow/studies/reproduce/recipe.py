"""What a recipe is: the runs it needs, what the paper prints, and how ours is read and judged.

The engine (`repflow.studies.reproduce.study`) does the rest for all of them: checks, plan, cost, dry run, disk, runs
that resume, comparison, verdicts, storing. Most recipes of statements are a `StatementRecipe`
(`repflow.studies.reproduce.statement`).
"""

from __future__ import annotations

import hashlib
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from repflow.core.errors import InputError, nearest, teach
from repflow.core.recipes import RecipeRow, recipe_row
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.loading import identity
from repflow.studies.engine.naming import Names
from repflow.studies.reproduce.config import ReproduceConfig
from repflow.version import __version__

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.studies.engine.cells import Outcome
    from repflow.studies.reproduce.models import StandIn

HASH_DIGITS = 8
RATE = 160e12
"""FLOP/s that a run is reckoned with: what a Mamba-2.8B, the slowest of the four large shapes, reached on one NVIDIA
H200 in bfloat16 at n = 2048 with a fused scan. In float32, or without such a scan, it is many times slower."""
TAKEN = (
    *("recipe", "scale", "models", "tasks", "lengths", "samples", "seed", "tokenizer", "dtype", "device", "scan"),
    "batch_size",
)
"""Options of `repflow reproduce` that most recipes take."""
FLOW_TAKEN = (*TAKEN, "states", "probe_samples", "probe_seeds", "format", "documents", "allow_leak")
"""Those of paper 1, which measures and probes several kinds of state."""
FLAGS = {"models": "--model", "tasks": "--task", "lengths": "--length"}
"""Fields of the config whose option has another name."""
LEAST = {"samples": 1, "try_steps": 1, "probe_samples": 10, "probe_seeds": 1}


@runtime_checkable
class Printed(Protocol):
    """Something that a paper prints: a number or a statement."""

    @property
    def what(self) -> str:
        """What it is of."""

    @property
    def source(self) -> str:
        """Where it is printed."""


@dataclass(frozen=True)
class Said:
    """A printed thing and nothing more.

    Attributes:
        what: what it is of.
        source: where it is printed.
    """

    what: str
    source: str


@dataclass(frozen=True)
class ReproduceCell(Cell):
    """One run that a recipe needs.

    Attributes:
        key: under which the recipe finds its result again; two cells have two.
        role: which of the paper's models it runs, "" for one that the run itself trains.
    """

    key: Any = None
    role: str = ""


@dataclass(frozen=True)
class ReproducePlan:
    """Everything a request amounts to, before anything runs.

    Attributes:
        config: the request.
        recipe: its recipe.
        models: what stands for each of the paper's models in it.
        cells: runs, in the order of running.
        printed: what ours is compared with.
        folder: where the cells go; recipes of one paper share it.
    """

    config: ReproduceConfig
    recipe: Recipe
    models: dict[str, StandIn]
    cells: tuple[ReproduceCell, ...]
    printed: tuple[Printed, ...]
    folder: Path

    @property
    def random(self) -> bool:
        """Whether models without training stand for the paper's: nothing follows from them for trained ones."""
        return any(not model.trained for model in self.models.values())


class Recipe(ABC):
    """One figure or table of a paper; `repflow.core.recipes` lists them.

    Attributes:
        name: its name in the table.
        note: how it is read where the paper leaves that open.
        roles: models of the paper that it shows, as in `repflow.studies.reproduce.models.ROLES`.
        takes: options that mean something to it; they make its name and its stored config.
        stored_as: what the stored config says under `study`.
        rate: FLOP/s that its cost is reckoned with.
        work: what a recipe without runs does, in the words of a dry run.
    """

    name: str
    note: str = ""
    roles: tuple[str, ...] = ()
    takes: tuple[str, ...] = TAKEN
    stored_as: str = "reproduce-table"
    rate: float = RATE
    work: str = ""

    @property
    def row(self) -> RecipeRow:
        """Its row in the table: paper, title, scales."""
        return recipe_row(self.name)

    def settled(self, config: ReproduceConfig) -> ReproduceConfig:
        """The request with its options in one form; what this recipe cannot be asked is refused. No torch."""
        return config

    @abstractmethod
    def cells(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> Iterable[ReproduceCell]:
        """Runs: a study's config each. Cells of one model in a row load it once; names are shared between recipes."""

    @abstractmethod
    def printed(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> Sequence[Printed]:
        """What the paper prints and ours is compared with."""

    @abstractmethod
    def compare(self, plan: ReproducePlan, outcomes: Sequence[Outcome]) -> Result:
        """Ours beside what is printed, from the cells that are finished; the engine adds config, title and cells."""

    def made_with(self, results: Sequence[Result]) -> dict[str, Any]:
        """With what the comparison was made, as its run keeps it."""
        return {"repflow": __version__}

    def asked(self, config: ReproduceConfig) -> dict[str, Any]:
        """The request as the comparison's run keeps it."""
        return {name: value for name, value in identity(config).items() if name in self.takes}

    def names(self, config: ReproduceConfig) -> Names:
        """Of the run that holds the comparison: recipe, scale and a hash of the request."""
        request = self.asked(config)
        name = self.name if request.keys() == {"recipe"} else f"{self.name}-{config.scale}-{short_hash(request)}"
        return Names(name, name, name)


def recipe_named(name: str) -> Recipe:
    """The recipe of that name, its module imported now; needs no torch."""
    recipe: Recipe = importlib.import_module(recipe_row(name).module).RECIPES[name]
    return recipe


def check_options(recipe: Recipe, config: ReproduceConfig) -> None:
    """Refuse options that mean nothing to a recipe, scales that it does not have, and numbers that are too small."""
    plain = ReproduceConfig(recipe=config.recipe)
    for entry in fields(config):
        value = getattr(config, entry.name)
        if entry.name in recipe.takes or value == getattr(plain, entry.name):
            continue
        flag = _flag(entry.name)
        got = ", ".join(map(str, value)) if isinstance(value, list) else f"{value}"
        what = f"leave {flag} out" + ("" if recipe.roles else f": {config.recipe} {_taken(recipe)} ({recipe.work})")
        raise InputError(teach(f"{config.recipe} without {flag}", got, what))
    scales = recipe.row.scales
    if scales and config.scale not in scales:
        listed = f"{', '.join(scales[:-1])} or {scales[-1]}" if len(scales) > 1 else scales[0]
        raise InputError(teach(f"--scale {listed}", repr(config.scale), nearest(config.scale, scales)))
    for name, least in LEAST.items():
        number = getattr(config, name)
        if number is not None and number < least:
            raise InputError(teach(f"--{name.replace('_', '-')} of at least {least}", f"{number}", "or leave it out"))


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def _taken(recipe: Recipe) -> str:
    """Options of a recipe."""
    flags = [_flag(name) for name in recipe.takes if name != "recipe"]
    return f"takes {', '.join(flags)}" if flags else "takes no option"


def short_hash(request: Any) -> str:
    """Eight digits for plain values."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:HASH_DIGITS]


def cell_name(word: str, config: Any) -> str:
    """Name of a run with a hash of its request, so that another number of prompts is another run."""
    return f"{word}-{short_hash(identity(config))}"
