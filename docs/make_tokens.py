"""Write the measured parts of docs/laboratories/tokens.md from docs/laboratories/tokens.json.

Run `python -m docs.make_tokens`; nothing is trained here. The JSON file holds what `python -m tools.tokens.run table`
keeps of the phases that are there, finished or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from docs import made_recipes
from docs.made_parts import PART, filled, table  # noqa: F401  tests read PART
from repflow.core.intervals import bracketed, student_interval
from repflow.core.verdict import DOES_NOT, HOLDS, OPEN
from repflow.dynamics.rates import REGIMES, fit_rates
from repflow.papers.tokens import CAUSAL, IDENTITY, LEAKY, NAMES, RANDOM, TABLE6, TABLE10, Difference, RowValues
from repflow.report.terminal.paper_figure import counts
from repflow.studies.reproduce.images import RECIPES as SORTED_IMAGES
from repflow.studies.reproduce.tokens import LANGUAGE
from repflow.studies.reproduce.tokens import RECIPES as TRAINED
from tools.tokens.claims import CLAIMS, NOT_RUN, Claim, Study, course, read_study
from tools.tokens.run import PARTS as STUDIED
from tools.tokens.run import STEPS, score, screened_row

DOCS = Path(__file__).parent
PAGE = DOCS / "laboratories" / "tokens.md"
NUMBERS: dict[str, Any] = json.loads((DOCS / "laboratories" / "tokens.json").read_text(encoding="utf-8"))
TIMED: dict[str, Any] = json.loads((DOCS.parent / "benchmarks" / "sorting_gpu.json").read_text(encoding="utf-8"))
"""Of `benchmarks/sorting.py --device cuda --layers 12 --width 640 --rows 128`."""
NOTHING = "Not run yet."
GREATEST = max(float(rate) for rate in LANGUAGE["lab"]["rates"])
"""Rate of recipes at lab."""
SHORTER = " in the study; shorter trainings are below"
WORDS = {
    "scenarios": "eigenvalues at equal scale",
    "mamba": "orders of tokens, Mamba",
    "attention": "orders of tokens, Transformer",
    "shift": "eigenvalues as the public code scales them, complex ones",
    "norms": "eigenvalues without and with norms",
    "h3": "orders of tokens, H3",
    "ablations": "ablations at matched parameters",
}


def phase(name: str) -> dict[str, Any] | None:
    """A phase that was begun."""
    known: dict[str, Any] | None = NUMBERS.get(name)
    return known


def status() -> str:
    """What was run of every part."""
    rows = []
    for part in STUDIED:
        for name, words in (("screen", "rates"), ("seeds", "seeds")):
            known = phase(f"{part}-{name}")
            if known is None:
                rows.append([WORDS[part], words, NOTHING, "–", "–"])
                continue
            facts = known["facts"]
            done = f"{len(known['cells'])} of {known['models']} models"
            rows.append([WORDS[part], words, done, f"{facts['steps']:,}", str(facts["device"])])
    return table(["part", "phase", "trained and tested", "steps", "on"], rows)


def missing() -> str:
    """Parts of the study that no seed was trained of, and what was trained of their rows."""
    study = read_study(NUMBERS)
    trained = set() if study is None else {cell["row"] for cell in study.cells}
    lacking = {
        WORDS[part]: tuple(row for row in own.rows if row not in trained)
        for part, own in STUDIED.items()
        if phase(f"{part}-seeds") is None
    }
    return made_recipes.missing(lacking, STEPS, NUMBERS)


def sizes() -> str:
    """Sizes of what was trained."""
    kinds = {}
    for name, known in NUMBERS.items():
        for cell in known["cells"] if "facts" in known else ():
            kinds[cell["layers"], cell["width"], cell["length"], known["facts"]["batch"]] = name
    if not kinds:
        return "4 layers of width 128, windows of 256 tokens, 64 of them a step"
    words = [
        f"{layers} layers of width {width}, windows of {length} tokens, {batch} of them a step"
        for layers, width, length, batch in kinds
    ]
    return "; ".join(words)


def passes() -> str:
    """How much text a model of the last phase reads."""
    known = phase("scenarios-seeds")
    if known is None or "data" not in known["facts"]:
        return NOT_RUN
    facts, length = known["facts"], known["cells"][0]["length"]
    there = facts["data"]["train"]["tokens"]
    read = facts["steps"] * facts["batch"] * length
    return f"{there / 1e6:.1f} million tokens, about {read / there:.1f} passes"


def answers() -> str:
    """The questions of the page, answered by the numbers that are there."""
    study = read_study(NUMBERS)
    signs, turned, prices, leaks, helps, regimes = ([NOT_RUN] for _ in range(6))
    if study is not None:
        loss, whole, prefix = study.loss, study.of("whole_loss"), study.of("prefix_loss")
        pairs = (("positive", "mixed"), ("mixed", "negative"), ("positive", "negative"))
        signs = [f"{a} against {b}: {told(loss.less(*(f'mamba+{kind}+scaled' for kind in (a, b))))}" for a, b in pairs]
        models = {model: name for model, name in NAMES.items() if f"{model}{LEAKY}" in whole.values}
        leaks = [f"{name}: {leaked(whole, prefix, f'{m}{LEAKY}', f'{m}{IDENTITY}')}" for m, name in models.items()]
        helps = [
            f"{name}: against tokens as they come: {told(loss.less(f'{m}{CAUSAL}', m))}, against a fixed random order: "
            f"{told(loss.less(f'{m}{CAUSAL}', f'{m}{RANDOM}'))}"
            for m, name in NAMES.items()
            if f"{m}{CAUSAL}" in loss.values
        ]
        kinds = [kind for kind in ("positive", "mixed", "negative", "complex") if f"mamba+{kind}+scaled" in loss.values]
        prices = [f"{kind} against free {told(loss.less(f'mamba+{kind}+scaled', 'mamba+scaled'))}" for kind in kinds]
        if "complex" in kinds:
            turned = [
                f"complex against {kind}: {told(loss.less('mamba+complex+scaled', f'mamba+{kind}+scaled'))}"
                for kind in kinds[:-1]
            ]
        regimes = [
            f"{row} {fit_rates(values).followed or 'none of them'} (without its last block {shortened(study, row)})"
            for row in STUDIED["norms"].rows
            if "-norm" in row and (values := course(study, row)) is not None
        ]
    asked = {
        "Does the sign matter at equal scale?": signs,
        "Are complex eigenvalues of a normal matrix, which the paper leaves open, better at equal scale?": turned,
        "What does a constraint on the maps cost, whatever its sign?": prices,
        "How much of the gain of sorting is leak?": leaks,
        "Does causal sorting help at all?": helps,
        "Which of the three rates do trained models without norms follow, block by block, mean over seeds?": regimes,
    }
    return "\n".join(f"- **{question}** {'; '.join(words) or NOT_RUN}." for question, words in asked.items())


def shortened(study: Study, row: str) -> str:
    """The rate that a row's norms follow without the last block, or those of its seeds where they differ."""
    every = [cell["token_norm"] for cell in study.cells if cell["row"] == row and cell.get("token_norm")]
    known = [np.array(norms[:-1], dtype=np.float64) for norms in every if None not in norms]
    words = [fit_rates(norms).followed or "none" for norms in known]
    return words[0] if len(set(words)) == 1 else f"its seeds differ: {', '.join(words)}"


