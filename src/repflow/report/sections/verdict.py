"""The page's first part: a sentence per model, and the few numbers that it rests on, each linked to its figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from repflow.core.intervals import LEAST_VALUES
from repflow.core.readout import ReadOut
from repflow.report.data.comparable import task_name
from repflow.report.data.context import Context
from repflow.report.data.interval import Interval, at, few_prompts, over_samples
from repflow.report.data.model import Cell, Content, Link, PageModel, Table, Text
from repflow.report.data.probed import probed_label
from repflow.report.data.runs import StoredRun
from repflow.report.data.summary import summaries
from repflow.report.draw.depth import depth
from repflow.report.draw.lines import nan_mean
from repflow.report.sections.scaling import one_grid

LEAST_PROMPTS = 2 * LEAST_VALUES
"""Prompts from which on a rise is judged, on others than those that chose its place: an interval needs three."""
TURN = 0.2
"""A block whose cosine lies this much below the median block's is worth a word."""
SINK = 0.1
"""A change of similarity without sink tokens that is worth a word."""
ORDINARY = (
    *("unconverged", "few_test_prompts", "no_refits", "no_control", "no_lens", "slow_scan", "resumed"),
    "intermediate_beats_final",
)
"""Findings about the study rather than the model, or that the table shows anyway."""
FEW = 2
"""Models whose sentences stand on the page; those of more are folded away."""
TOLD = 3
"""Findings of a run that the table repeats; the others are in the table of findings."""


@dataclass(frozen=True)
class Verdict:
    """What the page says first about one model."""

    model: PageModel
    flow: StoredRun | None = None
    probe: StoredRun | None = None
    unusual: list[str] = field(default_factory=list)


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """A sentence per model and the table behind it; None without any measured or probed model."""
    verdicts = verdicts_of(runs, context)
    if not verdicts:
        return None
    sentences = Text("verdict-words", "In a sentence", [sentence(verdict) for verdict in verdicts])
    flows = [verdict.flow for verdict in verdicts if verdict.flow]
    lead = "What each model does with its tokens on the way to the answer."
    settings = {conditions(run) for run in flows}
    lead += f" All numbers of the flow: {settings.pop()}." if len(settings) == 1 else ""
    open_ids = [sentences.id] if len(verdicts) <= FEW else []
    return Content(lead, [sentences, verdict_table(verdicts)], open_ids, lead)


def verdicts_of(runs: Sequence[StoredRun], context: Context) -> list[Verdict]:
    """For every model the run that most models share, residual states and long prompts before others."""
    return [
        Verdict(entry.model, entry.flow, entry.probe, unusual(entry.flow, entry.probe))
        for entry in summaries(runs, context)
        if entry.flow or entry.probe
    ]


def conditions(run: StoredRun) -> str:
    """What a run was measured on."""
    count = run.result.config.get("samples")
    return f"{task_name(run)}, {run.length} tokens, {count} prompts, {run.states} states, {run.dtype}"


def homogenisation(run: StoredRun) -> tuple[int, Interval, Interval | None] | None:
    """State where tokens are most alike, the similarity there, and its rise over the first state.

    The rise is judged at the state that every second prompt chooses, on the other prompts; None with too few.
    """
    if "token_similarity" not in run.result:
        return None
    band, values = run.result.band("token_similarity"), run.result["token_similarity"]
    if not np.isfinite(band.mean).any():
        return None
    state = int(np.nanargmax(band.mean))
    if values.shape[1] < LEAST_PROMPTS:
        return state, at(band, state), None
    choosing, judged = nan_mean(values[:, ::2], 1), values[:, 1::2]
    if not np.isfinite(choosing).any():
        return state, at(band, state), None
    return state, at(band, state), over_samples(judged[int(np.nanargmax(choosing))] - judged[0])


def share(run: StoredRun, state: int) -> float:
    """Relative depth of a state, as on the depth axis."""
    return float(depth(run, "state", state + 1)["relative"][state])


