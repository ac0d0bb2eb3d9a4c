"""Block by block: what happens to the probe's accuracy and to similarity from a block's input to its output.

The change across a block is paired by prompt. With L blocks, one interval in twenty excludes 0 by luck: "lost" and
"gained" are said only where the interval still does so when widened for L of them (Bonferroni, by the normal quantile),
and where the accuracy on the better side is above chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from repflow.studies.diagnose_evidence import FlowEvidence, Interval, ProbeEvidence
from repflow.studies.diagnose_statement import Statement, plain

LEVEL = 0.05


@dataclass(frozen=True)
class BlockStep:
    """One block.

    Attributes:
        block: its number, from 1; its output is the state of the same number.
        kind: kind of its mixer, "" where it is not known.
        before: accuracy at its input, None without probes.
        after: accuracy at its output.
        change: after minus before, paired by prompt.
        similarity: raw token similarity at its output minus that at its input, None without a flow.
        verdict: `lost` or `gained` where the widened interval excludes 0, else "".
    """

    block: int
    kind: str
    before: float | None = None
    after: float | None = None
    change: Interval | None = None
    similarity: float | None = None
    verdict: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {name: plain(value) for name, value in vars(self).items()}


def widened(change: Interval, count: int) -> Interval:
    """The interval stretched so that all of `count` intervals together keep their 95 %.

    >>> print(widened(Interval(-0.20, -0.30, -0.10), 6))
    -0.200 [-0.335, -0.065]
    """
    normal = NormalDist()
    factor = normal.inv_cdf(1 - LEVEL / (2 * count)) / normal.inv_cdf(1 - LEVEL / 2)
    low, high = (change.value + factor * (end - change.value) for end in (change.low, change.high))
    return Interval(change.value, low, high)


def block_steps(flow: FlowEvidence | None, probe: ProbeEvidence | None) -> list[BlockStep]:
    """Every block with what is known of it; empty where states are no block outputs."""
    kinds = _kinds(flow, probe)
    states = ({flow.all_states} if flow is not None else set()) | ({probe.states} if probe is not None else set())
    if len(states) != 1:
        return []
    count = states.pop() - 1
    return [_step(number, kinds[number] if number < len(kinds) else "", flow, probe, count) for number in range(count)]


def _kinds(flow: FlowEvidence | None, probe: ProbeEvidence | None) -> Sequence[str]:
    if flow is not None and flow.layer_kinds:
        return flow.layer_kinds
    return () if probe is None else probe.facts.get("layer_kinds", ())


def _step(number: int, kind: str, flow: FlowEvidence | None, probe: ProbeEvidence | None, count: int) -> BlockStep:
    known: dict[str, Any] = {}
    if flow is not None and number + 1 < flow.states:  # behind a NaN weight nothing is known
        mean = flow.similarity[number : number + 2].mean(1)
        known["similarity"] = float(mean[1] - mean[0])
    if probe is not None:
        before, after = (float(value) for value in probe.accuracy[number : number + 2])
        known |= {"before": before, "after": after, "change": Interval(after - before)}
        if (band := probe.facts.get("step")) is not None:
            known["change"] = change = Interval(after - before, float(band.low[number]), float(band.high[number]))
            known["verdict"] = _verdict(widened(change, count), number, probe)
    return BlockStep(number + 1, kind, **known)


def _verdict(change: Interval, number: int, probe: ProbeEvidence) -> str:
    """Only what is shown to be there, above chance, can be lost, and only what then is there was gained."""
    if change.low > 0 and probe.at(number + 1).above(probe.chance):
        return "gained"
    return "lost" if change.high < 0 and probe.at(number).above(probe.chance) else ""


def block_statements(steps: Sequence[BlockStep], probe: ProbeEvidence | None) -> list[Statement]:
    """Blocks across which accuracy falls or rises, each with its interval; or that none is shown to."""
    if probe is None or not steps or "step" not in probe.facts:
        return []
    said = []
    for step in steps:
        if step.verdict and step.change is not None:
            where = f"block {step.block}" + (f" ({step.kind})" if step.kind else "")
            text = (
                f"{step.verdict.capitalize()} in {where}: accuracy {step.before:.3f} before it, {step.after:.3f} after,"
                f" a change of {step.change}."
            )
            numbers = {"block": step.block, "kind": step.kind, "before": step.before, "after": step.after}
            said.append(Statement(f"{step.verdict}_in_block", "blocks", True, text, numbers | {"change": step.change}))
    if not any(step.verdict == "lost" for step in steps):
        text = f"No single one of the {len(steps)} blocks is shown to lose it."
        said.append(Statement("lost_in_block", "blocks", None, text, {"blocks": len(steps)}))
    return said