def same_function() -> str:
    """What rounding alone does: chunks in their own order are the same function as no chunks."""
    study = read_study(NUMBERS)
    loss = None if study is None else study.loss
    known = {name: loss.less(f"{m}{IDENTITY}", m) for m, name in NAMES.items()} if loss is not None else {}
    return "; ".join(f"{name} {apart.words()}" for name, apart in known.items() if apart.seeds) or NOT_RUN


def falling() -> str:
    """Models of the seeds whose loss was still falling when training ended."""
    said = [known["facts"].get("still_falling") for name, known in NUMBERS.items() if name.endswith("-seeds")]
    counts = [re.search(r"(\d+) of (\d+) models", text) for text in said if text]
    parts = [(int(found[1]), int(found[2])) for found in counts if found]
    return f"{sum(a for a, _ in parts)} of {sum(b for _, b in parts)}" if parts else NOT_RUN


def edges() -> str:
    """Rows whose best rate lies at an end of the sweep."""
    rows = rates().count("(an end of the sweep)")
    return f"{rows} of {rates().count(chr(10)) - 1} rows" if rates() != NOTHING else NOT_RUN


def told(apart: Difference) -> str:
    """A difference, and what its interval shows; where it shows none, how large it could still be."""
    if apart.seeds < 3:
        return f"{apart.words()} (open)"
    if apart.below is None:
        most = 100 * float(np.expm1(max(abs(apart.low), abs(apart.high))))
        return f"{apart.words()} (open; a difference of {most:.1f} % would fit)"
    return f"{apart.words()} ({'lower' if apart.below else 'higher'})"


