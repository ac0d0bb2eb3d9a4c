"""Reproduce: paper 1's figures and tables, ours beside the printed values, and which kind of state lies nearest them.

Each model, task, length, init and kind of state is a run of its own in `OUT/flow-SCALE`, shared between recipes and
resumed when it was cut; the comparison is the run `OUT/NAME`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.studies.engine.loading import identity
from repflow.studies.engine.naming import Names
from repflow.studies.engine.opening import keep_result
from repflow.studies.engine.study import BaseStudy
from repflow.studies.reproduce import agreement
from repflow.studies.reproduce.config import ReproduceConfig
from repflow.studies.reproduce.flow import CHECK, recipe
from repflow.studies.reproduce.models import make_tiny
from repflow.studies.reproduce.plan import HASH_DIGITS, made_here, plan
from repflow.version import __version__

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.studies.reproduce.cells import Label

__all__ = ["STUDY", "ReproduceConfig", "plan", "run", "run_name"]


def run_name(config: ReproduceConfig) -> str:
    """Name of the run that holds the comparison: recipe, scale and a hash of the request."""
    tag = hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()[:HASH_DIGITS]
    return f"{config.recipe}-{config.scale}-{tag}"


def run(
    config: ReproduceConfig,
    *,
    out: str | Path,
    name: str | None = None,
    progress: Progress | None = None,
    label: Label | None = None,
) -> Result:
    """Run what is missing of a recipe, compare and store.

    Args:
        config: what to reproduce.
        out: folder of runs.
        name: name of the run that holds the comparison.
        progress: called after each batch of any cell.
        label: gives the callback for a cell from its number, the number of cells, and the cell; instead of `progress`.

    Returns:
        Result: ours (row, kind), printed (row) and scores, with rows, cells and verdicts under `provenance`. It is
        stored once every cell is finished; `provenance["cells"]` says which are not, and why.
    """
    if config.recipe == CHECK:
        return _store(agreement.run(), config, {"repflow": __version__}, out, name)
    from repflow.capture.provenance import machine
    from repflow.studies.reproduce.cells import run_cells
    from repflow.studies.reproduce.result import make_result

    made = plan(config, out)
    if made_here(config):
        make_tiny(made.folder / "models", list(made.models))
    outcomes = list(run_cells(made, label or (None if progress is None else lambda *_: progress)))
    result = make_result(made, outcomes)
    result.config = identity(config)
    finished = [outcome.result for outcome in outcomes if outcome.result is not None]
    if len(finished) < len(outcomes):
        return result
    return _store(result, config, machine(str(finished[0].provenance["device"])), out, name)


def _store(
    result: Result, config: ReproduceConfig, provenance: dict[str, Any], out: str | Path, name: str | None
) -> Result:
    result.config = identity(config)
    return keep_result(result, out, name or run_name(config), provenance)


class Reproduce(BaseStudy[ReproduceConfig]):
    """Figures and tables of the papers, ours beside what is printed. Made of other studies' runs."""

    name = "reproduce"
    config = ReproduceConfig
    named = False
    one_model = False

    def check(self, config: ReproduceConfig) -> None:
        """Refuse what no recipe is."""
        recipe(config.recipe)

    def run(
        self,
        config: ReproduceConfig,
        *,
        models: Mapping[str, Model] | None = None,
        given: Any = None,
        out: str | Path | None = None,
        name: str | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Run what is missing of a recipe, compare and store."""
        return run(config, out="runs" if out is None else out, name=name, progress=progress)

    def names(self, config: ReproduceConfig) -> Names:
        """Recipe, scale and a hash of the request."""
        name = run_name(config)
        return Names(name, name, name)


STUDY = Reproduce()
