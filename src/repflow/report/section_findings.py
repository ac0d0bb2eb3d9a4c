"""Paper 1's eight findings: claim, our numbers with the intervals that belong to them, verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from repflow.paper_findings import (
    NOT_KNOWN,
    Judged,
    common_place,
    judge,
    known_readings,
    merge,
    read_results,
)
from repflow.paper_parts import Clause
from repflow.paper_reading import SSM, TBM
from repflow.report.finding_intervals import Key, numbers_of, prompt_intervals
from repflow.report.page_compare import largest_sets
from repflow.report.page_context import Context
from repflow.report.page_depth import exact
from repflow.report.page_model import Block, Cell, Link, Section, Table, Text
from repflow.report.page_runs import StoredRun

TARGETS = {
    "F 3.2.1": "figure-1",
    "F 3.2.2": "figure-2",
    "F 3.2.3": "figure-3",
    "F 3.3.1": "figure-4",
    "F 3.3.2": "over-depth",
    "F 3.4.1": "figure-7",
    "F 3.4.2": "scaling-length",
    "F 3.4.3": "scaling-size",
}
"""Figure of each finding."""
PLAIN = {
    "F 3.2.1": "In a Transformer a token's vector keeps its direction from layer to layer and turns sharply only at "
    "the last one; in a state-space model it turns more on the way and settles late.",
    "F 3.2.2": "In a Transformer the tokens of a prompt become alike early and part again late; in a state-space model "
    "they stay apart for longer.",
    "F 3.2.3": "A Transformer makes tokens alike even with random weights, so the architecture does it; a state-space "
    "model does so only once it is trained.",
    "F 3.3.1": "Layer against layer (CKA), the early layers of a Transformer hold nearly the same picture of the "
    "prompt; a state-space model changes it bit by bit, and its late layers agree.",
    "F 3.3.2": "How smoothly (Sm) and how steadily (St) states change with depth is a matter of the single model, not "
    "of Transformer or state-space model.",
    "F 3.4.1": "What a task asks for is read best from a layer in the middle, not from the last; a state-space model "
    "loses less of it until the last layer.",
    "F 3.4.2": "With longer prompts Sm and St stay as they are, yet less can be read: what limits is how much fits in, "
    "not that states become unsteady.",
    "F 3.4.3": "Larger models do better on the whole, but their last layer may show details less directly than layers "
    "before it.",
}
"""Each finding for readers who have not read the paper."""
HOLDS = {True: "yes", False: "no", None: "not settled"}
ANSWERS = {True: "✓ holds", False: "✗ does not hold", None: "? not settled"}
GLOSSARY = (
    "Block, or layer: one step of the model, from bottom to top. State: the vectors of all tokens between two blocks; "
    "state 0 is the embedding.",
    "Layer cosine: how little a block turns a token's vector; 1 is not at all. Token similarity: mean cosine between "
    "the vectors of different tokens of a prompt; at 1 nothing tells them apart, which is called over-smoothing.",
    "CKA: how alike two states arrange the tokens, from 0 to 1. Sm and St: how much states bend and spread on their "
    "way through the blocks; low is smooth and steady.",
    "Probe: a linear read-out, trained to tell the answer from one state. Peak: the state where it does best. Random "
    "twin: the same model with untrained weights.",
    "Training: a seed and a number of steps. Further trainings are of the same models, with other seeds or steps; "
    "repflow brings the numbers of some, not the weights. A part that speaks of all Transformers or all state-space "
    "models is asked of those that a training has.",
)
"""The words of the findings, for readers new to them."""


def findings_section(runs: Sequence[StoredRun], context: Context) -> Section | None:
    """The eight findings, on runs that compare directly; None where nothing was measured or probed."""
    runs = [run for run in runs if run.study in ("measure", "probe")]
    if not runs:
        return None
    runs, left = (runs, []) if context.allow_mixed else largest_sets(runs)
    place, judged = judged_findings(runs)
    ends = prompt_intervals([run.result for run in runs], place)
    words = Text("findings-words", "Words used here", GLOSSARY)
    blocks: list[Block] = [words, _overview(judged, ends), _parts(judged, ends), _numbers(judged, ends)]
    where = place.rpartition("/")
    lead = (
        "The paper's eight numbered findings, held against these runs"
        + (f" on {where[0]} prompts of {where[2]} tokens" if place else "")
        + (", and against further trainings of the built-in models that repflow brings" if _more(runs, judged) else "")
        + ". TBM is a Transformer-based model, SSM a state-space model. Agrees: every part of the claim was settled "
        "and holds in every training, and they are of at least two seeds. Differs: every part was settled and none "
        "holds in any training. Mixed: anything between. Not measurable: these runs lack what it needs."
    )
    if left:
        names = ", ".join(run.name for run in left)
        lead += f" Left out, of other prompts or number formats than the rest: {names} (--allow-mixed takes them)."
    return Section("findings", "The eight findings", lead, blocks)


def judged_findings(runs: Sequence[StoredRun]) -> tuple[str, list[Judged]]:
    """Task and length that these runs share, and the verdicts there, with what is packaged about further trainings."""
    own = read_results([run.result for run in runs])
    place = common_place([reading for reading in own if reading.family in (TBM, SSM)])
    return place, list(judge(merge(own, known_readings()), place=place))


def _more(runs: Sequence[StoredRun], judged: Sequence[Judged]) -> bool:
    """Whether a verdict rests on trainings that these runs are not of."""
    own = {reading.training for reading in read_results([run.result for run in runs])}
    return any(training not in own for finding in judged for training in finding.trainings)


def _overview(judged: Sequence[Judged], ends: Mapping[Key, tuple[float, float]]) -> Table:
    rows: list[list[Cell]] = [
        [
            Link(finding.code, TARGETS.get(finding.code, "findings")),
            finding.words,
            PLAIN.get(finding.code),
            finding.verdict,
            _in_short(finding),
            _asked(finding, ends) or None,
        ]
        for finding in judged
    ]
    columns = ("finding", "the paper's claim", "in plain words", "verdict", "why", "what was asked, and our numbers")
    caption = (
        "The number of a finding leads to its figure. Thresholds are ours, since the paper gives none. Brackets: 95 % "
        "intervals over prompts; where there is none, the last table of this part says why."
    )
    return Table("findings-table", "Claim by claim", columns, rows, caption, stacked=True)


def _in_short(finding: Judged) -> str:
    """How many parts hold in every training; the whole reason where nothing could be settled."""
    if not finding.trainings:
        return finding.reason
    held = sum(part.holds for part in finding.parts)
    left = sum(not part.answers for part in finding.parts)
    rest = {"do not": len(finding.parts) - held - left, "not settled": left}
    told = f"{held} of {len(finding.parts)} parts hold {finding.where}"
    return told + "".join(f", {count} {words}" for words, count in rest.items() if count)


def _asked(finding: Judged, ends: Mapping[Key, tuple[float, float]]) -> str:
    """A line for every part, as the first training answers it; named where there are several."""
    first = finding.trainings[0] if finding.trainings else None
    several = len({clause.training for clause in finding.clauses}) > 1
    lines = [f"{str(first) or NOT_KNOWN}:"] if first and several else []
    for part, clause in zip(finding.parts, (c for c in finding.clauses if c.training == first), strict=False):
        held = f" It holds in {sum(part.answers)} of {len(part.answers)} trainings." if several and part.answers else ""
        lines.append(f"{ANSWERS[clause.holds]}: {clause.text}. Found: {_found(finding, clause, ends)}.{held}")
    return "\n".join(lines)


def _found(finding: Judged, clause: Clause, ends: Mapping[Key, tuple[float, float]]) -> str:
    """A part's numbers, each with its interval where it has one; or what is missing."""
    if not clause.values:
        return clause.found
    numbers = ", ".join(f"{one.name} {one.interval.fitted}" for one in numbers_of(finding, clause, ends))
    return f"{clause.what}: {numbers}"


