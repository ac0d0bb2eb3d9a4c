"""Claims of the depth study: is deeper worse at a short context, does a long one tolerate it, what goes with it?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from repflow.studies.laboratory.effect import Effect
from tools.depth.claim import LACKING, Answer, Claim, Study, above, below, counted, shown
from tools.depth.plan import CONTEXTS, DEPTHS, TRANSFORMER

FIRST, LAST, MIDDLE = DEPTHS[0], DEPTHS[-1], DEPTHS[2]
SHORT, LONG = CONTEXTS
CORE = "depth-seeds+depth-third-seeds"
OTHERS = {"mamba2": "depth-mamba2-seeds", "transformer": "depth-transformer-seeds"}
NAMES = {"mamba": "Mamba", "mamba2": "Mamba-2", TRANSFORMER: "Transformer"}
SCALES = {"loss": (1.0, 3, " nats"), "recall": (100.0, 1, " points")}
Judge = Callable[[Effect | None], bool | None]


def _words(effect: Effect | None, name: str) -> str:
    scale, digits, unit = SCALES[name]
    return LACKING if effect is None else f"{shown(effect, scale, digits)}{unit}{counted(effect)}"


def _pair(study: Study, *, name: str, row: str, deep: int, shallow: int, context: int, judge: Judge) -> list[Answer]:
    weights = {(row, deep, context): 1.0, (row, shallow, context): -1.0}
    effect = study.less(name, weights)
    plateau = study.plateau(weights) if name == "recall" and effect is not None else None
    if plateau is not None:
        return [(plateau, None)]
    return [(f"{deep} less {shallow} layers, {context:,} tokens {_words(effect, name)}", judge(effect))]


def _crossed(study: Study, *, name: str, row: str, judge: Judge) -> list[Answer]:
    weights = {(row, LAST, LONG): 1.0, (row, FIRST, LONG): -1.0, (row, LAST, SHORT): -1.0, (row, FIRST, SHORT): 1.0}
    effect = study.less(name, weights)
    for context in CONTEXTS if name == "recall" and effect is not None else ():
        plateau = study.plateau([(row, depth, context) for depth in (FIRST, LAST)])
        if plateau is not None:
            return [(f"at {context:,} tokens {plateau}", None)]
    return [(f"({LAST} less {FIRST} layers) at {LONG:,} less at {SHORT} tokens {_words(effect, name)}", judge(effect))]


def _accounts(study: Study, *, by: str, name: str, sign: int) -> list[Answer]:
    ranks = study.ranks(by, name, lambda kind: kind[2])
    if ranks is None:
        return [(LACKING, None)]
    plateau = study.plateau() if name == "recall" else None
    if plateau is not None:
        return [(plateau, None)]
    side = None if ranks.chance > 0.05 else ranks.value > 0
    words = f"as far from 0 in {ranks.chance:.0%} of all orders"
    text = f"rank correlation {ranks.value:+.2f} over {ranks.kinds} kinds, {words}"
    return [(text, side if side is None or sign > 0 else not side)]


def _claims(row: str, study: str) -> list[Claim]:
    """The same five of every row."""
    who, both = NAMES[row], {"row": row}
    worse: dict[str, Any] = {"deep": LAST, "shallow": FIRST, "context": SHORT, **both}
    helps: dict[str, Any] = {"deep": MIDDLE, "shallow": FIRST, "context": LONG, **both}
    return [
        Claim(
            f"{who}: deeper is worse at the short context, by loss.",
            f"{LAST} layers have a higher loss than {FIRST} at {SHORT} tokens",
            partial(_pair, name="loss", judge=above, **worse),
            study,
        ),
        Claim(
            f"{who}: deeper is worse at the short context, by recall.",
            f"{LAST} layers recall less than {FIRST} at {SHORT} tokens, mean over pairs",
            partial(_pair, name="recall", judge=below, **worse),
            study,
        ),
        Claim(
            f"{who}: depth helps at the long context.",
            f"{MIDDLE} layers have a lower loss than {FIRST} at {LONG:,} tokens",
            partial(_pair, name="loss", judge=below, **helps),
            study,
        ),
        Claim(
            f"{who}: the long context tolerates depth better, by loss.",
            f"what {LAST} layers cost over {FIRST} is less at {LONG:,} than at {SHORT} tokens",
            partial(_crossed, name="loss", judge=below, **both),
            study,
        ),
        Claim(
            f"{who}: the long context tolerates depth better, by recall.",
            f"what {LAST} layers recall over {FIRST} is more at {LONG:,} than at {SHORT} tokens",
            partial(_crossed, name="recall", judge=above, **both),
            study,
        ),
    ]


CLAIMS = (
    *_claims("mamba", CORE),
    Claim(
        "Depths whose last block has more similar tokens have a higher loss.",
        "rank correlation over depths of two seeds' numbers, each context about its mean, is above 0, rarer than 5 %",
        partial(_accounts, by="similarity", name="loss", sign=1),
        CORE,
    ),
    Claim(
        "Depths whose last block has more similar tokens recall less.",
        "rank correlation with recall is below 0",
        partial(_accounts, by="similarity", name="recall", sign=-1),
        CORE,
    ),
    Claim(
        "Depths whose influence reaches less far have a higher loss.",
        "rank correlation of the half reach and loss is below 0",
        partial(_accounts, by="reach", name="loss", sign=-1),
        CORE,
    ),
    Claim(
        "Depths whose influence reaches less far recall less.",
        "rank correlation of the half reach and recall is above 0",
        partial(_accounts, by="reach", name="recall", sign=1),
        CORE,
    ),
    *_claims("mamba2", OTHERS["mamba2"]),
    *_claims(TRANSFORMER, OTHERS["transformer"]),
)
