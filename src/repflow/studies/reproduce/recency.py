"""Recipes of paper 2 that put one study to a few models: a run per model, and the paper's words beside it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from repflow.studies.reproduce.recipe import ReproduceCell
from repflow.studies.reproduce.statement import StatementRecipe

if TYPE_CHECKING:
    from repflow.studies.reproduce.config import ReproduceConfig
    from repflow.studies.reproduce.models import StandIn


class RecencyRecipe(StatementRecipe):
    """A figure of paper 2: the key of a cell is the paper's model."""

    stored_as = "recency-figure"

    @abstractmethod
    def request(self, config: ReproduceConfig, model: StandIn) -> tuple[str, Any]:
        """Name and config of a model's run."""

    def cells(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> Iterator[ReproduceCell]:
        """A run for each model."""
        for role, model in models.items():
            yield ReproduceCell(*self.request(config, model), key=role, role=role)


def run_options(
    config: ReproduceConfig, model: StandIn, task: str, lengths: Mapping[str, int], samples: Mapping[str, int]
) -> dict[str, Any]:
    """Fields that the runs of a figure share, whichever study makes them.

    Args:
        config: the request.
        model: what is run.
        task: where the request names none.
        lengths: tokens per prompt by scale, where it names none.
        samples: prompts by scale, where it names none.
    """
    return {
        "task": config.tasks[0] if config.tasks else task,
        "length": config.lengths[0] if config.lengths else lengths[config.scale],
        "samples": config.samples or samples[config.scale],
        **loading_options(config, model),
    }


def loading_options(config: ReproduceConfig, model: StandIn) -> dict[str, Any]:
    """Which model, and how it runs."""
    return {
        "model": model.spec,
        "tokenizer": model.tokenizer,
        "seed": config.seed,
        "match": "tokens",
        "dtype": config.dtype,
        "device": config.device,
        "scan": config.scan,
        "batch_size": config.batch_size,
    }
