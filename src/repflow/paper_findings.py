"""Paper 1's eight numbered findings, and what measured models say to each. No torch.

A finding is cut into parts that a number can settle. Each part is asked of every training by itself, on the models of
the same seed and number of steps:

| verdict | when |
|---|---|
| agrees | every part was settled and holds in every training, and they are of at least two seeds |
| differs | every part could be settled, and none holds in any training |
| mixed | anything between; also where all holds on the one seed that was measured, or one training could not be asked |
| not measurable | the runs do not have what it needs, or too few prompts to settle any part |

The thresholds are `repflow.paper_parts`; the paper gives none, so they are ours, taken from the numbers of its text
before our models were measured. Hybrids are not judged: the findings do not speak of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from repflow import paper_parts as parts
from repflow import paper_probe_parts as probe_parts
from repflow.paper_parts import Clause, Group
from repflow.paper_reading import SSM, TBM, Reading, Training, known_readings, merge, read_results
from repflow.papers import FLOW

__all__ = [
    "FINDINGS",
    "VERDICTS",
    "Clause",
    "Finding",
    "Judged",
    "Reading",
    "judge",
    "known_readings",
    "merge",
    "read_results",
]

AGREES, MIXED, DIFFERS, NONE = VERDICTS = ("agrees", "mixed", "differs", "not measurable")
TASKS = ("kvpr", "mdqa", "text")
"""Tasks to judge on where models share several: the paper's first."""
LEAST_SEEDS = 2
NOT_KNOWN = "training not known"


@dataclass(frozen=True)
class Finding:
    """A numbered finding.

    Attributes:
        code: as the paper numbers it.
        words: as printed.
        ask: its parts, for the models of one training; always as many, in the same order.
    """

    code: str
    words: str
    ask: Callable[[Group], list[Clause]]

    @property
    def place(self) -> str:
        """Where it is printed.

        >>> FINDINGS[0].place
        'arXiv 2510.06640, section 3.2.1'
        """
        return f"{FLOW}, section {self.code.removeprefix('F ')}"


FINDINGS: tuple[Finding, ...] = (
    Finding(
        "F 3.2.1",
        "TBMs exhibit stable token evolution until a sharp final-layer shift, contrasting with SSMs’ varied directions "
        "that are converged in later layers.",
        parts.token_evolution,
    ),
    Finding(
        "F 3.2.2",
        "TBMs collapse token distinctions early and recover diversity late, while SSMs maintain the uniqueness longer.",
        parts.token_uniqueness,
    ),
    Finding(
        "F 3.2.3",
        "Oversmoothing in TBMs is an intrinsic architectural, while in SSMs it is primarily a consequence of training "
        "or optimization process.",
        parts.random_weights,
    ),
    Finding(
        "F 3.3.1",
        "TBMs maintain coherent feature manifolds early while SSMs gradually refine global structure towards "
        "late-layer stabilization.",
        parts.manifolds,
    ),
    Finding(
        "F 3.3.2",
        "Smoothness and stability of representation evolution depend on model-specific factors like scale and "
        "parameterization rather than architecture type.",
        parts.smoothness,
    ),
    Finding(
        "F 3.4.1",
        "Task-relevant representations peak in intermediate layers for both architectures, with SSMs having a smaller "
        "gap to the last layer than TBMs.",
        probe_parts.intermediate_peak,
    ),
    Finding(
        "F 3.4.2",
        "Despite stable representation evolution across varied context lengths, probing accuracy decreases as context "
        "length increases, indicating capacity limitations rather than representation instability.",
        probe_parts.context_length,
    ),
    Finding(
        "F 3.4.3",
        "While larger model size generally improves task performance, final-layer representations tend to become more "
        "abstract, which might reduce accessibility to certain fine-grained intermediate features.",
        probe_parts.model_size,
    ),
)


@dataclass(frozen=True)
class Part:
    """A part of a finding with what every training says to it.

    Attributes:
        clauses: one of each training.
    """

    clauses: tuple[Clause, ...]

    @property
    def text(self) -> str:
        """What was asked, in the words of the first training that could be asked."""
        return next((clause for clause in self.clauses if clause.holds is not None), self.clauses[0]).text

    @property
    def answers(self) -> list[bool]:
        """Of the trainings that could be asked."""
        return [clause.holds for clause in self.clauses if clause.holds is not None]

    @property
    def seeds(self) -> set[int]:
        """Training seeds that could be asked; models of which none is known do not count."""
        asked = (clause.training.seed for clause in self.clauses if clause.holds is not None)
        return {seed for seed in asked if seed is not None}

    @property
    def holds(self) -> bool:
        """Whether it holds in every training that could be asked."""
        return bool(self.answers) and all(self.answers)


@dataclass(frozen=True)
class Judged:
    """What our models say to a finding.

    Attributes:
        finding: the paper's.
        verdict: one of `VERDICTS`.
        reason: why, in a sentence.
        ours: our numbers, of the first training that could be asked.
        clauses: every part in every training.
        trainings: those that could be asked.
    """

    finding: Finding
    verdict: str
    reason: str
    ours: str
    clauses: tuple[Clause, ...]
    trainings: tuple[Training, ...]

    @cached_property
    def parts(self) -> list[Part]:
        """Each part with its answers."""
        return parts_of(self.clauses)

    @property
    def where(self) -> str:
        """In which trainings a part has to hold."""
        return _where([part for part in self.parts if part.answers])

    @property
    def code(self) -> str:
        """Number of the finding."""
        return self.finding.code

    @property
    def words(self) -> str:
        """The paper's sentence."""
        return self.finding.words

    @property
    def place(self) -> str:
        """Where it is printed."""
        return self.finding.place


