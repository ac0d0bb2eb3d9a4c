"""Write the measured parts of docs/laboratories/depth.md from docs/laboratories/depth.json.

Run `python -m docs.make_depth`; nothing is trained here. The JSON file holds what `python -m tools.depth.run table`
keeps of the phases that are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from docs.made_parts import PART, filled, table  # noqa: F401  tests read PART
from repflow.core.intervals import bracketed, student_interval
from tools.depth.claim import GUESS, Claim, Study, at_better_rates, read_study, recalls, shown
from tools.depth.depths import CLAIMS, CORE
from tools.depth.plan import CONTEXTS, DEPTHS, PLANS, TRANSFORMER, Plan
from tools.depth.plan import IDS as RECALL_IDS
from tools.depth.run import BATCH_TOKENS, STEPS

DOCS = Path(__file__).parent
PAGE, PICTURE = DOCS / "laboratories" / "depth.md", DOCS / "pictures" / "depth.png"
NUMBERS: dict[str, Any] = json.loads((DOCS / "laboratories" / "depth.json").read_text(encoding="utf-8"))
NOTHING = "Not run yet."
IDS = 257 + RECALL_IDS
"""Bytes, the end of a document, and ids of recall."""


def claim_table(claims: Sequence[Claim], numbers: Mapping[str, Any] = NUMBERS) -> str:
    """Every claim with its rule, verdict and numbers."""
    rows = []
    for claim in claims:
        word, said = claim.verdict(read_study(numbers, claim.study))
        rows.append([claim.text, claim.rule, f"**{word}**", said])
    return table(["claim", "shown where", "verdict", "numbers"], rows)


def phase_table(study: str, numbers: Mapping[str, Any] = NUMBERS) -> str:
    """Every phase of a study: how many of its models are trained, where."""
    rows = []
    for name, plan in PLANS.items():
        if plan.study != study:
            continue
        for phase in plan.phases:
            known = numbers.get(plan.name(phase))
            done = "not run" if known is None else f"{len(known['cells'])} of {known['models']} models"
            how = "" if known is None else f"{known['device']}, {known['steps']:,} steps"
            rows.append([f"`{phase} --study {name}`", done, how])
    return table(["phase", "trained", "on"], rows)


def shapes(plan: Plan, rows: Sequence[str]) -> Iterator[tuple[str, int, int, int]]:
    """Row, layers, width and parameters of every kind of model of a plan."""
    from repflow.spec.architecture import Numbers
    from repflow.studies.architecture.size import count_parameters, matched_width

    numbers, (goal, depth) = Numbers(head_dim=16), plan.settings.match
    for row in rows:
        for layers in plan.settings.layers:
            width = matched_width(row, goal, layers, plan.settings.width, IDS, numbers, goal_layers=depth)
            yield row, layers, width, count_parameters(row, layers, width, IDS, numbers)


def sizes() -> str:
    """Widths that give all depths one size."""
    plans = {"mamba": "depth", "mamba2": "depth-mamba2", TRANSFORMER: "depth-transformer"}
    models = [model for row, plan in plans.items() for model in shapes(PLANS[plan], [row])]
    rows = [[row, str(layers), str(width), f"{count / 1e6:.2f}"] for row, layers, width, count in models]
    return table(["row", "layers", "width", "parameters (millions)"], rows)


def claims() -> str:
    """Those of depth."""
    return claim_table(CLAIMS)


def phases() -> str:
    """What has been trained."""
    return phase_table("depth")


NUMBER_FORMS = {
    "loss": ("loss (nats)", 1, ".3f"),
    "recall": ("recall (%)", 100, ".1f"),
    "similarity": ("similarity", 1, ".2f"),
    "reach": ("ln half reach", 1, ".2f"),
    "probe_peak": ("best probe (%)", 100, ".1f"),
    "probe_last": ("probe of the last state (%)", 100, ".1f"),
}
"""Head, scale and digits of what stands in a table of means."""
READ = ("loss", "recall", "similarity", "reach")


def means(study: Study, kind: tuple[str, int, int], names: Sequence[str]) -> list[str]:
    """Seeds of a kind, how many of them recall, and means of some numbers, with 95 % intervals from three seeds on."""
    mine = study.some(lambda cell: (str(cell["row"]), int(cell["layers"]), int(cell["length"])) == kind)
    losses = mine.of("loss")
    lost = int((~np.isfinite(losses)).sum())
    words = [f"{len(losses)}{f', {lost} diverged' if lost else ''}", f"{sum(map(recalls, mine.cells))}"]
    for name in names:
        _, scale, form = NUMBER_FORMS[name]
        band = student_interval(scale * mine.of(name))
        there = np.isfinite(band.mean)
        low, high = (float(end) for end in (band.low, band.high))
        if scale == 100:  # a share: its interval ends where shares do
            low, high = max(low, 0.0), min(high, 100.0)
        shown = f"{float(band.mean):{form}}{bracketed(low, high, form)}"
        words.append(shown if there else "not read")
    return words


def values(numbers: Mapping[str, Any] = NUMBERS) -> str:
    """Loss, recall, similarity and reach by row, depth and context, means over seeds."""
    rows = []
    for name in (CORE, "depth-mamba2-seeds", "depth-transformer-seeds"):
        study = read_study(numbers, name)
        if study is not None:
            for row, layers, context in dict.fromkeys(study.kinds()):
                own = means(study, (row, layers, context), READ)
                rows.append([row, str(layers), f"{context:,}", *own])
    heads = ["row", "layers", "context", "seeds", "that recall", *(NUMBER_FORMS[name][0] for name in READ)]
    return table(heads, rows) if rows else NOTHING


def fit_table(name: str) -> str:
    """What each factor of a finished phase does to every outcome, with 95 % intervals; why where nothing is fitted."""
    fits = NUMBERS.get(name, {}).get("fits", {})
    factors = list(dict.fromkeys(factor for fit in fits.values() for factor in fit.get("effects", {})))
    rows = []
    for fit in fits.values():
        known = fit.get("effects", {})
        shown = [_effect(known[factor]) if factor in known else "" for factor in factors]
        rows.append([fit["of"], str(fit["models"]), *shown, fit.get("reason", "")])
    return table(["outcome", "models", *factors, ""], rows) if rows else NOTHING


def _effect(effect: Mapping[str, float]) -> str:
    return f"{effect['mean']:+.3g}{bracketed(effect['low'], effect['high'], '+.3g')}"


def rates() -> str:
    """What was screened: loss at the end of training, text and recall alike."""
    rows = []
    screens = [(row, NUMBERS.get(f"depth{part}-screen")) for row, part in SCREENED.items()]
    known = {row: phase["cells"] for row, phase in screens if phase is not None}
    tried = sorted({cell["rate"] for cells in known.values() for cell in cells})
    for row, cells in known.items():
        for layers, context in dict.fromkeys((cell["layers"], cell["length"]) for cell in cells):
            mine = {c["rate"]: c["last_loss"] for c in cells if (c["layers"], c["length"]) == (layers, context)}
            shown = {rate: "diverged" if value is None else f"{value:.3f}" for rate, value in mine.items()}
            rows.append([row, str(layers), f"{context:,}", *(shown.get(rate, "") for rate in tried)])
    return table(["row", "layers", "context", *(f"rate {rate:g}" for rate in tried)], rows) if rows else NOTHING


SCREENED = {"mamba": "", "mamba2": "-mamba2", TRANSFORMER: "-transformer"}


def state_of(study: str) -> str:
    """A sentence: how far a study is."""
    mine = [plan for plan in PLANS.values() if plan.study == study]
    core = [plan.name(phase) for plan in mine if plan.part == "core" for phase in plan.phases]
    more = [plan.name(phase) for plan in mine if plan.part != "core" for phase in plan.phases]
    done = [name for name in (*core, *more) if NUMBERS.get(name, {}).get("finished")]
    if not any(name in NUMBERS for name in (*core, *more)):
        return "**Nothing of the study in its present form has been run yet.**"
    words = "The core is finished" if set(core) <= set(done) else "The core is **not finished**"
    left = ", ".join(f"`{name}`" for name in more if name not in done)
    return f"{words}{f'; of the extension not finished: {left}' if left else ''}."


def open_list(*studies: str) -> str:
    """Phases of some studies that are not finished."""
    lines = []
    for name, plan in PLANS.items():
        for phase in plan.phases if plan.study in studies else ():
            known = NUMBERS.get(plan.name(phase))
            if known is None or not known["finished"]:
                done = "not run" if known is None else f"{len(known['cells'])} of {known['models']} models trained"
                lines.append(f"- `{phase} --study {name}`: {done}.")
    return "\n".join(lines) or "- Every phase is finished."


def training_of(name: str) -> str:
    """Steps of a last phase and their tokens: those that were trained, or else that are planned."""
    known = NUMBERS.get(name)
    if known is None or not known["cells"]:
        return f"{STEPS:,} steps of {BATCH_TOKENS:,} tokens"
    longest = max(cell["length"] for cell in known["cells"])
    return f"{known['steps']:,} steps of {known['batch'] * longest:,} tokens"


def command_list(studies: Sequence[str]) -> str:
    """One command for every model of some studies that is trained."""
    lines = []
    for name, phase in sorted(NUMBERS.items()):
        if name.split("-")[0] in studies:
            for length, command in phase["commands"].items():
                words = [f"`{cell['cell']}`" for cell in phase["cells"] if str(cell["length"]) == length]
                lines += [f"`{command}` with CELL one of {', '.join(words)}"] if words else []
    return "\n\n".join(lines) if lines else NOTHING


def commands() -> str:
    """Those of depth, the first form among them."""
    return command_list(["depth", "first"])


def first_form() -> Mapping[str, Any]:
    """Phases of the form with few ids under the names that the claims read."""
    prefix = "first-form-"
    return {f"depth-{name.removeprefix(prefix)}": phase for name, phase in NUMBERS.items() if name.startswith(prefix)}


def rate_claims() -> str:
    """Claims on Mamba with the better rate of each kind after all steps."""
    better = at_better_rates(NUMBERS, "depth-seeds", "depth-rate-seeds")
    return claim_table([claim for claim in CLAIMS if claim.study == CORE], better) if better else NOTHING


def _better() -> Study | None:
    """The core with the better rate of each kind after all steps."""
    better = at_better_rates(NUMBERS, "depth-seeds", "depth-rate-seeds")
    return read_study(better, CORE) if better else None


def _steps(study: Study | None, name: str, pairs: Sequence[tuple[int, int]]) -> str:
    """What one depth of Mamba has over another, at each context."""
    if study is None:
        return NOTHING
    words = []
    for more, fewer in pairs:
        for context in CONTEXTS:
            effect = study.less(name, {("mamba", more, context): 1.0, ("mamba", fewer, context): -1.0})
            unit = " nats" if name == "loss" else ""
            words.append(f"{more} less {fewer} layers {shown(effect)}{unit} at {context:,} tokens")
    return ", ".join(words)


def deepest() -> str:
    """What 32 layers of Mamba cost over 16, at each context."""
    return _steps(read_study(NUMBERS, CORE), "loss", [(DEPTHS[-1], DEPTHS[-2])])


def deepest_better() -> str:
    """What more layers cost at the better rate of each depth."""
    return _steps(_better(), "loss", [(DEPTHS[-1], DEPTHS[-2]), (DEPTHS[-2], DEPTHS[-3])])


def similar_better() -> str:
    """How much more alike the last tokens of deep models are, at the better rate of each depth."""
    return _steps(_better(), "similarity", [(DEPTHS[-1], DEPTHS[0])])


def tolerance_better() -> str:
    """How much less 32 layers cost over 16 at the long context than at the short one, at the better rates."""
    study = _better()
    if study is None:
        return NOTHING
    deep, less = DEPTHS[-1], DEPTHS[-2]
    signs = zip(CONTEXTS, (-1.0, 1.0), strict=True)
    weights = {("mamba", deep, c): sign for c, sign in signs}
    weights |= {("mamba", less, c): -weights["mamba", deep, c] for c in CONTEXTS}
    return f"{shown(study.less('loss', weights))} nats"


def _either_rate() -> list[Mapping[str, Any]]:
    """Models of both rates after all steps that did not diverge."""
    cells = [cell for name in ("depth-seeds", "depth-rate-seeds") for cell in NUMBERS.get(name, {}).get("cells", ())]
    return [cell for cell in cells if cell.get("loss") is not None]


def other_rate() -> str:
    """By how much the loss is lower at the higher rate, least and most over kinds; means over seeds."""
    losses: dict[tuple[int, int], dict[float, list[float]]] = {}
    for cell in _either_rate():
        losses.setdefault((cell["layers"], cell["length"]), {}).setdefault(cell["rate"], []).append(cell["loss"])
    both = [rates for rates in losses.values() if len(rates) == 2]
    if not both:
        return NOTHING
    low, high = sorted(both[0])
    gains = [float(np.mean(rates[low]) - np.mean(rates[high])) for rates in both]
    better, spread = sum(gain > 0 for gain in gains), f"{min(gains):.3f} to {max(gains):.3f}"
    return f"lower at {high:g} than at {low:g} in {better} of {len(gains)} kinds, by {spread} nats"


def screen_apart() -> str:
    """By how much the two rates of each depth differ in the loss that the screen chose by."""
    losses: dict[int, dict[float, list[float]]] = {}
    for cell in NUMBERS.get("depth-screen", {}).get("cells", ()):
        if cell["last_loss"] is not None:
            losses.setdefault(cell["layers"], {}).setdefault(cell["rate"], []).append(cell["last_loss"])
    both = {layers: rates for layers, rates in losses.items() if len(rates) == 2}
    words = [
        f"{abs(float(np.diff([np.mean(own) for own in rates.values()])[0])):.3f} for {layers}"
        for layers, rates in both.items()
    ]
    return ", ".join(words) if words else NOTHING


def depth_apart() -> str:
    """Loss of the worst depth less that of the best, at each context and the better rate of each; means over seeds."""
    study = _better()
    if study is None:
        return NOTHING
    words = []
    for context in CONTEXTS:
        mine = study.some(lambda cell, context=context: cell["length"] == context)
        means = [mine.some(lambda cell, depth=depth: cell["layers"] == depth).of("loss").mean() for depth in DEPTHS]
        words.append(f"{max(means) - min(means):.3f} nats at {context:,} tokens")
    return ", ".join(words)


def most_recalled() -> str:
    """The best recall of any model, beside that of guessing among the values of a row."""
    recall = Study(_either_rate()).of("recall")
    if not len(recall):
        return NOTHING
    near = int((recall > GUESS / 2).sum())
    best = f"the best of {len(recall)} models has {100 * np.nanmax(recall):.1f} % of its answers right"
    return f"{best}, guessing among the values of a row {100 * GUESS:.1f} %; {near} models have more than half of that"


def rises() -> str:
    """In how many models the embedding's tokens are the most alike, and where they become alike again behind it."""
    cells = [cell for cell in _either_rate() if cell.get("similarity") is not None]
    late = [cell["layers"] * (1 - cell["onset"]) for cell in cells if cell.get("onset") is not None]
    if not late:
        return NOTHING
    fall = sum(np.nanargmax(np.array(cell["similarity"], dtype=float)) == 0 for cell in cells)
    where = f"half of the rise behind it is reached {min(late):.1f} to {max(late):.1f} blocks before the end"
    return f"in {fall} of {len(cells)} models tokens are most alike at the embedding, and {where}"


