"""Write the measured parts of docs/laboratories/remedies.md from docs/laboratories/depth.json.

Run `python -m docs.make_remedies`; nothing is trained here. Remedies and hybrids are in the same file as depth. The
guide to hybrids (`docs.make_attention`) is written too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from docs import make_attention
from docs.made_parts import PART, filled, table  # noqa: F401  tests read PART
from docs.make_attention import LOW
from docs.make_depth import (
    DOCS,
    NOTHING,
    NUMBER_FORMS,
    NUMBERS,
    claim_table,
    command_list,
    fit_table,
    means,
    open_list,
    phase_table,
    shapes,
    state_of,
    training_of,
)
from repflow.core.intervals import bracketed
from tools.depth.claim import at_better_rates, read_study, shown
from tools.depth.plan import BASES, HYBRIDS, PLANS, REMEDIES
from tools.depth.remedies import (
    CORE,
    EXTENSION,
    HYBRID,
    HYBRID_CLAIMS,
    MORE_PRIMARY,
    NORM_CLAIMS,
    NORM_STUDY,
    ORDER,
    PRIMARY,
    SECONDARY,
    SHARE,
    factor_effect,
    gains,
)

PAGE = DOCS / "laboratories" / "remedies.md"


def sizes() -> str:
    """Widths that give all rows one size."""
    models = list(shapes(PLANS["hybrids"], [*BASES, *HYBRIDS.values()]))
    rows = [[f"`{row}`", str(layers), str(width), f"{count / 1e6:.2f}"] for row, layers, width, count in models]
    return table(["row", "layers", "width", "parameters (millions)"], rows)


def strengths(*parts: str) -> str:
    """What was screened: perplexity on the validation text over the base's, and which form was taken."""
    rows = []
    for part in parts:
        rates = NUMBERS.get("remedies-first-rates" if part == "-first" else "remedies-rates")
        screen, seeds = (NUMBERS.get(f"remedies{part}-{phase}", {"cells": []}) for phase in ("screen", "seeds"))
        taken = {cell["row"] for cell in seeds["cells"]}
        for cell in screen["cells"]:
            base = next(own for own in (*BASES, "transformer") if cell["row"].startswith(own))
            known = [] if rates is None else rates["cells"]
            plain = [c for c in known if (c["row"], c["rate"]) == (base, cell["rate"])]
            chosen = "taken" if cell["row"] in taken else ""
            grown = "" if cell.get("first_growth") is None else f"{cell['first_growth']:.3g}"
            rows.append([f"`{cell['row']}`", _ratio(cell, plain[0] if plain else {}), grown, chosen])
    return table(["row", "perplexity over the base's", GROWTH, ""], rows) if rows else NOTHING


GROWTH = "length of tokens behind the first block over before it"


def rates(part: str) -> str:
    """Losses of both bases by rate, a third of the steps: text and recall alike, and text alone."""
    cells = NUMBERS.get(f"remedies{part}-rates", {"cells": []})["cells"]
    rows = []
    for cell in cells:
        words = [f"`{cell['row']}`", f"{cell['rate']:g}"]
        for name, form in (("last_loss", ".3f"), ("validation_loss", ".3f"), ("first_growth", ".3g")):
            words.append("diverged" if cell.get(name) is None else f"{cell[name]:{form}}")
        rows.append(words)
    return table(["base", "rate", "training loss", "validation loss", GROWTH], rows) if rows else NOTHING


def embedding() -> str:
    """Transformers with and without a norm behind their embedding."""
    study, known = read_study(NUMBERS, "embedding"), NUMBERS.get("embedding")
    if study is None:
        return NOTHING
    kinds = dict.fromkeys(study.kinds())
    rows = [[f"`{kind[0]}`", seeds, loss] for kind in kinds for seeds, _, loss in [means(study, kind, ["loss"])]]
    effect = known["fits"]["loss"]["effects"]["+embednorm"]
    words = f"{effect['mean']:+.2f}{bracketed(effect['low'], effect['high'], '+.2f')} nats, {effect['seeds']} seeds"
    shown = table(["row", "seeds", "loss (nats)"], rows)
    return f"{known['steps']} steps of {known['batch'] * 256:,} tokens, on a {known['device']}: {words}.\n\n{shown}"


def fewer(numbers: Mapping[str, Any] = NUMBERS) -> str:
    """What the share of attention does to the loss without the hybrids of which half attends."""
    study, half = read_study(numbers, HYBRID), {row for (share, _), row in HYBRIDS.items() if share == "6 of 12"}
    if study is None or not numbers[HYBRID]["finished"]:
        return NOTHING
    return f"{shown(factor_effect(study.some(lambda cell: cell['row'] not in half), SHARE, 'loss'))} nats"


def least_gain() -> str:
    """Half of the interval of what a remedy of Mamba-2 changes in recall, in points."""
    study = read_study(NUMBERS, CORE)
    if study is None:
        return NOTHING
    changes = [effect for effect in gains(study, "mamba2", "recall", REMEDIES).values() if effect is not None]
    return f"{100 * max(effect.high - effect.low for effect in changes) / 2:.0f}"


