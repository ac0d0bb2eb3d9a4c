"""What the demo prints: a line per model, and paper 1's findings with ours beside them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from repflow.core.results import Result
from repflow.core.verdict import EFFECT, MEANING, WORDS
from repflow.papers.claims import Clause
from repflow.papers.findings import Judged, told_part, verdict_sentence, verdict_words
from repflow.papers.reading import HYBRID, SSM, TBM, Flow, Probe, Reading, further_trainings, further_words
from repflow.report.data.comparable import basis
from repflow.report.data.summary import Summary, percent, sentences
from repflow.report.terminal.cell import ABSENT

WIDTH = 100
COUNTS = ("no", "one", "two", "three", "four", "five", "six")
NAMED = {TBM: "Transformer", SSM: "state-space model", HYBRID: "hybrid"}
WINDOW = 64
"""Last tokens whose share of all influence is reported."""
LABELS = {"answer": "the answer's first symbol", "index": "the gold pair's index"}


def first_screen(entries: Sequence[Summary], width: int) -> list[RenderableType]:
    """What ran, one table of the models, and what the runs say, in sentences that need no knowledge of repflow."""
    width = min(width, WIDTH)
    lines = [line for text in sentences(entries) for line in _hanging(f"- {text}", width, 2)]
    words = [line for text in columns_explained(entries) for line in _hanging(text, width, 2)]
    words = [*words, "", *lines]
    return [Text("\n".join(_hanging(what_ran(entries), width, 0))), summary_table(entries), Text("\n".join(words))]


def what_ran(entries: Sequence[Summary]) -> str:
    """Models, task and prompts in a sentence."""
    runs = {name: [run for entry in entries if (run := getattr(entry, name))] for name in ("flow", "probe", "reach")}
    words = {"flow": "measured", "probe": "probed", "reach": "traced for influence"}
    counts = {name: sorted({int(run.result.config["samples"]) for run in own}) for name, own in runs.items()}
    counted = [f"{' or '.join(map(str, counts[name]))} {words[name]}" for name in runs if counts[name]]
    places = dict.fromkeys(basis(own, states=False).rpartition(", ")[0] for own in runs.values() if own)
    number = COUNTS[len(entries)] if len(entries) < len(COUNTS) else str(len(entries))
    what = "look up a value by its key" if any(place.startswith("kvpr") for place in places) else "read"
    where, prompts = "; ".join(places), ", ".join(counted)
    return f"{number.capitalize()} small models that come with repflow {what} ({where}). Prompts: {prompts}."


def summary_table(entries: Sequence[Summary]) -> RichTable:
    """A row per model: how alike its tokens are at the start, at most and at the end; reach; answers."""
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold")
    for name in ("blocks", "alike: first", "highest", "last", "reach", "answers"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in summary_rows(entries):
        states = [row["alike"][name] for name in ("start", "peak", "end")] if row["alike"] else [None] * 3
        numbers = [ABSENT if value is None else f"{value:.2f}" for value in states]
        reach = ABSENT if row["reach"] is None else f"{row['reach']:.0f}"
        answers = ABSENT if row["answers"] is None else percent(row["answers"])
        table.add_row(Text(row["model"]), str(row["blocks"]), *numbers, reach, answers)
    return table


def columns_explained(entries: Sequence[Summary]) -> list[str]:
    """What the columns mean, a line each."""
    return [
        "alike: mean cosine between the tokens of a prompt, at the embedding, at its highest and after the last block",
        "reach: how many of the last tokens hold half of all influence on the output",
        f"answers: {_answered_on(entries)}",
    ]


def _answered_on(entries: Sequence[Summary]) -> str:
    places = dict.fromkeys(
        f"share of {entry.answers.count} prompts answered in full: {entry.answers.basis}"
        for entry in entries
        if entry.answers
    )
    return "; ".join(places) or "not known"


def summary_rows(entries: Sequence[Summary]) -> list[dict[str, Any]]:
    """The table's numbers; None for what was not measured."""
    rows = []
    for entry in entries:
        curve = entry.curve
        ends = (
            {"start": float(curve[0]), "peak": float(curve[entry.peak]), "end": float(curve[-1])}
            if len(curve)
            else None
        )
        back, answers = entry.tokens_back, entry.answers
        rows.append(
            {
                "model": entry.label,
                "blocks": entry.model.layers,
                "alike": ends,
                "reach": None if back is None else back.value,
                "answers": None if answers is None else answers.share.value,
                "answered": None if answers is None else answers.count,
            }
        )
    return rows


