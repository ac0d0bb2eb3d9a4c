"""Write the measured parts of docs/laboratories/pixels.md from docs/laboratories/pixels.json.

Run `python -m docs.make_pixels`; nothing is trained here. The JSON file holds what `python -m tools.pixels.run table`
keeps of the phases that are there, finished or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from docs.made_parts import PART, filled, table  # noqa: F401  tests read PART
from repflow.core.intervals import LEVEL, bracketed
from repflow.papers.pixels import CLEAN, TABLE1, TABLE3, asymmetry_band, attack_rates, bounds, drops, ends, windows
from repflow.papers.vulnerability import Variant, end_verdict, order_pairs, variants
from tools.pixels.answers import (
    ATTACK_WORDS,
    ATTACKED,
    FORMS,
    NOTHING,
    PLAIN,
    answers,
    asymmetries,
    attacks_table,
    differences_table,
    ends_table,
    everywhere_table,
    points,
    short,
    successes,
)
from tools.pixels.claims import (
    MAMBA,
    NAMES,
    NOT_KNOWN,
    OWN_CLAIMS,
    PAPER_CLAIMS,
    PUBLISHED,
    SEEDS,
    SIZES,
    Kind,
    Study,
    read_study,
)
from tools.pixels.longer import (
    LONGER,
    Longer,
    accuracies,
    changed,
    epochs_table,
    judged_again,
    sentences,
    trained_longer,
)
from tools.pixels.run import KINDS, LONG, STRONG

DOCS = Path(__file__).parent
PAGE = DOCS / "laboratories" / "pixels.md"
PICTURE = DOCS / "pictures" / "pixels.png"
NUMBERS: dict[str, Any] = json.loads((DOCS / "laboratories" / "pixels.json").read_text(encoding="utf-8"))
CIFAR = "cifar10"
PRINTED = ("mamba", "h3", "rwkv", "transformer")
BAR = 20.0
"""Million tokens a second, all models side by side."""


PHASES = ("seeds", "extension-seeds")
"""Models of core and extension; those of LONGER are trained longer."""


def whole(phases: Sequence[str] = PHASES) -> list[tuple[Study, Variant]]:
    """Models that have all their seeds."""
    study = read_study(NUMBERS, CIFAR, phases)
    return [] if study is None else [(study, one) for one in variants(study.result) if len(one.cells) >= SEEDS]


PHASE_WORDS = {
    "screen": "rates",
    "seeds": "three seeds",
    "long": "the paper's models and both orders, trained longer",
    "extension-screen": "rates, extension",
    "extension-seeds": "three seeds, extension",
    "recipes": "the recipes at `lab`",
}
"""Phases in words."""


def status() -> str:
    """What was run of every phase."""
    rows = []
    strong = strong_forms() or ["strong"]
    for phase in ("screen", "seeds", "long", *strong, "extension-screen", "extension-seeds", "recipes"):
        known = NUMBERS.get(f"{CIFAR}-{phase}")
        words = PHASE_WORDS.get(phase) or f"`{phase.partition('@')[2] or STRONG.partition(':')[0]}`"
        done = NOTHING if known is None else f"{len(known['cells'])} of {known['models']} models"
        rows.append([words, done, *(["–"] * 4 if known is None else facts_of(known))])
    heads = ["phase, CIFAR-10", "trained and tested", "epochs", "steps", "test images with parts replaced", "on"]
    return table(heads, rows)


def left() -> str:
    """What was planned and has not been run, by phase; a model some of whose seeds are not there is named with them."""
    said = []
    for phase, words in (
        ("screen", "rates"),
        ("seeds", "three seeds"),
        ("extension-screen", "rates"),
        ("extension-seeds", "three seeds"),
        ("long", "longer training"),
    ):
        seeds = "screen" not in phase
        counts: dict[Kind, int] = {}
        for cell in cells_of(phase):
            kind = (cell["row"], cell["token_order"], cell["init"])
            counts[kind] = counts.get(kind, 0) + ("asymmetry" in cell or not seeds)
        kinds = LONG if phase == "long" else KINDS["extension" if "extension" in phase else "core"]
        wanted = SEEDS if seeds else 1
        lacking = [
            _kind_words(kind) + (f" ({counts[kind]} of {SEEDS})" if counts.get(kind) else "")
            for kind in kinds
            if counts.get(kind, 0) < wanted and (seeds or kind[1] == "row")
        ]
        said += [f"{words} of {', '.join(lacking)}"] if lacking else []
    forms = {cell["cell"] for phase in strong_forms() for cell in cells_of(phase)}
    said += [] if STRONG in forms else [f"the strong S4D as it is planned now (`{STRONG.partition(':')[0]}`)"]
    return f"Not run yet: {'; '.join(said)}." if said else "All models of the plan are trained and tested."


def recipes_done() -> str:
    """How far the four recipes are."""
    known = NUMBERS.get(f"{CIFAR}-recipes")
    if known is None:
        return "No model of theirs is trained."
    if known["finished"]:
        return f"All {known['models']} models are trained and tested."
    done = {(cell["row"], cell["init"]) for cell in known["cells"]}
    words = ", ".join(f"{row} with the {init} initialisation" for row, init in sorted(done))
    return (
        f"{len(known['cells'])} of {known['models']} models are trained and tested here ({words}), so that no "
        "statement is judged by the recipes yet; the queue `tools/pixels/jobs.toml` goes on from "
        "`docs/laboratories/runs/pixel-recipes`."
    )


VERDICTS = {True: "holds", False: "does not hold", None: "open"}


def statements() -> str:
    """What every recipe says at `lab`."""
    known = NUMBERS.get("statements", {})
    if not known:
        return NOTHING
    counts = [
        [f"`{name}`", *(str(sum(line["holds"] is side for line in lines)) for side in VERDICTS)]
        for name, lines in known.items()
    ]
    rows = [
        [f"`{name}`", line["what"], f"**{VERDICTS[line['holds']]}**", line["ours"], line["stated"]]
        for name, lines in known.items()
        for line in lines
    ]
    return (
        f"{table(['recipe', *VERDICTS.values()], counts)}\n\n"
        f"{table(['recipe', 'statement', 'verdict', 'ours', 'printed'], rows)}"
    )


def cells_of(phase: str) -> list[dict[str, Any]]:
    """Models of a phase that are trained and tested."""
    return list(NUMBERS.get(f"{CIFAR}-{phase}", {"cells": []})["cells"])


def _kind_words(kind: Kind) -> str:
    row, order, init = kind
    extra = [f"{order} order"] if order != "row" else []
    return " in ".join([f"`{row}`", *extra]) + (f" with the {init} initialisation" if init != "right" else "")


def facts_of(phase: dict[str, Any]) -> list[str]:
    """Epochs, steps, images and machine of a phase; a phase that reads two single tokens asks for accuracy alone."""
    facts = phase["facts"]
    read = f"{facts['images_replaced']:,}" if len(facts["regions"]) > 2 else "–"
    return [epochs_of(phase), f"{facts['steps']:,}", read, facts["device"]]


def epochs_of(phase: dict[str, Any]) -> str:
    """Epochs of a phase, from its steps."""
    facts = phase["facts"]
    return f"{facts['steps'] / (facts['train_images'] // facts['batch']):.3g}"


def printed(paper: Mapping[str, Mapping[str, float]]) -> str:
    """A table of the paper as printed, and ours below."""
    regions = list(paper["mamba"])
    own: dict[tuple[str, str], list[tuple[Study, Variant]]] = {}
    for study, one in [*whole(), *whole(LONGER)]:
        if one.shared["token_order"] == "row":
            own.setdefault((one.shared["row"], one.shared["init"]), []).append((study, one))
    rows = []
    for row in PRINTED:
        rows.append([row, "printed", f"{CLEAN[row]:.3f}", *(f"{paper[row][region]:.3f}" for region in regions)])
        trained = [(init, *known) for init in ("published", "right") for known in own.get((row, init), [])]
        for init, study, one in trained:
            places = [f"{start}:{end}" for start, end in bounds(study.result).tolist()]
            noise = study.result["accuracy"][list(one.cells)].mean(0)[study.place("normal")]
            clean = float(study.result["clean_accuracy"][list(one.cells)].mean())
            numbers = [clean, *(float(noise[places.index(region)]) for region in regions)]
            words = f"ours, {init} initialisation, {study.epochs(_kind_of(one))} epochs"
            rows.append([row, words, *(f"{value:.3f}" for value in numbers)])
        if not trained:
            rows.append([row, "ours", *["not run"] * (1 + len(regions))])
    return table(["model", "", "as they are", *regions], rows)


def relative() -> str:
    """Relative drops of the last and the first 32 tokens, as the paper's text has them of Mamba."""
    said = []
    for kind in (PUBLISHED, MAMBA):
        ours = []
        for study, one in [*whole(), *whole(LONGER)]:
            if _kind_of(one) == kind:
                clean = study.result["clean_accuracy"][list(one.cells)].mean()
                lost = drops(study.result)[list(one.cells), study.place("normal")].mean(0) / clean
                first, last = ends(study.result)[study.size(32)]
                numbers = f"{100 * lost[last]:.1f} % and {100 * lost[first] + 0.0:.1f} %"
                ours.append(f"{numbers} after {study.epochs(kind)} epochs")
        said += [f"with the {kind[2]} initialisation {', '.join(ours)}"] if ours else []
    return "81.24 % and 2.30 % as printed" + "".join(f"; ours {words}" for words in said)


