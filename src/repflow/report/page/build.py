"""From run folders to the page's data: read, compare, and let every section take what it can draw.

Never imports torch. What is missing, damaged or not comparable is named in `Page.warnings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.report.data.comparable import comparison_warnings
from repflow.report.data.context import Context, is_twin, measured_runs
from repflow.report.data.labels import page_models, sides
from repflow.report.data.model import Figure, Page, PageModel, Section
from repflow.report.data.probed import probed_label
from repflow.report.data.runs import StoredRun, read_runs
from repflow.report.data.summary import summaries
from repflow.report.draw.description import described
from repflow.report.page import overview
from repflow.report.sections import sections_of

MOST_NAMED = 3
"""Models that the title names; more are counted."""


def build_page(
    paths: Sequence[Path | str], *, title: str | None = None, allow_mixed: bool = False, papers: bool = False
) -> Page:
    """Read runs and make the data of a page.

    Args:
        paths: run folders, folders of studies, or folders of both.
        title: heading; by default the models.
        allow_mixed: draw in one chart what differs in prompts, number format or kind of state; it is named either way.
        papers: compare the runs with what the papers claim; reproductions of them always are.

    Returns:
        Page: for `repflow.report.page.render.render`.

    Raises:
        InputError: None of the paths holds a run that can be read.
    """
    if not paths:
        raise InputError(teach("at least one run folder", "none", "see `repflow list` for the runs of a folder"))
    runs, warnings = read_runs(paths)
    if not runs:
        got = "; ".join(warnings) or f"nothing in {', '.join(map(str, paths))}"
        raise InputError(teach("a finished run to report on", got, "see `repflow list` for the runs of a folder"))
    with np.errstate(invalid="ignore"):  # what is not finite is named on the page
        return page_of(runs, warnings, title=title, allow_mixed=allow_mixed, papers=papers)


def page_of(
    runs: Sequence[StoredRun],
    warnings: Sequence[str] = (),
    *,
    title: str | None = None,
    allow_mixed: bool = False,
    papers: bool = False,
) -> Page:
    """The page of runs that were read."""
    models = models_of_page(runs)
    measured = measured_runs(runs)
    probed = [run for run in runs if run.study == "probe"]
    sentences = [*warnings]
    labels = dict.fromkeys(probed_label(run) for run in probed)  # what is probed for has a menu of its own
    for mine in (measured, *([run for run in probed if probed_label(run) == label] for label in labels)):
        sentences += comparison_warnings(mine, allow_mixed=allow_mixed)
    sentences = list(dict.fromkeys(sentences))
    reproduced = any("recipe" in run.result.config for run in runs)
    context = Context(models, allow_mixed, sentences, papers or reproduced)
    sections = [_described(section) for section in sections_of(runs, context)]
    entries = summaries(runs, context)
    first_sentence = overview.sentence(entries, runs, sections)
    return Page(
        title or _title(models),
        first_sentence,
        models,
        sentences,
        sections,
        overview.headline(sections),
        overview.cards(entries, sections),
    )


def _described(section: Section) -> Section:
    """The section with every figure in words."""
    return replace(
        section, blocks=[described(block) if isinstance(block, Figure) else block for block in section.blocks]
    )


def models_of_page(runs: Sequence[StoredRun]) -> list[PageModel]:
    """Models with a colour of their own: all but random twins, which stand beside the model they belong to."""
    labelled = []
    for run in runs:
        if is_twin(run, runs):
            continue
        labelled += list(zip((run.label, run.other), sides(run.result), strict=False))
    return page_models(labelled)


def _title(models: Sequence[PageModel]) -> str:
    names = [model.label for model in models]
    if not names:
        return "Representation flow"
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"Representation flow: {', '.join(names[:MOST_NAMED])}{more}"
