"""Theorems 5 and 6 against paper 1's own Table 1: a Transformer should have the larger St, pair by pair."""

from __future__ import annotations

from repflow.core.verdict import DOES_NOT, HOLDS, PARTLY
from repflow.papers import values as papers
from repflow.theory.check import Check, Session


def data_checks(_: Session | None = None) -> list[Check]:
    """Every Transformer with every state-space model, over the lengths that both have.

    The ratio is that of printed St, Transformer over state-space model, averaged over lengths; theory says above 1.
    """
    checks = []
    families = {name: entry.family for name, entry in papers.CHECKPOINTS.items()}
    for transformer in (name for name, family in families.items() if family == "TBM"):
        for other in (name for name, family in families.items() if family == "SSM"):
            ratios, pairs = [], []
            for length in papers.LENGTHS:
                cells = [papers.TABLE_1.get((name, length)) for name in (transformer, other)]
                if cells[0] is not None and cells[1] is not None:
                    ratios.append(cells[0].stability / cells[1].stability)
                    pairs.append(f"{cells[0].stability:.1f} against {cells[1].stability:.1f}")
            agree = sum(ratio > 1 for ratio in ratios)
            word = HOLDS if agree == len(ratios) else DOES_NOT if not agree else PARTLY
            verdict = f"{word}: {agree} of {len(ratios)} lengths, St {pairs[0]}"
            mean = sum(ratios) / len(ratios)
            setting = f"{transformer} over {other}"
            passes = agree == len(ratios)
            checks.append(Check(1, "Theorems 5, 6", setting, "data", None, None, mean, 0.0, passes, verdict))
    return checks


CHECKS = {"table-1": data_checks}
"""The part that `theory verify` calls table-1."""
