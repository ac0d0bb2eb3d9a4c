"""Recipes of paper 1's figures and tables: which models, tasks, lengths and inits each needs, and what it prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from repflow.core.errors import InputError, nearest, teach
from repflow.papers import values as papers

CHECK = "flow-check"
DYNAMICS = ("dynamics-fig3", "dynamics-fig4", "dynamics-fig5", "dynamics-fig6")
"""Figures of paper 3, which need no model: `repflow.studies.reproduce.dynamics`."""
RECENCY: dict[str, str] = {
    "recency-fig1": "influence",
    "recency-fig2": "needle",
    "recency-fig5": "memory",
    "recency-fig6": "memory",
    "recency-fig7": "influence",
}
"""Recipe → module of `repflow.studies.reproduce` that runs it."""
KINDS = ("residual", "branch", "hf-tuple")
"""Kinds of state that the printed values are held against; the paper does not say which it used."""
Scale = Literal["tiny", "paper"]
SCALES = ("tiny", "zoo", "paper")
LARGE = tuple(model for model in papers.MODELS if model != "Mamba2-130M")
PAIR = ("GPT-Neo-2.7B", "Mamba2-2.7B")
BOTH_TASKS = tuple(papers.TASKS)
PRINTED = {"smoothness": "paper_smoothness", "stability": "paper_stability"}
"""Sm and St of the tables → metrics in the paper's own form: Eq. 3 divides by L - 2, Eq. 4 leaves the embedding out."""
TWINS = ("gaussian", "xavier", "he")
"""Random schemes of section 3.2."""


@dataclass(frozen=True)
class Recipe:
    """One figure or table.

    Attributes:
        name: as the command line spells it.
        title: what it shows.
        quantities: what is compared: layer_cosine, token_similarity, cka, peak_layer, or quantities of the tables.
        models: the paper's models in it.
        tasks: tasks; their mean is compared where there are two, except in Table 2.
        lengths: the paper's context lengths.
        inits: weights.
        by_task: each task has values of its own.
        note: how it is read where the paper leaves that open.
    """

    name: str
    title: str
    quantities: tuple[str, ...]
    models: tuple[str, ...] = LARGE
    tasks: tuple[str, ...] = BOTH_TASKS
    lengths: tuple[int, ...] = (papers.FIGURE_LENGTH,)
    inits: tuple[str, ...] = ("trained",)
    by_task: bool = False
    note: str = ""

    @property
    def probes(self) -> bool:
        """Whether probes are trained for it."""
        return bool({"accuracy", "drop", "peak_layer"} & set(self.quantities))

    @property
    def measures(self) -> bool:
        """Whether states are measured for it."""
        return bool(set(self.quantities) - {"accuracy", "drop", "peak_layer"})

    @property
    def metrics(self) -> list[str]:
        """Metrics that its cells measure; those of most recipes are the same, so that they share cells."""
        return ["cka_matrix"] if "cka" in self.quantities else ["default", *PRINTED.values()]

    def has(self, model: str, length: int) -> bool:
        """Whether the paper measured a model at a length; Transformers stop at their 2048 positions."""
        positions = papers.CHECKPOINTS[model].positions
        return positions is None or length <= positions


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("flow-fig1", "cosine of each token between neighbouring layers", ("layer_cosine",)),
        Recipe("flow-fig2", "inter-token similarity by layer", ("token_similarity",)),
        Recipe(
            "flow-fig3",
            "inter-token similarity, trained and random weights",
            ("token_similarity",),
            models=PAIR,
            inits=("trained", *TWINS),
            note="printed for random weights whatever the scheme; ours is the mean over gaussian, xavier and he",
        ),
        Recipe(
            "flow-fig4",
            "CKA of every pair of layers",
            ("cka",),
            note="the paper does not say which CKA estimator it used: unbiased here",
        ),
        Recipe(
            "flow-fig5",
            "cosine between neighbouring layers on kvpr alone",
            ("layer_cosine",),
            models=PAIR,
            tasks=("kvpr",),
            note="Figure 5 has no printed value: held against those of Figure 1, which averages both tasks",
        ),
        Recipe(
            "flow-fig6",
            "CKA of every pair of layers on kvpr alone",
            ("cka",),
            models=PAIR,
            tasks=("kvpr",),
            note="Figure 6 has no printed value: held against those of Figure 4, which averages both tasks",
        ),
        Recipe(
            "flow-fig7",
            "probing accuracy by layer on mdqa",
            ("peak_layer", "accuracy", "drop"),
            tasks=("mdqa",),
            by_task=True,
        ),
        Recipe(
            "flow-table1",
            "probing accuracy, drop, Sm and St, mean over tasks",
            papers.QUANTITIES,
            models=papers.MODELS,
            lengths=papers.LENGTHS,
        ),
        Recipe(
            "flow-table2",
            "probing accuracy, drop, Sm and St by task",
            papers.QUANTITIES,
            models=papers.MODELS,
            lengths=papers.LENGTHS,
            by_task=True,
        ),
    )
}


