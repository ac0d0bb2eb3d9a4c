"""The table of recipes: figures and tables of the papers, what each shows and where its code is. No torch.

A new recipe is an entry of `RECIPES` in a module (an object of `repflow.studies.reproduce.recipe.Recipe`), and one row
here. A row without a module is a figure or table with results that is not reproduced yet; it says what it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from repflow.core.errors import InputError, nearest, teach

SCALES = ("tiny", "zoo", "paper")
"""Small random models made on the spot, the built-in trained ones, the paper's own checkpoints, lengths and counts."""


@dataclass(frozen=True)
class RecipeRow:
    """One figure or table.

    Attributes:
        name: as the command line spells it; its first word is the paper's.
        paper: number of the paper.
        shows: what it shows.
        module: the module whose `RECIPES` has it; "" where it is not reproduced yet.
        scales: sizes that it can be run at; empty where it runs no model. `tiny` is for tries, `lab` for recipes that
            train, `paper` for the paper's own setting, which starts only with --yes.
        needs: what it waits for, where there is no module.
    """

    name: str
    paper: int
    shows: str
    module: str = ""
    scales: tuple[str, ...] = SCALES
    needs: str = ""

    @property
    def family(self) -> str:
        """First word of the name, which recipes that share runs have in common.

        >>> recipe_row("recency-fig1").family
        'recency'
        """
        return self.name.split("-")[0]


_FLOW, _CHECK = "repflow.studies.reproduce.flow", "repflow.studies.reproduce.agreement"
_INFLUENCE, _NEEDLE = "repflow.studies.reproduce.influence", "repflow.studies.reproduce.needle"
_MEMORY, _DYNAMICS = "repflow.studies.reproduce.memory", "repflow.studies.reproduce.dynamics"
_PIXELS = "repflow.studies.reproduce.pixels"
_POLES, _TRAINED = "repflow.studies.reproduce.polarization", ("tiny", "lab", "paper")
_TRAINED3 = "repflow.studies.reproduce.tokens"
_IMAGES3 = "repflow.studies.reproduce.images"

RECIPES = (
    RecipeRow("flow-fig1", 1, "cosine of each token between neighbouring layers", _FLOW),
    RecipeRow("flow-fig2", 1, "inter-token similarity by layer", _FLOW),
    RecipeRow("flow-fig3", 1, "inter-token similarity, trained and random weights", _FLOW),
    RecipeRow("flow-fig4", 1, "CKA of every pair of layers", _FLOW),
    RecipeRow("flow-fig5", 1, "cosine between neighbouring layers on kvpr alone", _FLOW),
    RecipeRow("flow-fig6", 1, "CKA of every pair of layers on kvpr alone", _FLOW),
    RecipeRow("flow-fig7", 1, "probing accuracy by layer on mdqa", _FLOW),
    RecipeRow("flow-table1", 1, "probing accuracy, drop, Sm and St, mean over tasks", _FLOW),
    RecipeRow("flow-table2", 1, "probing accuracy, drop, Sm and St by task", _FLOW),
    RecipeRow("flow-check", 1, "where tables, text and summaries disagree; runs no model", _CHECK),
    RecipeRow("recency-fig1", 2, "log influence by distance, trained and untrained", _INFLUENCE),
    RecipeRow("recency-fig2", 2, "retrieval of a counterfactual statement by length and position", _NEEDLE),
    RecipeRow("recency-fig5", 2, "sharpness of b and h, of mixer and block outputs, through depth", _MEMORY),
    RecipeRow("recency-fig6", 2, "cumulative histogram of A_max − A_min over channels", _MEMORY),
    RecipeRow(
        "recency-fig7",
        2,
        "influence of Mamba and Transformers, and its ratio within the nearest 128 tokens",
        _INFLUENCE,
    ),
    RecipeRow("recency-table2", 2, "associative recall with and without polarized channels", _POLES, _TRAINED),
    RecipeRow("recency-table5", 2, "locality and over-smoothing with and without polarized channels", _POLES, _TRAINED),
    RecipeRow(
        "dynamics-fig3", 3, "Convergence: tokens and hidden attention go to zero (Theorem 4.1)", _DYNAMICS, scales=()
    ),
    RecipeRow(
        "dynamics-fig4",
        3,
        "Slow divergence: tokens go to infinity like ln t, hidden attention to zero (Theorem 4.3)",
        _DYNAMICS,
        scales=(),
    ),
    RecipeRow(
        "dynamics-fig5", 3, "Fast divergence: a token is infinite at a finite time (Theorem 4.4)", _DYNAMICS, scales=()
    ),
    RecipeRow("dynamics-fig6", 3, "Two dimensions: the conjecture of appendix C", _DYNAMICS, scales=()),
    RecipeRow("recency-fig3", 2, "success of attacks by pasted pixels, one target class", _PIXELS, _TRAINED),
    RecipeRow("recency-fig4", 2, "which depth is best, by context length", "repflow.studies.reproduce.depth", _TRAINED),
    RecipeRow("recency-fig10", 2, "success of attacks by pasted pixels, mean over target classes", _PIXELS, _TRAINED),
    RecipeRow("recency-table1", 2, "accuracy with noise on the first or the last pixels", _PIXELS, _TRAINED),
    RecipeRow("recency-table3", 2, "accuracy with noise on further shares of the pixels", _PIXELS, _TRAINED),
    RecipeRow("dynamics-fig1", 3, "perplexity during training, by signs of the eigenvalues", _TRAINED3, _TRAINED),
    RecipeRow("dynamics-fig2", 3, "accuracy on images during training, with reordered tokens", _IMAGES3, _TRAINED),
    RecipeRow("dynamics-table2", 3, "perplexity by signs of the eigenvalues", _TRAINED3, _TRAINED),
    RecipeRow("dynamics-table3", 3, "accuracy on images with reordered tokens", _IMAGES3, _TRAINED),
    RecipeRow("dynamics-table6", 3, "perplexity of further models with reordered tokens", _TRAINED3, _TRAINED),
    RecipeRow("dynamics-table7", 3, "accuracy on texts with reordered tokens", _TRAINED3, _TRAINED),
    RecipeRow("dynamics-table9", 3, "perplexity by signs of the eigenvalues, over three seeds", _TRAINED3, _TRAINED),
    RecipeRow(
        "dynamics-table10", 3, "perplexity without parts of the block, with reordered tokens", _TRAINED3, _TRAINED
    ),
    RecipeRow("dynamics-fig7", 3, "token norms through depth, without LayerNorm", _TRAINED3, _TRAINED),
    RecipeRow("dynamics-fig8", 3, "token norms through depth, with LayerNorm", _TRAINED3, _TRAINED),
)
"""In the order of the papers; those that are not reproduced yet come last."""
NAMES = tuple(row.name for row in RECIPES if row.module)
"""Recipes that can be run."""


def recipe_row(name: str) -> RecipeRow:
    """The row of a recipe that can be run.

    >>> recipe_row("flow-fig2").shows
    'inter-token similarity by layer'

    Raises:
        InputError: There is none of that name, or it is not reproduced yet.
    """
    row = next((row for row in RECIPES if row.name == name), None)
    if row is None:
        raise InputError(f"unknown recipe {name!r}; {nearest(name, NAMES)}")
    if not row.module:
        got = f"{name}, which is not reproduced yet: it needs {row.needs}"
        raise InputError(teach("a figure or table that repflow reproduces", got, f"there are {', '.join(NAMES)}"))
    return row
