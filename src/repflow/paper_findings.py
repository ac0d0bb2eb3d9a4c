"""Paper 1's eight numbered findings, and what measured models say to each. No torch.

A finding is cut into parts that a number can settle. Each part is asked of every training seed by itself, on the models
of that seed:

| verdict | when |
|---|---|
| agrees | every part holds in every training seed, and there are at least two of them |
| differs | every part could be settled, and none holds in any seed |
| mixed | anything between; also where all holds on the one seed that was measured |
| not measurable | the runs do not have what it needs, or too few prompts to settle any part |

The thresholds are `repflow.paper_parts`; the paper gives none, so they are ours, taken from the numbers of its text
before our models were measured. Hybrids are not judged: the findings do not speak of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repflow import paper_parts as parts
from repflow import paper_probe_parts as probe_parts
from repflow.paper_parts import Clause, Group
from repflow.paper_reading import SSM, TBM, Reading, known_readings, merge, read_results
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


@dataclass(frozen=True)
class Finding:
    """A numbered finding.

    Attributes:
        code: as the paper numbers it.
        words: as printed.
        ask: its parts, for the models of one training seed.
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
class Judged:
    """What our models say to a finding.

    Attributes:
        finding: the paper's.
        verdict: one of `VERDICTS`.
        reason: why, in a sentence.
        ours: our numbers, of the first seed.
        clauses: every part in every seed.
        seeds: training seeds that were asked.
    """

    finding: Finding
    verdict: str
    reason: str
    ours: str
    clauses: tuple[Clause, ...]
    seeds: tuple[int | None, ...]

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
        readings: models, of one or more training seeds.
        place: "task/length" that curves are read at; by default one that all models have, of the paper's tasks where
            possible and the longest.
    """
    judged = [reading for reading in readings if reading.family in (TBM, SSM)]
    chosen = common_place(judged) if place is None else place
    groups = [
        Group(seed, chosen, tuple(r for r in judged if r.seed == seed))
        for seed in sorted({reading.seed for reading in judged}, key=lambda seed: (seed is None, seed or 0))
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
    seeds = tuple(dict.fromkeys(clause.seed for clause in asked))
    verdict, reason = _verdict(clauses, seeds)
    first = [clause for clause in asked if clause.seed == seeds[0]] if seeds else []
    ours = "; ".join(dict.fromkeys(clause.found for clause in first))
    return Judged(finding, verdict, reason, ours, clauses, seeds)


def _verdict(clauses: Sequence[Clause], seeds: Sequence[int | None]) -> tuple[str, str]:
    """Verdict and reason; a part that no seed could answer keeps a finding from agreeing."""
    texts = list(dict.fromkeys(clause.text for clause in clauses))
    told = {text: [c for c in clauses if c.text == text and c.holds is not None] for text in texts}
    if not any(told.values()):
        return NONE, "; ".join(
            dict.fromkeys(clause.found for clause in clauses)
        ) if clauses else "no Transformer and no state-space model among the runs"
    broken = [text for text in texts if any(not clause.holds for clause in told[text])]
    open_ = [text for text in texts if not told[text]]
    never = [text for text in texts if told[text] and not any(clause.holds for clause in told[text])]
    known = [text for text in texts if told[text]]
    over = _over(seeds)
    if len(never) == len(texts):
        return DIFFERS, f"no part holds {over}: {'; '.join(known)}"
    if broken:
        held = len(known) - len(broken)
        return MIXED, f"{held} of {len(known)} parts hold {over}; not: {'; '.join(broken)}" + _unasked(open_)
    if open_:
        return MIXED, f"all that could be settled holds {over}" + _unasked(open_)
    if len(seeds) < LEAST_SEEDS or any(len(told[text]) < LEAST_SEEDS for text in texts):
        return MIXED, "agrees on the one training seed measured; another may not"
    return AGREES, f"all {len(known)} parts hold {over}"


def _over(seeds: Sequence[int | None]) -> str:
    """Where it was asked.

    >>> _over([0]), _over([0, 1, 2])
    ('on the one training seed measured', 'in every one of 3 training seeds')
    """
    if len(seeds) == 1:
        return "on the one training seed measured"
    return f"in every one of {len(seeds)} training seeds"


def _unasked(texts: Sequence[str]) -> str:
    return f"; not settled: {'; '.join(texts)}" if texts else ""