def leaked(whole: RowValues, prefix: RowValues, sorts: str, keeps: str) -> str:
    """What sorting whole sequences gains at the tested positions, and what of it is left with the prefix alone."""
    gain, left = whole.less(sorts, keeps), prefix.less(sorts, keeps, whole)
    if not gain.below:
        return f"{gain.nats()} with the whole sequence, so no gain is shown"
    words = f"{gain.nats()} with the whole sequence, {left.nats()} with the prefix alone"
    if left.below is None:
        return f"{words}: what is left of the gain is open"
    if left.below:
        return f"{words}: {left.mean / gain.mean:.0%} of the gain is left"
    ending = "worse than a model that never sorted; the leak and the unfamiliar input are not separated"
    return f"{words}: nothing of the gain is left, it is {ending}"


def claims(core: bool) -> str:
    """Every claim with its control, verdict and numbers."""
    study = read_study(NUMBERS)
    rows = []
    for claim in CLAIMS:
        if claim.core == core:
            word, numbers = claim.verdict(study)
            numbers += SHORTER if numbers == NOT_RUN and any(claim is other for other, *_ in shorter()) else ""
            rows.append([claim.text, claim.control, f"**{word}**", numbers])
    return table(["claim", "decided by", "verdict", "numbers"], rows)


def shorter() -> Iterator[tuple[Claim, str, str, dict[str, Any]]]:
    """Claims that the study has no models for and a recipe at lab has: verdict and numbers by its shorter trainings."""
    study = read_study(NUMBERS)
    runs = {known["run"]: known for name, known in NUMBERS.get("recipes", {}).items() if name.endswith(" lab")}
    for claim in CLAIMS:
        if claim.verdict(study)[1] == NOT_RUN:
            for known in runs.values():
                word, numbers = claim.verdict(Study(known["models_at_best_rates"]))
                if numbers != NOT_RUN:
                    yield claim, word, numbers, known


def shorter_claims() -> str:
    """Such claims as a table."""
    rows = []
    for claim, word, numbers, known in shorter():
        one, rows_of = known["models_at_best_rates"][0], claim.text.rpartition(" ")[2].rstrip(".")
        own = {cell.get("own_width") for cell in known["models_at_best_rates"] if cell["row"].startswith(rows_of)}
        width = own.pop() if len(own) == 1 else None
        size = f"{one['layers']} layers of width {width or one['width']}, {known['steps']:,} steps"
        rows.append([claim.text, f"`{known['run'].rpartition('/')[2]}`", size, f"**{word}**", numbers])
    return table(["claim", "run", "models", "verdict there", "numbers"], rows) if rows else NOTHING


def perplexity() -> str:
    """Held-out text and WikiText-2, every row at its best rate; leaky rows are named."""
    study = read_study(NUMBERS)
    if study is None:
        return NOTHING
    loss, wiki = study.loss, study.of("perplexity", 1, log=True)
    rows = []
    for row in loss.values:
        mine = [cell for cell in study.cells if cell["row"] == row]
        reads = "its future" if "+leaky" in row else "its past"
        read = wiki.perplexity(row) if any(len(cell.get("perplexity") or []) > 1 for cell in mine) else "–"
        numbers = [loss.perplexity(row), read, f"{mine[0]['rate']:g}", f"{mine[0]['steps'] or 0:,}"]
        lost = len(mine) - len(loss.values[row])
        numbers.append(f"{len(mine)}{f', {lost} diverged' if lost else ''}")
        rows.append([row, reads, *numbers, f"{mine[0]['parameters']:,.0f}", *printed(row)])
    heads = ["row", "a token reads", "held-out perplexity", "WikiText-2", "rate", "steps", "seeds", "parameters"]
    return table([*heads, "printed, WikiText-103"], rows)


