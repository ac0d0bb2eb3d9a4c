"""What the pixel laboratory claims, fixed before the data, and how its numbers decide.

A model's asymmetry is what its last tokens cost more than its first, in accuracy, of equally many tokens. Each claim is
cut into parts, each with a 95 % interval: of asymmetries and their differences for other seeds and other images, of one
target, of drops by themselves and of means over windows for other seeds on these images, of rank correlations over
models. Parts of models that are not trained, or have not learned, are open. A claim that was added with the data in
view says so in its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from repflow.core.intervals import LEVEL, Band, bracketed, student_interval, welch_interval
from repflow.core.results import Result
from repflow.core.verdict import OPEN, TAIL, WRONG, Part, Verdict, decide
from repflow.papers.pixels import (
    CONSIDERABLE,
    CONTROLS,
    FEWER,
    asymmetry_band,
    attack_band,
    attack_places,
    attack_rates,
    bounds,
    correlation_band,
    correlations,
    drops,
    ends,
    largest_excess,
    learned,
    windows,
)
from repflow.papers.vulnerability import Variant, difference, variants
from repflow.spec.corruption import PAPER, scaled_region
from repflow.studies.laboratory.effect import rank_correlation
from repflow.studies.pixels.study import STUDY
from tools.pixels.attacks import joined

SIZES = (32, 96)
"""Tokens at an end, of 1,024: those of Table 1."""
ALL_SIZES = (10, 32, 96, 256)
"""With those of Table 3."""
CLOSED = 0.05
"""Asymmetry, in accuracy, below which a hole counts as closed."""
SIMILAR = 0.1
"""Difference of success rates up to which they are similar."""
USUAL = ("normal", "data", "same")
"""Replacements that differences are asked of: the paper's, and two that a model may have seen."""
HORSE = "horse"
"""Target of Figure 3."""
LATER = "; added with the data in view"
"""In the rule of a claim that was not fixed before."""
ON_THESE = ", over seeds on these images"
"""In the rule of a claim whose intervals are for other seeds alone."""
BEFORE = "; fixed before such attacks were run, with those of 256 and 480 tokens in view"
"""In the rule of the claims on fewer tokens."""
NOT_RUN = "not run"
NOT_KNOWN = "not run, or not learned"
SEEDS = 3
NOTHING = Band(*(np.array(np.nan),) * 3)
Question = tuple[str, Callable[[float], Band], Callable[[Band], bool | None]]
Kind = tuple[str, str, str]
MAMBA: Kind = ("mamba", "row", "right")
PUBLISHED: Kind = ("mamba", "row", "published")
BOTH: Kind = ("mamba+both", "row", "right")
BOTH_MIDDLE: Kind = ("mamba+both+middle", "row", "right")
MEAN: Kind = ("mamba+mean", "row", "right")
TRANSFORMER: Kind = ("transformer", "row", "right")
H3: Kind = ("h3", "row", "right")
RWKV: Kind = ("rwkv", "row", "right")
S4D: Kind = ("s4d", "row", "right")
MAMBA2: Kind = ("mamba2", "row", "right")
NAMES: dict[Kind, str] = {
    PUBLISHED: "Mamba with the published initialisation",
    MAMBA: "Mamba",
    H3: "H3",
    RWKV: "RWKV",
    S4D: "S4D",
    MAMBA2: "Mamba-2",
    TRANSFORMER: "Transformer",
}
SSMS = (PUBLISHED, MAMBA, H3, RWKV)


def above(band: Band) -> bool | None:
    """Shown to be more than 0, or less."""
    return True if band.low > 0 else False if band.high < 0 else None


def at_most(band: Band) -> bool | None:
    """Shown to be at most 0, or more."""
    return True if band.high <= 0 else False if band.low > 0 else None


def within(band: Band, margin: float) -> bool | None:
    """Shown to be as good as nothing, or more than that."""
    inside, outside = band.low > -margin and band.high < margin, band.low > margin or band.high < -margin
    return True if inside else False if outside else None


def slight(band: Band) -> bool | None:
    """Shown to be less than success that counts as considerable, or more."""
    return True if band.high < CONSIDERABLE else False if band.low > CONSIDERABLE else None


