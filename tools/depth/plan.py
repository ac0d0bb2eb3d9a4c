"""Which models each phase of the three studies trains, and what the phases before decide. No torch.

    depth      screen two rates of every depth            seeds    two new seeds at the better rate (rate: at the other)
    remedies   rates of both bases   screen strengths     seeds    three new seeds at the chosen strength
    hybrids    screen 4 ratios x 3 places, one seed       seeds    three new seeds of the best, the middle and the worst
               (low: the screen at the next lower rate)
    norms      screen rates with, frozen and without      seeds    three new seeds at the best rate, kept and probed

All models have text and recall in turn (`repflow architecture --recall-share 0.5`). Within a study they are of one
size, by their width, and have as many tokens in a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from repflow.studies.architecture.config import ArchitectureCell

Cells = Sequence[Mapping[str, Any]]
"""Models of a phase as `tools.depth.run` describes them."""
DEPTHS, CONTEXTS, RATES = (4, 8, 16, 32), (256, 1024), (0.003, 0.01)
BASE_RATES = (0.0003, 0.001, *RATES, 0.03)
"""Of the bases of remedies; two, .003 and .01, cannot show whether a better one lies outside (`remedies-first`)."""
PAIRS, IDS = (4, 8, 16, 32, 64), 1024
"""Pairs of the rows of recall, at either context alike, and ids of their keys and values. A first form with 160 ids is
stored as `first form`: none of its models learned so much as which values stand in a row, for which there is less to
gain the fewer values there are. With 1,024 ids and as many steps one of 4 layers recalled 79 % of 4 pairs."""
TRANSFORMER = "transformer+embednorm"
"""Without the norm behind its embedding a Transformer of 12 layers learns slowly (`embedding` among
the stored runs): blocks add vectors to the embedding that are ten times as long."""
BASES = ("mamba2", TRANSFORMER)
REMEDIES: dict[str, tuple[str, ...]] = {
    "diversity": ("+diversity@0.03", "+diversity@0.1", "+diversity@0.3"),
    "supervision": ("+supervision@0.1", "+supervision@0.3", "+supervision@1"),
    "contract": ("+contract@0.1", "+contract@1", "+contract@10"),
    "poles": ("+one", "+zero", "+poles"),
}
"""Remedies of the core, their strengths from the weakest on; attention has no decays, so there are no poles in it."""
MORE: dict[str, tuple[str, ...]] = {
    "skip": ("+skip@0.98", "+skip@0.9", "+skip@0.8"),
    "neutreno": ("+neutreno@0.1", "+neutreno@0.3", "+neutreno@0.6"),
    "held": ("+diversity@0.3+held", "+diversity@0.1+held", "+diversity@0.03+held"),
    "frozen": ("+frozen",),
    "no norms": ("-norm+final", "-norm"),
}
"""Those of the extension."""
HYBRIDS = {
    ("1 of 12", "first"): "attention..11xmamba2",
    ("1 of 12", "spread"): "6xmamba2.attention.5xmamba2",
    ("1 of 12", "last"): "11xmamba2..attention",
    ("2 of 12", "first"): "2xattention..10xmamba2",
    ("2 of 12", "spread"): "5xmamba2.attention",
    ("2 of 12", "last"): "10xmamba2..2xattention",
    ("3 of 12", "first"): "3xattention..9xmamba2",
    ("3 of 12", "spread"): "3xmamba2.attention",
    ("3 of 12", "last"): "9xmamba2..3xattention",
    ("6 of 12", "first"): "6xattention..6xmamba2",
    ("6 of 12", "spread"): "mamba2.attention",
    ("6 of 12", "last"): "6xmamba2..6xattention",
}
"""Share of attention and its place among 12 layers."""
MIXED = HYBRIDS["3 of 12", "spread"]
"""The hybrid beside the remedies of the extension."""
NORMS = ("", "+frozen", "-norm+final", "-norm")
"""Norms as they are, with gains that stay at 1, none but the last, none at all; each row has a rate of its own."""
MOST_COST = 1.02
"""Perplexity over the base's that a strength may have on the validation text."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a study.

    Attributes:
        layers: depths; one for remedies and hybrids.
        width: of the row that all match in parameters.
        windows: lengths.
        rates: to screen.
        seeds: of the last phase.
        match: row and depth whose size all have.
    """

    layers: tuple[int, ...] = DEPTHS
    width: int = 128
    windows: tuple[int, ...] = CONTEXTS
    rates: tuple[float, ...] = RATES
    seeds: tuple[int, ...] = (1, 2)
    match: tuple[str, int] = ("mamba", 8)


@dataclass(frozen=True)
class Plan:
    """One study, or an extension of it.

    Attributes:
        study: depth, remedies, hybrids or norms.
        part: core, or the name of an extension.
        phases: in their order.
        settings: sizes.
    """

    study: str
    part: str
    phases: tuple[str, ...]
    settings: Settings = field(default_factory=Settings)

    def name(self, phase: str) -> str:
        """Of a phase's run; rates of hybrids are those of the remedies' base."""
        return "-".join(filter(None, [self.study, "" if self.part == "core" else self.part, phase]))

    def needs(self, phase: str) -> list[str]:
        """Runs that a phase decides by."""
        if self.study == "depth" and self.part in ("third", "rate"):
            return ["depth-screen"]
        if self.study == "hybrids" and phase == "screen":
            return ["remedies-rates" if self.part == "core" else "hybrids-screen"]
        before = list(self.phases[: self.phases.index(phase)])
        shared = ["remedies-rates"] if self.study == "remedies" and self.part != "core" else []
        return [*shared, *map(self.name, before)]

    def cells(self, phase: str, earlier: Mapping[str, Cells]) -> list[str]:
        """Models of a phase, given those of the phases it needs."""
        known = [cell for cells in earlier.values() for cell in cells]
        studies = {"depth": self._depth, "remedies": self._remedies, "hybrids": self._hybrids, "norms": self._norms}
        kinds = studies[self.study](phase, known)
        width = self.settings.width
        return [
            str(ArchitectureCell(row, layers, width, window, rate, seed)) for row, layers, window, rate, seed in kinds
        ]

    def _depth(self, phase: str, known: Cells) -> list[tuple[str, int, int, float, int]]:
        row = {"mamba2": "mamba2", "transformer": TRANSFORMER}.get(self.part, "mamba")
        grid = [(row, layers, window) for layers in self.settings.layers for window in self.settings.windows]
        if phase == "screen":
            return [(*kind, rate, 0) for kind in grid for rate in self.settings.rates]
        chosen = other_rate if self.part == "rate" else best_rate
        return [(*kind, chosen(known, kind[0], kind[1]), seed) for kind in grid for seed in self.settings.seeds]

    def _remedies(self, phase: str, known: Cells) -> list[tuple[str, int, int, float, int]]:
        shape = (self.settings.layers[0], self.settings.windows[0])
        if phase == "rates":
            return [(base, *shape, rate, 0) for base in BASES for rate in self.settings.rates]
        models: list[tuple[str, int, int, float, int]] = []
        for base in BASES:
            rate = best_rate(known, base, shape[0])
            if phase == "screen":
                rows = [word for remedy in self._applied(base) for word in remedy_rows(base, self._remedy(remedy))]
                models += [(row, *shape, rate, 0) for row in rows]
            else:
                chosen = [chosen_row(known, base, self._remedy(remedy)) for remedy in self._applied(base)]
                more = [MIXED] if self.part != "core" and base == "mamba2" else []
                models += [(row, *shape, rate, seed) for row in (base, *chosen, *more) for seed in self.settings.seeds]
        return models

    def _remedy(self, remedy: str) -> tuple[str, ...]:
        return (REMEDIES if self.part == "core" else MORE)[remedy]

    def _applied(self, base: str) -> list[str]:
        """Remedies of a base: attention has no decays for poles."""
        names = list(REMEDIES if self.part == "core" else MORE)
        return [name for name in names if (base, name) != (TRANSFORMER, "poles")]

    def _hybrids(self, phase: str, known: Cells) -> list[tuple[str, int, int, float, int]]:
        shape = (self.settings.layers[0], self.settings.windows[0])
        if phase == "screen" and self.part == "core":
            rate = best_rate(known, "mamba2", shape[0])
            return [(row, *shape, rate, 0) for row in HYBRIDS.values()]
        if phase == "screen":
            usual = float(known[0]["rate"])
            lower = max(rate for rate in BASE_RATES if rate < usual)
            return [(row, *shape, lower, 0) for row in HYBRIDS.values()]
        return [(row, *shape, rate, seed) for row, rate in picked(known) for seed in self.settings.seeds]

    def _norms(self, phase: str, known: Cells) -> list[tuple[str, int, int, float, int]]:
        """Rows whose every rate diverged are left out."""
        shape = (self.settings.layers[0], self.settings.windows[0])
        rows = [base + word for base in BASES for word in NORMS]
        if phase == "screen":
            return [(row, *shape, rate, 0) for row in rows for rate in self.settings.rates]
        usable = [row for row in rows if any(c["row"] == row and c.get("last_loss") is not None for c in known)]
        return [(row, *shape, best_rate(known, row, shape[0]), seed) for row in usable for seed in self.settings.seeds]


SMALL = Settings(layers=(12,), width=112, windows=(256,), rates=BASE_RATES, seeds=(1, 2, 3), match=("mamba2", 12))
PLANS = {
    plan.name("").rstrip("-"): plan
    for plan in (
        Plan("depth", "core", ("screen", "seeds")),
        Plan("depth", "third", ("seeds",), Settings(seeds=(3,))),
        Plan("depth", "rate", ("seeds",)),
        Plan("depth", "mamba2", ("screen", "seeds"), Settings(width=144, seeds=(1, 2, 3))),  # 32 layers fit 144
        Plan("depth", "transformer", ("screen", "seeds"), Settings(width=144, seeds=(1, 2, 3))),
        Plan("remedies", "core", ("rates", "screen", "seeds"), SMALL),
        Plan("remedies", "more", ("screen", "seeds"), SMALL),
        Plan("hybrids", "core", ("screen", "seeds"), SMALL),
        Plan("hybrids", "low", ("screen",), SMALL),
        Plan("norms", "core", ("screen", "seeds"), replace(SMALL, rates=BASE_RATES[:-1])),
    )
}
"""All studies, by the word of the command line."""


def best_rate(known: Cells, row: str, layers: int) -> float:
    """The rate of the lowest loss at the end of a screened training, text and recall alike, mean over windows."""
    scores: dict[float, list[float]] = {}
    for cell in known:
        if (cell["row"], cell["layers"]) == (row, layers):
            value = cell.get("last_loss")
            scores.setdefault(float(cell["rate"]), []).append(np.inf if value is None else float(value))
    usable = {rate: float(np.mean(values)) for rate, values in scores.items() if np.isfinite(values).all()}
    if not usable:
        raise SystemExit(f"no screened rate of {row} with {layers} layers has a finite loss: screen lower --rates")
    return min(usable, key=lambda rate: usable[rate])


def other_rate(known: Cells, row: str, layers: int) -> float:
    """The rate of two screened ones that is not the best."""
    best = best_rate(known, row, layers)
    tried = {float(cell["rate"]) for cell in known if (cell["row"], cell["layers"]) == (row, layers)}
    return min(tried - {best}, default=best)


def remedy_rows(base: str, strengths: Sequence[str]) -> list[str]:
    """Rows of a remedy on a base, by strength."""
    return [base + word for word in strengths]


def chosen_row(known: Cells, base: str, strengths: Sequence[str]) -> str:
    """The strongest form whose validation perplexity is at most 2 % above the base's, or else the weakest.

    The base is that of the phase `rates` at its better rate, of the same seed and number of steps.
    """
    rows = {cell["row"]: cell for cell in known}
    at = best_rate(known, base, rows[base]["layers"])
    plain = next(cell for cell in known if cell["row"] == base and float(cell["rate"]) == at)
    allowed = [row for row in remedy_rows(base, strengths) if _cost(rows[row], plain) <= MOST_COST]
    return allowed[-1] if allowed else base + strengths[0]


def _cost(cell: Mapping[str, Any], plain: Mapping[str, Any]) -> float:
    value, usual = cell.get("validation_loss"), plain.get("validation_loss")
    return np.inf if value is None or usual is None else float(np.exp(value - usual))


def picked(known: Cells) -> list[tuple[str, float]]:
    """Row and rate of the best, the middle and the worst hybrid by recall, ties by loss."""
    rows = set(HYBRIDS.values())
    mine = [cell for cell in known if cell["row"] in rows and cell.get("recall") is not None]
    if len(mine) < len(rows):
        raise SystemExit(f"{len(mine)} of {len(rows)} hybrids are tested: finish hybrids-screen first")
    order = sorted(mine, key=lambda cell: (-float(np.mean(cell["recall"])), cell["loss"]))
    return [(order[at]["row"], float(order[at]["rate"])) for at in (0, len(order) // 2, -1)]
