"""Options of `repflow recency`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, teach
from repflow.papers.values import RATIO_DISTANCES
from repflow.studies.engine.naming import Names, spell
from repflow.studies.engine.parts import (
    Batches,
    OneModel,
    Prompting,
    Twin,
    ablation_names,
    defaults,
    listed,
    option,
)
from repflow.studies.engine.prompts import check_task, own_file

FINAL_NORM = "final"
"""Word for the final norm's output among the targets."""


@dataclass
@defaults(
    {
        "seed": "seed of random prompts, random weights and probes",
        "batch_size": "prompts per pass; default by what their activations take",
    }
)
class RecencyConfig(Twin, Batches, Prompting, OneModel):
    """How far back tokens reach; the fields are the command line's options and the `config` of the Result."""

    at: int = option(-1, "token t whose output is studied, counted from 0; negative counts from the end")
    to: list[str] = listed(
        "outputs y_t, repeated or comma separated: final (the final norm's), or numbers of states", [FINAL_NORM]
    )
    probes: int | None = option(
        None, "±1 probes per prompt, 0 for exact Jacobian rows; default exact to width 64, else 8"
    )
    fit_first: int | None = option(None, "smallest distance of the exponential fit; default 1")
    fit_last: int | None = option(None, "largest distance of the exponential fit; default the largest there is")
    nearest: int = option(RATIO_DISTANCES, "distances that the ratio of two models is fitted over")
    checkpointing: bool = option(False, "keep block outputs only and recompute blocks in each backward pass")

    def __post_init__(self) -> None:
        """Convert lists to their canonical form, so that the same request makes the same run."""
        self.ablate = ablation_names(self.ablate)
        self.to = targets(self.to)

    @property
    def states(self) -> str:
        """Kind of state: influence is of the residual stream."""
        return "residual"


def targets(entry: Sequence[Any]) -> list[str]:
    """Names of targets, each once, the final norm's first.

    >>> targets([4, "final,2", "4"])
    ['final', '2', '4']
    """
    listed = [entry] if isinstance(entry, str | int) else entry
    words = [part.strip() for value in listed for part in str(value).split(",") if part.strip()]
    for word in words:
        if word != FINAL_NORM and not word.isdecimal():
            raise InputError(teach("--to final, or the number of a state", repr(word), "such as --to final,4"))
    if not words:
        raise InputError(teach("--to final, or the number of a state", "nothing", "leave --to out for final"))
    numbers = sorted({int(word) for word in words if word != FINAL_NORM})
    return [*([FINAL_NORM] if FINAL_NORM in words else []), *map(str, numbers)]


def check_words(config: RecencyConfig) -> None:
    """Refuse what can be seen to be wrong before a model is loaded, which may take minutes."""
    from repflow.studies.engine.loading import check_files
    from repflow.tasks.make import check_size

    check_task(config)
    check_files(*config.text, *own_file(config.task))
    check_size(config.length, config.samples)
    check_numbers(config)
    if not -config.length <= config.at < config.length:
        expected = f"--at from {-config.length} to {config.length - 1} with --length {config.length}"
        raise InputError(teach(expected, f"{config.at}", "pass --at -1 for the last token"))
    reach = config.at % config.length  # the largest distance there can be
    if config.fit_first is not None and config.fit_first + 2 > reach:
        expected = f"--fit-first of at most {reach - 2}, which leaves 3 distances to fit"
        remedy = "pass a smaller --fit-first or a larger --length" if reach > 2 else "pass a later --at"
        raise InputError(teach(expected, f"{config.fit_first} with distances up to {reach}", remedy))


def check_reach(reach: int) -> None:
    """Refuse curves that are too short for the ratio of two models, whose decay is fitted.

    Args:
        reach: the largest distance there is.
    """
    from repflow.theory.influence_curve import LEAST_POINTS

    if reach < LEAST_POINTS:
        expected = f"at least {LEAST_POINTS} tokens before token t, so that the ratio of two models can be fitted"
        raise InputError(teach(expected, f"{reach}", "use longer prompts, a later --at, or one model at a time"))


def check_numbers(config: RecencyConfig) -> None:
    """Refuse numbers and words that mean nothing, whatever the prompts."""
    from repflow.spec.request import check_least
    from repflow.spec.scheme import parse_scheme
    from repflow.studies.engine.loading import check_loading

    check_loading(config)
    if config.twin is not None and parse_scheme(config.twin).name == "trained":
        raise InputError(teach("a random scheme for the twin", repr(config.twin), "pass --twin default, gaussian, ..."))
    check_least(
        [("--probes", config.probes, 0), ("--nearest", config.nearest, 4), ("--fit-first", config.fit_first, 0)]
    )
    check_least([("--fit-last", config.fit_last, (1 if config.fit_first is None else config.fit_first) + 2)])


def names(config: RecencyConfig) -> Names:
    """Names of a run.

    >>> names(RecencyConfig(model="gpt2")).current, names(RecencyConfig(model="gpt2", twin="default", probes=4)).current
    ('gpt2-recency-text-512', 'gpt2-recency-text-512-0a0a5fd3')
    """
    parts = [config.init] if config.init != "trained" else []
    parts += [f"no-{name}" if name in ("norm", "positions") else name for name in config.ablate]
    parts += ["recency", Path(config.task).stem, str(config.length)]
    return spell(config, parts, ("init", "ablate", "task", "length"))
