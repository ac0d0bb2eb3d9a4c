"""Paper 1's printed values as rows: one per value, with what it is of and where it is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from repflow.papers import values as papers

PRINTED = {"smoothness": "paper_smoothness", "stability": "paper_stability"}
"""Sm and St of the tables → metrics in the paper's own form: Eq. 3 divides by L - 2, Eq. 4 leaves the embedding out."""
PROBED = ("accuracy", "drop", "peak_layer")
"""Quantities that come from probes."""


@runtime_checkable
class Shown(Protocol):
    """What a figure or table shows; see `repflow.studies.reproduce.flow.FlowRecipe`."""

    @property
    def name(self) -> str:
        """Recipe."""

    @property
    def quantities(self) -> tuple[str, ...]:
        """What is compared."""

    @property
    def by_task(self) -> bool:
        """Each task has values of its own."""


@dataclass(frozen=True)
class Key:
    """Which run a Result is of.

    Attributes:
        model: the paper's name.
        task: task.
        length: the paper's length.
        init: weights.
        kind: kind of state.
        probed: whether it is a run of `repflow probe`.
    """

    model: str
    task: str
    length: int
    init: str
    kind: str
    probed: bool = False


@dataclass(frozen=True)
class Row:
    """One printed value to compare ours with.

    Attributes:
        model: the paper's name.
        what: what it is of, in words.
        quantity: which quantity.
        task: task, or `mean` over both.
        length: the paper's length.
        init: `trained` or `random`.
        layers: layers it speaks of, from 1, as in `papers.Quote`.
        low: smallest printed value.
        high: largest.
        source: where it is printed.
    """

    model: str
    what: str
    quantity: str
    task: str
    length: int
    init: str
    layers: tuple[int, int] | None
    low: float
    high: float
    source: str


def rows(chosen: Shown, models: tuple[str, ...], tasks: tuple[str, ...], lengths: Mapping[int, int]) -> list[Row]:
    """Printed values of a recipe, for the models, tasks and lengths that are run.

    Args:
        chosen: the recipe.
        models: the paper's models.
        tasks: tasks.
        lengths: the paper's length → tokens that are run for it.
    """
    printed = []
    for quantity in chosen.quantities:
        if quantity in papers.QUANTITIES:
            printed += _table_rows(chosen, quantity, models, tasks, lengths)
        else:
            printed += _quote_rows(chosen, quantity, models, tasks)
    return sorted(printed, key=lambda row: (models.index(row.model), row.length))


def _table_rows(
    chosen: Shown, quantity: str, models: tuple[str, ...], tasks: tuple[str, ...], lengths: Mapping[int, int]
) -> list[Row]:
    blocks = tasks if chosen.by_task else ("mean",)
    cells = [papers.printed(task, model, length) for model in models for length in lengths for task in blocks]
    return [
        Row(cell.model, f"{cell.task} {_run_length(cell.length, lengths)}", quantity, cell.task, cell.length,
            "trained", None, cell.value(quantity), cell.value(quantity), cell.place)
        for cell in cells
        if cell is not None
    ]  # fmt: skip


def _run_length(length: int, lengths: Mapping[int, int]) -> str:
    """The tokens that ran, and the paper's n where they are others.

    >>> _run_length(2000, {2000: 2000}), _run_length(2000, {2000: 440})
    ('n = 2K', 'n = 440 for 2K')
    """
    ran, short = lengths[length], papers.short_length(length)
    return f"n = {short}" if ran == length else f"n = {papers.short_length(ran)} for {short}"


def _quote_rows(chosen: Shown, quantity: str, models: tuple[str, ...], tasks: tuple[str, ...]) -> list[Row]:
    task = tasks[0] if len(tasks) == 1 else "mean"
    figures = {"flow-fig2": "Figure 2", "flow-fig3": "Figure 3"}
    quoted = []
    for quote in papers.QUOTES:
        wanted = quote.source == papers.FLOW and quote.quantity == quantity and quote.subject in models
        if not wanted or quote.low is None or quote.high is None:
            continue
        if chosen.name in figures and figures[chosen.name] not in quote.place:
            continue
        quoted.append(
            Row(quote.subject, _what(quote), quantity, task, papers.FIGURE_LENGTH, quote.init, quote.layers,
                quote.low, quote.high, f"{quote.citation}: “{quote.words}”")
        )  # fmt: skip
    return quoted


def _what(quote: papers.Quote) -> str:
    weights = "" if quote.init == "trained" else f", {quote.init} weights"
    if quote.quantity == "peak_layer":
        return f"peak layer of {papers.layers_of(quote.subject)}"
    if quote.layers is None:
        return f"most layers{weights}"
    first, last = quote.layers
    if quote.quantity == "cka":
        return f"layers {first} and {last}{weights}"
    return f"layer {first}{weights}" if first == last else f"layers {first} to {last}{weights}"
