"""The questions of the pixel laboratory, each answered in a sentence or two from its numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from repflow.core.intervals import LEVEL, Band, bracketed, welch_interval
from repflow.papers.pixels import attack_places, attack_rates, drops, ends, windows
from repflow.papers.vulnerability import Variant, order_pairs, two_orders
from tools.pixels.claims import (
    CLOSED,
    MAMBA,
    NAMES,
    OWN_CLAIMS,
    PUBLISHED,
    SEEDS,
    SIZES,
    TRANSFORMER,
    USUAL,
    Kind,
    Study,
    above,
    within,
)
from tools.pixels.claims import NOTHING as NO_BAND

NOTHING = "Not run yet."
PLAIN = {
    "normal": "N(0, 1) noise",
    "data": "noise like the data",
    "shuffle": "shuffled pixels",
    "mean": "the mean image",
    "same": "pixels of the same class",
    "other": "pixels of another class",
}
ATTACKED = (("768:1024", "0:256"), ("544:1024", "0:480"))
ATTACK_WORDS = ("256", "480")
TWO_WAYS: dict[Kind, str] = {
    ("mamba+both", "row", "right"): "at the end",
    ("mamba+both+first", "row", "right"): "in front",
    ("mamba+both+middle", "row", "right"): "in the middle",
}
"""Models that mix both ways, by where their class token stands."""
FRAMED: dict[Kind, str] = {
    ("mamba+positions+mlp", "row", "right"): "Mamba with positions and MLPs",
    ("transformer-positions-mlp", "row", "right"): "the Transformer without positions and MLPs",
}
FRAMES = tuple(zip((next(iter(FRAMED)), MAMBA), (TRANSFORMER, list(FRAMED)[1]), strict=True))
"""Mamba and Transformer with the same parts: with positions and MLPs, and without."""


def points(band: Band) -> str:
    """A number of points with its interval; a dash where there is none."""
    if not np.isfinite(band.mean):
        return "–"
    return f"{100 * float(band.mean):+.1f}{bracketed(band.low, band.high, '+.1f', scale=100)}"


def answers(study: Study | None, epochs: str, longer: str | None = None) -> str:
    """The questions of the page with their answers, and what bounds them.

    Args:
        study: models with three seeds; None where there are none.
        epochs: that they were trained for.
        longer: what longer training changes; None where that is not known.
    """
    if study is None:
        return NOTHING
    run = [kind for kind in NAMES if study.variant(kind) is not None]
    survives = [_survives(study, kind) for kind in run]
    asked: dict[str, str | tuple[str, list[str]]] = {
        "Do the drops survive their controls?": (
            "Is it shown that the last 32 and 96 tokens cost more than the first?",
            survives,
        ),
        "How much is the published initialisation's?": _initialisation(study),
        "Is it the end of the sequence, or the bottom of the image?": _orders(study),
        "Do two directions, or a class token in front, close the hole?": _closed(study),
        "Is it the frame, positions and MLPs, that the Transformer alone has?": _framed(study),
        "Do attacks at the end succeed more often?": _attacked(study),
        "Which model loses most, on average over the sequence?": _everywhere(study),
        "Does a model's influence say where it is vulnerable?": _influence(study),
    }
    asked |= {} if longer is None else {"What does longer training change?": longer}
    lines = []
    for question, words in asked.items():
        head, parts = (f"{words[:1].upper()}{words[1:]}.", []) if isinstance(words, str) else words
        lines += [f"- **{question}** {head}", *(f"    - {part[:1].upper()}{part[1:]}." for part in parts)]
    return "\n".join([_short(study), "", *lines, "", _limits(study, epochs, longer)])


def _short(study: Study) -> str:
    """Of the models other than the Transformer, in how many the end is shown to cost more, by replacement."""
    run = [kind for kind in NAMES if kind != TRANSFORMER and study.variant(kind) is not None]
    counts = []
    for word in study.result.provenance["pixels"]["replacements"]:
        sure = [all(above(_uneven(study, kind, word, tokens)) for tokens in SIZES) for kind in run]
        counts.append(f"{sum(sure)} with {PLAIN[word]}")
    names = ", ".join(NAMES[kind] for kind in run)
    return (
        f"**In short:** the last {' and '.join(map(str, SIZES))} tokens are shown to cost more than the first, by "
        f"number of the {len(run)} rows other than the Transformer ({names}): {', '.join(counts)}."
    )


def _survives(study: Study, kind: Kind) -> str:
    """For which replacements the end costs more, at both sizes or at one."""
    return f"{NAMES[kind]}: {_by_replacement(study, partial(_uneven, study, kind))}"


def _by_replacement(study: Study, band_of: Callable[[str, int], Band]) -> str:
    """What is shown to be above 0 at both sizes, what at one alone, and what is open; numbers are of the smaller."""
    shown, partly, against, rest = [], [], [], []
    for word in study.result.provenance["pixels"]["replacements"]:
        bands = [band_of(word, tokens) for tokens in SIZES]
        sure = [bool(above(band)) for band in bands]
        against += [
            f"{PLAIN[word]} at {n} ({points(b)})" for n, b in zip(SIZES, bands, strict=True) if above(b) is False
        ]
        if all(sure):
            shown.append(f"{PLAIN[word]} ({points(bands[0])})")
        elif any(sure):
            at = sure.index(True)
            partly.append(f"{PLAIN[word]} at {SIZES[at]} alone ({points(bands[at])})")
        else:
            rest += [] if any(above(band) is False for band in bands) else [PLAIN[word]]
    parts = {"shown with": [*shown, *partly], "shown not to be with": against, "open with": rest}
    return "; ".join(f"{head} {', '.join(words)}" for head, words in parts.items() if words)


def _initialisation(study: Study) -> str:
    added = _by_replacement(study, partial(_more, study, PUBLISHED, MAMBA))
    return f"that it adds to Mamba's at {' and '.join(map(str, SIZES))} tokens is {added}"


def _orders(study: Study) -> str:
    said = [
        f"{PLAIN[name]} on {SIZES[0]} tokens of {one.words}: the end's part {points(end)}, the image's {points(image)}"
        for one, turned in order_pairs(study.result)
        for name in ("normal", "data")
        for end, image in [asymmetries(study, one, turned, SIZES[0], study.place(name))]
    ]
    return f"models of both orders separate the two: {'; '.join(said)}" if said else NOTHING


def _closed(study: Study) -> tuple[str, list[str]]:
    """Of the class token at each place: does the asymmetry of two directions lie within the margin, is it less?"""
    said = []
    for kind, place in TWO_WAYS.items():
        head = f"class token {place}"
        if study.variant(kind) is None:
            said.append(f"{head}: not run, or not learned")
            continue
        less = _by_replacement(study, partial(_more, study, MAMBA, kind))
        said.append(f"{head}: {_margin(study, kind)}. That it is less than Mamba's is {less}")
    return f"Closed means an asymmetry within ± {100 * CLOSED:.0f} points. With two directions:", said


def _margin(study: Study, kind: Kind) -> str:
    """Where an asymmetry is shown to be as good as nothing, where to be more, where neither."""
    sides: dict[str, list[str]] = {"closed": [], "not closed": [], "open": []}
    for name in USUAL:
        for tokens in SIZES:
            band = study.asymmetry(LEVEL, kind=kind, tokens=tokens, replacement=name)
            side = {True: "closed", False: "not closed", None: "open"}[within(band, CLOSED)]
            sides[side].append(f"{PLAIN[name]} at {tokens} ({points(band)})")
    return "; ".join(f"{word} with {', '.join(parts)}" for word, parts in sides.items() if parts)


def _framed(study: Study) -> str | tuple[str, list[str]]:
    """Models with what the other one has by itself: their own asymmetry, and the difference in one frame."""
    pairs = [(one, other) for one, other in FRAMES if None not in (study.variant(one), study.variant(other))]
    said = []
    for one, other in pairs:
        own = one if one not in NAMES else other
        uneven = partial(_uneven, study, own)
        more = partial(_more, study, one, other)
        said.append(f"{_framed_name(own)} by itself: {_by_replacement(study, uneven)}")
        said.append(
            f"{_framed_name(one)} against {_framed_name(other)}: that it has more of it is "
            f"{_by_replacement(study, more)}"
        )
    return ("Models in one frame, 32 and 96 tokens:", said) if said else NOTHING


def _framed_name(kind: Kind) -> str:
    return NAMES.get(kind) or FRAMED[kind]


def _uneven(study: Study, kind: Kind, word: str, tokens: int) -> Band:
    """What the last tokens cost a model more than the first."""
    return study.asymmetry(LEVEL, kind=kind, tokens=tokens, replacement=word)


def _more(study: Study, one: Kind, other: Kind, word: str, tokens: int) -> Band:
    """Asymmetry of a model less that of another."""
    return study.more(LEVEL, one=one, other=other, tokens=tokens, replacement=word)


def _attacked(study: Study) -> str:
    """By region of the sequence, and by what is the order's and what is the image's."""
    if "success" not in study.result:
        return NOTHING
    said = []
    for kind in NAMES:
        if study.variant(kind) is not None:
            band = study.attacks(LEVEL, kind=kind, regions=ATTACKED[0], above_pairs=False)
            said.append(f"{NAMES[kind]} {points(band)}")
    turned = [
        f"{one.words} {points(end)} the end's, {points(image)} the image's"
        for one, other in order_pairs(study.result)
        for end, image in [successes(study, one, other, ATTACKED[0])]
    ]
    return (
        f"success with {ATTACK_WORDS[0]} tokens at the end less at the start, row by row, mean over targets: "
        f"{'; '.join(said)}. Both orders together: {'; '.join(turned)}. The others were not read in reverse"
    )


def _everywhere(study: Study) -> str:
    """Drop by 32 replaced tokens, mean over all windows of the sequence: the Transformer's less each other model's."""
    chosen, said = windows(study.result), []
    for name in ("normal", "data"):
        lost = {}
        for kind in NAMES:
            variant = study.variant(kind)
            if variant is not None:
                lost[kind] = drops(study.result)[list(variant.cells), study.place(name)][:, chosen].mean(1)
        own = lost.pop(TRANSFORMER, None)
        if own is not None:
            parts = [f"{NAMES[kind]} {points(welch_interval(own, other))}" for kind, other in lost.items()]
            said.append(
                f"{PLAIN[name]} costs the Transformer {100 * own.mean():.1f} points; this less what it costs another "
                f"model is {', '.join(parts)}"
            )
    return f"mean over {len(chosen)} windows of the sequence: {'; '.join(said)}" if said else NOTHING


def _influence(study: Study) -> tuple[str, list[str]]:
    """Rank correlations of influence and of what is lost, claim by claim."""
    kinds = [{study.kind_of(place) for place in study.comparable(by)} for by in ("influence", "reach")]
    whom = [f"{len(own)} models, {sum(row.startswith('mamba') for row, *_ in own)} of them Mambas" for own in kinds]
    heads = (
        "from window to window of one model, the more influence, the more is lost",
        f"from model to model ({whom[0]}), the more influence the last window has over the first, the more its "
        "replacement costs beyond that of the first",
        f"from model to model ({whom[1]}), the less far influence reaches by `repflow recency`, the more the last "
        "window's replacement costs beyond that of the first",
    )
    asked = [claim for claim in OWN_CLAIMS if claim.unit == "correlation"]
    said = []
    for head, claim in zip(heads, asked, strict=True):
        parts = claim.parts(study)
        sides: dict[str, list[str]] = {"shown": [], "shown not to be": [], "open": []}
        for text, band, part in parts:
            side = {True: "shown", False: "shown not to be", None: "open"}[part.holds]
            sides[side].append(claim.shown(_plain(text), band))
        said.append(f"{head}: " + "; ".join(f"{word} {', '.join(own)}" for word, own in sides.items() if own))
    return "Rank correlations:", said


def _plain(text: str) -> str:
    """A part of a claim on influence in words: its model and replacement.

    >>> _plain("mamba same"), _plain("normal, 8 models")
    ('for mamba with pixels of the same class', 'with N(0, 1) noise')
    """
    *row, word = text.partition(",")[0].split()
    return " ".join([*(["for", *row] if row else []), "with", PLAIN[word]])


def _limits(study: Study, epochs: str, longer: str | None) -> str:
    more = "" if longer is not None else "; what longer training changes is open"
    images = study.result.provenance["pixels"]["images_replaced"]
    return (
        f"Points of accuracy or of success, 95 % intervals, {SEEDS} seeds, {images:,} test images. "
        "Intervals of one model are for other seeds and images; those of differences between models, of the end's and "
        "the image's parts and of means over windows are over seeds, on these images. Those of attacks are wide: all "
        f"targets of an image count as one trial. The models were trained for {epochs} epochs, the paper's "
        f"for 100{more}. The two parts and the means "
        "over windows were asked for with the data in view."
    )


def asymmetries(study: Study, one: Variant, turned: Variant, size: int, place: int) -> tuple[Band, Band]:
    """What of an asymmetry is the end's and what is the image's."""
    at = list(ends(study.result)).index(size)
    forward, back = (study.result["asymmetry"][list(own.cells), place, at] for own in (one, turned))
    return two_orders(forward, back)


def successes(study: Study, one: Variant, turned: Variant, regions: tuple[str, str]) -> tuple[Band, Band]:
    """The same of attacks: success at the end less at the start."""
    places = attack_places(study.result, regions)
    if places is None:
        return NO_BAND, NO_BAND
    last, first = places
    rates = [attack_rates(study.result, own.cells)["success"] for own in (one, turned)]
    forward, back = (own[:, last] - own[:, first] for own in rates)
    return two_orders(forward, back)