def _parts(judged: Sequence[Judged], ends: Mapping[Key, tuple[float, float]]) -> Table:
    rows: list[list[Cell]] = []
    for finding in judged:
        for clause in finding.clauses:
            found = _found(finding, clause, ends)
            rows.append([finding.code, clause.text, found, HOLDS[clause.holds], str(clause.training)])
    columns = ("finding", "part of the claim", "found", "holds", "training")
    caption = "Each part in every training by itself. Not settled: nothing to ask it of, or too few prompts."
    return Table("findings-parts", "Every part that was asked", columns, rows, caption)


def _numbers(judged: Sequence[Judged], ends: Mapping[Key, tuple[float, float]]) -> Table:
    rows: list[list[Cell]] = []
    for finding in judged:
        for clause in finding.clauses:
            for one in numbers_of(finding, clause, ends):
                value = one.interval
                told = [exact(value.value), exact(value.low), exact(value.high), one.over, str(clause.training)]
                rows.append([Link(finding.code, TARGETS[finding.code]), clause.what, one.name, *told])
    columns = ("finding", "number", "model", "value", "low", "high", "interval over", "training")
    caption = (
        "Prompts are drawn anew with replacement, the same for all models that read equally many, and each number is "
        "computed from every draw; low and high hold 95 % of them. They speak of these trained models, not of others "
        "trained alike: that is what further trainings are for."
    )
    return Table("findings-numbers", "The numbers with their intervals", columns, rows, caption)
