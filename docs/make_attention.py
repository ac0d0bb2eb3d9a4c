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
from tools.depth.claim import read_study
from tools.depth.plan import HYBRIDS
from tools.depth.remedies import HYBRID_CLAIMS, ORDER

PAGE = DOCS / "guides" / "place-attention.md"
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


def built_in() -> str:
    """One ratio and its mirror, among the trainings of the built-in models' kind: values found, loss on prose."""
    rows = []
    for name, words in (("hybrid", "last 3 of 13"), ("hybrid-mirror", "first 3 of 13")):
        mine = [cell["evaluation"] for cell in CELLS if cell["variant"] == name]
        found = [own["retrieval"]["kvpr-512"]["exact"] / own["retrieval"]["kvpr-512"]["of"] for own in mine]
        nats = [own["prose"]["nats_per_token"] for own in mine]
        shown = [
            f"{float(band.mean):.2f} ± {float(band.high - band.mean):.2f}"
            for band in map(student_interval, (found, nats))
        ]
        rows.append([words, *shown, str(len(mine))])
    return table(["attention", "values found, 512 tokens", "loss on prose (nats)", "seeds"], rows)


PARTS = {
    "state": lambda: state_of("hybrids"),
    "verdicts": verdicts,
    "grid": grid,
    "seeds": seeds,
    "built_in": built_in,
}


def page(text: str) -> str:
    """The page with its measured parts replaced."""
    return filled(text, PARTS)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