def printed(row: str) -> list[str]:
    """What the paper has for it, at another size and on another text."""
    known = {**TABLE10, **TABLE6}
    if row in known:
        return [f"{known[row][0]:.2f}"]
    if row.removesuffix(LEAKY) in known:
        return [f"{known[row.removesuffix(LEAKY)][1]:.2f}"]
    return ["–"]


def gains() -> str:
    """What the paper prints of sorting in language models."""
    rows = [
        [NAMES[row], f"{plain:.2f}", f"{ordered:.2f}", f"{plain - ordered:.2f}"]
        for row, (plain, ordered) in {**TABLE6, **TABLE10}.items()
    ]
    return table(["model", "perplexity as they come", "sorted", "gain"], rows)


def reviews() -> str:
    """Classifiers of movie reviews: accuracy over folds, the smallest effect, and what is shown."""
    known = NUMBERS.get("reviews")
    if known is None:
        return f"Does sorting whole texts classify them better? **{OPEN}**: not run."
    rows = []
    for row, rate in dict.fromkeys((cell["row"], cell["rate"]) for cell in known["cells"]):
        mine = [cell["accuracy"] for cell in known["cells"] if (cell["row"], cell["rate"]) == (row, rate)]
        right = [100 * value for value in mine if value is not None]
        rows.append([row, f"{rate:g}", f"{np.mean(right):.1f}" if right else "diverged", str(len(right))])
    said = known["said"]
    word = said.get("difference", "").partition(";")[0].rpartition(" ")[2]
    verdict = {"better": HOLDS, "worse": DOES_NOT}.get(word, OPEN)
    facts = f"{known['texts']:,} reviews, their first {known['tokens']} tokens, {known['steps']:,} steps"
    lines = [f"Does sorting whole texts classify them better? **{verdict}** ({facts})."]
    lines += [f"{said[code][0].upper()}{said[code][1:]}." for code in ("difference", "smallest_effect") if code in said]
    lines.append(_by_folds(said.get("difference", ""), int(known["folds"])))
    commands = ", ".join(f"`{cell['cell']}`" for cell in known["cells"])
    lines.append(f"`{known['cells'][0]['command']}`, with `--cells` one of {commands}.")
    return "\n\n".join([*lines, table(["row", "rate", "accuracy (%), mean over folds", "folds"], rows)])


def _by_folds(difference: str, folds: int) -> str:
    """The least difference that the test over folds finds in 4 of 5 repetitions, at the spread that was found."""
    ends = re.search(r"\[([-+\d.]+), ([-+\d.]+)\]", difference)
    if ends is None:
        return ""
    half, freedom = (float(ends[2]) - float(ends[1])) / 2, folds - 1
    least = half * (1 + t.ppf(0.8, freedom) / t.ppf(0.975, freedom))
    return (
        f"That is what independent texts could show at best. The interval above is over {folds} folds, whose trainings "
        f"share texts (corrected resampled t test); at the spread found here it takes about {least:.1f} points."
    )


def leak() -> str:
    """What sorting gains, and what of it is left when the model is fed the prefix alone."""
    study = read_study(NUMBERS)
    if study is None:
        return NOTHING
    whole, prefix = study.of("whole_loss"), study.of("prefix_loss")
    rows = []
    for model, name in NAMES.items():
        sorts, keeps = f"{model}{LEAKY}", f"{model}{IDENTITY}"
        if sorts in whole.values and keeps in whole.values:
            gain, left = whole.less(sorts, keeps), prefix.less(sorts, keeps, whole)
            rows.append([name, gain.nats(), left.nats(), RowValues(prefix.values).less(sorts, sorts, whole).nats()])
    heads = ["model", "whole sequence less chunks in their own order", "prefix alone less these", "leak"]
    return table(heads, rows) if rows else NOTHING