def answered() -> str:
    """The questions of the page in a sentence or two each, from the numbers below."""
    known = trained_longer(NUMBERS, CIFAR)
    return answers(read_study(NUMBERS, CIFAR), None if known is None else sentences(known))


def of_study(make: Callable[[Study], tuple[list[str], list[list[str]]]], phases: Sequence[str] = PHASES) -> str:
    """A table of the models that have all their seeds."""
    study = read_study(NUMBERS, CIFAR, phases)
    return NOTHING if study is None else table(*make(study))


def in_short() -> str:
    """The first finding."""
    study = read_study(NUMBERS, CIFAR)
    return NOTHING if study is None else short(study, read_study(NUMBERS, CIFAR, LONGER))


def claims(chosen: Any) -> str:
    """Every claim with its rule, verdict and numbers; of one that longer training alone was asked, its verdict."""
    study, long = read_study(NUMBERS, CIFAR), read_study(NUMBERS, CIFAR, LONGER)
    rows = []
    for claim in chosen:
        word, numbers = claim.verdict(study)
        if numbers == NOT_KNOWN and long is not None:
            word, numbers = claim.verdict(long)
            numbers = numbers if numbers == NOT_KNOWN else f"asked after {long.epochs()} epochs alone: {numbers}"
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
            rows.append([_name(one), f"{clean.mean():.1f} ± {clean.std(ddof=1):.1f}", str(size), *numbers])
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
        rows.append([_name(one), *(f"{word.word} ({word.held} of {word.parts})" for word in words)])
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
        pairs = zip(rates["success"], rates["random_pair"], strict=True)
        shown = [f"{a:.1f} ({b:.1f})" if np.isfinite(a) else "–" for a, b in pairs]
        rows.append([_name(one), f"{base:.1f}", *shown])
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


