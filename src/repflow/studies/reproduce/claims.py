"""What paper 1 and its summaries say in words, compared with the printed tables and with each other.

Everything here is computed from `repflow.papers.values`; a claim is looked at by the checker of its quantity.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from repflow.papers import values as papers
from repflow.papers.values import CHECKPOINTS, LENGTHS, MODELS, TABLE_1, TABLE_2, TASKS, UNITS, Cell, Quote

ROUGH = 0.2
"""How far a number may lie from one that the text calls rough or stable."""
AROUND = 10.0
"""Points by which percentages read off figures may differ; the text rounds them to tens."""
BLOCKS = ("mean", *TASKS)
TINY = 1e-9  # decimals are no binary fractions: 0.05 apart may come out as 0.05000000000000071


@dataclass(frozen=True)
class Check:
    """One statement compared with the printed numbers.

    Attributes:
        words: as printed.
        citation: source and place.
        against: what it was compared with.
        found: the numbers there.
        holds: whether they bear it out.
        code: kind of check.
    """

    words: str
    citation: str
    against: str
    found: str
    holds: bool
    code: str


def block_cells(block: str, *, model: str | None = None, family: str | None = None) -> list[Cell]:
    """Cells of Table 1 (`mean`) or of one task of Table 2, of one model or family."""
    source = TABLE_1.values() if block == "mean" else [cell for cell in TABLE_2.values() if cell.task == block]
    return [cell for cell in source if model in (None, cell.model) and family in (None, CHECKPOINTS[cell.model].family)]


def _block(block: str) -> str:
    return "Table 1" if block == "mean" else f"Table 2 {block}"


def _at(cell: Cell) -> str:
    return f"{cell.model} n = {papers.short_length(cell.length)}"


def _subject(quote: Quote) -> dict[str, Any]:
    return {"family" if quote.subject in ("TBM", "SSM") else "model": quote.subject}


def _check(quote: Quote, against: str, text: str, holds: bool) -> Check:
    return Check(quote.words, quote.citation, against, text, holds, quote.quantity)


def _precision(value: float) -> float:
    """Half of the last place that a quoted number has."""
    return 0.5 if value == int(value) else 0.05


def _approximate(quote: Quote) -> Iterator[Check]:
    """Sm and St that the text gives as one number for all lengths."""
    assert quote.low is not None
    values = [cell.value(quote.quantity) for cell in block_cells("mean", model=quote.subject)]
    mean = sum(values) / len(values)
    holds = abs(mean - quote.low) <= 0.005 + TINY
    span = f"mean {mean:.4f} over n, from {min(values):.3f} to {max(values):.3f}"
    yield _check(quote, f"Table 1, {quote.subject}", span, holds)


def _steadiest(quote: Quote) -> Iterator[Check]:
    """Whether this SSM, and no other, has lower Sm and St than every TBM at every length both have."""
    lower = [model for model in MODELS if CHECKPOINTS[model].family == "SSM" and not _above_some_tbm(model)]
    yield _check(
        quote, "Table 1", f"below every TBM at every n: {', '.join(lower) or 'none'}", lower == [quote.subject]
    )


def _above_some_tbm(model: str, quantities: Sequence[str] = ("smoothness", "stability")) -> list[tuple[str, int, str]]:
    return [
        (other.model, cell.length, quantity)
        for cell in block_cells("mean", model=model)
        for other in block_cells("mean", family="TBM")
        for quantity in quantities
        if other.length == cell.length and cell.value(quantity) >= other.value(quantity)
    ]


def _steadier(quote: Quote) -> Iterator[Check]:
    """Whether SSMs as a family have lower Sm and St than TBMs."""
    quantities = ("stability",) if quote.quantity == "less_steady" else ("smoothness", "stability")
    for model in MODELS:
        if CHECKPOINTS[model].family == "SSM":
            above = _above_some_tbm(model, quantities)
            names = sorted({other for other, _, _ in above})
            text = f"{model} is not below {' and '.join(names)}" if above else f"{model} is below both TBMs at every n"
            yield _check(quote, f"Table 1, {model}", text, not above)


def _ratio(quote: Quote) -> Iterator[Check]:
    """How many times lower one model's Sm and St are than the other's that the words name."""
    assert quote.low is not None
    other = next(model for model in MODELS if model in quote.words)
    ratios = [
        TABLE_1[other, cell.length].value(quantity) / cell.value(quantity)
        for cell in block_cells("mean", model=quote.subject)
        for quantity in ("smoothness", "stability")
    ]
    holds = all(abs(ratio / quote.low - 1) <= ROUGH for ratio in ratios)
    yield _check(quote, "Table 1, Sm and St", f"{min(ratios):.2f} to {max(ratios):.2f} times", holds)


def _largest_drop(quote: Quote) -> Iterator[Check]:
    """'Up to x': no ↓ of the table that the sentence names exceeds it; where it names none, x is a table's largest."""
    assert quote.low is not None
    largest = {block: max(block_cells(block, **_subject(quote)), key=lambda cell: cell.drop) for block in BLOCKS}
    text = "; ".join(f"{_block(block)} {cell.drop} ({_at(cell)})" for block, cell in largest.items())
    room = _precision(quote.low) + TINY
    named = [block for block in BLOCKS if _block(block) in quote.place]
    if named:
        holds = all(largest[block].drop <= quote.low + room for block in named)
        against = f"largest ↓ of {' and '.join(map(_block, named))}, which it names"
    else:
        holds = any(abs(cell.drop - quote.low) <= room for cell in largest.values())
        against = "largest ↓ of a table"
    yield _check(quote, against, text, holds)