def rates() -> str:
    """The sweep of rates: perplexity of one seed after a third of the steps; the best at an end of it is marked."""
    rows = []
    every = sorted({cell["rate"] for part in STUDIED for cell in (phase(f"{part}-screen") or {"cells": []})["cells"]})
    for part in STUDIED:
        known = phase(f"{part}-screen")
        for row in dict.fromkeys(cell["row"] for cell in known["cells"]) if known else ():
            by = {cell["rate"]: score(cell) for cell in known["cells"] if cell["row"] == screened_row(row)}
            best = min(by, key=lambda rate: by[rate])
            edge = " (an end of the sweep)" if best in (min(by), max(by)) else ""
            words = f"{best:g}{edge}" if np.isfinite(by[best]) else "none"
            shown = {rate: "diverged" if not np.isfinite(value) else f"{value:.1f}" for rate, value in by.items()}
            rows.append([WORDS[part], row, *(shown.get(rate, "") for rate in every), words])
    return table(["part", "row", *(f"rate {rate:g}" for rate in every), "best"], rows) if rows else NOTHING


def training() -> str:
    """Perplexity on the way, mean of losses over seeds that did not diverge; a table for each number of steps."""
    study = read_study(NUMBERS)
    known = [] if study is None else [cell for cell in study.cells if cell.get("on_the_way")]
    tables = []
    for steps in dict.fromkeys(tuple(cell["read_at"]) for cell in known):
        rows = []
        for row in dict.fromkeys(cell["row"] for cell in known if tuple(cell["read_at"]) == steps):
            mine = [c["on_the_way"] for c in known if c["row"] == row and tuple(c["read_at"]) == steps]
            whole = np.array([values for values in mine if None not in values], dtype=np.float64)
            shown = [f"{value:.1f}" for value in np.exp(np.log(whole).mean(0))] if len(whole) else ["–"] * len(steps)
            rows.append([row, *shown, str(len(whole))])
        tables.append(table(["row", *(f"step {step:,}" for step in steps), "seeds"], rows))
    return "\n\n".join(tables) if tables else NOTHING


def norms_study() -> Study | None:
    """Models without and with norms, which were trained at one sweep of rates; other parts have some of their rows."""
    return read_study({name: known for name, known in NUMBERS.items() if name == "norms-seeds"})


def norms() -> str:
    """Mean token norm behind every block over that of the embedding, with the nearest of the theory's rates."""
    study = norms_study()
    chosen = [row for row in STUDIED["norms"].rows if study is not None and course(study, row) is not None]
    if study is None or not chosen:
        return NOTHING
    rows = []
    for row in chosen:
        values = course(study, row)
        assert values is not None
        fit = fit_rates(values)
        errors = ", ".join(f"{name} {error:.2f}" for name, error in zip(REGIMES, fit.errors, strict=True))
        nearest = int(np.nanargmin(fit.errors))
        measured, curve = (
            ", ".join(f"{value / values[0]:.3g}" for value in side) for side in (values, fit.curves[nearest])
        )
        starts = [
            cell["start_token_norm"] for cell in study.cells if cell["row"] == row and cell.get("start_token_norm")
        ]
        before = np.exp(np.log(np.array(starts, dtype=np.float64)).mean(0)) if starts else None
        began = (
            "not read" if before is None else f"{before[-1] / before[0]:.3g}, {fit_rates(before).followed or 'none'}"
        )
        rows.append([row, measured, fit.followed or "none", f"{REGIMES[nearest]}: {curve}", errors, began])
    heads = [
        "row",
        "norm over that of the embedding",
        "rate that it follows",
        "nearest rate's values",
        "errors in ln norm",
    ]
    return table([*heads, "before training: last norm, rate"], rows)


def growth() -> str:
    """How much more tokens grow with one sign of eigenvalues than with another in models with norms, over seeds."""
    study = norms_study()
    by_row: dict[str, dict[int, float]] = {}
    for cell in study.cells if study is not None else ():
        if cell.get("token_norm") and None not in cell["token_norm"]:
            last = float(np.log(cell["token_norm"][-1] / cell["token_norm"][0]))
            by_row.setdefault(cell["row"], {})[cell["seed"]] = last
    words = []
    for a, b in (("positive", "mixed"), ("mixed", "negative")):
        one, other = (by_row.get(f"mamba+{kind}", {}) for kind in (a, b))
        both = sorted(one.keys() & other.keys())
        if both:
            band = student_interval([one[seed] - other[seed] for seed in both])
            shown = f"{float(band.mean):+.2f}{bracketed(float(band.low), float(band.high), '+.2f')}"
            words.append(f"{a} less {b} {shown}, {len(both)} seeds")
    return "; ".join(words) or NOT_RUN


