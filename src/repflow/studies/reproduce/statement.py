"""Recipes of statements: what a paper says or prints, each line beside what was measured, and whether it holds."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from repflow.core.intervals import LEAST_VALUES, NO_INTERVAL, student_quantile
from repflow.core.verdict import TAIL, Part, decide
from repflow.studies.reproduce.models import stand_in_labels
from repflow.studies.reproduce.recipe import Recipe, ReproducePlan

if TYPE_CHECKING:
    import numpy as np

    from repflow.core.results import Result
    from repflow.studies.engine.cells import Outcome
    from repflow.studies.reproduce.config import ReproduceConfig
    from repflow.studies.reproduce.models import StandIn

Results = Mapping[Any, "Result"]
"""Results of finished cells by their key."""


@dataclass(frozen=True)
class Ours:
    """Our value for a printed one.

    Attributes:
        value: the value, NaN where a run is missing.
        error: its standard error over prompts or trainings, NaN where there is none.
        freedom: degrees of freedom of the error.
    """

    value: float
    error: float = math.nan
    freedom: float | int = math.inf

    @classmethod
    def mean(cls, values: Sequence[float]) -> Ours:
        """Mean of independent values, such as one per training, with its standard error from three on.

        >>> Ours.mean([0.5, 0.7, 0.6]).value, Ours.mean([0.5]).error
        (0.6, nan)
        """
        known = [float(value) for value in values if math.isfinite(value)]
        if not known:
            return cls(math.nan)
        mean = math.fsum(known) / len(known)
        if len(known) < LEAST_VALUES:
            return cls(mean)
        spread = math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)
        return cls(mean, math.sqrt(spread / len(known)), len(known) - 1)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval; NaN where there is none."""
        half = float(student_quantile(self.freedom)) * self.error
        return self.value - half, self.value + half

    def within(self, low: float, high: float) -> tuple[bool | None, float]:
        """Whether it is shown to lie from `low` to `high`, shown not to, or neither; and the error of saying so.

        >>> [Ours(value, 1.0, 20).within(0.0, 10.0)[0] for value in (5.0, 15.0, 9.5)]
        [True, False, None]
        """
        from scipy.special import stdtr

        if not math.isfinite(self.value) or math.isnan(self.error):
            return None, 1.0
        margin = min(self.value - low, high - self.value)
        tail = float(margin == 0) / 2 if self.error == 0 else float(stdtr(self.freedom, -abs(margin) / self.error))
        return (margin > 0, tail) if tail <= TAIL else (None, tail)


@dataclass(frozen=True)
class Reading:
    """What was measured for a statement.

    Attributes:
        text: in words and numbers.
        holds: whether it bears the statement out; None where it does not decide.
        tail: one-sided error of saying so, as in `repflow.core.verdict.Part`.
    """

    text: str
    holds: bool | None
    tail: float = TAIL


@dataclass(frozen=True)
class Statement:
    """One thing that a paper says or prints.

    Attributes:
        what: what it is of; names of models in it are followed by what ran for them.
        stated: its words or number.
        source: where: section, figure, table and cell.
        needs: keys of the cells that it is read from; it is left out where one is missing.
        read: what their results, in this order, give for it.
        trained: it is a statement on trained models, which a random one does not decide.
    """

    what: str
    stated: str
    source: str
    needs: tuple[Any, ...]
    read: Callable[..., Reading]
    trained: bool = True

    @classmethod
    def number(
        cls,
        what: str,
        printed: float,
        source: str,
        needs: Sequence[Any],
        reader: Callable[..., Ours],
        *,
        tolerance: float,
        digits: int = 3,
    ) -> Statement:
        """A printed number, with the distance up to which ours counts as the same.

        >>> one = Statement.number("mamba", 0.5, "Table 2", ["a"], lambda _: Ours(0.51, 0.001, 9), tolerance=0.05)
        >>> one.stated, one.read(None).text, one.read(None).holds
        ('0.500 ± 0.05', '0.510 [0.508, 0.512]', True)
        """
        from repflow.core.intervals import bracketed

        def judged(*results: Result) -> Reading:
            ours = reader(*results)
            text = f"{ours.value:.{digits}f}{bracketed(*ours.interval, f'.{digits}f')}"
            return Reading(text, *ours.within(printed - tolerance, printed + tolerance))

        return cls(what, f"{printed:.{digits}f} ± {tolerance:g}", source, tuple(needs), judged)


@dataclass(frozen=True)
class Line:
    """One statement beside what was measured, as it is stored.

    Attributes:
        what: what it is of.
        stated: the paper's words or number, with their place.
        ours: what was measured, in words and numbers.
        holds: whether it bears the statement out; None where it does not decide.
        trained: it is a statement on trained models.
    """

    what: str
    stated: str
    ours: str
    holds: bool | None
    trained: bool = True


def _undecided(*results: Result, read: Callable[..., Reading]) -> Reading:
    return Reading(f"{read(*results).text}; a few steps decide nothing", None)


