"""Write the measured parts of docs/laboratories/pixels.md from docs/laboratories/pixels.json.

Run `python -m docs.make_pixels`; nothing is trained here. The JSON file holds what `python -m tools.pixels.run table`
keeps of the phases that are there, finished or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from docs.made_parts import PART, filled, table  # noqa: F401  tests read PART
from repflow.core.intervals import LEVEL, Band, bracketed, welch_interval
from repflow.papers.pixels import CLEAN, TABLE1, asymmetry_band, attack_rates, bounds, drops, ends, windows
from repflow.papers.vulnerability import Variant, end_verdict, order_pairs, two_orders, variants
from tools.pixels.claims import (
    CLOSED,
    MAMBA,
    NAMES,
    OWN_CLAIMS,
    PAPER_CLAIMS,
    PUBLISHED,
    SEEDS,
    SIZES,
    TRANSFORMER,
    USUAL,
    Kind,
    Study,
    above,
    read_study,
    within,
)

DOCS = Path(__file__).parent
PAGE = DOCS / "laboratories" / "pixels.md"
PICTURE = DOCS / "pictures" / "pixels.png"
NUMBERS: dict[str, Any] = json.loads((DOCS / "laboratories" / "pixels.json").read_text(encoding="utf-8"))
NOTHING = "Not run yet."
CIFAR = "cifar10"
PRINTED = ("mamba", "h3", "rwkv", "transformer")
BAR = 20.0
"""Million tokens a second, all models side by side."""


def whole() -> list[tuple[Study, Variant]]:
    """Models that have all their seeds."""
    study = read_study(NUMBERS, CIFAR)
    return [] if study is None else [(study, one) for one in variants(study.result) if len(one.cells) >= SEEDS]


def status() -> str:
    """What was run of every phase."""
    names = {"screen": "rates", "seeds": "three seeds", "long": "one pair, trained longer"}
    rows = []
    for phase in ("screen", "seeds", "long", *(strong_forms() or ["strong"]), "extension-screen", "extension-seeds"):
        known = NUMBERS.get(f"{CIFAR}-{phase}")
        words = names.get(phase.removeprefix("extension-"), "strong S4D") + (", extension" * phase.startswith("ext"))
        done = NOTHING if known is None else f"{len(known['cells'])} of {known['models']} models"
        rows.append([words, done, *(["–"] * 4 if known is None else facts_of(known))])
    heads = ["phase, CIFAR-10", "trained and tested", "epochs", "steps", "test images with parts replaced", "on"]
    return table(heads, rows)


def facts_of(phase: dict[str, Any]) -> list[str]:
    """Epochs, steps, images and machine of a phase; a phase that reads two single tokens asks for accuracy alone."""
    facts = phase["facts"]
    read = f"{facts['images_replaced']:,}" if len(facts["regions"]) > 2 else "–"
    return [epochs_of(phase), f"{facts['steps']:,}", read, facts["device"]]


def epochs_of(phase: dict[str, Any]) -> str:
    """Epochs of a phase, from its steps."""
    facts = phase["facts"]
    return f"{facts['steps'] / (facts['train_images'] // facts['batch']):.3g}"


def printed() -> str:
    """Table 1 as printed, and ours below."""
    regions = list(TABLE1["mamba"])
    forwards = [(study, one) for study, one in whole() if one.shared["token_order"] == "row"]
    own = {(one.shared["row"], one.shared["init"]): (study, one) for study, one in forwards}
    short = epochs_of(NUMBERS[f"{CIFAR}-seeds"]) if own else ""
    rows = []
    for row in PRINTED:
        rows.append([row, "printed", f"{CLEAN[row]:.3f}", *(f"{TABLE1[row][region]:.3f}" for region in regions)])
        for init in ("published", "right"):
            if (row, init) not in own:
                continue
            study, one = own[row, init]
            places = [f"{start}:{end}" for start, end in bounds(study.result).tolist()]
            noise = study.result["accuracy"][list(one.cells)].mean(0)[study.place("normal")]
            clean = float(study.result["clean_accuracy"][list(one.cells)].mean())
            numbers = [clean, *(float(noise[places.index(region)]) for region in regions)]
            words = f"ours, {init} initialisation, {short} epochs"
            rows.append([row, words, *(f"{value:.3f}" for value in numbers)])
        if not any(name == row for name, _ in own):
            rows.append([row, "ours", *["not run"] * (1 + len(regions))])
    return table(["model", "", "as they are", *regions], rows)


def claims(chosen: Any) -> str:
    """Every claim with its rule, verdict and numbers."""
    study = read_study(NUMBERS, CIFAR)
    rows = []
    for claim in chosen:
        word, numbers = claim.verdict(study)
        rows.append([claim.text, claim.rule, f"**{word}**", numbers])
    return table(["claim", "shown where", "verdict", "points or correlations"], rows)


def costs() -> str:
    """Drops at the last and the first tokens by replacement, with the interval of their difference."""
    models = whole()
    if not models:
        return NOTHING
    kinds = models[0][0].result.provenance["pixels"]["replacements"]
    rows = []
    for study, one in models:
        clean = 100 * study.result["test_accuracy"][list(one.cells)]
        for tokens in SIZES:
            size = study.size(tokens)
            first, last = ends(study.result)[size]
            lost = 100 * drops(study.result)[list(one.cells)].mean(0) + 0.0  # no −0.0
            band = asymmetry_band(study.result, one.cells, size)
            intervals = [bracketed(low, high, "+.1f", scale=100) for low, high in zip(band.low, band.high, strict=True)]
            numbers = [f"{own[last]:.1f} / {own[first]:.1f}{more}" for own, more in zip(lost, intervals, strict=True)]
            rows.append([one.words, f"{clean.mean():.1f} ± {clean.std(ddof=1):.1f}", str(size), *numbers])
    return table(["model", "accuracy (%), ± deviation of seeds", "tokens", *kinds], rows)


def controls() -> str:
    """Which asymmetries survive each replacement, over all sizes."""
    models = whole()
    if not models:
        return NOTHING
    kinds = models[0][0].result.provenance["pixels"]["replacements"]
    rows = []
    for study, one in models:
        words = [end_verdict(study.result, one, place) for place in range(len(kinds))]
        rows.append([one.words, *(f"{word.word} ({word.held} of {word.parts})" for word in words)])
    return table(["model", *kinds], rows)


def attacks() -> str:
    """Success, random pairs and base rates, mean over targets."""
    models = [(study, one) for study, one in whole() if "success" in study.result]
    if not models:
        return NOTHING
    regions = models[0][0].result.provenance["pixels"]["attack_regions"]
    rows = []
    for study, one in models:
        rates = {name: 100 * value.mean(0) for name, value in attack_rates(study.result, one.cells).items()}
        base = 100 * float(study.result["base_rate"][list(one.cells)].mean())
        shown = [f"{a:.1f} ({b:.1f})" for a, b in zip(rates["success"], rates["random_pair"], strict=True)]
        rows.append([one.words, f"{base:.1f}", *shown])
    return table(["model", "without attack (%)", *(f"{region} (%)" for region in regions)], rows)


def rates() -> str:
    """The sweep of rates."""
    phases = [NUMBERS[name] for name in (f"{CIFAR}-screen", f"{CIFAR}-extension-screen") if name in NUMBERS]
    rows: dict[tuple[str, str], dict[float, str]] = {}
    for cell in (cell for phase in phases for cell in phase["cells"]):
        rows.setdefault((cell["row"], cell["init"]), {})[cell["rate"]] = _accuracy(cell)
    if not rows:
        return NOTHING
    heads = sorted({rate for row in rows.values() for rate in row})
    lines = [[row, init, *(by.get(rate, "") for rate in heads)] for (row, init), by in rows.items()]
    return table(["row", "initialisation", *(f"rate {rate:g}" for rate in heads)], lines)


def epochs() -> str:
    """Whether longer training gives the same order."""
    short, long = (NUMBERS.get(f"{CIFAR}-{phase}") for phase in ("seeds", "long"))
    if short is None or long is None or len(long["cells"]) < 2:
        return NOTHING
    rows, orders = [], []
    for count, phase in ((epochs_of(short), short), (epochs_of(long), long)):
        pair = {cell["row"]: cell for cell in phase["cells"] if _of_pair(cell)}
        if len(pair) < 2:
            return NOTHING
        facts = phase["facts"]
        at = facts["ends"].index(SIZES[0])
        values = {row: (cell["test_accuracy"], cell["asymmetry"][0][at]) for row, cell in pair.items()}
        rows += [[count, row, f"{100 * a:.1f}", f"{100 * b:+.1f}"] for row, (a, b) in values.items()]
        orders.append([bool(np.sign(values["mamba"][n] - values["transformer"][n]) > 0) for n in (0, 1)])
    words = "the same order" if orders[0] == orders[1] else "another order"
    heads = ["epochs", "model", "accuracy (%)", "last 32 tokens cost more than the first, N(0, 1) (points)"]
    return f"{table(heads, rows)}\n\n{epochs_of(long)} epochs give {words}."


def _of_pair(cell: dict[str, Any]) -> bool:
    """Whether a cell is one of the pair, and did not diverge."""
    wanted = (cell["token_order"], cell["init"], cell["seed"]) == ("row", "right", 1)
    return wanted and cell["row"] in ("mamba", "transformer") and "asymmetry" in cell


def strong_forms() -> list[str]:
    """Phases of the strong baseline that were run, one for each form of it."""
    return [name.removeprefix(f"{CIFAR}-") for name in NUMBERS if name.startswith(f"{CIFAR}-strong@")]


def strong() -> str:
    """The strong baseline, also while it trained."""
    known = [NUMBERS[f"{CIFAR}-{phase}"] for phase in strong_forms()]
    rows = [
        [
            f"`{cell['row']}`",
            epochs_of(phase),
            _accuracy(cell),
            f"{100 * cell['train_accuracy']:.1f}",
            ", ".join(f"{100 * value:.0f}" for value in cell["on_the_way"][1:]),
        ]
        for phase in known
        for cell in phase["cells"]
    ]
    heads = ["model", "epochs", "accuracy (%)", "of its last training images", "on 1,000 test images, every tenth"]
    return table(heads, rows) if rows else NOTHING


def _accuracy(cell: dict[str, Any]) -> str:
    value = cell.get("test_accuracy")
    return "diverged" if value is None else f"{100 * value:.1f}"


def commands() -> str:
    """Of all models, those that were trained side by side in one command."""
    groups = [words for phase in NUMBERS.values() for words in phase.get("commands", [])]
    return table(["models", "command"], [[str(len(words.split()[3].split(","))), f"`{words}`"] for words in groups])


def speed() -> str:
    """What benchmarks/pixels.py measured."""
    known = NUMBERS.get("speed")
    if known is None:
        return NOTHING
    rows = []
    for row in known["cells"]:
        rate = row.get("million_tokens_per_second")
        numbers = [row.get("failed", ""), "", "", ""]
        if rate is not None:
            numbers = [f"{rate:.1f}", f"{BAR:.0f}", row["form"], _longest(row)]
        rows.append([row["row"], str(row["models"]), *numbers])
    return table(["row", "models", "million tokens/s", "bar", "form", "longest kernels, share of a step"], rows)


LIBRARIES = {**dict.fromkeys(("nvjet", "cutlass", "sm80"), "matrix products"), "cudnn": "attention"}
"""How kernels of libraries begin, and what they do."""


def _longest(row: dict[str, Any], count: int = 3) -> str:
    """Names of the kernels that a step spends most of its time in, with their shares; those of one name are added."""
    shares: dict[str, float] = {}
    for name, microseconds, _ in row.get("kernels", []):
        short = re.sub(r"\(anonymous namespace\)::", "", name.removeprefix("void ")).partition("<")[0]
        known = [words for head, words in LIBRARIES.items() if short.startswith(head)]
        short = known[0] if known else f"`{short.rpartition('::')[2]}`"
        shares[short] = shares.get(short, 0.0) + microseconds / (1e3 * row["ms_per_step"])
    longest = sorted(shares, key=lambda name: -shares[name])[:count]
    return ", ".join(f"{name} {100 * shares[name]:.0f} %" for name in longest)


TWO_WAYS: dict[Kind, str] = {
    ("mamba+both", "row", "right"): "at the end",
    ("mamba+both+first", "row", "right"): "in front",
    ("mamba+both+middle", "row", "right"): "in the middle",
}
"""Models that mix both ways, by where their class token stands."""
H3: Kind = ("h3", "row", "right")


def points(band: Band) -> str:
    """A number of points with its interval."""
    return f"{100 * float(band.mean):+.1f}{bracketed(band.low, band.high, '+.1f', scale=100)}"


def answers() -> str:
    """The questions of the page in a sentence each, from the numbers below."""
    study = read_study(NUMBERS, CIFAR)
    if study is None:
        return NOTHING
    asked = {
        "Do the drops survive their controls?": "; ".join(_survives(study, kind) for kind in (MAMBA, H3)),
        "How much is the published initialisation's?": _initialisation(study),
        "Is it the end of the sequence, or the bottom of the image?": _orders(study),
        "Does bidirectionality close the hole?": _closed(study),
        "Do attacks at the end succeed more often?": _attacked(study),
        "Which model loses most, on average over the sequence?": _everywhere(study),
        "Does a model's influence say where it is vulnerable?": _influence(study),
    }
    lines = [f"- **{question}** {words[:1].upper()}{words[1:]}." for question, words in asked.items()]
    return "\n".join([*lines, "", _limits(study)])


def _survives(study: Study, kind: Kind) -> str:
    """For which replacements the end costs more, at both sizes or at one."""
    name = NAMES[kind]
    if study.variant(kind) is None:
        return f"{name}: not run, or not learned"
    return (
        f"{name}: that the last {' and '.join(map(str, SIZES))} tokens cost more than the first is "
        + _by_replacement(
            study, lambda word, tokens: study.asymmetry(LEVEL, kind=kind, tokens=tokens, replacement=word)
        )
    )


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
    return f"that it adds to Mamba's at {' and '.join(map(str, SIZES))} tokens is " + _by_replacement(
        study, lambda word, tokens: study.more(LEVEL, one=PUBLISHED, other=MAMBA, tokens=tokens, replacement=word)
    )


def _orders(study: Study) -> str:
    said = [
        f"{PLAIN[name]} on {SIZES[0]} tokens of {one.words}: the end's part {points(end)}, the image's {points(image)}"
        for one, turned in order_pairs(study.result)
        for name in ("normal", "data")
        for end, image in [_asymmetries(study, one, turned, SIZES[0], study.place(name))]
    ]
    return f"both orders together tell them apart: {'; '.join(said)}" if said else NOTHING


def _closed(study: Study) -> str:
    """Of the class token at each place: does the asymmetry of two directions lie within the margin, is it less?"""
    said = []
    for kind, place in TWO_WAYS.items():
        head = f"class token {place}"
        if study.variant(kind) is None:
            said.append(f"{head}: not run, or not learned")
            continue
        less = _by_replacement(
            study, lambda word, n, kind=kind: study.more(LEVEL, one=MAMBA, other=kind, tokens=n, replacement=word)
        )
        said.append(f"{head}: {_margin(study, kind)}. That it is less than Mamba's is {less}")
    head = f"closed means an asymmetry within ± {100 * CLOSED:.0f} points. With two directions:\n"
    return head + ".\n".join(f"    - {words}" for words in said)


def _margin(study: Study, kind: Kind) -> str:
    """Where an asymmetry is shown to be as good as nothing, where to be more, where neither."""
    sides: dict[str, list[str]] = {"closed": [], "not closed": [], "open": []}
    for name in USUAL:
        for tokens in SIZES:
            band = study.asymmetry(LEVEL, kind=kind, tokens=tokens, replacement=name)
            side = {True: "closed", False: "not closed", None: "open"}[within(band, CLOSED)]
            sides[side].append(f"{PLAIN[name]} at {tokens} ({points(band)})")
    return "; ".join(f"{word} with {', '.join(parts)}" for word, parts in sides.items() if parts)


def _attacked(study: Study) -> str:
    """By region of the sequence, and with order and image told apart."""
    if "success" not in study.result:
        return NOTHING
    said = []
    for kind in (MAMBA, PUBLISHED, H3, TRANSFORMER):
        if study.variant(kind) is not None:
            band = study.attacks(LEVEL, kind=kind, regions=ATTACKED[0], above_pairs=False)
            said.append(f"{NAMES[kind]} {points(band)}")
    turned = [
        f"{one.words} {points(end)} the end's, {points(image)} the image's"
        for one, other in order_pairs(study.result)
        for end, image in [_successes(study, one, other, ATTACKED[0])]
    ]
    return (
        f"success with {ATTACK_WORDS[0]} tokens at the end less at the start, row by row, mean over targets: "
        f"{'; '.join(said)}. Both orders together: {'; '.join(turned)}. The published initialisation and H3 were not "
        "read in reverse"
    )


def _everywhere(study: Study) -> str:
    """Drop by 32 replaced tokens, mean over all windows of the sequence: the Transformer's less each other model's."""
    chosen, said = windows(study.result), []
    for name in ("normal", "data"):
        lost = {}
        for kind in (TRANSFORMER, MAMBA, PUBLISHED, H3):
            variant = study.variant(kind)
            if variant is not None:
                lost[kind] = drops(study.result)[list(variant.cells), study.place(name)][:, chosen].mean(1)
        own = lost.pop(TRANSFORMER, None)
        if own is not None:
            parts = [f"{NAMES[kind]} {points(welch_interval(own, other))}" for kind, other in lost.items()]
            said.append(
                f"{PLAIN[name]} costs the Transformer {100 * own.mean():.1f} points, more than {', '.join(parts)}"
            )
    return f"mean over {len(chosen)} windows of the sequence: {'; '.join(said)}" if said else NOTHING


def _influence(study: Study) -> str:
    parts = [part for claim in OWN_CLAIMS if claim.unit == "correlation" for part in claim.parts(study)]
    shown = sum(part.holds is True for *_, part in parts)
    return f"a rank correlation of the expected sign is shown in {shown} of {len(parts)} parts of three claims below"


def _limits(study: Study) -> str:
    known = NUMBERS[f"{CIFAR}-seeds"]
    images = study.result.provenance["pixels"]["images_replaced"]
    return (
        f"Points of accuracy or of success, 95 % intervals, {SEEDS} seeds, {images:,} test images. "
        "Intervals of one model are for other seeds and images; those of differences between models, of the end's and "
        "the image's parts and of means over windows are over seeds, on these images. Those of attacks are wide: all "
        f"targets of an image count as one trial. The models were trained for {epochs_of(known)} epochs, the paper's "
        "for 100, and are less accurate than its; what longer training changes is open. The two parts and the means "
        "over windows were asked for with the data in view."
    )


PLAIN = {
    "normal": "N(0, 1) noise",
    "data": "noise in range",
    "shuffle": "shuffled pixels",
    "mean": "the mean image",
    "same": "pixels of the same class",
    "other": "pixels of another class",
}
ATTACKED = (("768:1024", "0:256"), ("544:1024", "0:480"))
ATTACK_WORDS = ("256", "480")
PARTED = (("the end", 0), ("the image", 1))


def _asymmetries(study: Study, one: Variant, turned: Variant, size: int, place: int) -> tuple[Band, Band]:
    at = list(ends(study.result)).index(size)
    forward, back = (study.result["asymmetry"][list(own.cells), place, at] for own in (one, turned))
    return two_orders(forward, back)


def _successes(study: Study, one: Variant, turned: Variant, regions: tuple[str, str]) -> tuple[Band, Band]:
    known = study.result.provenance["pixels"]["attack_regions"]
    last, first = (known.index(region) for region in regions)
    rates = [attack_rates(study.result, own.cells)["success"] for own in (one, turned)]
    forward, back = (own[:, last] - own[:, first] for own in rates)
    return two_orders(forward, back)


CURVES = ("normal", "data", "same")


def picture() -> None:
    """Drop of accuracy by the place of the window that is replaced, a panel a replacement, a line a model."""
    study = read_study(NUMBERS, CIFAR)
    if study is None:
        return
    from matplotlib import pyplot as plt

    chosen, places = windows(study.result), bounds(study.result)
    middle = places[chosen].mean(1)
    figure, panels = plt.subplots(1, len(CURVES), figsize=(9.6, 3.4), sharey=True, layout="constrained")
    for panel, name in zip(panels, CURVES, strict=True):
        for number, (one, style) in enumerate(zip(variants(study.result), cycle(("-", "--", "-.", ":")), strict=False)):
            lost = 100 * drops(study.result)[list(one.cells), study.place(name)][:, chosen]
            panel.plot(middle, lost.mean(0), style, color=f"C{number}", label=one.words, linewidth=1.4)
        panel.axhline(0, color="0.6", linewidth=0.8)
        panel.set_title(PLAIN[name], fontsize=10)
        panel.set_xlabel("place of 32 tokens in the sequence", fontsize=9)
    panels[0].set_ylabel("points of accuracy lost, mean of 3 seeds", fontsize=9)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8
    )
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)


def orders() -> str:
    """What is the end's and what is the image's, of drops, by size and replacement."""
    study = read_study(NUMBERS, CIFAR)
    pairs = [] if study is None else order_pairs(study.result)
    if study is None or not pairs:
        return NOTHING
    kinds = study.result.provenance["pixels"]["replacements"]
    rows = []
    for one, turned in pairs:
        for size in sorted(ends(study.result)):
            both = [_asymmetries(study, one, turned, size, place) for place in range(len(kinds))]
            for word, part in PARTED:
                rows.append([one.words, str(size), word, *(points(bands[part]) for bands in both)])
    return table(["model", "tokens", "due to", *kinds], rows)


def attack_orders() -> str:
    """What is the end's and what is the image's, of attacks."""
    study = read_study(NUMBERS, CIFAR)
    pairs = [] if study is None or "success" not in study.result else order_pairs(study.result)
    if study is None or not pairs:
        return NOTHING
    rows = []
    for one, turned in pairs:
        both = [_successes(study, one, turned, regions) for regions in ATTACKED]
        for word, part in PARTED:
            rows.append([one.words, word, *(points(bands[part]) for bands in both)])
    return table(["model", "due to", *(f"{words} tokens (points of success)" for words in ATTACK_WORDS)], rows)


PARTS: dict[str, Callable[[], str]] = {
    "answers": answers,
    "status": status,
    "printed": printed,
    "paper_claims": partial(claims, PAPER_CLAIMS),
    "own_claims": partial(claims, OWN_CLAIMS),
    "costs": costs,
    "controls": controls,
    "orders": orders,
    "attack_orders": attack_orders,
    "attacks": attacks,
    "rates": rates,
    "epochs": epochs,
    "strong": strong,
    "speed": speed,
    "commands": commands,
}


def page(text: str) -> str:
    """The page with its measured parts replaced."""
    return filled(text, PARTS)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    picture()
    print(f"wrote {PAGE}")