@dataclass(frozen=True)
class Study:
    """Models with three seeds, of one set of images.

    Attributes:
        result: their numbers in the form of a run.
    """

    result: Result

    def variant(self, kind: Kind) -> Variant | None:
        """A model with all its seeds; None where some are not trained, or have not learned."""
        names = ("row", "token_order", "init")
        chosen = [one for one in variants(self.result) if tuple(one.shared[name] for name in names) == kind]
        whole = bool(chosen) and len(chosen[0].cells) >= SEEDS
        return chosen[0] if whole and self.learned[list(chosen[0].cells)].all() else None

    def epochs(self, *kinds: Kind) -> str:
        """For how many epochs models were trained, all of the study if no kind is given."""
        cells = self.result.provenance["cells"]
        chosen = [cells[place] for kind in kinds for place in self.cells(kind)] if kinds else cells
        known = sorted({float(f"{cell['epochs']:.3g}") for cell in chosen})
        return " or ".join(f"{count:g}" for count in known)

    def cells(self, kind: Kind) -> list[int]:
        """Places of a model with all its seeds; none where it is not known."""
        variant = self.variant(kind)
        return [] if variant is None else list(variant.cells)

    @property
    def learned(self) -> np.ndarray:
        """Whether each model is better than guessing (cell,): parts of an image cost nothing where nothing is known."""
        return learned(self.result)

    def size(self, tokens: int) -> int:
        """Tokens that stand for the paper's, in proportion."""
        whole = self.result.provenance["pixels"]["tokens"]
        start, end = map(int, scaled_region(f"0:{tokens}", whole).split(":"))
        return end - start

    def place(self, replacement: str) -> int:
        """Of a replacement."""
        return list(self.result.provenance["pixels"]["replacements"]).index(replacement)

    def asymmetry(self, level: float, *, kind: Kind, tokens: int, replacement: str) -> Band:
        """Of one model."""
        variant = self.variant(kind)
        if variant is None or self.size(tokens) not in ends(self.result):
            return NOTHING
        band = asymmetry_band(self.result, variant.cells, self.size(tokens), level=level)
        return Band(*(part[self.place(replacement)] for part in band))

    def more(self, level: float, *, one: Kind, other: Kind, tokens: int, replacement: str) -> Band:
        """Asymmetry of one model less another's."""
        a, b = self.variant(one), self.variant(other)
        if a is None or b is None or self.size(tokens) not in ends(self.result):
            return NOTHING
        return difference(self.result, a, b, self.size(tokens), self.place(replacement), level=level)

    def costs(self, level: float, *, one: Kind, other: Kind, tokens: int, replacement: str = "normal") -> Band:
        """What replacing the last tokens costs one model more than another, over seeds."""
        a, b = self.variant(one), self.variant(other)
        if a is None or b is None or self.size(tokens) not in ends(self.result):
            return NOTHING
        _, last = ends(self.result)[self.size(tokens)]
        lost = drops(self.result)[:, self.place(replacement), last]
        return welch_interval(lost[list(a.cells)], lost[list(b.cells)], level=level)

    def everywhere(self, level: float, *, one: Kind, other: Kind, replacement: str) -> Band:
        """What replacing a window of the sequence costs one model more than another, mean over windows, over seeds."""
        a, b = self.variant(one), self.variant(other)
        if a is None or b is None:
            return NOTHING
        lost = drops(self.result)[:, self.place(replacement), windows(self.result)].mean(1)
        return welch_interval(lost[list(a.cells)], lost[list(b.cells)], level=level)

    def attacks(
        self, level: float, *, kind: Kind, regions: tuple[str, str], above_pairs: bool, target: str | None = None
    ) -> Band:
        """Success at the end less that at the start, of one target or the mean over all."""
        variant, targets = self.variant(kind), self.result.provenance["pixels"]["targets"]
        places = self.attacked(regions)
        if variant is None or places is None or (target is not None and target not in targets):
            return NOTHING
        last, first = places
        at = None if target is None else targets.index(target)
        return attack_band(self.result, variant.cells, (last, first), at, above_pairs=above_pairs, level=level)

    def sink(self, level: float, *, kind: Kind, replacement: str) -> Band:
        """What replacing the first window costs more than another one, mean over all others, over seeds."""
        variant = self.variant(kind)
        if variant is None:
            return NOTHING
        lost = drops(self.result)[list(variant.cells), self.place(replacement)][:, windows(self.result)]
        return student_interval(lost[:, 0] - lost[:, 1:].mean(1), level=level)

    def breakable(self, level: float, *, kind: Kind, other: Kind, region: str) -> Band:
        """How much more often attacks at a region succeed on one model than on another, mean over targets, over seeds.

        Above the rate of each model's random pairs.
        """
        a, b, places = self.variant(kind), self.variant(other), self.attacked([region])
        if a is None or b is None or places is None:
            return NOTHING
        rates = [attack_rates(self.result, one.cells) for one in (a, b)]
        beyond = [own["success"][:, places[0]] - own["random_pair"][:, places[0]] for own in rates]
        return welch_interval(*beyond, level=level)

    def steered(self, level: float, *, kind: Kind) -> Band:
        """The largest success above random pairs with fewer than 256 of 1,024 tokens, mean over targets."""
        variant, places = self.variant(kind), self.attacked(FEWER)
        if variant is None or places is None:
            return NOTHING
        return largest_excess(self.result, variant.cells, places, level=level)

    def attacked(self, regions: Sequence[str]) -> list[int] | None:
        """Places of attack regions; None where no model is attacked at one of them."""
        return attack_places(self.result, regions) if "success" in self.result else None

    def ranks(self, level: float, *, kind: Kind, replacement: str) -> Band:
        """Rank correlation of influence and cost over windows, over seeds."""
        variant = self.variant(kind)
        if variant is None or "influence" not in self.result:
            return NOTHING
        values = correlations(self.result).by_cell[list(variant.cells), self.place(replacement)]
        return correlation_band(values, level=level)

    def predicted(
        self, level: float, *, by: str, replacement: str, without: str | None = None, unread: bool = False
    ) -> Band:
        """Rank correlation over models of a number of each and of its asymmetry, whole models drawn again.

        Args:
            level: of the interval.
            by: the number.
            replacement: what costs them.
            without: start of the rows that are left out.
            unread: with the half reach of states that no answer is read from.
        """
        known, mine = self.predictor(by), self.comparable(by, unread=unread)
        if without is not None:
            mine = np.array([place for place in mine if not self.kind_of(place)[0].startswith(without)], dtype=int)
        lost = self.result["asymmetry"][:, self.place(replacement), list(ends(self.result)).index(self.size(32))]
        rows = [self.kind_of(place) for place in mine]
        if len(set(rows)) < LEAST_MODELS or level > LEVEL:  # draws of a few models give no more than 95 %
            return NOTHING
        ranks = rank_correlation(known[mine], lost[mine], rows)
        return Band(*(np.array(value) for value in (ranks.value, ranks.low, ranks.high)))

    def comparable(self, by: str, *, unread: bool = False) -> np.ndarray:
        """Places of the models that have learned and that a number is known of.

        The half reach is of the state of the last token, from which a model with a mean over tokens does not answer: it
        counts only if `unread`.
        """
        known = np.isfinite(self.predictor(by)) & self.learned
        cells = self.result.provenance["cells"]
        read = [by != "reach" or unread or "mean" not in cell["row"].split("+") for cell in cells]
        return np.flatnonzero(known & np.array(read))

    def kind_of(self, place: int) -> Kind:
        """Of one model, whatever its seed."""
        cell = self.result.provenance["cells"][place]
        return cell["row"], cell["token_order"], cell["init"]

    def predictor(self, by: str) -> np.ndarray:
        """Logarithm of the half reach, or of the influence of the last window over that of the first (cell,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            if by == "reach":
                return np.asarray(np.log(self.result["half_reach"]))
            places = bounds(self.result)[windows(self.result)]
            first, last = (self.result["influence"][:, start:end].sum(1) for start, end in (places[0], places[-1]))
            return np.asarray(np.log(last) - np.log(first))


MANY = 12
"""Parts of a claim, above which the least and the largest number stand for all."""
LEAST_MODELS = 5
"""Models that a correlation over models needs."""


@dataclass(frozen=True)
class Claim:
    """A sentence and the questions that decide it.

    Attributes:
        text: the sentence.
        rule: when each part is shown.
        questions: text, band by level, judge; given a study.
        unit: of the numbers: points, or a correlation.
    """

    text: str
    rule: str
    questions: Callable[[Study], list[Question]]
    unit: str = "points"

    def parts(self, study: Study) -> list[tuple[str, Band, Part]]:
        """Each with its band; a part that is shown at 5 % over their number carries that smaller error."""
        asked = self.questions(study)
        strict = max(LEVEL, 1 - 2 * WRONG / len(asked))
        answers = []
        for text, band_at, judge in asked:
            band = band_at(LEVEL)
            holds = judge(band)
            sure = holds is not None and judge(band_at(strict)) is holds
            answers.append((text, band, Part(text, holds, min(TAIL, WRONG / len(asked)) if sure else TAIL)))
        return answers

    def verdict(self, study: Study | None) -> tuple[str, str]:
        """One of the four words, and the numbers behind it."""
        if study is None:
            return OPEN, NOT_RUN
        parts = self.parts(study)
        if not any(np.isfinite(band.mean) for _, band, _ in parts):
            return OPEN, NOT_KNOWN
        verdict: Verdict = decide([part for *_, part in parts])
        counts = f"{verdict.held} of {verdict.parts} shown, {verdict.failed} shown not to be"
        if len(parts) > MANY:
            known = sorted((part for part in parts if np.isfinite(part[1].mean)), key=lambda part: float(part[1].mean))
            ends = [self.shown(text, band) for text, band, _ in (known[0], known[-1])]
            return verdict.word, f"{counts}; from {ends[0]} to {ends[1]}"
        return verdict.word, f"{counts}; {'; '.join(self.shown(text, band) for text, band, _ in parts)}"

    def shown(self, text: str, band: Band) -> str:
        """A part with its number and interval."""
        if not np.isfinite(band.mean):
            return f"{text} {NOT_KNOWN}"
        scale, form = (100.0, "+.1f") if self.unit == "points" else (1.0, "+.2f")
        return f"{text} {scale * float(band.mean):{form}}{bracketed(band.low, band.high, form, scale=scale)}"


def _uneven(
    study: Study, kinds: Sequence[Kind], replacements: Sequence[str], sizes: Sequence[int], judge: Any
) -> list[Question]:
    questions: list[Question] = []
    for kind in kinds:
        for replacement in replacements:
            for tokens in sizes:
                band = partial(study.asymmetry, kind=kind, tokens=tokens, replacement=replacement)
                questions.append((f"{replacement} {tokens}", band, judge))
    return questions


def _less(study: Study, one: Kind, other: Kind) -> list[Question]:
    questions: list[Question] = []
    for replacement in USUAL:
        for tokens in SIZES:
            band = partial(study.more, one=one, other=other, tokens=tokens, replacement=replacement)
            questions.append((f"{replacement} {tokens}", band, above))
    return questions


def _attacks(study: Study, kind: Kind, above_pairs: bool, judge: Any, target: str | None = None) -> list[Question]:
    pairs = (("256", ("768:1024", "0:256")), ("480", ("544:1024", "0:480")))
    assert {region for _, both in pairs for region in both} <= set(PAPER["recency-fig3"])
    more: dict[str, Any] = {"kind": kind, "above_pairs": above_pairs, "target": target}
    return [(f"{share} tokens", partial(study.attacks, regions=regions, **more), judge) for share, regions in pairs]


def _horse(study: Study, kind: Kind) -> list[Question]:
    """Attacks of Figure 3, as they are and above random pairs."""
    plain, beyond = (_attacks(study, kind, pairs, above, HORSE) for pairs in (False, True))
    return [*plain, *((f"{text} above random pairs", band, judge) for text, band, judge in beyond)]


def _every_class(study: Study, kind: Kind) -> list[Question]:
    """Attacks of Figure 3 with every class as their target."""
    classes = study.result.provenance["pixels"].get("targets", [])
    return [
        (f"{target} {text}", band, judge)
        for target in classes
        for text, band, judge in _attacks(study, kind, False, above, target)
    ]


def _breakable(study: Study, kind: Kind) -> list[Question]:
    """Success at the end, beside the Transformer's."""
    return [
        (f"{tokens} tokens", partial(study.breakable, kind=kind, other=TRANSFORMER, region=region), above)
        for tokens, region in (("256", "768:1024"), ("480", "544:1024"))
    ]


