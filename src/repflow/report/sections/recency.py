"""The page's part on recency: influence by distance, needles, memory statistics, hidden attention."""

from __future__ import annotations

from collections.abc import Sequence

from repflow.core.verdict import DOES_NOT, HOLDS, OPEN
from repflow.report.data.context import Context
from repflow.report.data.model import Block, Content, Table
from repflow.report.data.runs import StoredRun
from repflow.report.sections.attention import attention_blocks
from repflow.report.sections.influence import influence_blocks
from repflow.report.sections.memory import memory_blocks
from repflow.report.sections.needle import needle_blocks

REPRODUCED = "recency-figure"
VERDICTS = {True: HOLDS, False: DOES_NOT, None: OPEN}


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """How far back a token reaches, whether far things are found, and what the memory looks like; None without runs."""
    blocks: list[Block] = [*influence_blocks(runs, allow_mixed=context.allow_mixed), *needle_blocks(runs)]
    blocks += [*memory_blocks(runs, allow_mixed=context.allow_mixed), *attention_blocks(runs)]
    blocks += _reproduced(runs)
    if not blocks:
        return None
    lead = (
        "State-space models forget exponentially in theory; how fast, and whether trained models do, is measured here: "
        "the influence of each input on the output, the search for a needle, the memory gates, and the matrix by which "
        "a layer mixes its tokens."
    )
    return Content(lead, blocks)


def _reproduced(runs: Sequence[StoredRun]) -> list[Block]:
    """What paper 2 states of a figure beside ours, for every reproduction."""
    blocks: list[Block] = []
    for place, run in enumerate(run for run in runs if run.study == REPRODUCED):
        about = run.result.provenance
        rows = [
            [line.get("of", line["what"]), line["stated"], line["ours"], VERDICTS[line["holds"]]]
            for line in about["lines"]
        ]
        said = [str(about.get("note") or ""), *(finding.message for finding in run.result.findings)]
        title = f"Paper 2, {run.result.config.get('recipe', run.name)}: {about['title']}"
        caption = " ".join(f"{text[0].upper()}{text[1:].rstrip('.')}." for text in said if text)
        id = f"recency-reproduced-{place + 1}"
        blocks.append(Table(id, title, ["of", "the paper", "ours", "verdict"], rows, caption))
    return blocks
