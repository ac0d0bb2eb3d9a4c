"""Paper 1's eight numbered findings, and what measured models say about each. No torch.

A finding is cut into parts that a number can settle. Each part is judged on every training by itself, on the models of
the same seed and number of steps, and gives a margin there. A part is shown to hold, or not to, where Student's 95 %
interval of its margins over seeds lies on one side of its threshold, and every interval over prompts does as well.
Two trainings of one seed start from the same weights and read the same batches, so that they count as one: their mean.
`repflow.core.verdict` makes the word of it: holds, partly holds, does not hold, open.

The flow is judged on the residual stream and, where runs have them, on what each block of a state-space model adds to
it, since the paper's values for these look like such branches. The thresholds are `repflow.papers.thresholds`. Hybrids
are not judged: the findings do not cover them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from repflow.core.intervals import LEAST_VALUES, student_interval
from repflow.core.verdict import OPEN, WORDS, Verdict, decide, settle
from repflow.core.verdict import Part as Shown
from repflow.papers import flow_parts as parts
from repflow.papers import probe_parts
from repflow.papers.claims import BRANCH, STREAM, Clause, Ends, Group, split_place
from repflow.papers.reading import SSM, TBM, Reading, Training, known_readings, merge, read_results
from repflow.papers.values import FLOW

__all__ = [
    "FINDINGS",
    "WORDS",
    "Clause",
    "Finding",
    "Judged",
    "Reading",
    "judge",
    "known_readings",
    "merge",
    "read_results",
]

TASKS = ("kvpr", "mdqa", "text")
"""Tasks to judge on where models share several: the paper's first."""
NOT_KNOWN = "training not known"
OF_FLOW = ("F 3.2.1", "F 3.2.2", "F 3.2.3", "F 3.3.1", "F 3.3.2")
"""Findings that are judged on both kinds of state."""


@dataclass(frozen=True)
class Finding:
    """A numbered finding.

    Attributes:
        code: as the paper numbers it.
        words: as printed.
        ask: its parts, for the models of one training; always as many, in the same order.
        caution: what to know of the place it is judged at, "" where nothing.
    """

    code: str
    words: str
    ask: Callable[[Group], list[Clause]]
    caution: Callable[[str], str] = lambda place: ""

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
        probe_parts.printed_contrast,
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
    """A part of a finding with the verdict of every training.

    Attributes:
        clauses: one of each training.
    """

    clauses: tuple[Clause, ...]

    @property
    def text(self) -> str:
        """What was asked, in the words of the first training that could be asked."""
        return next((clause for clause in self.clauses if clause.asked), self.clauses[0]).text

    @property
    def asked(self) -> list[Clause]:
        """Of the trainings that could be asked."""
        return [clause for clause in self.clauses if clause.asked]

    @property
    def by_seed(self) -> dict[int, float]:
        """Margin of every seed, the mean over its trainings; models without a known seed do not count."""
        return _by_seed(self.asked)

    @cached_property
    def shown(self) -> Shown:
        """Whether it is shown to hold, over seeds and over prompts."""
        answer, tail = _settled(self.asked)
        others = [clause.also for clause in self.asked if clause.also is not None]
        if others:  # another convention has to say the same
            second, other_tail = _settled(others)
            answer, tail = (answer if second is answer else None), max(tail, other_tail)
        return Shown(self.text, answer, tail)

    @property
    def holds(self) -> bool | None:
        """Shown to hold, shown not to hold, or neither."""
        return self.shown.holds

    @property
    def interval(self) -> Ends:
        """Student's interval of the margin over seeds; NaN below three."""
        band = student_interval(list(self.by_seed.values()) or [math.nan])
        return float(band.low), float(band.high)

    @property
    def why_open(self) -> str:
        """What keeps it from being settled."""
        if not self.asked:
            return "; ".join(dict.fromkeys(clause.found for clause in self.clauses))
        seeds = len(self.by_seed)
        if seeds < LEAST_VALUES:
            return f"{seeds} seed{'' if seeds == 1 else 's'}, and it takes {LEAST_VALUES}"
        if settle(list(self.by_seed.values()), self.asked[0].zone)[0] is None:
            low, high = self.interval
            return f"margin over {seeds} seeds {low:+.3g} to {high:+.3g}"
        if any((one.also.margin > 0) is not (one.margin > 0) for one in self.asked if one.also is not None):
            return "the conventions disagree"
        return "an interval over prompts is not on that side"