def judge(readings: Sequence[Reading], *, place: str | None = None) -> list[Judged]:
    """Hold models against the eight findings, in the paper's order.

    Args:
        readings: models, of one or more trainings.
        place: "task/length" that curves are read at; by default one that all models have, of the paper's tasks where
            possible and the longest.
    """
    judged = [reading for reading in readings if reading.family in (TBM, SSM)]
    chosen = common_place(judged) if place is None else place
    groups = [
        Group(training, chosen, tuple(reading for reading in judged if reading.training == training))
        for training in dict.fromkeys(reading.training for reading in judged)
    ]
    return [_judged(finding, groups) for finding in FINDINGS]


def common_place(readings: Sequence[Reading]) -> str:
    """Task and length that all readings have a flow at; "" where there is none."""
    if not readings:
        return ""
    shared = set(readings[0].trained).intersection(*(reading.trained for reading in readings[1:]))

    def rank(place: str) -> tuple[int, int]:
        task, length = parts.split_place(place)
        return (TASKS.index(task) if task in TASKS else len(TASKS), -length)

    return min(shared, key=rank, default="")


def _judged(finding: Finding, groups: Sequence[Group]) -> Judged:
    clauses = tuple(clause for group in groups for clause in finding.ask(group))
    asked = [clause for clause in clauses if clause.holds is not None]
    trainings = tuple(dict.fromkeys(clause.training for clause in asked))
    verdict, reason = _verdict(parts_of(clauses))
    first = [clause for clause in asked if clause.training == trainings[0]] if trainings else []
    ours = "; ".join(dict.fromkeys(clause.found for clause in first))
    if ours and len(groups) > 1:
        ours = f"{str(trainings[0]) or NOT_KNOWN}: {ours}"
    return Judged(finding, verdict, reason, ours, clauses, trainings)


def parts_of(clauses: Sequence[Clause]) -> list[Part]:
    """The parts of a finding from its clauses, training by training: the first of each, the second of each, ...

    A part may be worded differently where it could not be asked, since its words name what was found.
    """
    rows = [[c for c in clauses if c.training == training] for training in dict.fromkeys(c.training for c in clauses)]
    return [Part(tuple(column)) for column in zip(*rows, strict=True)]


def _verdict(parts: Sequence[Part]) -> tuple[str, str]:
    """Verdict and reason; a part that no training could answer keeps a finding from agreeing."""
    if not any(part.answers for part in parts):
        why = dict.fromkeys(clause.found for part in parts for clause in part.clauses)
        return NONE, "; ".join(why) or "no Transformer and no state-space model among the runs"
    known, open_ = ([part for part in parts if bool(part.answers) == asked] for asked in (True, False))
    broken = [part for part in known if not part.holds]
    if len(parts) == sum(not any(part.answers) for part in known):
        return DIFFERS, f"no part holds {_where(known, 'any')}: {_texts(known)}"
    unasked = f"; not settled: {_texts(open_)}" if open_ else ""
    if broken:
        not_all = "; ".join(part.text + _sometimes(part) for part in broken)
        return MIXED, f"{len(known) - len(broken)} of {len(known)} parts hold {_where(known)}; not: {not_all}{unasked}"
    if open_:
        return MIXED, f"all that could be settled holds {_where(known)}{unasked}"
    if any(len(part.seeds) < LEAST_SEEDS for part in parts):
        return MIXED, "agrees on the one training seed measured; another may not"
    if some := [part for part in parts if len(part.answers) < len(part.clauses)]:
        left = "; ".join(f"{part.text} (asked in {len(part.answers)} of {len(part.clauses)})" for part in some)
        return MIXED, f"all that could be settled holds; not settled in every training: {left}"
    return AGREES, f"all {len(known)} parts hold {_where(known)}"


def _where(parts: Sequence[Part], quantity: str = "every") -> str:
    """In which trainings parts hold that were settled in one at least."""
    asked, trainings = {len(part.answers) for part in parts}, len(parts[0].clauses)
    if asked == {trainings}:
        return over_trainings(trainings, quantity)
    of = f" ({asked.pop()} of {trainings})" if len(asked) == 1 else ""
    return f"in {quantity} training that could be asked{of}"


def over_trainings(count: int, quantity: str) -> str:
    """Where it was asked.

    >>> over_trainings(1, "any"), over_trainings(3, "every")
    ('in the one training measured', 'in every one of 3 trainings')
    """
    return "in the one training measured" if count == 1 else f"in {quantity} one of {count} trainings"


def _sometimes(part: Part) -> str:
    """In how many trainings a part holds, where it holds in some."""
    held = sum(part.answers)
    return f" (holds in {held} of {len(part.answers)})" if held else ""


def _texts(parts: Sequence[Part]) -> str:
    return "; ".join(part.text for part in parts)