def verdict_line(judged: Sequence[Judged], width: int) -> str:
    """The findings of paper 1 in a sentence."""
    counts = {word: sum(entry.verdict == word for entry in judged) for word in WORDS}
    counted = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    text = f"Paper 1 (arXiv 2510.06640) reports {len(judged)} findings. On these models: {counted}."
    return "\n".join(_hanging(text, min(width, WIDTH), 0))


def model_verdict(
    reading: Reading,
    place: str,
    answers: Mapping[str, Any] | None = None,
    reach: Mapping[str, Any] | None = None,
    others: Sequence[Reading] = (),
) -> str:
    """A few sentences on one model, each with its numbers.

    Args:
        reading: what was measured.
        place: "task/length" to speak of.
        answers: retrieval of held-out prompts as the card has it, by set.
        reach: how far back its tokens reach, as `reaches` gives it.
        others: further trainings of it that have a flow there.
    """
    parts = []
    if flow := reading.trained.get(place):
        parts.append(_shape(flow))
    if band := end_band(others, place):
        parts.append(f"{band[0]:.2f} to {band[1]:.2f} alike at the end in {further_words(others)}")
    parts += [
        f"with random weights ({key.partition('/')[0]}) {twin.token_similarity[-1]:.2f} alike at the end"
        for key, twin in reading.random.items()
        if key.endswith(f"/{place}")
    ]
    if longest := longest_kvpr(answers or {}):
        name, entry = longest
        parts.append(f"answers {entry['exact'] / entry['of']:.1%} of {entry['of']} held-out prompts ({name}) in full")
    parts += [_read_out(label, probe) for label in LABELS if (probe := reading.probes.get(f"{label}/{place}"))]
    if reach is not None:
        parts.append(_reaches_back(reach))
    return f"{reading.model} ({NAMED[reading.family]}): {'; '.join(parts)}."


def end_band(others: Sequence[Reading], place: str) -> tuple[float, float] | None:
    """Lowest and highest similarity of the last state's tokens over trainings; None of one, or where one is NaN."""
    ends = [other.trained[place].token_similarity[-1] for other in others]
    return (min(ends), max(ends)) if len(ends) > 1 and np.isfinite(ends).all() else None


def reaches(results: Sequence[Result], place: str) -> dict[str, dict[str, Any]]:
    """How far back tokens reach by model, of runs of `repflow recency` on one "task/length".

    `half_within` is the least number of last tokens that hold half of all influence on the last token's output,
    `last_64` the share that the last 64 hold; `random` the same of the random twin.
    """
    by_model = {}
    for result in results:
        if "log_influence" in result and f"{result.config['task']}/{result.config['length']}" == place:
            numbers: dict[str, Any] = dict(_reach(result, ""))
            twin = result.provenance.get("twin")
            by_model[str(result.provenance["model"]["name"])] = numbers | {
                "samples": len(result["log_influence"]),
                "random": {"init": twin["init"], **_reach(result, "twin/")} if twin else None,
            }
    return by_model


def _reach(result: Result, prefix: str) -> dict[str, float | None]:
    at = result.provenance["recency"]["windows"].index(WINDOW)
    values = {
        "half_within": float(result.mean(f"{prefix}half_reach")),
        f"last_{WINDOW}": float(result.mean(f"{prefix}recent_share")[at]),
    }
    return {name: value if np.isfinite(value) else None for name, value in values.items()}


def _reaches_back(reach: Mapping[str, Any]) -> str:
    def told(entry: Mapping[str, Any]) -> str:
        half, share = entry["half_within"], entry[f"last_{WINDOW}"]
        text = "no number of tokens" if half is None else f"the last {half:.0f} tokens"
        return text if share is None else f"{text} ({share:.0%} within the last {WINDOW})"

    text = f"half of what moves its last output lies in {told(reach)}"
    random = reach["random"]
    return text if random is None else f"{text}, with random weights ({random['init']}) in {told(random)}"


