"""Paper 2's Tables 2 and 5: associative recall by stacks whose decays are fixed at 1, at 0, or at both ends.

The stacks are trained here (`repflow recall`), so there is no checkpoint to load. The paper prints one training at one
rate, of a model whose step sizes its own initialisation overwrote and whose poles are added to the states; so do we,
and beside it stand 17 and 18 free states, which it leaves out. Rows are new at every step, where its code repeats
300,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from repflow.core.intervals import bracketed
from repflow.studies.recall.config import RecallConfig
from repflow.studies.reproduce.recipe import ReproduceCell, ReproducePlan, cell_name
from repflow.studies.reproduce.statement import Reading, Statement, StatementRecipe

if TYPE_CHECKING:
    import numpy as np

    from repflow.core.results import Result
    from repflow.studies.engine.cells import Outcome
    from repflow.studies.reproduce.config import ReproduceConfig
    from repflow.studies.reproduce.models import StandIn

ROWS = {"default": "none/16", "A₁₁ = 1": "one+/16", "A_NN = 0": "zero+@-1000/16", "both": "both+@-1000/16"}
"""The paper's configurations, as rows of `repflow recall`."""
CONTROLS = ("none/17", "none/18")
LAYERS = (2, 4)
PRINTED = {
    ("default", 2): (98.38, 81.81, 36.00),
    ("default", 4): (99.23, 82.08, 33.52),
    ("A₁₁ = 1", 2): (99.81, 94.70, 56.39),
    ("A_NN = 0", 2): (98.41, 81.35, 36.55),
    ("A_NN = 0", 4): (99.74, 92.20, 52.21),
    ("both", 2): (99.23, 95.54, 54.74),
    ("both", 4): (99.94, 98.80, 81.56),
}
"""Accuracy (%) at length 1,024 with 64, 128 and 256 pairs; A₁₁ = 1 with 4 layers is not printed."""
SAME = 0.05
"""Difference of accuracies up to which they count as the same."""
SETTINGS: dict[str, dict[str, Any]] = {
    "tiny": {
        **{"widths": ["16"], "lengths": ["16"], "vocabulary": 32, "steps": 150, "batch": 16, "rates": ["0.01"]},
        **{"test_rows": 100, "flow_samples": 2},
    },
    "lab": {
        **{"widths": ["64"], "lengths": ["64", "128", "256"], "steps": 20_000, "rates": ["0.005"]},
        **{"seeds": ["0", "1", "2"], "warmup": 0.1},
    },
    "paper": {
        **{"widths": ["128"], "lengths": ["64", "128", "256", "512", "1024"], "steps": 150_000, "rates": ["0.001"]},
        **{"seeds": ["123"], "clip": 0.0},
    },
}
"""Of each scale; `paper` has 64 epochs of 300,000 rows in batches of 128."""
KEY = "stacks"


