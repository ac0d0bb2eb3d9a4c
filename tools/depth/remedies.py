"""Claims of the remedies and of the hybrids: what raises recall, what it costs, where attention belongs.

Primary outcomes are recall and perplexity; similarity is secondary, as a penalty on it lowers it by construction. That
a remedy changes recall is said at 5 % over all remedies of a base (Holm 1979).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from repflow.studies.architecture.fit import factors, independent
from repflow.studies.laboratory.effect import Effect, holm, pooled_effects
from tools.depth.claim import LACKING, Answer, Claim, Study, above, below, counted, shown
from tools.depth.plan import BASES, HYBRIDS, MIXED, MORE, MOST_COST, REMEDIES, SMALL, TRANSFORMER

CORE, EXTENSION, HYBRID, ORDER = "remedies-seeds", "remedies-more-seeds", "hybrids-screen", "hybrids-seeds"
NORM_STUDY = "norms-seeds"
NAMES = {"mamba2": "Mamba-2", TRANSFORMER: "the Transformer"}
WORDS = {
    "diversity": "A diversity loss",
    "supervision": "Intermediate supervision",
    "contract": "A contractive bound",
    "poles": "Polarization",
    "skip": "λ-skip",
    "neutreno": "NeuTRENO's correction",
    "held": "A diversity loss with an adaptive weight",
    "frozen": "Freezing the norms",
    "no norms": "Removing the norms",
    "hybrid": f"Attention in every fourth layer (`{MIXED}`)",
}
NOTHING_GAINED = 0.01
"""Gain of recall, one point, below which it counts as none."""
LEVEL = 0.05


def remedy_of(row: str, base: str, strengths: Mapping[str, Sequence[str]]) -> str | None:
    """Name of the remedy of a row on a base.

    >>> remedy_of("mamba2+zero", "mamba2", REMEDIES), remedy_of("mamba2", "mamba2", REMEDIES)
    ('poles', None)
    >>> remedy_of("3xmamba2.attention", "mamba2", MORE), remedy_of("3xmamba2.attention", "mamba2", REMEDIES)
    ('hybrid', None)
    """
    if (row, base) == (MIXED, "mamba2") and strengths is MORE:
        return "hybrid"
    return next((name for name, words in strengths.items() for word in words if row == base + word), None)


def gains(study: Study, base: str, name: str, strengths: Mapping[str, Sequence[str]]) -> dict[str, Effect | None]:
    """What each remedy changes over its base, by remedy."""
    mine = study.some(lambda cell: cell["row"] == base or remedy_of(cell["row"], base, strengths) is not None)
    shape = next(((int(cell["layers"]), int(cell["length"])) for cell in mine.cells), (0, 0))
    changes: dict[str, Effect | None] = {}
    for row in dict.fromkeys(str(cell["row"]) for cell in mine.cells):
        remedy = remedy_of(row, base, strengths)
        if remedy is not None:
            changes[remedy] = mine.less(name, {(row, *shape): 1.0, (base, *shape): -1.0})
    return changes


def adjusted(changes: Mapping[str, Effect | None]) -> dict[str, float]:
    """Holm's p-values of all remedies of a base that are trained."""
    known = {name: effect.p_value for name, effect in changes.items() if effect is not None and effect.freedom > 0}
    return dict(zip(known, holm(list(known.values())), strict=True)) if known else {}


def _recall(study: Study, *, remedy: str, base: str, strengths: Mapping[str, Sequence[str]]) -> list[Answer]:
    changes = gains(study, base, "recall", strengths)
    effect, chance = changes.get(remedy), adjusted(changes).get(remedy, 1.0)
    if effect is None:
        return [(LACKING, None)]
    mine = study.some(lambda cell: cell["row"] == base or remedy_of(cell["row"], base, strengths) == remedy)
    if (plateau := mine.plateau()) is not None:
        return [(plateau, None)]
    sure = chance < LEVEL
    none = effect.high < NOTHING_GAINED or (sure and effect.mean < 0)
    text = f"{shown(effect, 100, 1)} points{counted(effect)}, Holm's p {chance:.3f} among {len(changes)}"
    return [(text, True if sure and effect.mean > 0 else False if none else None)]


def _cost(study: Study, *, remedy: str, base: str, strengths: Mapping[str, Sequence[str]]) -> list[Answer]:
    effect = gains(study, base, "loss", strengths).get(remedy)
    if effect is None:
        return [(LACKING, None)]
    mean, low, high = np.exp([effect.mean, effect.low, effect.high])
    text = f"perplexity times {mean:.3f} [{low:.3f}, {high:.3f}]{counted(effect)}"
    return [(text, True if high < MOST_COST else False if low > MOST_COST else None)]


def _similarity(study: Study, *, remedy: str, base: str, strengths: Mapping[str, Sequence[str]]) -> list[Answer]:
    effect = gains(study, base, "similarity", strengths).get(remedy)
    return [(f"{shown(effect)}{counted(effect)}", below(effect))]


def _claims(strengths: Mapping[str, Sequence[str]], study: str) -> list[Claim]:
    claims = []
    for base in BASES:
        for remedy in [*strengths, *(["hybrid"] if strengths is MORE and base == "mamba2" else [])]:
            if (base, remedy) == (TRANSFORMER, "poles"):  # attention has no decays
                continue
            asked: dict[str, Any] = {"remedy": remedy, "base": base, "strengths": strengths}
            text = f"{WORDS[remedy]} raises recall of {NAMES[base]}."
            rule = (
                f"gain of recall above 0 at 5 % over all remedies (Holm); refuted below {100 * NOTHING_GAINED:g} point"
            )
            claims.append(Claim(text, rule, partial(_recall, **asked), study))
            text = f"{WORDS[remedy]} costs {NAMES[base]} at most {100 * (MOST_COST - 1):.0f} % of perplexity."
            claims.append(Claim(text, f"ratio of perplexities below {MOST_COST}", partial(_cost, **asked), study))
    return claims


