"""The page's part on recency: influence by distance, needles, memory statistics, hidden attention."""

from __future__ import annotations

from collections.abc import Sequence

from repflow.report.data.context import Context
from repflow.report.data.model import Block, Content
from repflow.report.data.runs import StoredRun
from repflow.report.sections.attention import attention_blocks
from repflow.report.sections.influence import influence_blocks
from repflow.report.sections.memory import memory_blocks, memory_facts
from repflow.report.sections.needle import needle_blocks, needle_facts

SHOWN = ("recency-influence", "needle-map", "memory-range", "hidden-attention")
"""The first figure of each kind of study."""


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """How far back a token reaches, whether far things are found, and what the memory looks like; None without runs."""
    blocks: list[Block] = [*influence_blocks(runs, allow_mixed=context.allow_mixed), *needle_blocks(runs)]
    blocks += [*memory_blocks(runs, allow_mixed=context.allow_mixed), *attention_blocks(runs)]
    if not blocks:
        return None
    lead = (
        "State-space models forget exponentially in theory; how fast, and whether trained models do, is measured here: "
        "the influence of each input on the output, the search for a needle, the memory gates, and the matrix by which "
        "a layer mixes its tokens."
    )
    shown = [block.id for block in blocks if block.id in SHOWN] or None
    return Content(lead, blocks, shown, facts=[*needle_facts(runs), *memory_facts(runs)])
