"""Paper 1's eight findings: claim, our numbers with the intervals that belong to them, verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repflow.core.verdict import DOES_NOT, EFFECT, HOLDS, MEANING, OPEN, PARTLY, WORDS
from repflow.papers.claims import PROMPTS, Clause
from repflow.papers.findings import (
    NOT_KNOWN,
    Judged,
    common_place,
    judge,
    known_readings,
    merge,
    read_results,
    told_part,
    verdict_sentence,
    verdict_words,
)
from repflow.papers.reading import SSM, TBM
from repflow.report.data.comparable import largest_sets
from repflow.report.data.context import Context
from repflow.report.data.interval import Interval
from repflow.report.data.model import Block, Cell, Content, Link, Table, Text
from repflow.report.data.runs import StoredRun
from repflow.report.draw.number import exact

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
ANSWERS = {True: "✓ holds", False: "✗ does not hold", None: "? open"}
RULE = (
    f"A part is shown to hold, or not to, where the interval of its margin over seeds lies on one side of its "
    f"threshold and so does every interval over prompts. {HOLDS.capitalize()}: every part is shown to. "
    f"{DOES_NOT.capitalize()}: every part is shown not to. {PARTLY.capitalize()}: one is shown to and one not to, each "
    f"beyond what trying several gives by luck. {OPEN.capitalize()}: anything else, such as too few seeds or prompts, "
    f"or runs without what it needs. Two trainings of one seed count as one."
)
"""The verdicts, in a few sentences."""
GLOSSARY = (
    "Block, or layer: one step of the model, from bottom to top. State: the vectors of all tokens between two blocks; "
    "state 0 is the embedding.",
    "Layer cosine: how little a block turns a token's vector; 1 is not at all. Token similarity: mean cosine between "
    "the vectors of different tokens of a prompt; at 1 nothing distinguishes them, which is called over-smoothing.",
    "CKA: how alike two states arrange the tokens, from 0 to 1. Sm and St: how much states bend and spread on their "
    "way through the blocks; low is smooth and steady.",
    "Probe: a linear read-out, trained to give the answer from one state. Peak: the state where it does best. Random "
    "twin: the same model with untrained weights.",
    "Training: a seed and a number of steps. Further trainings are of the same models, with other seeds or steps; "
    "repflow brings the numbers of some, not the weights. A part that speaks of all Transformers or all state-space "
    "models is asked of those that a training has.",
)
"""The words of the findings, for readers new to them."""


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """The eight findings, on runs that compare directly; None where no run or nobody asks for them."""
    runs = [run for run in runs if run.study in ("measure", "probe")]
    if not runs or not context.papers:
        return None
    runs, left = (runs, []) if context.allow_mixed else largest_sets(runs)
    place, judged = judged_findings(runs)
    words = Text("findings-words", "Words used here", (*GLOSSARY, f"Verdicts: {RULE}"))
    blocks: list[Block] = [_verdicts(judged), words, _overview(judged), _parts(judged), _numbers(judged)]
    where = place.rpartition("/")
    lead = (
        "The paper's eight numbered findings, compared with these runs"
        + (f" on {where[0]} prompts of {where[2]} tokens" if place else "")
        + (", and against further trainings of the built-in models that repflow brings" if _more(runs, judged) else "")
        + ". TBM is a Transformer-based model, SSM a state-space model. Each verdict (holds, partly holds, does not "
        "hold, open) stands with the parts that are shown to hold and the trainings that could be asked. "
        + ("It is given twice where" if any(entry.branches for entry in judged) else "No run here has")
        + " what state-space blocks add to the stream"
        + (" was measured too" if any(entry.branches for entry in judged) else ", so the stream alone is judged")
        + ": the paper's values for these models look like such branches."
    )
    if left:
        names = ", ".join(run.name for run in left)
        lead += f" Left out, of other prompts or number formats than the rest: {names} (--allow-mixed takes them)."
    return Content(lead, blocks, reading=_counted(judged))


def _counted(judged: Sequence[Judged]) -> str:
    """How many findings got which word."""
    counts = {word: sum(entry.verdict == word for entry in judged) for word in WORDS}
    counted = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"Of the paper's {len(judged)} findings, on these models: {counted}."


def _verdicts(judged: Sequence[Judged]) -> Table:
    """A row for each finding: what it says in plain words, the verdict, and why in one sentence."""
    rows: list[list[Cell]] = [
        [
            Link(finding.code, TARGETS.get(finding.code, "findings")),
            PLAIN.get(finding.code),
            finding.verdict,
            verdict_sentence(finding),
        ]
        for finding in judged
    ]
    caption = " ".join(f"{word.capitalize()}: {meaning}." for word, meaning in MEANING.items())
    columns = ("finding", "what the paper claims", "verdict", "why")
    return Table("findings-verdicts", "Eight findings, eight verdicts", columns, rows, caption, narrow=True)


def judged_findings(runs: Sequence[StoredRun]) -> tuple[str, list[Judged]]:
    """Task and length that these runs share, and the verdicts there, with what is packaged about further trainings."""
    own = read_results([run.result for run in runs])
    place = common_place([reading for reading in own if reading.family in (TBM, SSM)])
    return place, list(judge(merge(own, known_readings()), place=place))


def _more(runs: Sequence[StoredRun], judged: Sequence[Judged]) -> bool:
    """Whether a verdict rests on trainings that these runs are not of."""
    own = {reading.training for reading in read_results([run.result for run in runs])}
    return any(training not in own for finding in judged for training in finding.trainings)


def _overview(judged: Sequence[Judged]) -> Table:
    rows: list[list[Cell]] = [
        [
            Link(finding.code, TARGETS.get(finding.code, "findings")),
            finding.words,
            PLAIN.get(finding.code),
            "\n".join(verdict_words(entry) for entry in kinds_of(finding)),
            _why(finding),
            _asked(finding) or None,
        ]
        for finding in judged
    ]
    columns = ("finding", "the paper's claim", "in plain words", "verdict", "why", "what was asked, and our numbers")
    caption = (
        "The number of a finding leads to its figure. Thresholds are ours, since the paper gives none. Brackets: 95 % "
        "intervals over prompts; where there is none, the last table of this part says why. Power: the chance of "
        f"“holds” with these seeds, if every part were true by {EFFECT:g} standard deviations between trainings."
    )
    return Table("findings-table", "Claim by claim", columns, rows, caption, stacked=True)


def kinds_of(finding: Judged) -> list[Judged]:
    """A finding on every kind of state it was judged on."""
    return [finding, finding.branches] if finding.branches else [finding]


def _why(finding: Judged) -> str:
    """The reason; what state-space branches say otherwise, and what to know of the task."""
    lines = [finding.reason]
    if finding.on_branches:
        lines.append(f"With state-space branches: {'; '.join(map(told_part, finding.on_branches))}")
    return "\n".join([*lines, *([f"Note: {finding.caution}."] if finding.caution else [])])


def _asked(finding: Judged) -> str:
    """A line for every part, as the first training answers it; named where there are several."""
    first = finding.trainings[0] if finding.trainings else None
    several = len({clause.training for clause in finding.clauses}) > 1
    lines = [f"{str(first) or NOT_KNOWN}:"] if first and several else []
    for part, clause in zip(finding.parts, (c for c in finding.clauses if c.training == first), strict=False):
        sides = [one.side for one in part.asked]
        count = f"{sum(map(bool, sides))} of {len(sides)} training{'' if len(sides) == 1 else 's'}"
        sides_text = f" The numbers say so in {count}." if several and sides else ""
        lines.append(f"{ANSWERS[clause.holds]}: {clause.text}. Found: {_found(clause)}.{sides_text}")
    return "\n".join(lines)


def _found(clause: Clause) -> str:
    """A part's numbers, each with its interval where it has one; or what is missing."""
    if not clause.values:
        return clause.found
    numbers = ", ".join(f"{name} {interval.fitted}" for name, interval in _intervals(clause))
    return f"{clause.what}: {numbers}"


