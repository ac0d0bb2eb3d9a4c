"""What the token laboratory claims, fixed before the data, and the control that decides each claim.

Losses are of the held-out part of the training text, a difference is taken within each seed (`repflow.papers.tokens`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.core.verdict import DOES_NOT, HOLDS, OPEN, Part, decide
from repflow.dynamics.rates import fit_rates
from repflow.papers.tokens import CAUSAL, IDENTITY, LEAKY, NO_SEED, RANDOM, RowValues

Judged = list[tuple[str, bool | None]]
NOT_RUN = "not run"
UNLIKE: Judged = [("trained for different numbers of steps", None)]
PARTS = ("scenarios", "mamba", "attention", "shift", "h3", "ablations", "norms")
SHIFTED = {"positive": "mamba+positive+shift", "mixed": "mamba+mixed", "negative": "mamba+negative+shift"}


@dataclass(frozen=True)
class Study:
    """Trainings of the phase `seeds`, of all parts that were run.

    Attributes:
        cells: as `tools.tokens.run table` writes them.
    """

    cells: Sequence[Mapping[str, Any]]

    def of(self, name: str, place: int | None = None, *, log: bool = False) -> RowValues:
        """A number of every model by row and seed; of a list the entry at a place."""
        values = []
        for cell in self.cells:
            value = cell.get(name)
            if value is not None and place is not None:
                value = value[place] if -len(value) <= place < len(value) else None
            values.append(np.nan if value is None else float(np.log(value)) if log else float(value))
        return RowValues.of([cell["row"] for cell in self.cells], [cell["seed"] for cell in self.cells], values)

    @property
    def loss(self) -> RowValues:
        """On held-out text, in nats."""
        return self.of("perplexity", 0, log=True)

    def alike(self, *rows: str) -> bool:
        """Whether all models of some rows had as many steps: parts may be run at different lengths."""
        return len({cell.get("steps") for cell in self.cells if cell["row"] in rows}) < 2


@dataclass(frozen=True)
class Claim:
    """A sentence, the control that decides it, and how.

    Attributes:
        text: the sentence.
        control: what it is held to.
        parts: what the numbers say.
        core: whether the core study has its models.
    """

    text: str
    control: str
    parts: Callable[[Study], Judged]
    core: bool = True

    def verdict(self, study: Study | None) -> tuple[str, str]:
        """One of the four words, and the numbers behind it."""
        parts = [] if study is None else self.parts(study)
        if not parts or all(NO_SEED in text for text, _ in parts):
            return OPEN, NOT_RUN
        verdict = decide([Part(text, holds) for text, holds in parts])
        words = {True: HOLDS, False: DOES_NOT, None: OPEN}
        return verdict.word, "; ".join(f"{text} ({words[holds]})" for text, holds in parts)


def _below(*pairs: tuple[str, str]) -> Callable[[Study], Judged]:
    """Each first row has a lower loss than the second."""

    def parts(study: Study) -> Judged:
        if not study.alike(*(row for pair in pairs for row in pair)):
            return UNLIKE
        loss = study.loss
        return [(f"{a} against {b}: {loss.less(a, b).words()}", loss.less(a, b).below) for a, b in pairs]

    return parts


def _scaled(kind: str) -> str:
    return f"mamba+{kind}+scaled"


def _scale_widens(study: Study) -> Judged:
    """Positive less negative, with the shift of the public code, less the same at equal scale."""
    loss, gaps = study.loss, []
    pairs = ((SHIFTED["positive"], SHIFTED["negative"]), (_scaled("positive"), _scaled("negative")))
    if not study.alike(*(row for rows in pairs for row in rows)):
        return UNLIKE
    for rows in pairs:
        a, b = (loss.values.get(row, {}) for row in rows)
        gaps.append({seed: a[seed] - b[seed] for seed in a.keys() & b.keys()})
    both = RowValues({"shift": gaps[0], "equal": gaps[1]}).less("shift", "equal")
    return [(f"gap with the shift less gap at equal scale {both.nats()}", both.below)]


def _leak(*models: str) -> Callable[[Study], Judged]:
    """Fed the prefix alone, the sorting model is not better than one that never sorted, at the same positions."""

    def parts(study: Study) -> Judged:
        prefix, whole = study.of("prefix_loss"), study.of("whole_loss")
        judged: Judged = []
        for model in models:
            apart = prefix.less(f"{model}{LEAKY}", f"{model}{IDENTITY}", whole)
            judged.append((f"{model}, prefix alone against tokens as they come {apart.nats()}", apart.above))
        return judged

    return parts


def course(study: Study, row: str) -> np.ndarray | None:
    """Mean token norm behind every block (state,), mean over seeds in logarithms; None where it is not run."""
    mine = [cell["token_norm"] for cell in study.cells if cell["row"] == row and cell.get("token_norm")]
    known = [np.array(norms, dtype=np.float64) for norms in mine if None not in norms]
    return np.exp(np.mean(np.log(known), 0)) if known else None


def _grows(row: str, *, grows: bool) -> Callable[[Study], Judged]:
    """Token norms behind the last block over those of the embedding, and block by block the nearest of the rates."""

    def parts(study: Study) -> Judged:
        last, first = study.of("token_norm", -1, log=True), study.of("token_norm", 0, log=True)
        apart = last.less(row, row, first)
        if not apart.seeds:
            return []
        norms = course(study, row)
        followed = None if norms is None else fit_rates(norms).followed
        word = f"follows {followed}" if followed else "follows none of the three rates"
        right = followed is not None and (followed != "convergence") == grows
        ends = apart.above if grows else apart.below
        return [
            (f"ln of the last norm over the first {apart.nats().replace(' nats', '')}", ends),
            (f"block by block: {word}", None if norms is None or apart.seeds < 3 else right),
        ]

    return parts


CLAIMS = (
    Claim(
        "Positive eigenvalues are better than mixed ones, mixed better than negative ones.",
        "the same spectral norm of S_CᵀS_B at the start",
        _below((_scaled("positive"), _scaled("mixed")), (_scaled("mixed"), _scaled("negative"))),
    ),
    Claim(
        "Removing negative eigenvalues improves a Mamba.",
        "free maps of the same spectral norm at the start",
        _below((_scaled("positive"), "mamba+scaled")),
    ),
    *(
        Claim(
            f"Sorting whole sequences lowers the perplexity of {name}.",
            "tokens as they come; the loss of the sorting model is not that of one that predicts",
            _below((f"{model}{LEAKY}", model)),
        )
        for model, name in (("mamba", "Mamba"), ("transformer", "a Transformer"))
    ),
    Claim(
        "Fed the prefix alone, a model that sorts whole sequences gains nothing.",
        "the same positions, read by the model whose chunks keep their order",
        _leak("mamba", "transformer"),
    ),
    *(
        Claim(
            f"Causal sorting helps {name}.",
            "tokens as they come, the same chunks in their own order, and in a fixed random order",
            _below(*((f"{model}{CAUSAL}", f"{model}{other}") for other in ("", IDENTITY, RANDOM))),
        )
        for model, name in (("mamba", "Mamba"), ("transformer", "a Transformer"))
    ),
    Claim(
        "Complex eigenvalues of a normal matrix are better than real ones of either sign or of both.",
        "the same spectral norm of S_CᵀS_B at the start",
        _below(*((_scaled("complex"), _scaled(kind)) for kind in ("positive", "mixed", "negative"))),
        core=False,
    ),
    Claim(
        "The published order of scenarios appears with the public code's shift of ±0.7.",
        "the same rows as that code scales them",
        _below((SHIFTED["positive"], SHIFTED["mixed"]), (SHIFTED["mixed"], SHIFTED["negative"])),
        core=False,
    ),
    Claim(
        "The shift makes the gap between positive and negative wider.",
        "the gap at equal scale",
        _scale_widens,
        core=False,
    ),
    *(
        Claim(
            f"Without norms, {row.removesuffix('-norm')}: token norms {'grow' if grows else 'shrink'} through depth, "
            f"at {'a' if grows else 'the'} rate of the theory.",
            "the last norm over the first; the theory's rate of this regime against a constant and the other two, on "
            "trained models",
            _grows(row, grows=grows),
            core=False,
        )
        for row, grows in (("mamba+negative-norm", False), ("mamba+positive-norm", True), ("mamba+mixed-norm", True))
    ),
    Claim(
        "With norms, negative eigenvalues need not shrink tokens.",
        "the same row with its norms",
        _grows("mamba+negative", grows=True),
        core=False,
    ),
    Claim(
        "Causal sorting helps H3.",
        "tokens as they come, the same chunks in their own order, and in a fixed random order",
        _below(*((f"h3{CAUSAL}", f"h3{other}") for other in ("", IDENTITY, RANDOM))),
        core=False,
    ),
    *(
        Claim(
            f"Causal sorting helps mamba{part}.",
            "the same chunks in their own order and in a fixed random order, parameters of all rows matched",
            _below(*((f"mamba{part}{CAUSAL}", f"mamba{part}{other}") for other in ("", IDENTITY, RANDOM))),
            core=False,
        )
        for part in ("+shared", "-norm", "-conv")
    ),
)


def read_study(numbers: Mapping[str, Any]) -> Study | None:
    """Trainings of all parts' seeds; None where there are none.

    A row of two parts is taken from the one that has trained more of its seeds, the first where both have as many.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for part in PARTS:
        phase = numbers.get(f"{part}-seeds", {})
        steps = phase.get("facts", {}).get("steps")
        cells = [{**cell, "steps": steps} for cell in phase.get("cells", [])]
        for row in dict.fromkeys(cell["row"] for cell in cells):
            mine = [cell for cell in cells if cell["row"] == row]
            if len(mine) > len(rows.get(row, ())):
                rows[row] = mine
    return Study([cell for own in rows.values() for cell in own]) if rows else None