@dataclass(frozen=True, kw_only=True)
class Polarization(StatementRecipe):
    """A table of paper 2 on stacks with poles.

    Attributes:
        name: in the table of recipes.
        note: how it is read.
        symptoms: whether it is Table 5, which says what the poles cure.
    """

    name: str
    note: str
    symptoms: bool = False
    takes: tuple[str, ...] = ("recipe", "scale", "seed", "device")
    drawn: tuple[str, ...] = ("accuracy", "accuracy_by_distance", "half_reach", "token_similarity")
    work: str = "training stacks"

    def cells(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> Iterator[ReproduceCell]:
        """One grid, which both tables share."""
        chosen = SETTINGS[config.scale]
        seeds = [str(int(seed) + config.seed) for seed in chosen.get("seeds", ["0"])]
        rows, layers = [*ROWS.values(), *CONTROLS], [str(depth) for depth in LAYERS]
        grid = {**chosen, "seeds": seeds, "rows": rows, "layers": layers, "inits": ["published"]}
        asked = RecallConfig(**grid, device=config.device)
        yield ReproduceCell(cell_name("polarization", asked), asked, key=KEY)

    def statements(self, roles: Sequence[str], *, random: bool = False) -> list[Statement]:
        """What the paper says of recall, or of recency and over-smoothing."""
        return list(_symptoms() if self.symptoms else _gains())

    def compare(self, plan: ReproducePlan, outcomes: Sequence[Outcome]) -> Result:
        """The statements with their verdict; then every printed number beside ours, judged by none at another size."""
        result = super().compare(plan, outcomes)
        trained = next((outcome.result for outcome in outcomes if outcome.result is not None), None)
        if trained is not None:
            result.provenance["lines"] += [_line(trained, name, layers) for name in ROWS for layers in LAYERS]
            result.provenance["pairs"] = trained.provenance["recall"]["pairs"]
            result.findings += trained.findings
        return result


def accuracies(result: Result, row: str, layers: int, name: str = "accuracy") -> np.ndarray:
    """An array of the cells of one row and depth, a seed each (seed, ...)."""
    cells = result.provenance["cells"]
    places = [place for place, cell in enumerate(cells) if (cell["row"], cell["layers"]) == (row, layers)]
    return result[name][places]


def _line(result: Result, name: str, layers: int) -> dict[str, Any]:
    """Printed accuracies of a configuration beside ours."""
    import numpy as np

    ours = 100 * np.mean(accuracies(result, ROWS[name], layers), 0)
    pairs = result.provenance["recall"]["pairs"]
    length = result.provenance["recall"]["length"]
    said = PRINTED.get((name, layers))
    stated = (
        "not printed" if said is None else f"{', '.join(f'{value:.2f}' for value in said)} % (Table 2, length 1,024)"
    )
    text = (
        f"{', '.join(f'{value:.2f}' for value in ours)} % with {', '.join(map(str, pairs))} pairs at length {length:,}"
    )
    what = f"{name}, {layers} layers: accuracy with 12.5, 25 and 50 % of a row in pairs"
    return {"what": what, "of": what, "stated": stated, "ours": text, "holds": None, "judged": False}


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _gains() -> Iterator[Statement]:
    best = "81.56 % with 256 pairs, the best of all rows"
    yield Statement("both, 4 layers, against every other row", best, "6, Table 2", (KEY,), _best)
    for name, layers, other, said in (
        ("A₁₁ = 1", 2, ("default", 2), "56.39 against 36.00 %"),
        ("A_NN = 0", 4, ("default", 4), "52.21 against 33.52 %"),
        ("both", 4, ("default", 4), "81.56 against 33.52 %"),
    ):
        what = f"{name} above the default, {layers} layers"
        reader = partial(_above, row=ROWS[name], layers=layers, other=ROWS[other[0]], other_layers=other[1])
        yield Statement(what, said, "Table 2, 256 pairs", (KEY,), reader)
    reader = partial(_alike, row=ROWS["A_NN = 0"], layers=2, other="none/16", other_layers=2)
    place = "Table 2, 256 pairs"
    yield Statement("A_NN = 0 with 2 layers as the default", "36.55 against 36.00 %", place, (KEY,), reader)
    reader = partial(_above, row="none/16", layers=2, other="none/16", other_layers=4)
    yield Statement("the default is worse with 4 layers", "33.52 against 36.00 %", place, (KEY,), reader)
    reader = partial(_above, row=ROWS["both"], layers=4, other="none/18", other_layers=4)
    yield Statement("both above 18 free states, 4 layers", "no control printed", "6", (KEY,), reader)


def _symptoms() -> Iterator[Statement]:
    recency, smooth = "the pole at 1 relieves recency", "the pole at 0 relieves over-smoothing"
    for layers in LAYERS:
        reader = partial(_above, row=ROWS["A₁₁ = 1"], layers=layers, other="none/16", other_layers=layers)
        read = partial(reader, name="half_reach", unit="tokens")
        yield Statement(f"A₁₁ = 1, {layers} layers: reach of influence", recency, "6, Table 5", (KEY,), read)
        reader = partial(_above, row="none/16", layers=layers, other=ROWS["A_NN = 0"], other_layers=layers)
        read = partial(reader, name="token_similarity", unit="")
        yield Statement(f"A_NN = 0, {layers} layers: similarity of tokens", smooth, "6, Table 5", (KEY,), read)


def _values(result: Result, row: str, layers: int, name: str) -> np.ndarray:
    """One number per seed: accuracy with the most pairs, a reading, or the similarity behind the last block."""
    import numpy as np

    if name not in result:
        return np.array([])
    values = accuracies(result, row, layers, name)
    return values if values.ndim == 1 else values[:, layers] if name == "token_similarity" else values[:, -1]


def _difference(
    result: Result, row: str, layers: int, other: str, other_layers: int, name: str, unit: str
) -> tuple[str, float, float]:
    """Difference of two rows, seed by seed: words, and bounds of its 95 % interval."""
    import numpy as np

    from repflow.core.intervals import student_interval

    a, b = _values(result, row, layers, name), _values(result, other, other_layers, name)
    scale, digits = (100, 2) if unit == "%" else (1, 3)
    if not len(a):
        return "not read", np.nan, np.nan
    band = student_interval(a - b)
    mean, low, high = (scale * float(side) for side in (band.mean, band.low, band.high))
    sides = f"{scale * a.mean():.{digits}f} and {scale * b.mean():.{digits}f}{' ' * bool(unit)}{unit}"
    seeds = f"{len(a)} seed{'s' * (len(a) > 1)}"
    interval = bracketed(low, high, f"+.{digits}f") or " (too few seeds for an interval)"
    return f"{sides}, difference {mean:+.{digits}f}{interval}, {seeds}", low / scale, high / scale


def _above(
    result: Result, row: str, layers: int, other: str, other_layers: int, name: str = "accuracy", unit: str = "%"
) -> Reading:
    text, low, high = _difference(result, row, layers, other, other_layers, name, unit)
    return Reading(text, True if low > 0 else False if high < 0 else None)


def _alike(result: Result, row: str, layers: int, other: str, other_layers: int) -> Reading:
    text, low, high = _difference(result, row, layers, other, other_layers, "accuracy", "%")
    holds = True if low > -SAME and high < SAME else False if low > SAME or high < -SAME else None
    return Reading(text, holds)


def _best(result: Result) -> Reading:
    """Above each other printed row; one that lies above it settles the question."""
    import numpy as np

    mine, texts, signs = (ROWS["both"], 4), [], []
    for row in ROWS.values():
        for layers in LAYERS:
            if (row, layers) != mine:
                _, low, high = _difference(result, *mine, row, layers, "accuracy", "%")
                signs.append(True if low > 0 else False if high < 0 else None)
                value = 100 * float(np.mean(_values(result, row, layers, "accuracy")))
                texts.append(f"{row} {layers} layers {value:.2f}")
    own = 100 * float(np.mean(_values(result, *mine, "accuracy")))
    holds = False if False in signs else True if all(signs) else None
    return Reading(f"{own:.2f} %; {', '.join(texts)}", holds)


NOTE = (
    "poles are added to the states, at 1 and at exp(−1000 Δ), and biases of the step sizes start at 0, as in the "
    "paper's code; rows are new at every step; the last lines have all printed numbers beside ours"
)
RECIPES = {
    "recency-table2": Polarization(name="recency-table2", note=NOTE),
    "recency-table5": Polarization(
        name="recency-table5",
        note=f"the table's marks for recency and over-smoothing are read as reach of influence and similarity; {NOTE}",
        symptoms=True,
    ),
}