def by_seed(name: str, base: str = "") -> str:
    """Recall of every seed of the rows of a phase whose names begin alike."""
    study = read_study(NUMBERS, name)
    rows: dict[str, list[str]] = {}
    for cell, value in zip(study.cells, 100 * study.of("recall"), strict=True) if study is not None else ():
        if cell["row"].startswith(base):
            rows.setdefault(cell["row"], []).append(f"{value:.1f}" if np.isfinite(value) else "diverged")
    return "; ".join(f"`{row}` {', '.join(words)}" for row, words in rows.items()) if rows else NOTHING


def supervised() -> str:
    """Where tokens of Mamba-2 become alike with intermediate supervision and without."""
    study = read_study(NUMBERS, CORE)
    effect = None if study is None else gains(study, "mamba2", "onset", REMEDIES).get("supervision")
    if effect is None:
        return NOTHING
    plain = study.some(lambda cell: cell["row"] == "mamba2").of("onset").mean()
    return f"{plain + effect.mean:.2f} of depth, without it at {plain:.2f} (difference {shown(effect, digits=2)})"


def low_claims() -> str:
    """Claims on hybrids with the better of two rates for each."""
    better = at_better_rates(NUMBERS, HYBRID, LOW)
    return claim_table([claim for claim in HYBRID_CLAIMS if claim.study == HYBRID], better) if better else NOTHING


def _ratio(cell: Mapping[str, Any], plain: Mapping[str, Any]) -> str:
    own, usual = cell.get("validation_loss"), plain.get("validation_loss")
    return "diverged" if own is None or usual is None else f"{np.exp(own - usual):.3f}"


def values() -> str:
    """Loss, recall and similarity by row, means over seeds."""
    rows, names = [], ["loss", "recall", "similarity"]
    for name in (CORE, EXTENSION, ORDER, HYBRID, LOW):
        study = read_study(NUMBERS, name)
        if study is not None:
            kinds = dict.fromkeys(study.kinds())
            rows += [[name, f"`{kind[0]}`", *means(study, kind, names)] for kind in kinds]
    heads = ["phase", "row", "seeds", "that recall", *(NUMBER_FORMS[name][0] for name in names)]
    return table(heads, rows) if rows else NOTHING


def norm_values() -> str:
    """Loss, recall, similarity and probes by row, means over seeds."""
    study = read_study(NUMBERS, NORM_STUDY)
    if study is None:
        return NOTHING
    names = ["loss", "recall", "similarity", "probe_peak", "probe_last"]
    rows = [[f"`{kind[0]}`", *means(study, kind, names)] for kind in dict.fromkeys(study.kinds())]
    return table(["row", "seeds", "that recall", *(NUMBER_FORMS[name][0] for name in names)], rows)


def unprobed() -> list[str]:
    """Says how many models of the last phase of norms are not probed, where some are not."""
    cells = NUMBERS.get(NORM_STUDY, {"cells": []})["cells"]
    left = sum("probe_last" not in cell for cell in cells if cell.get("loss") is not None)
    words = "not run" if left == len(cells) else f"{left} of {len(cells)} models are not probed"
    return [f"- `probes`: {words}."] if left or not cells else []


PARTS = {
    "norms": lambda: claim_table(NORM_CLAIMS),
    "norm_phases": lambda: phase_table("norms"),
    "norm_values": norm_values,
    "state": lambda: state_of("remedies"),
    "hybrid_state": lambda: state_of("hybrids"),
    "training": lambda: training_of(CORE),
    "open": lambda: "\n".join([open_list("remedies", "hybrids", "norms"), *unprobed()]),
    "sizes": sizes,
    "primary": lambda: claim_table(PRIMARY),
    "secondary": lambda: claim_table(SECONDARY),
    "hybrids": lambda: claim_table(HYBRID_CLAIMS),
    "more": lambda: claim_table(MORE_PRIMARY),
    "phases": lambda: phase_table("remedies"),
    "hybrid_phases": lambda: phase_table("hybrids"),
    "strengths": lambda: strengths("", "-more"),
    "first_strengths": lambda: strengths("-first"),
    "rates": lambda: rates(""),
    "first_rates": lambda: rates("-first"),
    "low_claims": low_claims,
    "none_attends": make_attention.none_attends,
    "fewer": fewer,
    "fewer_low": lambda: fewer(at_better_rates(NUMBERS, HYBRID, LOW)),
    "low": make_attention.low,
    "least_gain": least_gain,
    "by_seed": lambda: by_seed(CORE, "mamba2"),
    "order_by_seed": lambda: by_seed(ORDER),
    "supervised": supervised,
    "embedding": embedding,
    "values": values,
    "fits": lambda: fit_table("hybrids-screen"),
    "commands": lambda: command_list(["remedies", "hybrids", "norms", "embedding"]),
}


def page(text: str) -> str:
    """The page with its measured parts replaced."""
    return filled(text, PARTS)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}")
    make_attention.main()