def _sink(study: Study) -> list[Question]:
    """Whether the Transformer's first tokens cost more: than its last, and than others, in both orders."""
    turned: Kind = ("transformer", "reversed", "right")
    questions = _uneven(study, [TRANSFORMER], ["normal"], SIZES, _below)
    for kind, words in ((TRANSFORMER, ""), (turned, ", reversed")):
        for name in ("normal", "data"):
            band = partial(study.sink, kind=kind, replacement=name)
            questions.append((f"first window, {name}{words}", band, above))
    return questions


def _few(study: Study, kind: Kind) -> list[Question]:
    return [(f"largest of {len(FEWER)} regions", partial(study.steered, kind=kind), slight)]


def _costlier(study: Study, kind: Kind) -> list[Question]:
    return [
        (f"{tokens} tokens", partial(study.costs, one=kind, other=TRANSFORMER, tokens=tokens), above)
        for tokens in SIZES
    ]


def _sturdier(study: Study, kind: Kind, usual: Kind) -> list[Question]:
    """Whether the usual model loses more than another one, at its end and on average over the sequence."""
    questions: list[Question] = []
    for replacement in USUAL:
        for tokens in SIZES:
            band = partial(study.costs, one=usual, other=kind, tokens=tokens, replacement=replacement)
            questions.append((f"{replacement} {tokens}", band, above))
        questions.append(
            (
                f"{replacement} anywhere",
                partial(study.everywhere, one=usual, other=kind, replacement=replacement),
                above,
            )
        )
    return questions


