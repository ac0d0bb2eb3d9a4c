"""Block by block: what happens to the probe's accuracy and to similarity from a block's input to its output.

Which blocks are said to lose or to gain the label is decided where the probes are fitted (`repflow.probes.claims`);
here it is put into words, with the numbers and the prompts behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.core.readout import Number
from repflow.studies.diagnose.evidence import FlowEvidence, Interval, ProbeEvidence
from repflow.studies.diagnose.readout import prompts_of
from repflow.studies.diagnose.statement import Statement, plain

VERDICTS = {-1: "lost", 0: "", 1: "gained"}


@dataclass(frozen=True)
class BlockStep:
    """One block.

    Attributes:
        block: its number, from 1; its output is the state of the same number.
        kind: kind of its mixer, "" where it is not known.
        before: accuracy at its input, None without probes.
        after: accuracy at its output.
        change: after minus before on the same prompts, below chance counted as chance.
        half: the same with half the training prompts, None where that was not requested.
        similarity: raw token similarity at its output minus that at its input, None without a flow.
        verdict: `lost` or `gained` where that is claimed, else "".
    """

    block: int
    kind: str
    before: float | None = None
    after: float | None = None
    change: Interval | None = None
    half: Interval | None = None
    similarity: float | None = None
    verdict: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {name: plain(value) for name, value in vars(self).items()}


def block_steps(flow: FlowEvidence | None, probe: ProbeEvidence | None) -> list[BlockStep]:
    """Every block with what is known of it; empty where states are not block outputs."""
    kinds = _kinds(flow, probe)
    states = ({flow.all_states} if flow is not None else set()) | ({probe.states} if probe is not None else set())
    if len(states) != 1:
        return []
    count = states.pop() - 1
    return [_step(number, kinds[number] if number < len(kinds) else "", flow, probe) for number in range(count)]


def _kinds(flow: FlowEvidence | None, probe: ProbeEvidence | None) -> Sequence[str]:
    if flow is not None and flow.layer_kinds:
        return flow.layer_kinds
    return () if probe is None else probe.facts.get("layer_kinds", ())


def _step(number: int, kind: str, flow: FlowEvidence | None, probe: ProbeEvidence | None) -> BlockStep:
    known: dict[str, Any] = {}
    if flow is not None and number + 1 < flow.states:  # behind a NaN weight nothing is known
        mean = flow.similarity[number : number + 2].mean(1)
        known["similarity"] = float(mean[1] - mean[0])
    if probe is not None:
        before, after = (float(value) for value in probe.accuracy[number : number + 2])
        known |= {"before": before, "after": after, "change": Interval(after - before)}
        if (band := probe.facts.get("step")) is not None:
            known["change"] = Interval(*Number.of(band, number))
            known["verdict"] = VERDICTS[int(probe.facts["claim"][number])] if "claim" in probe.facts else ""
        if (band := probe.facts.get("half_step")) is not None and np.isfinite(band.mean[number]):
            known["half"] = Interval(*Number.of(band, number))
    return BlockStep(number + 1, kind, **known)


def block_statements(steps: Sequence[BlockStep], probe: ProbeEvidence | None) -> list[Statement]:
    """Blocks across which accuracy falls or rises, each with its interval; or that none is shown to."""
    if probe is None or not steps or "step" not in probe.facts:
        return []
    statements = [_claimed(step, probe) for step in steps if step.verdict]
    if not any(step.verdict == "lost" for step in steps):
        text = f"No single one of the {len(steps)} blocks is shown to lose it{_why_none(probe)}{probe.read.beside}."
        numbers = {"blocks": len(steps)} | prompts_of(probe)
        statements.append(Statement("lost_in_block", "blocks", None, text, numbers))
    return statements


def _claimed(step: BlockStep, probe: ProbeEvidence) -> Statement:
    assert step.change is not None
    assert step.before is not None
    assert step.after is not None
    where = f"block {step.block}" + (f" ({step.kind})" if step.kind else "")
    floor = " (below chance counts as chance)" if min(step.before, step.after) < probe.chance else ""
    half = "" if step.half is None else f", {step.half} with half the training prompts"
    text = (
        f"{step.verdict.capitalize()} in {where}: accuracy {step.before:.3f} before it, {step.after:.3f} after,"
        f" a change of {step.change}{floor}{half}{probe.read.beside}."
    )
    numbers: dict[str, Any] = {"block": step.block, "kind": step.kind, "before": step.before, "after": step.after}
    numbers |= {"change": step.change, "half": step.half, "chance": probe.chance} | prompts_of(probe)
    return Statement(f"{step.verdict}_in_block", "blocks", True, text, numbers)


def _why_none(probe: ProbeEvidence) -> str:
    """Why nothing could be shown, where that is known before looking."""
    if "claim" not in probe.facts:
        return ", as this run was stored without fits on half the training prompts: rerun the probe"
    counts = probe.read.counts
    return "" if counts is None or counts.covers_refits else ", as no interval covers refitting"
