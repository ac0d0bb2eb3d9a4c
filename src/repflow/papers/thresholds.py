"""Where the thresholds of paper 1's findings come from: computed from its printed tables and text. No torch.

The paper gives none, so they are ours, set before our models were measured.

| name | value | from |
|---|---|---|
| STEADY | 0.9 | lowest layer cosine that the text gives Transformers before their last layers |
| SHIFT | 0.1 | a third of the fall of the layer cosine at their last layer, 30 points |
| PARTING | 0.133 | a third of the fall of their token similarity to the last layer, 40 points at least |
| ALIKE | 0.5 | more alike than not; the text gives Transformers 70 to 90 % |
| APART | 0.25 | highest token similarity that the text gives random state-space models |
| MARGIN | 0.05 | a difference of cosines, CKA, accuracy or relative depth that counts |
| FACTOR | 1.73 | Sm and St differ "roughly three times" within a family: half of that on a scale of factors |
| STABLE | 0.261 | largest change of St over lengths in Table 2, which the text calls stable |
| SIZES | 2.0 | factor of parameters from which two models differ in size |
"""

from __future__ import annotations

import math

from repflow.papers.values import CHECKPOINTS, MODELS, QUOTES, TABLE_2, TASKS, Quote, layers_of

__all__ = ["ALIKE", "APART", "FACTOR", "MARGIN", "PARTING", "SHIFT", "SIZES", "STABLE", "STEADY"]

ALIKE, MARGIN, SIZES = 0.5, 0.05, 2.0
THIRD = 1 / 3
"""Share of a printed fall that a smaller model has to show."""


def _of_text(quantity: str, family: str, *, init: str = "trained") -> list[Quote]:
    """What the paper's text says of a family's models; its summaries are ignored."""
    return [
        quote for quote in QUOTES
        if quote.quantity == quantity and quote.init == init
        and quote.subject in CHECKPOINTS and CHECKPOINTS[quote.subject].family == family
    ]  # fmt: skip


def _last(quote: Quote) -> bool:
    return quote.layers is not None and quote.layers[1] == layers_of(quote.subject)


def _least_fall(quantity: str, family: str) -> float:
    """Smallest fall over models, as a share of one, from the highest value in the text to that of the last layer."""
    falls = []
    for model in MODELS:
        quotes = [quote for quote in _of_text(quantity, family) if quote.subject == model and quote.low == quote.high]
        ends = [quote.low for quote in quotes if _last(quote) and quote.low is not None]
        before = [quote.low for quote in quotes if not _last(quote) and quote.low is not None]
        if ends and before:
            falls.append((max(before) - min(ends)) / 100)
    return min(falls)


def _largest_change(quantity: str) -> float:
    """Largest over smallest value over lengths in Table 2, less one; the largest over models and tasks."""
    changes = []
    for task in TASKS:
        for model in MODELS:
            cells = [cell for cell in TABLE_2.values() if (cell.task, cell.model) == (task, model)]
            values = [cell.value(quantity) for cell in cells]
            changes.append(max(values) / min(values) - 1)
    return max(changes)


STEADY = min(quote.low for quote in _of_text("layer_cosine", "TBM") if not _last(quote) and quote.low is not None) / 100
SHIFT = round(THIRD * _least_fall("layer_cosine", "TBM"), 3)
PARTING = round(THIRD * _least_fall("token_similarity", "TBM"), 3)
APART = max(q.high for q in _of_text("token_similarity", "SSM", init="random") if q.high is not None) / 100
FACTOR = round(math.sqrt(next(q.low for q in QUOTES if q.quantity == "ratio" and q.low is not None)), 2)
STABLE = round(_largest_change("stability"), 3)