def _ranks(study: Study) -> list[Question]:
    kinds = (MAMBA, H3, TRANSFORMER, ("mamba+both", "row", "right"))
    return [
        (f"{kind[0]} {replacement}", partial(study.ranks, kind=kind, replacement=replacement), above)
        for kind in kinds
        for replacement in ("normal", "same")
    ]


def _predicted(study: Study, by: str, judge: Any) -> list[Question]:
    count = len({study.kind_of(place) for place in study.comparable(by)})
    return [
        (f"{name}, {count} models", partial(study.predicted, by=by, replacement=name), judge)
        for name in ("normal", "same")
    ]


def _below(band: Band) -> bool | None:
    side = above(band)
    return None if side is None else not side


def _paper() -> Iterator[Claim]:
    """What paper 2 says, and whether it survives its controls."""
    yield from _drops()
    yield from _steering()
    yield from _robustness()


def _drops() -> Iterator[Claim]:
    """What tokens cost that are replaced, at both ends."""
    for kind in SSMS:
        text = f"{NAMES[kind]}: the last tokens cost more than the first"
        yield Claim(
            f"{text}, N(0, 1) noise.",
            "asymmetry above 0 at 10, 32, 96 and 256 tokens",
            partial(_uneven, kinds=[kind], replacements=["normal"], sizes=ALL_SIZES, judge=above),
        )
        yield Claim(
            f"{text}, every control.",
            f"asymmetry above 0 at 32 and 96 tokens with {', '.join(CONTROLS)}",
            partial(_uneven, kinds=[kind], replacements=CONTROLS, sizes=SIZES, judge=above),
        )
    for kind in (MAMBA, TRANSFORMER):
        turned = (kind[0], "reversed", kind[2])
        yield Claim(
            f"{NAMES[kind]} trained on reversed images: the last tokens, now the top of the image, cost more.",
            "asymmetry above 0 at 32 and 96 tokens with normal, data and same",
            partial(_uneven, kinds=[turned], replacements=USUAL, sizes=SIZES, judge=above),
        )
    yield Claim(
        "Transformer: the last tokens cost no more than the first, N(0, 1) noise.",
        "asymmetry at most 0 at 32 and 96 tokens",
        partial(_uneven, kinds=[TRANSFORMER], replacements=["normal"], sizes=SIZES, judge=at_most),
    )
    yield Claim(
        "Transformer: informative features sink in its leading tokens.",
        "asymmetry below 0 at 32 and 96 tokens, N(0, 1) noise; the first window costs more than the mean of others, "
        f"N(0, 1) noise and noise like the data, images as they are and reversed{ON_THESE}{LATER}",
        _sink,
    )
    for kind in SSMS:
        yield Claim(
            f"{NAMES[kind]}: the last tokens cost it more than the Transformer, N(0, 1) noise.",
            f"difference of drops at the last 32 and 96 tokens above 0{ON_THESE}{LATER}",
            partial(_costlier, kind=kind),
        )