def longest_kvpr(answers: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The longest set of kvpr prompts among a card's results."""
    sets = [name for name in answers if name.startswith("kvpr-")]
    name = max(sets, key=lambda entry: int(entry.rpartition("-")[2]), default=None)
    return None if name is None else (name, answers[name])


def _shape(flow: Flow) -> str:
    values = flow.token_similarity
    if missing := sum(not np.isfinite(value) for value in values):
        return f"token similarity has no value at {missing} of {len(values)} states"
    last, top = len(values) - 1, int(np.argmax(values))
    if top == last:
        return f"tokens grow from {values[0]:.2f} to {values[-1]:.2f} alike and are most alike at the end"
    return f"tokens are most alike ({values[top]:.2f}) at state {top} of {last} and {values[-1]:.2f} alike at the end"


def _read_out(label: str, probe: Probe) -> str:
    what, last = LABELS[label], len(probe.accuracy) - 1
    if not probe.decodable:
        return f"{what} is not shown to be decodable ({probe.peak_accuracy:.2f}, chance {probe.chance:.2f})"
    return (
        f"{what} is read at state {probe.peak} of {last}, which validation prompts chose ({probe.peak_accuracy:.2f}, "
        f"chance {probe.chance:.2f}), {probe.last_accuracy:.2f} at the last"
    )


def verdict_text(lines: Sequence[str], width: int) -> str:
    """The verdicts as a list."""
    return _listed("Verdict by model", lines, min(width, WIDTH))


POWER = (
    f"Power: the chance of “holds” with these seeds, if every part were true by {EFFECT:g} standard deviations "
    "between trainings."
)


def findings_text(judged: Sequence[Judged], width: int) -> str:
    """The findings one under the other: the paper's words, ours, the verdict and its reason."""
    width = min(width, WIDTH)
    lines = ["What the paper found (arXiv 2510.06640) and what these models say"]
    lines += _hanging(POWER, width, 0)
    for entry in judged:
        lines += ["", *_hanging(f"{entry.code}: {verdict_words(entry)}", width, 9)]
        entries = [("short", verdict_sentence(entry)), ("paper", entry.words), ("ours", entry.ours)]
        entries += [("why", entry.reason), ("note", entry.caution)]
        if entry.branches:
            differ = "; ".join(f"{told_part(part)}: {part.asked[0].found}" for part in entry.on_branches if part.asked)
            entries += [("also", f"{verdict_words(entry.branches)}{f'. {differ}' if differ else ''}")]
        for head, text in entries:
            if text:
                lines += _hanging(f"  {head + ':':<6} {text}", width, 9)
    lines += ["", *(line for word, text in MEANING.items() for line in _hanging(f"{word}: {text}", width, 2))]
    return "\n".join([*lines, "", ", ".join(f"{sum(e.verdict == word for e in judged)} {word}" for word in WORDS)])


def _listed(title: str, entries: Sequence[str], width: int) -> str:
    lines = [title]
    for entry in entries:
        lines += _hanging(f"- {entry}", width, 2)
    return "\n".join(lines)


def _hanging(text: str, width: int, indent: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=" " * indent, break_long_words=False)


def demo_json(
    readings: Sequence[Reading],
    judged: Sequence[Judged],
    runs: Sequence[str],
    reach: Mapping[str, Any],
    known: Sequence[Reading],
    place: str,
    entries: Sequence[Summary] = (),
) -> dict[str, Any]:
    """The same as one object."""
    others = {reading.model: further_trainings(reading, known, place) for reading in readings}
    return {
        "runs": list(runs),
        "models": summary_rows(entries),
        "sentences": sentences(entries),
        "reach": dict(reach),
        "further_trainings": {
            model: {
                "trainings": [reading.training._asdict() for reading in readings_again],
                "last_similarity": dict(zip(("low", "high"), band, strict=True)),
            }
            for model, readings_again in others.items()
            if (band := end_band(readings_again, place))
        },
        "readings": [reading.to_json() for reading in readings],
        "findings": [finding_json(entry) for entry in judged],
    }


def finding_json(entry: Judged) -> dict[str, Any]:
    """A finding as plain values; what state-space branches say to it under `branches`."""
    return {
        "code": entry.code,
        "paper": entry.words,
        "ours": entry.ours,
        "states": entry.states,
        "verdict": entry.verdict,
        "counts": entry.judgement.counts,
        "power": entry.judgement.power,
        "seeds": entry.seeds,
        "reason": entry.reason,
        "caution": entry.caution,
        "trainings": [training._asdict() for training in entry.trainings],
        "parts": [_clause_json(clause) for clause in entry.clauses],
        "over_trainings": [
            {
                "text": part.text,
                "holds": part.holds,
                "margins": {str(seed): margin for seed, margin in part.by_seed.items()},
                "interval": _finite(part.interval),
            }
            for part in entry.parts
        ],
        "branches": finding_json(entry.branches) if entry.branches else None,
    }


def _clause_json(clause: Clause) -> dict[str, Any]:
    content = {
        "text": clause.text,
        **clause.training._asdict(),
        "found": clause.found,
        "holds": clause.holds,
        "margin": clause.margin if clause.asked else None,
        "interval": _finite(clause.interval),
        "over": clause.over,
    }
    return content if clause.also is None else content | {"also": _clause_json(clause.also)}


def _finite(ends: Sequence[float]) -> list[float] | None:
    return list(ends) if np.isfinite(ends).all() else None