PRIMARY = tuple(_claims(REMEDIES, CORE))
MORE_PRIMARY = tuple(_claims(MORE, EXTENSION))
SECONDARY = tuple(
    Claim(
        f"{WORDS[remedy]} makes the last tokens of {NAMES[base]} less alike.",
        "similarity behind the last block is lower; secondary",
        partial(_similarity, remedy=remedy, base=base, strengths=REMEDIES),
        CORE,
    )
    for base in BASES
    for remedy in REMEDIES
    if (base, remedy) != (TRANSFORMER, "poles")
)


def factor_effect(study: Study, factor: str, name: str) -> Effect:
    """Effect of a factor over models of one seed, from the scatter about the fit."""
    columns = independent(factors(study.cells))
    return pooled_effects(study.of(name), {key: column.tolist() for key, column in columns.items()}, study.seeds())[
        factor
    ]


def _fitted(study: Study, *, factor: str, name: str) -> list[Answer]:
    """Effect of a factor over all hybrids."""
    mine = study.some(lambda cell: cell["row"] in set(HYBRIDS.values()))
    values = mine.of(name)
    if len(mine.cells) < len(HYBRIDS) or not np.isfinite(values).all():
        return [(LACKING, None)]
    plateau = mine.plateau() if name == "recall" else None
    if plateau is not None:
        return [(plateau, None)]
    effect = factor_effect(mine, factor, name)
    scale, digits, unit = (100.0, 1, " points") if name == "recall" else (1.0, 3, " nats")
    good = above(effect) if name == "recall" else below(effect)
    return [(f"{shown(effect, scale, digits)}{unit}, {len(mine.cells)} models of one seed", good)]


def _ordered(study: Study, *, name: str) -> list[Answer]:
    """Best, middle and worst of the screen, on new seeds."""
    rows = list(dict.fromkeys(str(cell["row"]) for cell in study.cells))
    shape = (SMALL.layers[0], SMALL.windows[0]) if not study.cells else study.kinds()[0][1:]
    if len(rows) < 3:
        return [(LACKING, None)]
    parts: list[Answer] = []
    for one, other in ((0, 1), (1, 2)):
        weights = {(rows[one], *shape): 1.0, (rows[other], *shape): -1.0}
        effect = study.less(name, weights)
        plateau = study.plateau(weights) if name == "recall" and effect is not None else None
        if plateau is not None:
            parts.append((f"{rows[one]} less {rows[other]}: {plateau}", None))
            continue
        scale, digits, unit = (100.0, 1, " points") if name == "recall" else (1.0, 3, " nats")
        text = f"{rows[one]} less {rows[other]} {shown(effect, scale, digits)}{unit}{counted(effect)}"
        parts.append((text, above(effect) if name == "recall" else below(effect)))
    return parts


def _changed(study: Study, *, row: str, base: str, name: str, scale: float) -> list[Answer]:
    """A number of a row less that of its base, shown to be lower or higher."""
    shape = study.kinds()[0][1:]
    effect = study.less(name, {(row, *shape): 1.0, (base, *shape): -1.0})
    return [(f"{shown(effect, scale, 1 if scale > 1 else 3)}{counted(effect)}", below(effect))]


NORM_WORDS = {"+frozen": "with frozen norms", "-norm+final": "without norms but the last", "-norm": "without norms"}
NORM_CLAIMS = tuple(
    Claim(
        f"{NAMES[base].removeprefix('the ')} {words}, trained again: {text}",
        rule,
        partial(_changed, row=base + word, base=base, name=name, scale=scale),
        NORM_STUDY,
    )
    for base in BASES
    for word, words in NORM_WORDS.items()
    for text, rule, name, scale in (
        ("the last tokens are less alike.", "similarity behind the last block is lower", "similarity", 1.0),
        ("probes find less at the last state.", "accuracy of the probe there is lower (points)", "probe_last", 100.0),
    )
)
"""Whether norms make tokens alike, on models that never had them, or whose norms never moved."""
LATER, SHARE = "attention from first to last", "attention in all layers"
HYBRID_CLAIMS = (
    Claim(
        "Attention in the last layers recalls more than in the first.",
        "effect of its place on recall above 0, all ratios together",
        partial(_fitted, factor=LATER, name="recall"),
        HYBRID,
    ),
    Claim(
        "Attention in the last layers has a lower loss than in the first.",
        "effect of its place on loss below 0, all ratios together",
        partial(_fitted, factor=LATER, name="loss"),
        HYBRID,
    ),
    Claim(
        "More attention recalls more.",
        "effect of its share on recall above 0, all places together",
        partial(_fitted, factor=SHARE, name="recall"),
        HYBRID,
    ),
    Claim(
        "More attention has a lower loss.",
        "effect of its share on loss below 0, all places together",
        partial(_fitted, factor=SHARE, name="loss"),
        HYBRID,
    ),
    Claim(
        "The best, a middle and the worst hybrid of one seed keep their order on three others.",
        "recall of the best above that of the middle, and of the middle above that of the worst",
        partial(_ordered, name="recall"),
        ORDER,
    ),
)