def _steering() -> Iterator[Claim]:
    """Whether pixels of another class steer the answer, and where."""
    for kind in SSMS:
        yield Claim(
            f"{NAMES[kind]}: attacks at the end that steer to horse succeed more often than at the start.",
            "difference of success rates is positive with 256 and 480 of 1,024 tokens, as they are and above random "
            f"pairs{ON_THESE}{LATER}",
            partial(_horse, kind=kind),
        )
    for kind in SSMS:
        yield Claim(
            f"{NAMES[kind]}: attacks at the end succeed more often than at the start, whatever class they steer to.",
            f"difference of success rates is positive with 256 and 480 tokens for each of ten classes{ON_THESE}{LATER}",
            partial(_every_class, kind=kind),
        )
    for kind in SSMS:
        yield Claim(
            f"{NAMES[kind]}: attacks at the end succeed more often than on the Transformer.",
            "difference of success rates above random pairs is positive with 256 and 480 tokens at the end, mean over "
            f"targets{ON_THESE}{LATER}",
            partial(_breakable, kind=kind),
        )
    for kind in SSMS:
        for pairs in (False, True):
            more, rule = (", each above its random pairs", " above random pairs") if pairs else ("", "")
            yield Claim(
                f"{NAMES[kind]}: attacks at the end succeed more often than at the start{more}.",
                f"difference of success rates{rule} is positive with 256 and 480 of 1,024 tokens, mean over targets",
                partial(_attacks, kind=kind, above_pairs=pairs, judge=above),
            )
    alike = partial(within, margin=SIMILAR)
    yield Claim(
        "Transformer: attacks at both ends that steer to horse succeed alike.",
        f"difference of success rates within ± {100 * SIMILAR:.0f} points with 256 and 480 tokens{ON_THESE}{LATER}",
        partial(_attacks, kind=TRANSFORMER, above_pairs=False, judge=alike, target=HORSE),
    )
    yield Claim(
        "Transformer: attacks at both ends succeed alike.",
        f"difference of success rates within ± {100 * SIMILAR:.0f} points with 256 and 480 tokens, mean over targets",
        partial(_attacks, kind=TRANSFORMER, above_pairs=False, judge=alike),
    )
    for kind in (*SSMS, TRANSFORMER):
        yield Claim(
            f"{NAMES[kind]}: attacks with fewer than 256 of 1,024 tokens do not succeed considerably.",
            "with 32, 96 and 192 tokens at the end and at the start, the largest success above random pairs is less "
            f"than {100 * CONSIDERABLE:.0f} points, mean over targets{BEFORE}",
            partial(_few, kind=kind),
        )


