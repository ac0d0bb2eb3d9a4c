"""What a grid costs, from configuration files alone: nothing is loaded, downloaded or written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.studies import row_named
from repflow.core.trust import Trust
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.grid import read_study
from repflow.studies.engine.table import study_for

if TYPE_CHECKING:
    from repflow.studies.engine.study import BaseStudy


PASSES = ("forward", "backward", "training")
"""Kinds of passes; a training step is a forward and a backward pass, weights' gradients too."""


@dataclass(frozen=True)
class Cost:
    """What the cells need.

    Attributes:
        cells: number of them.
        prompts: prompts over all cells.
        tokens: tokens over all cells, at most.
        trained: those of them that cells train on.
        passes: kinds of passes that `flops` adds up: forward, backward, training.
        parameters: per model, or cell that has none of its own; None where they are not known without downloading.
        flops: of all cells whose model's parameters are known.
        disk_bytes: of all cells whose model's size is known.
        unknown: models that are missing in `flops` and `disk_bytes`.
    """

    cells: int
    prompts: int
    tokens: int
    trained: int
    passes: tuple[str, ...]
    parameters: dict[str, int | None]
    flops: float
    disk_bytes: int
    unknown: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"passes": list(self.passes), "unknown": list(self.unknown)}


@dataclass(frozen=True)
class Plan:
    """A study before it runs.

    Attributes:
        name: folder of the study in the folder of runs.
        cells: of the part that was asked for.
        cost: of these.
    """

    name: str
    cells: tuple[Cell, ...]
    cost: Cost


def plan(file: Path, part: str, trust: Trust) -> Plan:
    """Read a STUDY.toml and add up what a part of it costs; models' configurations are read, which imports torch.

    Raises:
        InputError: see `repflow.studies.engine.grid.read_study`.
    """
    study = read_study(file, allow_code=trust.code, trust_remote_code=trust.remote_code)
    cells = study.part(part)
    return Plan(study.name, cells, estimate(cells))


def estimate(cells: Sequence[Cell]) -> Cost:
    """Add up the cells."""
    requests = [(study_for(cell.config), cell.config) for cell in cells]
    subjects = {_subject(study, config): (study, config) for study, config in requests}
    sizes = {subject: study.size(config) for subject, (study, config) in subjects.items()}
    models = {subject for subject, (_, config) in subjects.items() if hasattr(config, "model")}  # others may need none
    parameters = {
        subject: None if size is None else size.parameters
        for subject, size in sizes.items()
        if size is not None or subject in models
    }
    reads = [study.reads(config) for study, config in requests]
    known = [
        (study, config, size) for study, config in requests if (size := sizes[_subject(study, config)]) is not None
    ]
    return Cost(
        cells=len(cells),
        prompts=sum(prompts for prompts, _ in reads),
        tokens=sum(tokens for _, tokens in reads),
        trained=trained_tokens(requests),
        passes=passes_of(requests),
        parameters=parameters,
        flops=float(sum(study.flops(config, size) for study, config, size in known)),
        disk_bytes=sum(study.disk_bytes(config, size) for study, config, size in known),
        unknown=tuple(model for model, count in parameters.items() if count is None),
    )


def trained_tokens(requests: Sequence[tuple[BaseStudy[Any], Any]]) -> int:
    """Tokens that laboratories among the requests train on."""
    return sum(study.reads(config)[1] for study, config in requests if row_named(study.name).trains)


def amount_words(prompts: int, tokens: int, trained: int) -> str:
    """What the passes read.

    >>> amount_words(8, 2048, 0), amount_words(8, 2048, 2048)
    ('8 prompts, 2,048 tokens', '8 rows, 2,048 tokens to train on')
    >>> amount_words(8, 2048, 1024)
    '8 prompts and rows, 2,048 tokens, 1,024 of them to train on'
    """
    if not trained:
        return f"{prompts:,} prompts, {tokens:,} tokens"
    if trained == tokens:
        return f"{prompts:,} rows, {tokens:,} tokens to train on"
    return f"{prompts:,} prompts and rows, {tokens:,} tokens, {trained:,} of them to train on"


def passes_of(requests: Sequence[tuple[BaseStudy[Any], Any]]) -> tuple[str, ...]:
    """Kinds of passes of the requests, each once; forward where there is no request."""
    kinds = {kind for study, _ in requests for kind in study.pass_kinds}
    return tuple(kind for kind in PASSES if kind in kinds) or ("forward",)


def pass_words(passes: Sequence[str]) -> str:
    """Which passes the operations are those of.

    >>> pass_words(["forward"]), pass_words(["training"]), pass_words(["forward", "backward"])
    ('forward passes', 'training steps', 'forward and backward passes')
    >>> pass_words(["forward", "training"])
    'forward passes and training steps'
    """
    ways = " and ".join(kind for kind in passes if kind != "training")
    return " and ".join([f"{ways} passes"] * bool(ways) + ["training steps"] * ("training" in passes))


def operation_words(passes: Sequence[str]) -> str:
    """How operations are counted.

    >>> operation_words(["forward"]), operation_words(["forward", "backward"])
    ('2 per parameter and token', '2 per parameter and token in each pass')
    >>> operation_words(["training"]), operation_words(["forward", "training"])
    ('6 per parameter and token', '2, trained 6 per parameter and token')
    """
    if "backward" in passes:
        return "2 per parameter and token in each pass" + (", trained 6" if "training" in passes else "")
    each = ["2"] * ("forward" in passes) + ["trained 6" if len(passes) > 1 else "6"] * ("training" in passes)
    return f"{', '.join(each)} per parameter and token"


def _subject(study: BaseStudy[Any], config: Any) -> str:
    """What a cell reads: its model, or itself where it has none or makes its models."""
    return str(config.model) if hasattr(config, "model") else study.run_name(config)
