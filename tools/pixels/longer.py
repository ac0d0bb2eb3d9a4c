"""What longer training changes: models of the seeds beside the same models trained longer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repflow.core.intervals import LEVEL, Band, nested_difference
from repflow.papers.pixels import CLEAN
from repflow.papers.vulnerability import uneven_ends
from tools.pixels.answers import FORMS, NOTHING, PLAIN, attacks_ordered, ordered, points, side_words
from tools.pixels.claims import (
    NOT_KNOWN,
    OWN_CLAIMS,
    PAPER_CLAIMS,
    SIZES,
    USUAL,
    Kind,
    Study,
    above,
    read_study,
)
from tools.pixels.run import LONG

LONGER = ("long",)
"""The phase of longer training."""


@dataclass(frozen=True)
class Longer:
    """Both trainings.

    Attributes:
        before: models with three seeds.
        long: models that are trained longer.
        both: those that both have whole.
    """

    before: Study
    long: Study
    both: list[Kind]

    @property
    def epochs(self) -> tuple[str, str]:
        """Of either."""
        return self.before.epochs(*self.both), self.long.epochs(*self.both)

    def grown(self, kind: Kind, replacement: str) -> Band:
        """Asymmetry of 32 tokens after longer training less that before."""
        return changed((self.before, kind), (self.long, kind), replacement)


def trained_longer(numbers: Mapping[str, Any], images: str) -> Longer | None:
    """Both trainings; None where no model has both."""
    before, long = read_study(numbers, images), read_study(numbers, images, LONGER)
    if before is None or long is None:
        return None
    both = [kind for kind in LONG if before.variant(kind) is not None and long.variant(kind) is not None]
    return Longer(before, long, both) if both else None


def changed(before: tuple[Study, Kind], after: tuple[Study, Kind], replacement: str) -> Band:
    """Asymmetry of 32 tokens of one training less that of another, for other seeds and images."""
    values = []
    for study, kind in (after, before):
        variant = study.variant(kind)
        assert variant is not None
        values.append(uneven_ends(study.result, variant, study.size(SIZES[0]), study.place(replacement)))
    return nested_difference(values[0], values[1], after[0].result.provenance["pixels"]["images_replaced"])


def epochs_table(known: Longer) -> tuple[list[str], list[list[str]]]:
    """Accuracy and asymmetry after longer training, and how much more asymmetry that is."""
    rows = []
    for kind in known.both:
        right = [
            f"{100 * study.result['test_accuracy'][study.cells(kind)].mean():.1f} after {study.epochs(kind)}"
            for study in (known.before, known.long)
        ]
        bands = [known.long.asymmetry(LEVEL, kind=kind, tokens=SIZES[0], replacement=name) for name in USUAL]
        more = [known.grown(kind, name) for name in USUAL]
        rows.append([FORMS[kind], ", ".join(right), *map(points, bands), *map(points, more)])
    heads = ["model", "accuracy (%), epochs", *USUAL, *(f"{name}, more than before" for name in USUAL)]
    return heads, rows


def judged_again(known: Longer) -> tuple[list[str], list[list[str]]]:
    """The paper's statements, and that on the published initialisation, judged by models that are trained longer."""
    rows = []
    for claim in (*PAPER_CLAIMS, OWN_CLAIMS[0]):
        word, numbers = claim.verdict(known.long)
        if numbers != NOT_KNOWN:
            was, then = claim.verdict(known.before)
            rows.append([claim.text, "–" if then == NOT_KNOWN else was, f"**{word}**", numbers])
    few, many = known.epochs
    return ["claim", f"{few} epochs", f"{many} epochs", f"points, {many} epochs"], rows


def accuracies(long: Study) -> str:
    """Accuracy after longer training beside the paper's."""
    said = []
    for kind in LONG:
        if long.variant(kind) is not None and kind[0] in CLEAN and kind[1] == "row":
            ours = 100 * long.result["test_accuracy"][long.cells(kind)].mean()
            said.append(f"{FORMS[kind]} {ours:.1f} ({100 * CLEAN[kind[0]]:.1f})")
    return ", ".join(said) or NOTHING


def sentences(known: Longer) -> tuple[str, list[str]]:
    """What longer training changes, and what is the end's and what the image's then."""
    few, many = known.epochs
    said = [f"with {PLAIN[name]} {_sides(known, name)}" for name in USUAL]
    said += [f"after {many} epochs, {words}" for words in (*ordered(known.long), *attacks_ordered(known.long))]
    head = (
        f"{many} epochs in place of {few}, the asymmetry of {SIZES[0]} tokens, models with three seeds at both "
        f"({len(known.both)} of {len(LONG)}). Open does not mean unchanged, as intervals are wide:"
    )
    return head, said


def _sides(known: Longer, name: str) -> str:
    """In which models it is shown to change; of those where that is open, the widest and the narrowest interval."""
    sides: dict[str, list[str]] = {"shown to rise in": [], "shown to fall in": [], "open in": []}
    wide: list[tuple[float, str]] = []
    for kind in known.both:
        band = known.grown(kind, name)
        side = {True: "shown to rise in", False: "shown to fall in", None: "open in"}[above(band)]
        words = f"{FORMS[kind]} {points(band)}"
        if above(band) is None:
            wide.append((float(band.high - band.low), words))
        sides[side].append(FORMS[kind] if above(band) is None else words)
    if len(sides["open in"]) == len(known.both):
        sides["open in"] = [f"all {len(known.both)}"]
    said = side_words(sides)
    return f"{said}, narrowest in {min(wide)[1]}, widest in {max(wide)[1]}" if len(wide) > 1 else said