def _robustness() -> Iterator[Claim]:
    """Whether classes that are not read at the end are more robust."""
    rule = (
        "it loses less at the last 32 and 96 tokens, and on average over windows of the sequence, with normal, data "
        f"and same{ON_THESE}; fixed before such models were trained"
    )
    yield Claim(
        "Mamba with a mean over tokens is more robust than with a class token at the end.",
        rule,
        partial(_sturdier, kind=MEAN, usual=MAMBA),
    )
    yield Claim(
        "Two directions with a class token in the middle are more robust than with one at the end.",
        rule,
        partial(_sturdier, kind=BOTH_MIDDLE, usual=BOTH),
    )


def _own() -> Iterator[Claim]:
    """What the laboratory asks beside."""
    rule = "difference of asymmetries above 0 at 32 and 96 tokens with normal, data and same"
    yield Claim("The published initialisation adds to Mamba's.", rule, partial(_less, one=PUBLISHED, other=MAMBA))
    for kind, text in (
        (BOTH, "Two directions"),
        (("mamba+both+first", "row", "right"), "Two directions with the class token first"),
        (BOTH_MIDDLE, "Two directions with the class token in the middle"),
    ):
        yield Claim(f"{text} have less of it than Mamba.", rule, partial(_less, one=MAMBA, other=kind))
        yield Claim(
            f"{text} close the hole.",
            f"asymmetry within ± {100 * CLOSED:.0f} points at 32 and 96 tokens with normal, data and same",
            partial(_uneven, kinds=[kind], replacements=USUAL, sizes=SIZES, judge=partial(within, margin=CLOSED)),
        )
    yield Claim(
        "Mamba with positions and MLPs still has more of it than the Transformer.",
        rule,
        partial(_less, one=("mamba+positions+mlp", "row", "right"), other=TRANSFORMER),
    )
    yield Claim(
        "Mamba has more of it than a Transformer without positions and MLPs.",
        rule,
        partial(_less, one=MAMBA, other=("transformer-positions-mlp", "row", "right")),
    )
    yield Claim(
        "Where a window has more influence on the answer, its replacement costs more.",
        "rank correlation over windows above 0, over seeds, in Mamba, H3, Transformer and two directions",
        _ranks,
        "correlation",
    )
    yield Claim(
        "Models whose last window has more influence than their first have more of it.",
        "rank correlation over models of three seeds above 0, models drawn again",
        partial(_predicted, by="influence", judge=above),
        "correlation",
    )
    yield Claim(
        "Causal models whose influence reaches less far (repflow recency) have more of it.",
        "rank correlation of half reach and asymmetry over models of three seeds below 0, models drawn again; those "
        "with a mean over tokens, which do not answer from the state whose half reach is known, were left out with "
        "the data in view",
        partial(_predicted, by="reach", judge=_below),
        "correlation",
    )