def _smaller_drop(quote: Quote) -> Iterator[Check]:
    """F 3.4.1, per table and length that both families have."""
    for block, length in itertools.product(BLOCKS, LENGTHS):
        drops = {
            family: [cell.drop for cell in block_cells(block, family=family) if cell.length == length]
            for family in ("SSM", "TBM")
        }
        if all(drops.values()):
            mean = {family: sum(values) / len(values) for family, values in drops.items()}
            text = ", ".join(f"{family} {mean[family]:.1f} (largest {max(drops[family])})" for family in drops)
            against = f"{_block(block)}, n = {papers.short_length(length)}, mean ↓"
            yield _check(quote, against, text, mean["SSM"] < mean["TBM"])


def _decline(quote: Quote) -> Iterator[Check]:
    """Accuracy against length, per table: the text says it falls across models and tasks."""
    for block in BLOCKS:
        rises = [
            f"{before.model} {before.accuracy} to {after.accuracy} at n = {papers.short_length(after.length)}"
            for model in MODELS
            for before, after in itertools.pairwise(block_cells(block, model=model))
            if after.accuracy >= before.accuracy
        ]
        yield _check(quote, f"{_block(block)}, accuracy", f"rises: {'; '.join(rises) or 'none'}", not rises)


def _steady(quote: Quote) -> Iterator[Check]:
    """Sm and St over lengths, per table: largest over smallest."""
    for block in BLOCKS:
        spreads = {}
        for model, quantity in itertools.product(MODELS, ("smoothness", "stability")):
            values = [cell.value(quantity) for cell in block_cells(block, model=model)]
            spreads[f"{quantity} of {model}"] = max(values) / min(values) - 1
        worst = max(spreads, key=lambda name: spreads[name])
        text = f"largest change {100 * spreads[worst]:.0f} % ({worst})"
        yield _check(quote, f"{_block(block)}, Sm and St over n", text, spreads[worst] <= ROUGH)


def _gain(quote: Quote) -> Iterator[Check]:
    """Accuracy of the larger Mamba2 minus that of the smaller one at the longest length."""
    assert quote.low is not None
    task = quote.quantity.partition("/")[2]
    small, large = (TABLE_2[task, model, LENGTHS[-1]].accuracy for model in ("Mamba2-130M", quote.subject))
    holds = abs(large - small - quote.low) <= 2 * _precision(quote.low) + TINY
    yield _check(quote, f"Table 2 {task}, n = 4K", f"{large} - {small} = {large - small:.1f}", holds)


def _quoted_drop(quote: Quote) -> Iterator[Check]:
    """A ↓ at the longest length that the text quotes for one task."""
    assert quote.low is not None
    task = quote.quantity.partition("/")[2]
    drop, mean = TABLE_2[task, quote.subject, LENGTHS[-1]].drop, TABLE_1[quote.subject, LENGTHS[-1]].drop
    holds = abs(drop - quote.low) <= TINY
    elsewhere = [_at(cell) for cell in block_cells(task) if cell.length == LENGTHS[-1] and cell.drop == quote.low]
    note = f"; {quote.low} is Table 1's" if not holds and mean == quote.low else ""
    note += f"; {quote.low} is that of {elsewhere[0]}" if not holds and elsewhere else ""
    yield _check(quote, f"Table 2 {task}, {quote.subject}, n = 4K, ↓", f"{drop}{note}", holds)


def _larger_drop(quote: Quote) -> Iterator[Check]:
    """Whether the larger Mamba2 loses more than the smaller one."""
    for block in BLOCKS:
        pairs = zip(block_cells(block, model="Mamba2-130M"), block_cells(block, model=quote.subject), strict=True)
        smaller = [
            f"n = {papers.short_length(large.length)}: {large.drop} against {small.drop}"
            for small, large in pairs
            if large.drop <= small.drop
        ]
        text = f"not larger at {'; '.join(smaller)}" if smaller else "larger at every n"
        yield _check(quote, f"{_block(block)}, ↓ against Mamba2-130M", text, not smaller)


def _models(quote: Quote) -> Iterator[Check]:
    yield _check(quote, "Tables 1 and 2", f"{len(MODELS)} models", quote.low == len(MODELS))