def spectra() -> str:
    """Spectral norm of S_CᵀS_B, mean over blocks and seeds; share of its eigenvalues with positive real part."""
    study = read_study(NUMBERS)
    known = [] if study is None else [cell for cell in study.cells if cell.get("spectral_norm")]
    rows = []
    for row in dict.fromkeys(cell["row"] for cell in known):
        mine = [cell for cell in known if cell["row"] == row and None not in cell["spectral_norm"]]
        first, last = ([np.mean(cell[name]) for cell in mine] for name in ("start_norm", "spectral_norm"))
        share = [cell["positive_share"] for cell in mine if cell.get("positive_share") is not None]
        shown = [f"{np.mean(first):.2f}", f"{np.mean(last):.2f}"] if mine else ["–", "–"]
        rows.append([row, *shown, f"{100 * np.mean(share):.0f}" if share else "–", str(len(mine))])
    heads = ["row", "spectral norm at the start", "at the end", "positive eigenvalues (%)", "seeds"]
    return table(heads, rows) if rows else NOTHING


def cost() -> str:
    """Time and memory of steps with sorted tokens over those without (paper: 308 and 322 s an epoch, Table 8)."""
    rows = [
        [
            row["row"],
            f"{row['parameters']:,}",
            f"{1e3 * row['step_seconds']:.1f}",
            f"{row['time_ratio']:.2f}x",
            f"{row['peak_bytes'] / 2**30:.1f}",
            f"{row['memory_ratio']:.2f}x",
        ]
        for row in TIMED["rows"]
    ]
    return table(["row", "parameters", "ms a step", "over no order", "peak GiB", "over no order"], rows)


def recipes() -> str:
    """What was run of paper 3's recipes, at which scale, and what each said there."""
    known = NUMBERS.get("recipes", {})
    rows = []
    for name in (*TRAINED, *SORTED_IMAGES):
        lab, paper = known.get(f"{name} lab"), known.get(f"{name} paper")
        ran = f"{lab['models']} models{_size(lab)}, {lab['steps']:,} steps, {lab['device']}" if lab else NOT_RUN
        said = counts(lab["lines"]).partition(": ")[2] if lab else "–"
        lost = f", {len(paper['diverged'])} diverged" if paper and paper["diverged"] else ""
        tried = f"{paper['steps']} steps of {paper['models']} models{lost}, {paper['device']}" if paper else NOT_RUN
        run = f"`{lab['run'].rpartition('/')[2]}`" if lab else "–"
        rows.append([f"`{name}`", ran, run, said, tried])
    return table(["recipe", "at lab", "run", "statements at lab", "at paper, a try"], rows)


def _size(known: dict[str, Any]) -> str:
    """Layers and widths: rows of matched parameters have widths of their own."""
    models = known["models_at_best_rates"]
    layers = {cell["layers"] for cell in models}
    widths = sorted({cell.get("own_width") or cell["width"] for cell in models})
    return f" of {layers.pop()} × {' or '.join(map(str, widths))}" if len(layers) == 1 else ""


def recipe_rates() -> str:
    """At which rate rows of the recipes at lab were best, and what diverged."""
    words = []
    runs = {known["run"]: known for name, known in NUMBERS.get("recipes", {}).items() if name.endswith(" lab")}
    for run, known in runs.items():
        rates = list({cell["row"]: cell["rate"] for cell in known["models_at_best_rates"]}.values())
        most = max(rates, default=0.0)
        if rates:
            shown = f"{rates.count(most)} of {len(rates)} rows of `{run.rpartition('/')[2]}` were best at {most:g}"
            words.append(f"{shown}, the greatest of the sweep" if most == GREATEST else shown)
        elif len(known.get("rates", [])) == 1:
            words.append(f"`{run.rpartition('/')[2]}` has one rate, {known['rates'][0]:g}")
        words += known["diverged"]
    return "; ".join(words) or NOT_RUN


