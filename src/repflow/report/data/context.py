"""What every section builder gets beside the runs: the page's models, and whether unlike runs may be drawn together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from repflow.report.data.model import PageModel
from repflow.report.data.runs import SUMMARY, StoredRun


@dataclass(frozen=True)
class Context:
    """The page around a section.

    Attributes:
        models: of the page.
        allow_mixed: draw together what differs in prompts, number format or kind of state.
        warnings: what is missing, damaged or not comparable.
        papers: compare the runs with what the papers claim and print: the demo, reproductions, and where it is asked.
    """

    models: Sequence[PageModel]
    allow_mixed: bool = False
    warnings: Sequence[str] = ()
    papers: bool = False

    def of(self, runs: Iterable[StoredRun]) -> list[PageModel]:
        """Models of some runs, in the order of the page."""
        labels = {run.label for run in runs}
        return [model for model in self.models if model.label in labels]


def measured_runs(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Runs of `repflow measure` to draw by depth: no random twins; cells of twins for models without other runs."""
    measured = [run for run in runs if run.study == "measure" and not is_twin(run, runs)]
    own = [run for run in measured if run.cell_of != SUMMARY]
    have = {run.label for run in own}
    return own + [run for run in measured if run.cell_of == SUMMARY and run.trained and run.label not in have]


def is_twin(run: StoredRun, runs: Sequence[StoredRun]) -> bool:
    """Whether a run is of random weights and belongs beside another model: in Figure 3, with no colour of its own.

    So are cells of `repflow twins`, and random weights of an architecture of which the page has trained ones.
    """
    if run.facts.get("init", "trained") == "trained" or run.facts.get("ablate"):
        return False
    spec = run.facts.get("spec")
    return run.cell_of == SUMMARY or any(other.trained and other.facts.get("spec") == spec for other in runs)