def of_longer(make: Callable[[Longer], tuple[list[str], list[list[str]]]]) -> str:
    """A table of models of both trainings."""
    known = trained_longer(NUMBERS, CIFAR)
    return NOTHING if known is None else table(*make(known))


def reached() -> str:
    """Accuracy after longer training beside the paper's."""
    long = read_study(NUMBERS, CIFAR, LONGER)
    return NOTHING if long is None else accuracies(long)


RATED: dict[str, tuple[Kind, Kind]] = {
    NAMES[PUBLISHED]: (PUBLISHED, PUBLISHED),
    NAMES[MAMBA]: (MAMBA, MAMBA),
    **{NAMES[row, "row", "right"]: ((row, "row", "published"), (row, "row", "right")) for row in PRINTED[1:]},
}
"""Models of the recipes, and those of the seeds that they are compared with."""


def rate_models() -> str:
    """Models of the recipes, at the paper's rate and initialisation, beside those of the seeds."""
    usual, paper = read_study(NUMBERS, CIFAR), read_study(NUMBERS, CIFAR, ("recipes",))
    if usual is None or paper is None:
        return NOTHING
    rows = []
    for name, (recipe, own) in RATED.items():
        if paper.variant(recipe) is None or usual.variant(own) is None:
            continue
        more = [changed((paper, recipe), (usual, own), word) for word in ("normal", "data")]
        for study, kind in ((paper, recipe), (usual, own)):
            cells = study.cells(kind)
            rate = study.result.provenance["cells"][cells[0]]["rate"]
            lost = drops(study.result)[cells, study.place("normal")][:, windows(study.result)].mean()
            bands = [
                study.asymmetry(LEVEL, kind=kind, tokens=tokens, replacement=word)
                for word in ("normal", "data")
                for tokens in SIZES
            ]
            accuracy = 100 * study.result["test_accuracy"][cells].mean()
            numbers = [f"{accuracy:.1f}", f"{100 * lost:.1f}", *map(points, bands)]
            rows.append([name, f"{rate:g}", *numbers, *(map(points, more) if study is usual else ("", ""))])
    heads = [f"{word}, {tokens} tokens" for word in ("normal", "data") for tokens in SIZES]
    heads += [f"{word}, {SIZES[0]} tokens, more than above" for word in ("normal", "data")]
    return table(["model", "rate", "accuracy (%)", "a window costs, normal", *heads], rows) if rows else NOTHING


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
            f"{cell['seconds'] / 60:.1f}" if "seconds" in cell else "–",
            f"{100 * cell['train_accuracy']:.1f}",
            ", ".join(f"{100 * value:.0f}" for value in cell["on_the_way"][1:]),
        ]
        for phase in known
        for cell in phase["cells"]
    ]
    heads = ["model", "epochs", "accuracy (%)", "minutes of training", "of its last training images (%)"]
    heads += ["on 1,000 test images, every tenth of its training (%)"]
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
        how = f", filters by {row['filters']}" if "filters" in row else ""
        rows.append([f"{row['row']}{how}", str(row["models"]), *numbers])
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