PAPER_CLAIMS, OWN_CLAIMS = tuple(_paper()), tuple(_own())


def with_epochs(phase: Mapping[str, Any]) -> dict[str, Any]:
    """A phase whose models know for how many epochs they were trained."""
    facts = phase["facts"]
    epochs = facts["steps"] / (facts["train_images"] // facts["batch"]) if "train_images" in facts else np.nan
    return {**phase, "cells": [{**cell, "epochs": epochs} for cell in phase["cells"]]}


def read_study(
    numbers: Mapping[str, Any], images: str = "cifar10", phases: Sequence[str] = ("seeds", "extension-seeds")
) -> Study | None:
    """The models that are tested so far; None where there are none.

    Args:
        numbers: as `tools.pixels.run table` writes them.
        images: name of the set.
        phases: whose models; those of core and extension, or those that are trained longer.
    """
    known = [numbers.get(f"{images}-{name}") for name in phases]
    there = [with_epochs(phase) for phase in known if phase is not None and phase["cells"]]
    if not there:
        return None
    facts = there[0]["facts"]
    if any(phase["facts"]["regions"] != facts["regions"] for phase in there):
        raise ValueError(f"phases of {images} with other regions: run them alike")
    regions, models = joined([(phase["facts"]["attack_regions"], phase["cells"]) for phase in there])
    cells, facts = [cell for cell in models if "asymmetry" in cell], {**facts, "attack_regions": regions}
    if not cells:
        return None
    names = [name for name in STUDY.tested if all(name in cell for cell in cells) and name != "influence"]
    arrays = {name: np.array([cell[name] for cell in cells], dtype=np.float64) for name in names}
    arrays["half_reach"] = np.array([cell.get("half_reach") for cell in cells], dtype=np.float64)
    axes = {name: ("cell", *STUDY.tested.get(name, ())) for name in arrays}
    result = Result(arrays, axes, {}, {"pixels": facts, "cells": cells})
    # a window's influence stands at its first token: sums over windows, which alone are asked for, are the same
    spread = np.zeros((len(cells), facts["tokens"]))
    chosen, places = windows(result), bounds(result)
    for row, cell in enumerate(cells):
        spread[row, places[chosen, 0]] = np.array(cell["influence"])[chosen]
    result.arrays["influence"], result.axes["influence"] = spread, ("cell", "token")
    return Study(result)
