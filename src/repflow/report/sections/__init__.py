"""Sections of the page: a module each, and one row each in the table below, in the order of the page.

A section's module has `section(runs, context)`, which takes from all runs of the page what it can draw and gives
`Content`, or None where no run concerns it. Modules are imported when a page is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from repflow.report.data.context import Context
from repflow.report.data.model import Content, Section
from repflow.report.data.runs import StoredRun


@dataclass(frozen=True)
class Row:
    """A section of the page.

    Attributes:
        id: its anchor on the page.
        title: its heading, and its entry in the navigation.
        module: what builds it, in this package, or by its full name.
        studies: families of studies of which `Result.plot()` shows the section's first figure: a study's name up to
            its first dash.
    """

    id: str
    title: str
    module: str
    studies: tuple[str, ...] = ()

    def content(self, runs: Sequence[StoredRun], context: Context) -> Content | None:
        """What the section shows of some runs, None for nothing."""
        name = self.module if "." in self.module else f"{__name__}.{self.module}"
        content: Content | None = importlib.import_module(name).section(runs, context)
        return content


SECTIONS = (
    Row("prompts", "Token by token", "prompts"),
    Row(
        "recency",
        "How far back a token reaches",
        "recency",
        ("recency", "needle", "memory", "hidden_attention"),
    ),
    Row(
        "corruption",
        "What the answer depends on",
        "repflow.report.sections.images.corruption",
        ("corrupt", "attack"),
    ),
    Row("probes", "What can be read at each depth", "probe"),
    Row("flow", "How tokens change from layer to layer", "similarity"),
    Row("diagnosis", "Diagnosis", "diagnosis"),
    Row("twins", "Architecture or training", "twin"),
    Row("training", "Through training", "history", ("training",)),
    Row("recall", "What small models look up", "repflow.report.sections.laboratory.recall", ("recall",)),
    Row("pixels", "What classifiers of pixels depend on", "repflow.report.sections.laboratory.pixels", ("pixels",)),
    Row(
        "architecture",
        "What language models learn of a text",
        "repflow.report.sections.laboratory.architecture",
        ("architecture",),
    ),
    Row("classify", "What classifiers of texts learn", "repflow.report.sections.laboratory.classify", ("classify",)),
    Row("cka", "Layers against layers", "cka"),
    Row("scaling", "Smoothness, length and size", "scaling"),
    Row("theory", "Theory: printed, corrected, simulated", "theory", ("theory",)),
    Row("dynamics", "Token dynamics", "dynamics", ("dynamics",)),
    Row("verdict", "Model by model", "verdict"),
    Row("made", "How this was made", "made"),
    Row("findings", "What the paper found, and these models", "findings"),
    Row("tables", "The papers' tables beside ours", "tables"),
)


def sections_of(runs: Sequence[StoredRun], context: Context) -> list[Section]:
    """All sections that have something to show, in the order of the table."""
    contents = ((row, row.content(runs, context)) for row in SECTIONS)
    return [
        Section(row.id, row.title, content.lead, content.blocks, content.shown, content.reading, content.facts)
        for row, content in contents
        if content is not None
    ]


def section_of(study: str) -> Row | None:
    """The section that draws a study's results, found by the study's name; None where a metric is drawn by itself.

    >>> section_of("theory-apply").id, section_of("measure")
    ('theory', None)
    """
    family = study.split("-")[0]
    return next((row for row in SECTIONS if family in row.studies), None)