def sentence(verdict: Verdict) -> str:
    """One model in one sentence, claims only where an interval carries them."""
    parts = []
    kinds = Counter(verdict.model.kinds)
    mixed = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) if len(kinds) > 1 else next(iter(kinds), "")
    layers = f"{verdict.model.layers} blocks" + (f" ({mixed})" if mixed else "")
    if verdict.flow and (peak := homogenisation(verdict.flow)):
        parts.append(_flow_words(verdict.flow, *peak))
    if verdict.probe:
        parts.append(_probe_words(verdict.probe))
    if verdict.unusual:
        parts.append(f"unusual: {verdict.unusual[0]}")
    return f"{verdict.model.label}, {layers}: {'; '.join(parts) or 'no similarity by depth was measured'}."


def _flow_words(run: StoredRun, state: int, value: Interval, rise: Interval | None) -> str:
    place = f"state {state} of {len(run.result['token_similarity']) - 1} ({share(run, state):.0%} of the depth)"
    if state == 0:
        return f"tokens are nowhere more alike than at the first state, similarity {value}"
    if rise is None:
        return f"tokens are most alike at {place}, similarity {value} (too few prompts to judge the rise)"
    words = {1: "tokens become alike", -1: "tokens only part", 0: "tokens are not shown to become alike"}[rise.sign]
    return f"{words}, most at {place}: similarity {value}, {rise.text('+.3f')} against the first state"


def _probe_words(run: StoredRun) -> str:
    read_out = ReadOut.of(run.result)
    if not read_out.probed:
        return "no state could be probed"
    level = f"accuracy {read_out.accuracy.value:.3f}, chance {read_out.chance:.3f}"
    if not read_out.decodable:
        return f"the {read_out.label} is not shown to be decodable ({level}{read_out.beside})"
    level += f"; {_others(read_out)} may read it as well" if _others(read_out) else ""
    place = f"{read_out.place(read_out.peak)} of {read_out.number(read_out.last)}"
    where = f"the {read_out.label} is read best at {place} ({level})"
    return f"{where}; {read_out.statement}{read_out.beside}"


def _others(read_out: ReadOut) -> str:
    """How many states may read as well as the best, "" where none does."""
    others = len(read_out.tied) - 1
    return f"{others} other state{'s' if others > 1 else ''}" if others > 0 else ""


def unusual(flow: StoredRun | None, probe: StoredRun | None) -> list[str]:
    """What a reader would not expect: the runs' findings, sharp turns, sinks that carry the similarity."""
    findings = [finding for run in (flow, probe) if run for finding in run.result.findings]
    sentences = [finding.message for finding in findings if finding.code not in ORDINARY]
    if flow:
        sentences += [text for text in (_gaps(flow), _sharp_turn(flow), _sinks(flow), _final_norm(flow)) if text]
    return list(dict.fromkeys(sentences))


def _gaps(run: StoredRun) -> str:
    """States where no prompt has a finite similarity."""
    if "token_similarity" not in run.result:
        return ""
    empty = np.flatnonzero(~np.isfinite(run.result["token_similarity"]).any(1)).tolist()
    if len(empty) == len(run.result["token_similarity"]):
        return "token similarity is finite at no state"
    return f"token similarity is not finite at state {', '.join(map(str, empty))}" if empty else ""


def _sharp_turn(run: StoredRun) -> str:
    """The block that turns tokens most, where it stands out; not the first, which turns every model's embedding."""
    if "layer_cosine" not in run.result or run.states != "residual":
        return ""
    cosine = run.result.token_mean("layer_cosine", pooled=True)
    later = cosine[1:]
    if not np.isfinite(later).any() or len(later) < 3:
        return ""
    block, usual = 1 + int(np.nanargmin(later)), float(np.nanmedian(later))
    if usual - cosine[block] < TURN:
        return ""
    return f"block {block + 1} turns tokens sharply (cosine {cosine[block]:.2f}, median block {usual:.2f})"


