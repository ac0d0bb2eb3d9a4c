"""Options of `repflow memory`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from repflow.studies.engine.naming import Names, spell, weight_words
from repflow.studies.engine.parts import Batches, OneModel, Prompting, defaults, listed, option

LEAST_TOKENS = 3
"""Tokens from which a prompt has a range of decays: the first token's multiplies nothing, and one has no range."""


@dataclass
@defaults(samples=4)
class MemoryConfig(Batches, Prompting, OneModel):
    """What to look at; the fields are the command line's options and the `config` of the Result."""

    attention: bool = option(False, "also entropy and mean distance of each layer's (hidden) attention; a second pass")
    units: int = option(16, "channels or heads of a layer that --attention and --maps look at, evenly spread")
    maps: list[int] = listed("layer, from 0, whose (hidden) attention on the first prompt is stored as a run; repeated")

    @property
    def states(self) -> str:
        """Kind of state: no states are kept, which the checks of loading ask for."""
        return "residual"


def names(config: MemoryConfig) -> Names:
    """Names of a run: as of a measurement, marked."""
    parts = [*weight_words(config), Path(config.task).stem, str(config.length), "memory"]
    parts += ["attention"] if config.attention else []
    return spell(config, parts, ("init", "init_seed", "ablate", "task", "length", "attention"))
