"""Write the measured parts of docs/guides/place-attention.md from the stored hybrids.

These are in docs/laboratories/depth.json and docs/architecture.json. Run `python -m docs.make_attention`, or
`python -m docs.make_remedies`, which writes both pages; nothing is trained here.
"""

from __future__ import annotations

import numpy as np

from docs.made_parts import PART, filled, table  # noqa: F401  tests read PART
from docs.make_architecture import CELLS
from docs.make_depth import DOCS, NUMBERS, means, state_of
from repflow.core.intervals import student_interval
from repflow.spec.architecture import parse_architecture
from tools.depth.claim import GUESS, Study, at_better_rates, read_study, recalls, shown
from tools.depth.plan import HYBRIDS, SMALL
from tools.depth.remedies import HYBRID, HYBRID_CLAIMS, ORDER

PAGE, PICTURE = DOCS / "guides" / "place-attention.md", DOCS / "pictures" / "place-attention.png"
LAYERS = SMALL.layers[0]
LOW = "hybrids-low-screen"
"""The hybrids of the first seed at the next lower rate."""
NONE = "mamba2"
"""The row in which no layer attends."""
OPEN_YET = "Not run yet: what follows from it is open."


def verdicts() -> str:
    """What the stored study of hybrids says."""
    rows = []
    for claim in HYBRID_CLAIMS:
        word, numbers = claim.verdict(read_study(NUMBERS, claim.study))
        rows.append([claim.text, f"**{word}**", numbers])
    return table(["claim", "verdict", "numbers"], rows)


def grid() -> str:
    """Recall (loss) of every hybrid of the screen, by share and place; one seed each."""
    study = read_study(NUMBERS, "hybrids-screen")
    if study is None:
        return OPEN_YET
    recall, loss = study.of("recall"), study.of("loss")
    found = {str(cell["row"]): (recall[at], loss[at]) for at, cell in enumerate(study.cells)}
    rows = []
    for share in dict.fromkeys(share for share, _ in HYBRIDS):
        shown = []
        for place in ("first", "spread", "last"):
            right, nats = found.get(HYBRIDS[share, place], (np.nan, np.nan))
            shown.append(f"{100 * right:.1f} ({nats:.3f})" if np.isfinite([right, nats]).all() else "not read")
        rows.append([share, *shown])
    return table(["layers that attend", "first", "spread", "last"], rows)


def seeds() -> str:
    """Best, middle and worst of the screen on new seeds."""
    study = read_study(NUMBERS, ORDER)
    if study is None:
        return OPEN_YET
    kinds = dict.fromkeys(study.kinds())
    rows = [[f"`{kind[0]}`", *means(study, kind, ["recall", "loss"])] for kind in kinds]
    return table(["order", "seeds", "that recall", "recall (%)", "loss (nats)"], rows)


def beside_none() -> Study | None:
    """Hybrids on new seeds, and Mamba-2 alone trained as they were; None where either is not trained."""
    hybrids, bases = (read_study(NUMBERS, name) for name in (ORDER, "remedies-seeds"))
    if hybrids is None or bases is None:
        return None
    rate = hybrids.cells[0]["rate"]
    alone = bases.some(lambda cell: (cell["row"], cell["rate"]) == (NONE, rate))
    return Study([*hybrids.cells, *alone.cells]) if set(alone.seeds()) >= set(hybrids.seeds()) else None


def none_attends() -> str:
    """How Mamba-2 alone does beside the order that was best, trained alike."""
    study = beside_none()
    if study is None:
        return "A Mamba-2 without attention was not trained for as long."
    best, plain = study.kinds()[0], study.kinds()[-1]
    _, recalling, recall, loss = means(study, plain, ["recall", "loss"])
    apart = {best: 1.0, plain: -1.0}
    less = f"{shown(study.less('recall', apart), 100, 1)} points of recall and {shown(study.less('loss', apart))} nats"
    said = f"Mamba-2 without attention, trained alike, recalls in {recalling} of {len(set(study.seeds()))} seeds"
    return f"{said} ({recall} %, loss {loss}); `{best[0]}` less it: {less}."