def _by_seed(clauses: Sequence[Clause]) -> dict[int, float]:
    by_seed: dict[int, list[float]] = {}
    for clause in clauses:
        if clause.training.seed is not None and clause.asked:
            by_seed.setdefault(clause.training.seed, []).append(clause.margin)
    return {seed: math.fsum(margins) / len(margins) for seed, margins in by_seed.items()}


def _settled(clauses: Sequence[Clause]) -> tuple[bool | None, float]:
    """Answer over seeds, where no interval over prompts leaves it open or says otherwise; and its one-sided error."""
    if not clauses:
        return None, 1.0
    answer, tail = settle(list(_by_seed(clauses).values()), clauses[0].zone)
    within = [clause for clause in clauses if math.isfinite(clause.interval[0])]
    agree = all(replace(clause, also=None).holds is answer for clause in within)
    return (answer if agree else None), tail


@dataclass(frozen=True)
class Judged:
    """What our models say about a finding.

    Attributes:
        finding: the paper's.
        states: kind of state that was judged.
        judgement: word, counts and power.
        reason: why, in a sentence.
        ours: our numbers, each part's of the first training that could be asked.
        clauses: every part in every training.
        trainings: those that could be asked.
        caution: what to know of the place it was judged at.
        branches: the same with what state-space blocks add in place of their stream; None where that is not measured.
    """

    finding: Finding
    states: str
    judgement: Verdict
    reason: str
    ours: str
    clauses: tuple[Clause, ...]
    trainings: tuple[Training, ...]
    caution: str = ""
    branches: Judged | None = None

    @property
    def verdict(self) -> str:
        """The word."""
        return self.judgement.word

    @cached_property
    def parts(self) -> list[Part]:
        """Each part with its answers."""
        return parts_of(self.clauses)

    @property
    def seeds(self) -> int:
        """Different seeds among the trainings that could be asked."""
        return len({training.seed for training in self.trainings if training.seed is not None})

    @property
    def on_branches(self) -> list[Part]:
        """Parts that branches of state-space models answer otherwise than their stream; none where not measured."""
        if self.branches is None:
            return []
        pairs = zip(self.parts, self.branches.parts, strict=True)
        return [other for part, other in pairs if [c.found for c in part.clauses] != [c.found for c in other.clauses]]

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
    """Judge the eight findings on models, in the paper's order.

    Args:
        readings: models, of one or more trainings.
        place: "task/length" that curves are read at; by default one that all models have, of the paper's tasks where
            possible and the longest.
    """
    known = [reading for reading in readings if reading.family in (TBM, SSM)]
    judged = [reading for reading in known if not reading.size_of]
    chosen = common_place(judged) if place is None else place
    trainings = list(dict.fromkeys(reading.training for reading in judged))

    def groups(states: str) -> list[Group]:
        groups = []
        for training in trainings:
            mine, sizes = (
                [r for r in known if r.training == training and bool(r.size_of) is is_size] for is_size in (False, True)
            )
            groups.append(Group(training, chosen, tuple(mine), states, tuple(judged), tuple(sizes)))
        return groups

    streams = [_judged(finding, groups(STREAM), chosen) for finding in FINDINGS]
    if not any(chosen in reading.branch for reading in judged if reading.family == SSM):
        return streams
    branches = groups(BRANCH)
    return [
        replace(entry, branches=_judged(entry.finding, branches, chosen)) if entry.code in OF_FLOW else entry
        for entry in streams
    ]


def common_place(readings: Sequence[Reading]) -> str:
    """Task and length that all readings have a flow at; "" where there is none."""
    if not readings:
        return ""
    shared = set(readings[0].trained).intersection(*(reading.trained for reading in readings[1:]))

    def rank(place: str) -> tuple[int, int]:
        task, length = split_place(place)
        return (TASKS.index(task) if task in TASKS else len(TASKS), -length)

    return min(shared, key=rank, default="")