_PIXELS = "classifiers trained on the pixels of CIFAR-10, the planned pixel laboratory"
_RECALL = "stacks trained on associative recall with and without polarization, the planned recall laboratory"
_TOKENS = "training with constrained eigenvalues and reordered tokens, the planned token laboratory"
_COURSE = "token norms of a trained Mamba drawn as the figure has them, part of the planned token laboratory; today "
_COURSE += "`repflow dynamics apply` measures them for one model"
PLANNED: dict[str, str] = {
    **dict.fromkeys(("recency-fig3", "recency-fig10", "recency-table1", "recency-table3"), _PIXELS),
    **dict.fromkeys(("recency-table2", "recency-table5"), _RECALL),
    "recency-fig4": "models of many depths and context lengths trained alike, the planned study of depth",
    **dict.fromkeys(("dynamics-fig1", "dynamics-fig2", *(f"dynamics-table{n}" for n in (2, 3, 6, 7, 9, 10))), _TOKENS),
    **dict.fromkeys(("dynamics-fig7", "dynamics-fig8"), _COURSE),
}
"""Figures and tables with results that are not reproduced yet → what they need."""


def recipe(name: str) -> Recipe:
    """Look up a recipe.

    >>> recipe("flow-fig5").tasks
    ('kvpr',)
    """
    if name in PLANNED:
        known = ", ".join([*RECIPES, CHECK, *RECENCY, *DYNAMICS])
        got = f"{name}, which is not reproduced yet: it needs {PLANNED[name]}"
        raise InputError(teach("a figure or table that repflow reproduces", got, f"there are {known}"))
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; {nearest(name, [*RECIPES, CHECK, *RECENCY, *DYNAMICS])}")
    return RECIPES[name]


@dataclass(frozen=True)
class Row:
    """One printed value to hold ours against.

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


def rows(made: Recipe, models: tuple[str, ...], tasks: tuple[str, ...], lengths: Mapping[int, int]) -> list[Row]:
    """Printed values of a recipe, for the models, tasks and lengths that are run.

    Args:
        made: the recipe.
        models: the paper's models.
        tasks: tasks.
        lengths: the paper's length → tokens that are run for it.
    """
    found = []
    for quantity in made.quantities:
        if quantity in papers.QUANTITIES:
            found += _table_rows(made, quantity, models, tasks, lengths)
        else:
            found += _quote_rows(made, quantity, models, tasks)
    return sorted(found, key=lambda row: (models.index(row.model), row.length))


def _table_rows(
    made: Recipe, quantity: str, models: tuple[str, ...], tasks: tuple[str, ...], lengths: Mapping[int, int]
) -> list[Row]:
    blocks = tasks if made.by_task else ("mean",)
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


def _quote_rows(made: Recipe, quantity: str, models: tuple[str, ...], tasks: tuple[str, ...]) -> list[Row]:
    task = tasks[0] if len(tasks) == 1 else "mean"
    figures = {"flow-fig2": "Figure 2", "flow-fig3": "Figure 3"}
    found = []
    for quote in papers.QUOTES:
        wanted = quote.source == papers.FLOW and quote.quantity == quantity and quote.subject in models
        if not wanted or quote.low is None or quote.high is None:
            continue
        if made.name in figures and figures[made.name] not in quote.place:
            continue
        found.append(
            Row(quote.subject, _what(quote), quantity, task, papers.FIGURE_LENGTH, quote.init, quote.layers,
                quote.low, quote.high, f"{quote.citation}: “{quote.words}”")
        )  # fmt: skip
    return found


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