class StatementRecipe(Recipe):
    """A recipe whose cells have one key each, and whose printed values are statements.

    Attributes:
        drawn: arrays of a cell's Result that the comparison keeps, as KEY/NAME; those of a twin too.
    """

    drawn: tuple[str, ...] = ()

    @abstractmethod
    def statements(self, roles: Sequence[str], *, random: bool = False) -> Sequence[Statement]:
        """What the paper says.

        Args:
            roles: models that are run.
            random: models without training stand for the paper's.
        """

    def facts(self, results: Results) -> dict[str, Any]:
        """What else the comparison keeps under `provenance`; `results` has one cell at least."""
        return {}

    def arrays(self, results: Results) -> dict[str, tuple[np.ndarray, tuple[str, ...]]]:
        """Arrays and axes that the comparison keeps."""
        return {
            f"{key}/{name}": (result[name], result.axes[name])
            for key, result in results.items()
            for name in result
            if name.removeprefix("twin/") in self.drawn
        }

    def printed(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> Sequence[Statement]:
        """The statements; a try of a few steps decides none."""
        said = self.statements(list(models), random=any(not model.trained for model in models.values()))
        return [replace(one, read=partial(_undecided, read=one.read)) for one in said] if config.try_steps else said

    def lines(self, results: Results, *, random: bool = False) -> list[Line]:
        """Every statement whose cells are there, judged by itself."""
        return [line for line, _ in judged_lines(self.statements(list(results), random=random), results)]

    def compare(self, plan: ReproducePlan, outcomes: Sequence[Outcome]) -> Result:
        """Arrays that are drawn, and the statements beside ours under `provenance["lines"]`."""
        from repflow.core.results import Result

        results = {outcome.cell.key: outcome.result for outcome in outcomes if outcome.result is not None}  # type: ignore[attr-defined]
        by_role = {outcome.cell.role: outcome.result for outcome in outcomes if outcome.result is not None}  # type: ignore[attr-defined]
        labels = stand_in_labels(plan.config, self.roles, plan.models, by_role)
        prompts = getattr(plan.cells[0].config, "samples", None)
        judged = [settled(*pair, plan, prompts) for pair in judged_lines(plan.printed, results)]
        verdict = decide([Part(line.what, line.holds, tail) for line, tail in judged])
        entries = self.arrays(results)
        facts = {
            "lines": [asdict(line) | {"of": named(line.what, labels)} for line, _ in judged],
            "verdict": {"word": verdict.word, "held": verdict.held, "failed": verdict.failed, "parts": verdict.parts},
            "stand_ins": labels,
            "models": {role: model.spec for role, model in plan.models.items()},
            "runs": {str(cell.key): f"{plan.folder.name}/{cell.name}" for cell in plan.cells},
            **(self.facts(results) if results else {}),
        }
        whole = Result(
            {key: array for key, (array, _) in entries.items()}, {key: axes for key, (_, axes) in entries.items()}
        )
        whole.provenance = facts
        whole.bands = {
            f"{key}/{name}": band for key, result in results.items() for name, band in result.bands.items()
            if f"{key}/{name}" in entries
        }  # fmt: skip
        return whole


def judged_lines(statements: Sequence[Any], results: Results) -> list[tuple[Line, float]]:
    """Statements whose cells are all there, with what these give and the error of saying so."""
    lines = []
    for statement in statements:
        if all(key in results for key in statement.needs):
            reading = statement.read(*(results[key] for key in statement.needs))
            stated = f"{statement.stated} ({statement.source})"
            lines.append((Line(statement.what, stated, reading.text, reading.holds, statement.trained), reading.tail))
    return lines


def settled(line: Line, tail: float, plan: ReproducePlan, prompts: int | None) -> tuple[Line, float]:
    """A line as it may be said: random models leave statements on trained ones open, too few prompts leave all so."""
    if plan.random and line.trained:
        return replace(line, holds=None, ours=f"{line.ours}; random weights decide nothing on training"), 1.0
    if prompts is not None and prompts < LEAST_VALUES and line.holds is not None:
        return replace(line, holds=None, ours=f"{line.ours}; {NO_INTERVAL}"), 1.0
    return line, tail


def named(what: str, labels: Mapping[str, str]) -> str:
    """What a line is of, with what ran for the paper's models.

    >>> named("Mamba-130M, bound", {"Mamba-130M": "Mamba-130M → zoo:mamba, 4.7M"})
    'Mamba-130M → zoo:mamba, 4.7M: bound'
    """
    if not labels:
        return what
    names = re.compile(f"({'|'.join(map(re.escape, labels))})(, )?")
    return names.sub(lambda match: labels[match[1]] + (": " if match[2] else ""), what)


def above(a: tuple[Any, Any], b: tuple[Any, Any]) -> bool | None:
    """Whether one interval lies above another; None where they meet, or where there is none.

    >>> above((0.2, 0.4), (0.0, 0.0)), above((-0.1, 0.4), (0.0, 0.0)), above((-0.3, -0.1), (0.0, 0.0))
    (True, None, False)
    """
    return True if a[0] > b[1] else False if a[1] < b[0] else None
