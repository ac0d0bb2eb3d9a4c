"""Paper 1's eight findings: claim, our numbers with intervals, verdict."""

from __future__ import annotations

from collections.abc import Sequence

from repflow.paper_findings import Judged, judge, known_readings, merge, read_results
from repflow.report.finding_numbers import BY_LENGTH, RANDOM, finding_rows
from repflow.report.page_compare import task_name
from repflow.report.page_context import Context, measured_runs
from repflow.report.page_depth import exact
from repflow.report.page_model import Block, Cell, Link, Section, Table
from repflow.report.page_runs import StoredRun
from repflow.report.section_probe import probe_runs, probed_label
from repflow.report.section_verdict import verdicts_of

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
SHOWN = 4
"""Intervals that the first table shows; the second has all."""
HOLDS = {True: "yes", False: "no", None: "not settled"}


def findings_section(runs: Sequence[StoredRun], context: Context) -> Section | None:
    """The eight findings; None where nothing was measured or probed."""
    if not [run for run in runs if run.study in ("measure", "probe")]:
        return None
    judged = judged_findings(runs)
    evidence = {finding.code: numbers(finding.code, runs, context) for finding in judged}
    blocks: list[Block] = [_overview(judged, evidence), _numbers_table(evidence), _clauses(judged)]
    lead = (
        "The paper's eight numbered findings, held against these runs. TBM is a Transformer-based model, SSM a "
        "state-space model. Agrees: every part of the claim holds in every training seed, of which there are at least "
        "two. Differs: every part was settled and none holds. Mixed: anything between. Not measurable: these runs "
        "lack what it needs."
    )
    return Section("findings", "The eight findings", lead, blocks)


def judged_findings(runs: Sequence[StoredRun]) -> list[Judged]:
    """Verdicts on the eight findings, with what is packaged about further training seeds of the same models."""
    own = read_results([run.result for run in runs])
    return list(judge(merge(own, known_readings())))


def numbers(code: str, runs: Sequence[StoredRun], context: Context) -> list[list[Cell]]:
    """Rows of the numbers behind a finding: of the main run of each model, or of all lengths, or of random weights."""
    if code in BY_LENGTH:
        flows, probes = measured_runs(runs), probe_runs(runs)
        flows = [run for run in flows if run.states == "residual"]
    else:
        verdicts = verdicts_of(runs, context)
        flows = [verdict.flow for verdict in verdicts if verdict.flow]
        probes = [verdict.probe for verdict in verdicts if verdict.probe]
    if code in RANDOM:
        flows = flows + [
            run for run in runs if run.study == "measure" and not run.trained and not run.facts.get("ablate")
        ]
    rows: list[list[Cell]] = []
    seen = set()
    for run, words, value in finding_rows(code, flows, probes):
        key = (run.name, words)
        if key in seen:
            continue
        seen.add(key)
        label = f", {probed_label(run)}" if run.study == "probe" else ""
        where = f"{task_name(run)}, {run.length} tokens, {run.states}{label}"
        rows.append(
            [
                Link(code, TARGETS[code]),
                run.label,
                words,
                exact(value.value),
                exact(value.low),
                exact(value.high),
                where,
            ]
        )
    return rows


def _overview(judged: Sequence[Judged], evidence: dict[str, list[list[Cell]]]) -> Table:
    rows: list[list[Cell]] = [
        [
            Link(finding.code, TARGETS.get(finding.code, "findings")),
            finding.words,
            finding.verdict,
            PLAIN.get(finding.code),
            finding.reason,
            finding.ours or None,
            _intervals(evidence[finding.code]),
        ]
        for finding in judged
    ]
    columns = ("finding", "the paper's claim", "verdict", "in plain words", "why", "our numbers", "with 95 % intervals")
    caption = "The number of a finding leads to its figure. Thresholds are ours, since the paper gives none."
    return Table("findings-table", "Claim by claim", columns, rows, caption, stacked=True)


def _intervals(rows: Sequence[Sequence[Cell]]) -> Cell:
    told = []
    for _, model, words, value, low, high, _ in rows[:SHOWN]:
        ends = f" [{_short(low)}, {_short(high)}]" if low is not None else ""
        told.append(f"{model}, {words}: {_short(value)}{ends}")
    more = f"; and {len(rows) - SHOWN} more below" if len(rows) > SHOWN else ""
    return "; ".join(told) + more if told else None


def _short(value: Cell) -> str:
    return f"{value:.3g}" if isinstance(value, float | int) else str(value)


def _numbers_table(evidence: dict[str, list[list[Cell]]]) -> Table:
    rows = [row for mine in evidence.values() for row in mine]
    columns = ("finding", "model", "what", "value", "low", "high", "measured on")
    caption = (
        "Late and early: the last and the first third of the blocks. Intervals are 95 % over prompts, each model by "
        "itself; those of random weights speak of one draw of them."
    )
    return Table("findings-numbers", "The numbers with their intervals", columns, rows, caption)


def _clauses(judged: Sequence[Judged]) -> Table:
    rows: list[list[Cell]] = []
    for finding in judged:
        for clause in finding.clauses:
            seed = "" if clause.seed is None else str(clause.seed)
            rows.append([finding.code, clause.text, seed, clause.found, HOLDS[clause.holds]])
    columns = ("finding", "part of the claim", "training seed", "found", "holds")
    caption = "Each part in every training seed by itself."
    return Table("findings-parts", "Every part that was asked", columns, rows, caption)