def by_rate() -> str:
    """Loss and recall of every depth at either rate, means over seeds; which rate the screen took."""
    rows = []
    for name, words in (("depth-seeds", "taken"), ("depth-rate-seeds", "other")):
        study = read_study(NUMBERS, name)
        for row, layers, context in dict.fromkeys(study.kinds()) if study is not None else ():
            rate = next(c["rate"] for c in study.cells if (c["layers"], c["length"]) == (layers, context))
            own = means(study, (row, layers, context), ["loss", "recall"])
            rows.append([str(layers), f"{context:,}", f"{rate:g}", words, *own])
    rows.sort(key=lambda row: (int(row[0]), int(row[1].replace(",", "")), float(row[2])))
    heads = ["layers", "context", "rate", "by the screen", "seeds", "that recall", "loss (nats)", "recall (%)"]
    return table(heads, rows) if rows else NOTHING


def size() -> str:
    """What the trainings beside the built-in models say of size."""
    from repflow.papers.findings import judge, known_readings

    finding = next(entry for entry in judge(known_readings()) if entry.code == "F 3.4.3")
    word = str(finding.judgement).partition(":")[0]
    return f"**{word}**: {finding.reason.removeprefix(f'{word}: ')}."


def pilot() -> str:
    """Recall by number of pairs of the models that were tried before."""
    rows = []
    for cell in NUMBERS.get("first-form-pilot", {"cells": []})["cells"]:
        recall = ", ".join(f"{100 * value:.1f}" for value in cell["recall"])
        size = [f"{cell['length']:,}", f"{cell['recall_ids']:,}"]
        rows.append([*size, f"{cell['rate']:g}", f"{cell['loss']:.3f}", recall])
    return table(["context", "ids", "rate", "loss (nats)", "recall by pairs (%)"], rows)