def _name(quote: Quote) -> Iterator[Check]:
    yield _check(quote, "Tables 1 and 2", f"printed there: {quote.subject}", quote.words in MODELS)


CHECKERS: dict[str, Callable[[Quote], Iterator[Check]]] = {
    "smoothness": _approximate,
    "stability": _approximate,
    "steadiest": _steadiest,
    "steadier": _steadier,
    "less_steady": _steadier,
    "ratio": _ratio,
    "largest_drop": _largest_drop,
    "smaller_drop": _smaller_drop,
    "decline": _decline,
    "steady": _steady,
    "gain/mdqa": _gain,
    "gain/kvpr": _gain,
    "drop/mdqa": _quoted_drop,
    "drop/kvpr": _quoted_drop,
    "larger_drop": _larger_drop,
    "models": _models,
    "name": _name,
}


def by_quotation(checks: Sequence[Check]) -> dict[tuple[str, str], list[Check]]:
    """Checks by words and citation: one quotation may be compared with several numbers."""
    by_quote: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        by_quote.setdefault((check.words, check.citation), []).append(check)
    return by_quote


def text_checks() -> list[Check]:
    """Text and summaries against the tables, then against each other."""
    against_tables = [check for quote in papers.QUOTES if quote.quantity in CHECKERS for check in _run(quote)]
    return [*against_tables, *quote_pairs(), _peaks()]


def _run(quote: Quote) -> Iterator[Check]:
    return CHECKERS[quote.quantity](quote)


def _peaks() -> Check:
    """Accuracy + ↓ is the peak layer's accuracy and cannot exceed 100 %."""
    cells = [*TABLE_1.values(), *TABLE_2.values()]
    highest = max(cells, key=lambda cell: cell.accuracy + cell.drop)
    peak = highest.accuracy + highest.drop
    text = f"largest {peak:.1f} ({_block(highest.task)}, {_at(highest)})"
    words = "(↓ x) is the accuracy difference between the probe trained on the last layer and on the peak layer"
    captions = f"{papers.FLOW}, captions of Tables 1 and 2"
    return Check(words, captions, "accuracy + ↓ ≤ 100", text, peak <= 100 + UNITS["drop"], "peak")


def quote_pairs() -> list[Check]:
    """Quotes of the same thing against each other: intervals `AROUND` points or more apart cannot both be right."""
    checks: dict[tuple[str, str, str], Check] = {}
    for a, b in itertools.combinations(papers.QUOTES, 2):
        same = a.quantity == b.quantity and a.init == b.init and a.quantity in ("layer_cosine", "token_similarity")
        if not same or a.place == b.place or not _same_subject(a, b) or not _same_layers(a, b):
            continue
        spans = [_hull(a, b), _hull(b, a)]
        gap = max(spans[0][0] - spans[1][1], spans[1][0] - spans[0][1], 0.0)
        subject = a.subject if b.subject in CHECKPOINTS else b.subject
        text = f"{subject}: {_percent(spans[0])} there, {_percent(spans[1])} here, {gap:.0f} points apart"
        check = _check(b, f"{a.citation}: “{a.words}”", text, gap < AROUND)
        checks[check.words, check.citation, check.against] = check  # one for the family, not one for each model of it
    return list(checks.values())


def _percent(span: tuple[float, float]) -> str:
    return f"{span[0]:.0f} %" if span[0] == span[1] else f"{span[0]:.0f}–{span[1]:.0f} %"


def _family(subject: str) -> str:
    return CHECKPOINTS[subject].family if subject in CHECKPOINTS else subject


def _same_subject(a: Quote, b: Quote) -> bool:
    models = a.subject in CHECKPOINTS and b.subject in CHECKPOINTS
    return a.subject == b.subject if models else _family(a.subject) == _family(b.subject)


def _hull(quote: Quote, other: Quote) -> tuple[float, float]:
    """Interval of a quote; of all models of its family, where the other one speaks of the family."""
    alike = [quote]
    if quote.subject in CHECKPOINTS and other.subject not in CHECKPOINTS:
        alike = [
            q
            for q in papers.QUOTES
            if (q.place, q.quantity, q.init) == (quote.place, quote.quantity, quote.init)
            and _family(q.subject) == _family(quote.subject)
            and (q.layers is None) == (quote.layers is None)
        ]
    return min(q.low for q in alike if q.low is not None), max(q.high for q in alike if q.high is not None)


def _same_layers(a: Quote, b: Quote) -> bool:
    if a.layers is None or b.layers is None:
        return a.layers is b.layers
    (first_a, last_a), (first_b, last_b) = _span(a), _span(b)
    return first_a <= last_b and first_b <= last_a


def _span(quote: Quote) -> tuple[float, float]:
    """Layers of a quote as shares of the depth; -1 is the last."""
    assert quote.layers is not None
    if quote.layers[0] < 0:
        return 1.0, 1.0
    depth = papers.layers_of(quote.subject)
    return quote.layers[0] / depth, quote.layers[1] / depth