def low() -> str:
    """For which orders the lower rate is better, and how many recall at it."""
    better, study = at_better_rates(NUMBERS, HYBRID, LOW), read_study(NUMBERS, LOW)
    if not better or study is None:
        return "not run yet"
    rate, cells = study.cells[0]["rate"], better[HYBRID]["cells"]
    rows = [cell["row"] for cell in cells if cell["rate"] == rate]
    count = sum(recalls(cell) for cell in study.cells)
    shared = f"{len(rows)} of {len(cells)} orders ({', '.join(f'`{row}`' for row in rows)})"
    return f"{rate:g} has the lower loss for {shared}, and {count} of {len(study.cells)} models recall at it"


def built_in() -> str:
    """One ratio and its mirror, among the trainings of the built-in models' kind: values found, loss on prose."""
    rows = []
    for name, words in (("hybrid", "last 3 of 13"), ("hybrid-mirror", "first 3 of 13")):
        mine = [cell["evaluation"] for cell in CELLS if cell["variant"] == name]
        found = [own["retrieval"]["kvpr-512"]["exact"] / own["retrieval"]["kvpr-512"]["of"] for own in mine]
        nats = [own["prose"]["nats_per_token"] for own in mine]
        bands = [
            f"{float(band.mean):.2f} ± {float(band.high - band.mean):.2f}"
            for band in map(student_interval, (found, nats))
        ]
        rows.append([words, *bands, str(len(mine))])
    return table(["attention", "values found, 512 tokens", "loss on prose (nats)", "seeds"], rows)


def picture() -> None:
    """Where attention stands in every hybrid, a strip of layers each, and what it recalls: one dot a seed."""
    from matplotlib import pyplot as plt
    from matplotlib.patches import Rectangle

    studies = (read_study(NUMBERS, "hybrids-screen"), beside_none() or read_study(NUMBERS, ORDER))
    known = [study for study in studies if study is not None]
    by_row: dict[str, list[float]] = {}
    for study in known:
        for cell, value in zip(study.cells, study.of("recall"), strict=True):
            by_row.setdefault(str(cell["row"]), []).append(100 * value)
    if not by_row:
        return
    rows = [HYBRIDS[key] for key in sorted(HYBRIDS, key=lambda key: ("first", "spread", "last").index(key[1]))]
    rows = [*([NONE] if NONE in by_row else []), *rows]
    sides = {"width_ratios": (2, 3), "sharey": True, "layout": "constrained"}
    figure, (strips, recall) = plt.subplots(1, 2, figsize=(9.0, 3.8), **sides)
    for place, row in enumerate(rows):
        attends = parse_architecture(row).attention_at(LAYERS)
        for layer in range(LAYERS):
            color = "C1" if layer in attends else "0.85"
            strips.add_patch(Rectangle((layer + 1.05, place - 0.35), 0.9, 0.7, color=color))
        dots = by_row.get(row, [])
        recall.plot(dots, [place] * len(dots), "o", color="C1", markersize=5, alpha=0.7)
    strips.set(xlim=(1, LAYERS + 1), ylim=(len(rows) - 0.5, -0.5), yticks=[])
    ticks = (1, LAYERS // 2, LAYERS)
    strips.set_xticks([tick + 0.5 for tick in ticks], [str(tick) for tick in ticks])
    strips.set_xlabel("layer: attention (orange) or Mamba-2", fontsize=9)
    recall.axvline(100 * GUESS, color="0.6", linewidth=0.8, linestyle=":")
    recall.set(xlim=(-3, 103))
    recall.set_xlabel("recall (%), a dot a seed; dotted: guessing among the values of a row", fontsize=9)
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)


PARTS = {
    "state": lambda: state_of("hybrids"),
    "verdicts": verdicts,
    "grid": grid,
    "seeds": seeds,
    "built_in": built_in,
    "none_attends": none_attends,
    "low": low,
}


def page(text: str) -> str:
    """The page with its measured parts replaced."""
    return filled(text, PARTS)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    picture()
    print(f"wrote {PAGE} and {PICTURE.name}")


if __name__ == "__main__":
    main()
