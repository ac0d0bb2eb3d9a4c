"""The questions of the pixel laboratory, each answered in a sentence or two from its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from repflow.core.intervals import LEVEL, Band, bracketed, student_interval
from repflow.papers.pixels import attack_difference, attack_places, attack_trials, bounds, drops, ends, windows
from repflow.papers.vulnerability import Variant, order_pairs, two_orders, uneven_ends
from repflow.spec.corruption import scaled_region
from tools.pixels.claims import (
    BOTH_MIDDLE,
    CLOSED,
    MAMBA,
    MEAN,
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
EVERYWHERE = ("normal", "data")
"""Replacements whose mean over the sequence is compared."""
FRAMED: Kind = ("mamba+positions+mlp", "row", "right")
BARE: Kind = ("transformer-positions-mlp", "row", "right")
FORMS: dict[Kind, str] = {
    **NAMES,
    BARE: "Transformer without positions and MLPs",
    FRAMED: "Mamba with positions and MLPs",
    **{kind: f"Mamba both ways, class token {place}" for kind, place in TWO_WAYS.items()},
    MEAN: "Mamba with a mean over tokens",
    ("mamba", "reversed", "right"): "Mamba, reversed images",
    ("transformer", "reversed", "right"): "Transformer, reversed images",
}
"""All models of the study."""
PAIRS: tuple[tuple[Kind, Kind], ...] = (
    (PUBLISHED, MAMBA),
    *((MAMBA, kind) for kind in TWO_WAYS),
    (MAMBA, BARE),
    (FRAMED, TRANSFORMER),
)
"""Models of which one may have more of it than the other: by initialisation, direction, and in one frame."""


def points(band: Band) -> str:
    """A number of points with its interval; a dash where there is none."""
    if not np.isfinite(band.mean):
        return "–"
    return f"{100 * float(band.mean):+.1f}{bracketed(band.low, band.high, '+.1f', scale=100)}"


def answers(study: Study | None, longer: str | tuple[str, list[str]] | None = None) -> str:
    """The questions of the page with their answers, and what bounds them.

    Args:
        study: models with three seeds; None where there are none.
        longer: what longer training changes; None where that is not known.
    """
    if study is None:
        return NOTHING
    asked: dict[str, str | tuple[str, list[str]]] = {
        "Do the drops survive their controls?": _survive(study),
        "How much is the published initialisation's?": _initialisation(study),
        "Is it the end of the sequence, or the bottom of the image?": _orders(study),
        "Do two directions, or another place of the class token, close the hole?": _closed(study),
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
    return "\n".join([*lines, "", _limits(study)])


def short(study: Study, long: Study | None = None) -> str:
    """The first finding in a sentence, and how it is after longer training.

    Args:
        study: models with three seeds.
        long: some of them trained longer; None where there are none.
    """
    run = _others(study)
    counts = {word: len(_uneven_in(study, run, word)) for word in ("normal", "data", "other", "same")}
    said = (
        f"**In short:** after {study.epochs(*run)} epochs N(0, 1) noise on the last {' and '.join(map(str, SIZES))} "
        f"pixels is shown to cost more than on the first in {counts['normal']} of {len(run)} rows other than the "
        f"Transformer, each at one learning rate; noise like the data in {counts['data']}, pixels of an image of "
        f"another class in {counts['other']}, pixels of an image of the same class in {counts['same']}."
    )
    both = [] if long is None else [kind for kind in _others(long) if kind in run]
    if long is None or not both:
        return said
    then = {word: [len(_uneven_in(one, both, word)) for one in (long, study)] for word in counts}
    return (
        f"{said} Of {len(both)} of these rows after {long.epochs(*both)} epochs, noise does in {then['normal'][0]} "
        f"(before in {then['normal'][1]}), noise like the data in {then['data'][0]} ({then['data'][1]}), pixels of "
        f"another class in {then['other'][0]} ({then['other'][1]}), of the same class in {then['same'][0]} "
        f"({then['same'][1]})."
    )


def _others(study: Study) -> list[Kind]:
    """Rows other than the Transformer that have all their seeds."""
    return [kind for kind in NAMES if kind != TRANSFORMER and study.variant(kind) is not None]


def _uneven_in(study: Study, kinds: Sequence[Kind], word: str) -> list[Kind]:
    """Those of some models whose last tokens are shown to cost more than the first at both sizes."""
    return [kind for kind in kinds if all(above(_uneven(study, kind, word, size)) for size in SIZES)]


def ends_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """Of every model: whether its last tokens are shown to cost more than its first, and to steer more often."""
    rows = []
    for kind, name in FORMS.items():
        variant = study.variant(kind)
        if variant is None:
            continue
        cells = [
            shown_word([_uneven(study, kind, word, size) for size in SIZES], SIZES) for word in _replacements(study)
        ]
        steered = [study.attacks(LEVEL, kind=kind, regions=both, above_pairs=False) for both in ATTACKED]
        accuracy = study.result["test_accuracy"][list(variant.cells)].mean()
        rows.append([name, f"{100 * accuracy:.1f}", *cells, shown_word(steered, ATTACK_WORDS)])
    return ["model", "accuracy (%)", *(PLAIN[word] for word in _replacements(study)), "attacks"], rows


def differences_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """Of pairs of models: whether the first has more of it than the second."""
    rows = [
        [
            FORMS[one],
            FORMS[other],
            *(
                shown_word([_more(study, one, other, word, size) for size in SIZES], SIZES)
                for word in _replacements(study)
            ),
        ]
        for one, other in PAIRS
        if None not in (study.variant(one), study.variant(other))
    ]
    return ["more in", "than in", *(PLAIN[word] for word in _replacements(study))], rows


def shown_word(bands: Sequence[Band], sizes: Sequence[object]) -> str:
    """Shown at every size, at one, or open; with the points of the first size, or of the one that is named."""
    sides = [above(band) for band in bands]
    if not all(np.isfinite(band.mean) for band in bands):
        return "–"
    numbers = [f"{100 * float(band.mean):+.1f}" for band in bands]
    if None not in sides and len(set(sides)) == 1:
        return f"**{'yes' if sides[0] else 'no'}** {numbers[0]}"
    known = [
        f"{'yes' if side else 'no'} at {size} {number}"
        for side, size, number in zip(sides, sizes, numbers, strict=True)
        if side is not None
    ]
    return ", ".join(known) or f"open {numbers[0]}"


def _replacements(study: Study) -> Sequence[str]:
    return list(study.result.provenance["pixels"]["replacements"])


def _survive(study: Study) -> str:
    """In how many models the end is shown to cost more, by replacement; and in which the start."""
    run = _others(study)
    counts = [f"{len(_uneven_in(study, run, word))} with {PLAIN[word]}" for word in _replacements(study)]
    names = [NAMES[kind] for kind in run]
    said = (
        f"of the {len(run)} row{'s' * (len(run) > 1)} other than the Transformer ({', '.join(names)}) the last "
        f"{' and '.join(map(str, SIZES))} tokens are shown to cost more than the first in {', '.join(counts)}"
    )
    if study.variant(TRANSFORMER) is None:
        return said
    own = _by_replacement(study, partial(_uneven, study, TRANSFORMER), against="the first shown to cost more with")
    return f"{said}. In the Transformer: {own}"


def _by_replacement(study: Study, band_of: Callable[[str, int], Band], against: str = "shown not to be with") -> str:
    """What is shown to be above 0 at both sizes, what at one alone, what is shown to be below, and what is open."""
    shown, partly, below, rest = [], [], [], []
    for word in _replacements(study):
        sides = {size: above(band_of(word, size)) for size in SIZES}
        less = [str(size) for size, side in sides.items() if side is False]
        more = [str(size) for size, side in sides.items() if side]
        if less:
            below.append(PLAIN[word] + ("" if len(less) == len(SIZES) else f" at {less[0]} alone"))
        if len(more) == len(SIZES):
            shown.append(PLAIN[word])
        elif more:
            partly.append(f"{PLAIN[word]} at {more[0]} alone")
        rest += [] if more or less else [PLAIN[word]]
    parts = {"shown with": [*shown, *partly], against: below, "open with": rest}
    return side_words(parts)


def side_words(sides: Mapping[str, Sequence[str]]) -> str:
    """What stands on each side, by the words in front of it; empty sides are left out.

    >>> side_words({"shown with": ["noise", "pixels"], "open with": []})
    'shown with noise, pixels'
    """
    return "; ".join(f"{head} {', '.join(words)}" for head, words in sides.items() if words)


def _initialisation(study: Study) -> str:
    added = _by_replacement(study, partial(_more, study, PUBLISHED, MAMBA))
    return f"that it adds to Mamba's at {' and '.join(map(str, SIZES))} tokens is {added}"


def _orders(study: Study) -> str | tuple[str, list[str]]:
    said = ordered(study)
    return ("Models of both orders separate the two:", said) if said else NOTHING


def ordered(study: Study) -> list[str]:
    """What of an asymmetry is the end's and what is the image's, of each model that is trained in both orders."""
    return [
        f"{_form(one)}, {PLAIN[name]} on {SIZES[0]} tokens: the end's part {points(end)}, the image's {points(image)}"
        for one, turned in order_pairs(study.result)
        for name in ("normal", "data")
        for end, image in [asymmetries(study, one, turned, SIZES[0], study.place(name))]
    ]


def _form(one: Variant) -> str:
    """Name of a model."""
    return FORMS[one.shared["row"], one.shared["token_order"], one.shared["init"]]


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
        said[-1] += _moved(study, kind) if kind == BOTH_MIDDLE else ""
    return f"Closed means an asymmetry within ± {100 * CLOSED:.0f} points. With two directions:", said


def _moved(study: Study, kind: Kind) -> str:
    """Whether tokens beside a class token in the middle cost more than the last: the ends alone are compared else."""
    variant, places = study.variant(kind), [f"{start}:{end}" for start, end in bounds(study.result).tolist()]
    tokens = study.size(SIZES[1])
    middle = scaled_region("480:576", study.result.provenance["pixels"]["tokens"])  # Table 3's, in the middle
    if variant is None or middle not in places:
        return ""
    _, last = ends(study.result)[tokens]
    sides: dict[str, list[str]] = {"shown with": [], "shown not to be with": [], "open with": []}
    for word in _replacements(study):
        lost = drops(study.result)[list(variant.cells), study.place(word)]
        band = student_interval(lost[:, places.index(middle)] - lost[:, last])
        side = {True: "shown with", False: "shown not to be with", None: "open with"}[above(band)]
        sides[side].append(f"{PLAIN[word]} {points(band)}")
    return (
        f". Of the middle itself: that tokens {middle}, around the class token, cost more than the last {tokens} (over "
        f"seeds on these images, looked at with the data in view) is {side_words(sides)}"
    )


def _margin(study: Study, kind: Kind) -> str:
    """Where an asymmetry is shown to be as good as nothing, where to be more, where neither."""
    sides: dict[str, list[str]] = {"closed": [], "not closed": [], "open": []}
    for name in USUAL:
        for tokens in SIZES:
            band = study.asymmetry(LEVEL, kind=kind, tokens=tokens, replacement=name)
            side = {True: "closed", False: "not closed", None: "open"}[within(band, CLOSED)]
            sides[side].append(f"{PLAIN[name]} at {tokens}")
    asked = len(USUAL) * len(SIZES)
    return side_words({f"{word} in {len(parts)} of {asked},": parts for word, parts in sides.items()})


def _framed(study: Study) -> str | tuple[str, list[str]]:
    """Whether Mamba has more of it than the Transformer where both have the same parts."""
    said = [
        f"{FORMS[one]} has more of it than the {FORMS[other]}: "
        f"{_by_replacement(study, partial(_more, study, one, other))}"
        for one, other in PAIRS
        if {one, other} & {FRAMED, BARE} and None not in (study.variant(one), study.variant(other))
    ]
    return ("Of models in one frame, 32 and 96 tokens:", said) if said else NOTHING


def _uneven(study: Study, kind: Kind, word: str, tokens: int) -> Band:
    """What the last tokens cost a model more than the first."""
    return study.asymmetry(LEVEL, kind=kind, tokens=tokens, replacement=word)


def _more(study: Study, one: Kind, other: Kind, word: str, tokens: int) -> Band:
    """Asymmetry of a model less that of another."""
    return study.more(LEVEL, one=one, other=other, tokens=tokens, replacement=word)


def _attacked(study: Study) -> str | tuple[str, list[str]]:
    """In which models, by number of tokens, and what is the order's and what is the image's."""
    if "success" not in study.result:
        return NOTHING
    said = []
    for regions, tokens in zip(ATTACKED, ATTACK_WORDS, strict=True):
        bands = {kind: study.attacks(LEVEL, kind=kind, regions=regions, above_pairs=False) for kind in NAMES}
        said.append(f"with {tokens} tokens {_sorted(bands)}")
    turned = attacks_ordered(study)
    apart = "; the end is the bottom of the image too, and models of both orders separate the two" if turned else ""
    return f"More often at the end than at the start, mean over targets{apart}:", said + turned


def attacks_ordered(study: Study) -> list[str]:
    """What of the success of attacks is the end's and what is the image's, by number of tokens."""
    said = []
    for regions, tokens in zip(ATTACKED, ATTACK_WORDS, strict=True):
        turned = [
            f"{_form(one)} {points(end)} the end's, {points(image)} the image's"
            for one, other in order_pairs(study.result)
            for end, image in [successes(study, one, other, regions)]
        ]
        said += [f"models of both orders, {tokens} tokens: {'; '.join(turned)}"] if turned else []
    return said


def _sorted(bands: Mapping[Kind, Band]) -> str:
    """Models by what is shown of them; those that are not known are left out."""
    sides: dict[str, list[str]] = {"shown for": [], "shown not to be for": [], "open for": []}
    for kind, band in bands.items():
        if np.isfinite(band.mean):
            sides[{True: "shown for", False: "shown not to be for", None: "open for"}[above(band)]].append(NAMES[kind])
    return side_words(sides)


def _everywhere(study: Study) -> str | tuple[str, list[str]]:
    """Whether the Transformer loses more than other models, mean over all windows of the sequence."""
    if study.variant(TRANSFORMER) is None:
        return NOTHING
    said = []
    for word in EVERYWHERE:
        bands = {kind: _beyond(study, kind, word) for kind in NAMES if kind != TRANSFORMER}
        said.append(f"with {PLAIN[word]} {_sorted(bands)}")
    return (
        f"Mean over {len(windows(study.result))} windows; that the Transformer loses more than another model is:",
        said,
    )


def everywhere_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """What replacing a window costs, mean over windows, and what it costs the Transformer more."""
    rows = []
    for kind, name in NAMES.items():
        variant = study.variant(kind)
        if variant is None:
            continue
        row = [name]
        for word in EVERYWHERE:
            lost = drops(study.result)[list(variant.cells), study.place(word)][:, windows(study.result)]
            row += [f"{100 * lost.mean():.1f}", "" if kind == TRANSFORMER else points(_beyond(study, kind, word))]
        rows.append(row)
    heads = [head for word in EVERYWHERE for head in (f"{word} (points)", "the Transformer loses more by")]
    return ["model", *heads], rows


def _beyond(study: Study, kind: Kind, word: str) -> Band:
    return study.everywhere(LEVEL, one=TRANSFORMER, other=kind, replacement=word)


def attacks_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """Success at the end less that at the start, as it is and above random pairs, mean over targets."""
    rows = []
    for kind, name in FORMS.items():
        bands = [
            study.attacks(LEVEL, kind=kind, regions=regions, above_pairs=pairs)
            for regions in ATTACKED
            for pairs in (False, True)
        ]
        rows += [[name, *map(points, bands)]] if np.isfinite(bands[0].mean) else []
    heads = [f"{tokens} tokens{more}" for tokens in ATTACK_WORDS for more in ("", ", above random pairs")]
    return ["model", *heads], rows


def _influence(study: Study) -> tuple[str, list[str]]:
    """Rank correlations of influence and of what is lost, claim by claim."""
    kinds = [{study.kind_of(place) for place in study.comparable(by)} for by in ("influence", "reach")]
    whom = [f"{len(own)} models, {sum(row.startswith('mamba') for row, *_ in own)} of them Mambas" for own in kinds]
    heads = (
        "from window to window of one model, the more influence, the more is lost",
        f"from model to model ({whom[0]}), the more influence the last window has over the first, the more its "
        "replacement costs beyond that of the first",
        f"from causal model to causal model ({whom[1]}), the less far influence reaches by `repflow recency`, the more "
        "the last window's replacement costs beyond that of the first",
    )
    asked = [claim for claim in OWN_CLAIMS if claim.unit == "correlation"]
    said = []
    for head, claim in zip(heads, asked, strict=True):
        parts = claim.parts(study)
        sides: dict[str, list[str]] = {"shown": [], "shown not to be": [], "open": []}
        for text, band, part in parts:
            side = {True: "shown", False: "shown not to be", None: "open"}[part.holds]
            sides[side].append(claim.shown(_plain(text), band))
        said.append(f"{head}: {side_words(sides)}")
    unread = {study.kind_of(place) for place in study.comparable("reach", unread=True)} - kinds[1]
    if unread:
        names = ", ".join(FORMS.get(kind, kind[0]) for kind in sorted(unread))
        bands = {word: study.predicted(LEVEL, by="reach", replacement=word, unread=True) for word in ("normal", "same")}
        numbers = ", ".join(f"{claim.shown(f'with {PLAIN[word]}', band)}" for word, band in bands.items())
        said[2] += f". With {names}, whose half reach is of a state that it does not answer from: {numbers}"
    others = [row for row, *_ in kinds[0] if not row.startswith("mamba")]
    value = float(study.predicted(LEVEL, by="influence", replacement="normal", without="mamba").mean)
    if np.isfinite(value):
        said[1] += (
            f". Without the Mambas it is {value:+.2f} with {PLAIN['normal']}, of {len(others)} models, too few for an "
            "interval"
        )
    return "Rank correlations:", said


def _plain(text: str) -> str:
    """A part of a claim on influence in words: its model and replacement.

    >>> _plain("mamba same"), _plain("normal, 8 models")
    ('for Mamba with pixels of the same class', 'with N(0, 1) noise')
    """
    *row, word = text.partition(",")[0].split()
    whom = [f"for {FORMS[row[0], 'row', 'right']}"] if row else []
    return " ".join([*whom, "with", PLAIN[word]])


def _limits(study: Study) -> str:
    """What bounds all answers."""
    facts = study.result.provenance["pixels"]
    parts = 2 * len(ends_table(study)[1]) * len(facts["replacements"])
    return (
        f"Points of accuracy or of success, 95 % intervals, {SEEDS} seeds, {facts['images_replaced']:,} test images, "
        "one draw of noise and of lent pixels, the same for all models. Intervals of asymmetries, of their differences "
        "and of attacks are for other seeds and other images; those of drops by themselves, of means over windows and "
        "of one target are for other seeds on these images. Attacks count all targets of an image as one trial, which "
        f"makes theirs wide. Nothing is corrected for the number of intervals: of the {parts} in the first table, "
        f"attacks apart, {parts * (1 - LEVEL) / 2:.0f} would lie above 0 by luck alone, were there nothing. Each row "
        "is at one learning rate, chosen by one seed by its accuracy on the test images; what rates change stands "
        f"below. Where no other number stands, models were trained for {study.epochs()} epochs, the paper's for 100; "
        "what longer training than is shown here would change is open."
    )


def asymmetries(study: Study, one: Variant, turned: Variant, size: int, place: int) -> tuple[Band, Band]:
    """What of an asymmetry is the end's and what is the image's."""
    forward, back = (uneven_ends(study.result, own, size, place) for own in (one, turned))
    return two_orders(forward, back, study.result.provenance["pixels"]["images_replaced"])


def successes(study: Study, one: Variant, turned: Variant, regions: tuple[str, str]) -> tuple[Band, Band]:
    """The same of attacks: success at the end less at the start."""
    places = attack_places(study.result, regions)
    if places is None:
        return NO_BAND, NO_BAND
    last, first = places
    forward, back = (attack_difference(study.result, own.cells, (last, first)) for own in (one, turned))
    return two_orders(forward, back, round(attack_trials(study.result)))
