"""What every figure over depth of these sections shares: the strip of layer kinds of hybrids, and its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repflow.report.draw.curve import joined
from repflow.report.page.depth import kind_keys, strip_note, strips
from repflow.report.page.labels import page_models
from repflow.report.page.model import Figure, Variant
from repflow.report.page.runs import StoredRun


def depth_variant(
    runs: Sequence[StoredRun],
    when: Mapping[str, str],
    traces: Sequence[Mapping[str, Any]],
    layout: Mapping[str, Any],
    table: tuple[Sequence[str], Sequence[Sequence[Any]]],
    *notes: str,
) -> Variant:
    """A variant over depth, with a strip for each hybrid among the runs.

    Args:
        runs: that are drawn.
        when: controls.
        traces: of Plotly.
        layout: without the strips.
        table: columns and rows of the CSV.
        notes: sentences, empty ones left out.
    """
    models = page_models([(run.label, run.facts) for run in runs])
    whole = {**layout, **strips(models)}
    if "shapes" in layout and "shapes" in whole:
        whole["shapes"] = [*layout["shapes"], *strips(models).get("shapes", [])]
    return Variant(when, [*traces, *kind_keys(models)], whole, *table, joined(*notes, strip_note(models)))


def depth_figure(
    id: str, title: str, caption: str, alt: str, variants: Sequence[Variant], *, log: bool = False
) -> list[Figure]:
    """A figure over depth; none where there is nothing to draw."""
    if not variants:
        return []
    return [Figure(id, title, caption, alt, variants, depth_axis=True, log_axis=log)]