def _judged(finding: Finding, groups: Sequence[Group], place: str) -> Judged:
    clauses = tuple(clause for group in groups for clause in finding.ask(group))
    answerable = [clause for clause in clauses if clause.asked]
    trainings = tuple(dict.fromkeys(clause.training for clause in answerable))
    claim_parts = parts_of(clauses)
    seeds = min((len(part.by_seed) for part in claim_parts), default=0)
    verdict = decide([part.shown for part in claim_parts], asked=len(trainings), trainings=len(groups), units=seeds)
    states = groups[0].states if groups else STREAM
    ours = _ours(claim_parts, several=len(groups) > 1)
    return Judged(finding, states, verdict, _reason(claim_parts), ours, clauses, trainings, finding.caution(place))


def _ours(claim_parts: Sequence[Part], *, several: bool) -> str:
    """Our numbers, each part's of the first training that could be asked; named where there are several."""
    first: dict[Training, dict[str, None]] = {}
    for part in claim_parts:
        for clause in part.asked[:1]:
            for one in (clause, clause.also) if clause.also is not None else (clause,):
                first.setdefault(clause.training, {})[one.found] = None
    texts = {training: "; ".join(numbers) for training, numbers in first.items()}
    if not several:
        return "; ".join(texts.values())
    return ". ".join(f"{str(training) or NOT_KNOWN}: {numbers}" for training, numbers in texts.items())


def parts_of(clauses: Sequence[Clause]) -> list[Part]:
    """The parts of a finding from its clauses, training by training: the first of each, the second of each, ...

    A part may be worded differently where it could not be asked, since its words name what was found.
    """
    rows = [[c for c in clauses if c.training == training] for training in dict.fromkeys(c.training for c in clauses)]
    return [Part(tuple(column)) for column in zip(*rows, strict=True)]


def _reason(claim_parts: Sequence[Part]) -> str:
    """What is shown of each part; of one that is open, why, and what the trainings say to it."""
    if not claim_parts:
        return "no Transformer and no state-space model among the runs"
    if not any(part.asked for part in claim_parts):
        return "; ".join(dict.fromkeys(part.why_open for part in claim_parts))
    sentences = []
    for words, answer in (("shown", True), ("shown not to hold", False)):
        texts = [part.text for part in claim_parts if part.holds is answer]
        sentences += [f"{words}: {'; '.join(texts)}"] if texts else []
    left = [part for part in claim_parts if part.holds is None]
    sentences += [f"open: {'; '.join(map(told_part, left))}"] if left else []
    return ". ".join(sentences)


def verdict_words(finding: Judged) -> str:
    """Word, counts, seeds, power and kind of state."""
    text = f"{finding.judgement} ({finding.seeds} seed{'' if finding.seeds == 1 else 's'}"
    text += "" if finding.judgement.power is None else f", power {finding.judgement.power:.0%}"
    return f"{text}; {finding.states})"


def verdict_sentence(finding: Judged) -> str:
    """The verdict in one plain sentence."""
    parts, verdict = finding.parts, finding.judgement
    seeds = f"{finding.seeds} seed{'' if finding.seeds == 1 else 's'} of training"
    if not any(part.asked for part in parts):
        return f"Nothing here can be asked: {'; '.join(dict.fromkeys(part.why_open for part in parts))}."
    if verdict.word == OPEN and finding.seeds < LEAST_VALUES:
        sides = [clause.side for part in parts for clause in part.asked[:1]]
        lean = f"{sum(map(bool, sides))} of {len(sides)} parts lie on the claim's side"
        number = "is" if finding.seeds == 1 else "are"
        return f"{lean} in the first training, but there {number} {seeds} and it takes {LEAST_VALUES}."
    shown = f"{verdict.held} of {len(parts)} parts are shown to be true, {verdict.failed} to be false"
    left = len(parts) - verdict.held - verdict.failed
    rest = f"; {left} {'is' if left == 1 else 'are'} not settled" if left else ""
    return f"{shown}{rest}, over {seeds}."


def told_part(part: Part) -> str:
    """A part with what is shown of it, or what keeps it open.

    With it comes the number of trainings whose numbers are on the claim's side.
    """
    state = {True: "shown", False: "shown not to hold", None: part.why_open}[part.holds]
    return f"{part.text} ({_sides(part)}{state})"


def _sides(part: Part) -> str:
    """In how many trainings the number itself is on the claim's side."""
    sides = [clause.side for clause in part.asked]
    return f"so in {sum(map(bool, sides))} of {len(sides)}; " if sides else ""