CURVES = ("normal", "data", "same")
PARTED = (("the end", 0), ("the image", 1))


def picture() -> None:
    """Drop of accuracy by the place of the window that is replaced, a panel a replacement, a line a model."""
    models = {_kind_of(one): (study, one) for study, one in whole()}
    if not models:
        return
    from matplotlib import pyplot as plt

    study = next(iter(models.values()))[0]
    chosen, places = windows(study.result), bounds(study.result)
    figure, panels = plt.subplots(1, len(CURVES), figsize=(9.6, 3.4), sharey=True, layout="constrained")
    forms = [kind for kind in models if kind not in NAMES]
    for panel, name in zip(panels, CURVES, strict=True):
        for kind in (*forms, *(kind for kind in NAMES if kind in models)):
            lost = 100 * drops(study.result)[list(models[kind][1].cells), study.place(name)][:, chosen].mean(0)
            style: dict[str, Any] = {"color": "0.8", "linewidth": 0.9}
            if kind in NAMES:
                style = {"color": f"C{list(NAMES).index(kind)}", "linewidth": 1.6, "label": NAMES[kind]}
            elif kind == forms[0]:
                style |= {"label": f"{len(forms)} other forms"}
            panel.plot(places[chosen].mean(1), lost, **style)
        panel.axhline(0, color="0.6", linewidth=0.8)
        panel.set_title(PLAIN[name], fontsize=10)
        panel.set_xlabel("place of 32 tokens in the sequence", fontsize=9)
    panels[0].set_ylabel("points lost, mean of 3 seeds", fontsize=9)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8
    )
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)


def _kind_of(one: Variant) -> Kind:
    return one.shared["row"], one.shared["token_order"], one.shared["init"]


def _name(one: Variant) -> str:
    return FORMS.get(_kind_of(one), one.words)


def orders(phases: Sequence[str] = PHASES) -> str:
    """What is the end's and what is the image's, of drops, by size and replacement."""
    study = read_study(NUMBERS, CIFAR, phases)
    pairs = [] if study is None else order_pairs(study.result)
    if study is None or not pairs:
        return NOTHING
    kinds = study.result.provenance["pixels"]["replacements"]
    rows = []
    for one, turned in pairs:
        for size in sorted(ends(study.result)):
            both = [asymmetries(study, one, turned, size, place) for place in range(len(kinds))]
            for word, part in PARTED:
                rows.append([_name(one), str(size), word, *(points(bands[part]) for bands in both)])
    return table(["model", "tokens", "due to", *kinds], rows)


def attack_orders(phases: Sequence[str] = PHASES) -> str:
    """What is the end's and what is the image's, of attacks."""
    study = read_study(NUMBERS, CIFAR, phases)
    pairs = [] if study is None or "success" not in study.result else order_pairs(study.result)
    if study is None or not pairs:
        return NOTHING
    rows = []
    for one, turned in pairs:
        both = [successes(study, one, turned, regions) for regions in ATTACKED]
        for word, part in PARTED:
            rows.append([_name(one), word, *(points(bands[part]) for bands in both)])
    return table(["model", "due to", *(f"{words} tokens (points of success)" for words in ATTACK_WORDS)], rows)


PARTS: dict[str, Callable[[], str]] = {
    "answers": answered,
    "short": in_short,
    "shown": partial(of_study, ends_table),
    "differences": partial(of_study, differences_table),
    "everywhere": partial(of_study, everywhere_table),
    "attack_ends": partial(of_study, attacks_table),
    "status": status,
    "left": left,
    "printed": partial(printed, TABLE1),
    "printed3": partial(printed, TABLE3),
    "paper_claims": partial(claims, PAPER_CLAIMS),
    "own_claims": partial(claims, OWN_CLAIMS),
    "costs": costs,
    "controls": controls,
    "orders": orders,
    "orders_longer": partial(orders, LONGER),
    "attack_orders": attack_orders,
    "attack_orders_longer": partial(attack_orders, LONGER),
    "attacks": attacks,
    "rates": rates,
    "rate_models": rate_models,
    "recipes_done": recipes_done,
    "relative": relative,
    "statements": statements,
    "epochs": partial(of_longer, epochs_table),
    "shown_longer": partial(of_study, ends_table, LONGER),
    "reached": reached,
    "long_claims": partial(of_longer, judged_again),
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