def _intervals(clause: Clause) -> list[tuple[str, Interval]]:
    return [(name, Interval(value, *clause.ends.get(name, ()))) for name, value in clause.values]


def _every(judged: Sequence[Judged]) -> Iterator[tuple[Judged, Clause]]:
    """Every part in every training, on every kind of state and by every convention."""
    for finding in judged:
        for entry in kinds_of(finding):
            for clause in entry.clauses:
                yield entry, clause
                if clause.also is not None:
                    yield entry, clause.also


def _parts(judged: Sequence[Judged]) -> Table:
    rows: list[list[Cell]] = []
    for entry, clause in _every(judged):
        margin = Interval(clause.margin, *clause.interval)
        cells = [margin.fitted if clause.asked else None, clause.over or None]
        own = ANSWERS[clause.holds].partition(" ")[2]
        rows.append([entry.code, clause.text, _found(clause), own, *cells, entry.states, str(clause.training)])
    columns = ("finding", "part of the claim", "found", "in it", "margin", "interval over", "states", "training")
    caption = (
        "Each part in every training by itself. Margin: how far the mean over a family's models lies on the claim's "
        "side of the threshold. Open: nothing to ask it of, an interval around the threshold, or none."
    )
    return Table("findings-parts", "Every part that was asked", columns, rows, caption)


def _numbers(judged: Sequence[Judged]) -> Table:
    rows: list[list[Cell]] = []
    for entry, clause in _every(judged):
        for name, value in _intervals(clause):
            cells: list[Cell] = [exact(value.value), exact(value.low), exact(value.high)]
            cells += [clause.over if name not in clause.ends else _over(clause), entry.states, str(clause.training)]
            rows.append([Link(entry.code, TARGETS[entry.code]), clause.what, name, *cells])
    columns = ("finding", "number", "model", "value", "low", "high", "interval over", "states", "training")
    caption = (
        "Each prompt is left out in turn, the same for all models, and the number computed again: low and high are "
        "Student's 95 % interval of what every prompt adds. They speak of these trained models, not of others trained "
        "alike: that is what further trainings are for."
    )
    return Table("findings-numbers", "The numbers with their intervals", columns, rows, caption)


def _over(clause: Clause) -> str:
    """What the interval of a single number is over; that of the margin may have none, as of two models against two."""
    return clause.over if not clause.over.startswith("none") else PROMPTS