def _sinks(run: StoredRun) -> str:
    """Where similarity rests on sink tokens."""
    name = f"{run.result.config.get('drop')}/token_similarity"
    if name not in run.result or "token_similarity" not in run.result:
        return ""
    change = run.result.mean(name) - run.result.mean("token_similarity")
    if not np.isfinite(change).any() or np.nanmax(np.abs(change)) < SINK:
        return ""
    state = int(np.nanargmax(np.abs(change)))
    return f"without sink tokens similarity at state {state} changes by {change[state]:+.2f}"


def _final_norm(run: StoredRun) -> str:
    """Where the final norm changes the picture."""
    name = "final_norm/token_similarity"
    if name not in run.result or "token_similarity" not in run.result:
        return ""
    change = float(run.result.mean(name)[0] - run.result.mean("token_similarity")[-1])
    return f"the final norm changes similarity by {change:+.2f}" if abs(change) >= SINK else ""


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """The numbers of the sentences, each linked to its figure."""
    flows = [verdict.flow for verdict in verdicts if verdict.flow]
    prefix = "matched/" if one_grid(flows) else ""
    mixed = len({conditions(run) for run in flows}) > 1
    columns = [
        "model",
        "depth of homogenisation",
        "best read-out layer",
        "last-layer loss, points",
        "Sm",
        "St",
        "unusual",
    ]
    caption = (
        "Depth of homogenisation: where in depth tokens are most alike. Best read-out layer: the state that "
        "validation prompts chose. Last-layer loss: accuracy there minus that of the last state, below chance counted "
        "as chance; shown where its interval covers refits and lies above 0, with half the training prompts too. Sm "
        "and St: mean "
        "second difference and spread over depth, lower is smoother"
    )
    steps = f"; here on a common grid of {flows[0].result.config.get('grid')} steps of relative depth" if prefix else ""
    few = few_prompts(flow.result.config.get("samples") for flow in flows)
    caption += f"{steps}. Brackets: 95 % over prompts.{few}"
    rows = [_row(verdict, prefix) for verdict in verdicts]
    if mixed:
        columns.append("measured on")
        caption += " The models were not all measured on the same: see the last column before comparing rows."
        rows = [[*row, _measured_on(verdict)] for row, verdict in zip(rows, verdicts, strict=True)]
    return Table("verdict-table", "In numbers", columns, rows, caption, narrow=True)


def _row(verdict: Verdict, prefix: str) -> list[Cell]:
    flow, probe = verdict.flow, verdict.probe
    row: list[Cell] = [verdict.model.label]
    peak = homogenisation(flow) if flow else None
    if flow and peak:
        state, value, _ = peak
        row.append(Link(f"{share(flow, state):.0%} (state {state}), similarity {value.fitted}", "figure-2"))
    else:
        row.append(None)
    read_out = ReadOut.of(probe.result) if probe else None
    if probe and read_out is not None and read_out.probed:
        alike = f", or one of {_others(read_out)}" if _others(read_out) else ""
        place = (
            f"{read_out.place(read_out.peak)} of {read_out.number(read_out.last)}{alike}"
            if read_out.decodable
            else "none above chance"
        )
        row += [Link(f"{place} ({probed_label(probe)}{read_out.beside})", "figure-7")]
        row += [Link(f"{read_out.loss.text()}{'' if read_out.shown else ', not shown'}", "figure-7")]
    else:
        row += [None, None]
    row += [_over_depth(flow, f"{prefix}{name}") for name in ("smoothness", "stability")]
    sentences = verdict.unusual
    more = f" (and {len(sentences) - TOLD} more, see the findings of the runs)" if len(sentences) > TOLD else ""
    return [*row, "; ".join(sentences[:TOLD]) + more if sentences else "nothing"]


def _over_depth(run: StoredRun | None, name: str) -> Cell:
    if run is None or name not in run.result:
        return None
    value = at(run.result.band(name))
    return Link(value.fitted, "over-depth") if np.isfinite(value.value) else None


def _measured_on(verdict: Verdict) -> str:
    parts = [f"flow: {conditions(verdict.flow)}"] if verdict.flow else []
    parts += [f"probes: {conditions(verdict.probe)}"] if verdict.probe else []
    return "; ".join(parts)