MARKS = {0.003: "o", 0.01: "s"}


def picture() -> None:
    """Loss and similarity of every model by its depth: a colour a context, a mark a rate, a line a phase."""
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9.0, 3.4), layout="constrained")
    for name, style in (("depth-seeds", "-"), ("depth-rate-seeds", ":")):
        study = read_study(NUMBERS, name)
        for number, context in enumerate(CONTEXTS if study is not None else ()):
            mine = study.some(lambda cell, context=context: cell["length"] == context)
            depths, rates = (np.array([cell[key] for cell in mine.cells]) for key in ("layers", "rate"))
            words = f"{context:,} tokens{'' if name == 'depth-seeds' else ', the other rate'}"
            for panel, outcome in zip(panels, ("loss", "similarity"), strict=True):
                values, color = mine.of(outcome), f"C{number}"
                for rate, mark in MARKS.items():
                    panel.plot(depths[rates == rate], values[rates == rate], mark, color=color, markersize=4)
                there = [depth for depth in DEPTHS if depth in depths]
                panel.plot(there, [values[depths == d].mean() for d in there], style, color=color, label=words)
    for panel, words in zip(panels, ("loss on the test text (nats)", "similarity behind the last block"), strict=True):
        for rate, mark in MARKS.items():
            panel.plot([], [], mark, color="0.5", markersize=4, label=f"a seed, rate {rate:g}")
        panel.set_xscale("log", base=2)
        panel.set_xticks(DEPTHS, [str(depth) for depth in DEPTHS])
        panel.minorticks_off()
        panel.set_xlabel("layers of Mamba, all of one size", fontsize=9)
        panel.set_ylabel(words, fontsize=9)
    panels[1].legend(frameon=False, fontsize=8)
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)


PARTS = {
    "first_claims": lambda: claim_table([claim for claim in CLAIMS if claim.study == CORE], first_form()),
    "first_values": lambda: values(first_form()),
    "pilot": pilot,
    "size": size,
    "deepest": deepest,
    "deepest_better": deepest_better,
    "similar_better": similar_better,
    "tolerance_better": tolerance_better,
    "rate_claims": rate_claims,
    "by_rate": by_rate,
    "other_rate": other_rate,
    "screen_apart": screen_apart,
    "depth_apart": depth_apart,
    "most_recalled": most_recalled,
    "rises": rises,
    "state": lambda: state_of("depth"),
    "training": lambda: training_of("depth-seeds"),
    "sizes": sizes,
    "claims": claims,
    "phases": phases,
    "values": values,
    "rates": rates,
    "fits": lambda: fit_table("depth-seeds"),
    "commands": commands,
    "open": lambda: open_list("depth"),
}


def page(text: str) -> str:
    """The page with its measured parts replaced."""
    return filled(text, PARTS)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    picture()
    print(f"wrote {PAGE} and {PICTURE.name}")