def recipe_falling() -> str:
    """Models of recipes at lab whose loss was still falling when training ended, run by run."""
    runs = {known["run"]: known for name, known in NUMBERS.get("recipes", {}).items() if name.endswith(" lab")}
    words = []
    for run, known in runs.items():
        found = re.search(r"(\d+) of (\d+) models", known.get("still_falling", ""))
        words += [f"{found[1]} of {found[2]} models of `{run.rpartition('/')[2]}`"] if found else []
    return f"{', '.join(words)} and no others" if words else "none of these models"


def recipe_rounding() -> str:
    """What rounding alone does to models of the recipes: chunks in their own order less no chunks, by family."""
    words = {}
    for name, known in NUMBERS.get("recipes", {}).items():
        loss = Study(known["models_at_best_rates"]).loss if name.endswith(" lab") else None
        for row in () if loss is None else loss.values:
            if f"{row}{IDENTITY}" in loss.values:
                words[row] = f"{row} {loss.less(f'{row}{IDENTITY}', row).words()}"
    return "; ".join(words.values()) or NOT_RUN


def merged_lines() -> dict[tuple[str, str], list[tuple[str, dict[str, Any]]]]:
    """Statements of the recipes at lab; those of two recipes on one run that read the same numbers stand once."""
    merged: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for name, known in NUMBERS.get("recipes", {}).items():
        for line in known["lines"] if name.endswith(" lab") else ():
            merged.setdefault((line["what"], line["ours"]), []).append((name.removesuffix(" lab"), line))
    return merged


def recipe_count() -> str:
    """Number of these statements, and how many luck would decide if no two rows differed."""
    count = len(merged_lines())
    return f"{count} of them, of which luck would decide about {0.05 * count:.0f} if no two rows differed"


def recipe_lines() -> str:
    """Statements of the recipes at lab with their verdicts."""
    words = {True: HOLDS, False: DOES_NOT, None: OPEN}
    rows = [
        [
            ", ".join(f"`{name}`" for name, _ in own),
            what,
            "; ".join(dict.fromkeys(line["stated"] for _, line in own)),
            f"**{words[own[0][1]['holds']]}**",
            ours,
        ]
        for (what, ours), own in merged_lines().items()
    ]
    return table(["recipe", "statement", "printed", "verdict at lab", "numbers"], rows) if rows else NOTHING


def stored_cells() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every cell of the study with its phase, screens too."""
    for name in ("seeds", "screen"):
        for part in STUDIED:
            for cell in (phase(f"{part}-{name}") or {"cells": []})["cells"]:
                if cell.get("command"):
                    yield f"{part}-{name}", cell


def commands() -> str:
    """The commands that train models again as they were trained, several side by side."""
    known = [cell["command"] for _, cell in stored_cells()]
    joint = [words for words in dict.fromkeys(known) if known.count(words) > 1]
    if not joint:
        return NOTHING
    return table(["models", "command"], [[str(known.count(words)), f"`{words}`"] for words in joint])


def cell_commands() -> str:
    """A command for every cell, which trains it alone; those that were trained beside others are marked."""
    rows = []
    for name, cell in stored_cells():
        alone = re.sub(r"--cells \S+", f"--cells {cell['cell']}", cell["command"])
        rows.append([name, f"`{alone}`", "alone" if alone == cell["command"] else "beside others, above"])
    return table(["phase", "command", "trained"], rows) if rows else NOTHING


PARTS = {
    "answers": answers,
    "same_function": same_function,
    "edges": edges,
    "passes": passes,
    "falling": falling,
    "sizes": sizes,
    "status": status,
    "core_claims": lambda: claims(True),
    "more_claims": lambda: claims(False),
    "shorter_claims": shorter_claims,
    "perplexity": perplexity,
    "gains": gains,
    "leak": leak,
    "reviews": reviews,
    "rates": rates,
    "training": training,
    "norms": norms,
    "growth": growth,
    "spectra": spectra,
    "cost": cost,
    "commands": commands,
    "cell_commands": cell_commands,
    "recipes": recipes,
    "recipe_rates": recipe_rates,
    "recipe_falling": recipe_falling,
    "recipe_rounding": recipe_rounding,
    "recipe_lines": recipe_lines,
    "recipe_count": recipe_count,
    "recipe_commands": lambda: made_recipes.commands(NUMBERS),
    "missing": missing,
}


def page(text: str) -> str:
    """The page with its measured parts replaced."""
    return filled(text, PARTS)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}")
