"""flow-check: do paper 1's tables, text and summaries agree? Computed from the printed values alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from repflow.papers.values import FLOW, QUANTITIES, QUOTES, TABLE_1, TABLE_2, UNITS
from repflow.studies.reproduce.claims import TINY, by_quotation, text_checks
from repflow.studies.reproduce.recipe import FLOW_TAKEN, Recipe, ReproduceCell, ReproducePlan, Said

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.studies.engine.cells import Outcome
    from repflow.studies.reproduce.config import ReproduceConfig
    from repflow.studies.reproduce.models import StandIn


@dataclass(frozen=True)
class Recomputed:
    """One number of Table 1 beside the mean of the two in Table 2.

    Attributes:
        model: row.
        length: column.
        quantity: which of the four numbers.
        printed: Table 1's.
        mean: (mdqa + kvpr) / 2 of Table 2.
        gap: printed - mean.
        agrees: rounding of all three can explain the gap, |gap| ≤ one unit of the last place.
        weight: weight w of kvpr with printed = (1 - w) mdqa + w kvpr, None where both tasks have one value.
        outside: it lies farther than rounding outside both tasks' values, so that no weighted mean gives it.
    """

    model: str
    length: int
    quantity: str
    printed: float
    mean: float
    gap: float
    agrees: bool
    weight: float | None
    outside: bool


def recompute_table_1() -> list[Recomputed]:
    """Table 1 from Table 2.

    >>> rows = [row for row in recompute_table_1() if (row.model, row.length) == ("Pythia-2.8B", 2000)]
    >>> row = rows[0]
    >>> row.quantity, row.printed, round(row.mean, 2), row.agrees
    ('accuracy', 60.9, 68.95, False)
    """
    rows = []
    for (model, length), cell in TABLE_1.items():
        for quantity in QUANTITIES:
            mdqa, kvpr = (TABLE_2[task, model, length].value(quantity) for task in ("mdqa", "kvpr"))
            printed, mean = cell.value(quantity), (mdqa + kvpr) / 2
            # each printed number is off by half a unit at most: so is their mean, and so is Table 1's
            agrees = abs(printed - mean) <= UNITS[quantity] + TINY
            weight = None if math.isclose(mdqa, kvpr) else (printed - mdqa) / (kvpr - mdqa)
            outside = max(printed - max(mdqa, kvpr), min(mdqa, kvpr) - printed) > UNITS[quantity] + TINY
            rows.append(Recomputed(model, length, quantity, printed, mean, printed - mean, agrees, weight, outside))
    return rows


def run() -> Result:
    """All of it as a Result: arrays over the cells of Table 1, the checks under `provenance`, a finding per fault."""
    import numpy as np

    from repflow.core.results import Finding, Result

    rows, checks = recompute_table_1(), text_checks()
    arrays = {
        "printed": np.array([row.printed for row in rows]),
        "recomputed": np.array([row.mean for row in rows]),
        "gap": np.array([row.gap for row in rows]),
        "weight": np.array([math.nan if row.weight is None else row.weight for row in rows]),
    }
    differ = sum(not row.agrees for row in rows)
    message = f"Table 1 is not the mean of Table 2 within rounding in {differ} of {len(rows)} numbers"
    findings = [Finding("table_1", None, message)] if differ else []
    findings += [
        Finding(check.code, None, f"{check.citation}: “{check.words}”; {check.against}: {check.found}")
        for check in checks
        if not check.holds
    ]
    quoted = by_quotation(checks)
    fails = sum(not all(check.holds for check in checks_of) for checks_of in quoted.values())
    provenance = {
        "rows": [asdict(row) for row in rows],
        "checks": [asdict(check) for check in checks],
        "quotations": {"all": len(quoted), "not_borne_out": fails},
    }
    config = {"study": "reproduce", "recipe": "flow-check"}
    return Result(arrays, dict.fromkeys(arrays, ("row",)), config, provenance, findings)


class Agreement(Recipe):
    """The paper against itself."""

    name = "flow-check"
    takes = FLOW_TAKEN
    stored_as = ""
    work = "1 comparison of printed values, below a second; no model"

    def cells(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> tuple[ReproduceCell, ...]:
        """None: nothing is measured."""
        return ()

    def printed(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> list[Said]:
        """Table 1 and what text and summaries say in numbers."""
        return [Said("Table 1", f"{FLOW}, Table 1"), *(Said(quote.words, quote.citation) for quote in QUOTES)]

    def compare(self, plan: ReproducePlan, outcomes: Sequence[Outcome]) -> Result:
        """Table 1 from Table 2, and every statement against the tables."""
        return run()


RECIPES = {"flow-check": Agreement()}
