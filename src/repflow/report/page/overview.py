"""The page's first screen: one sentence, the headline figure and four cards, all from the runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np

from repflow.report.data.comparable import basis
from repflow.report.data.model import Card, Figure, Section
from repflow.report.data.runs import StoredRun
from repflow.report.data.summary import (
    Summary,
    chosen_words,
    measured_on,
    reaching_entries,
    sentences,
    similar_entries,
    tokens,
)

HEADLINE = "figure-2"
"""Token similarity by depth; a page without it begins with its first figure."""
MOST = 4
"""Cards of the first screen."""
COMMANDS = {"similarity": "measure {}", "reach": "recency {}", "read-out": "probe {} --label answer"}


def headline(sections: Sequence[Section]) -> str:
    """Id of the figure on the first screen, "" where the page has none."""
    figures = [block.id for section in sections for block in section.blocks if isinstance(block, Figure)]
    return HEADLINE if HEADLINE in figures else next(iter(figures), "")


def sentence(entries: Sequence[Summary], runs: Sequence[StoredRun], sections: Sequence[Section] = ()) -> str:
    """The first thing that the page's runs say, and what it rests on; else what its first figure says."""
    first, rest = next(iter(sentences(entries)), ""), ""
    if first:
        rest = _rest(first, entries)
    elif (figure := _figure(sections)) is not None:
        first, rest = figure.variants[0].reading, figure.variants[0].basis
    if first:
        return f"{first} Based on {rest}." if rest else first
    studies = list(dict.fromkeys(run.study for run in runs))
    tasks = [task for task in dict.fromkeys(run.task for run in runs) if task]
    count = f"{len(runs)} run{'s' if len(runs) != 1 else ''}"
    return f"{count} of {', '.join(studies)}" + (f" on {', '.join(tasks)}" if tasks else "") + "."


def _figure(sections: Sequence[Section]) -> Figure | None:
    """The figure on the first screen."""
    figures = [block for section in sections for block in section.blocks if isinstance(block, Figure)]
    return next((figure for figure in figures if figure.id == headline(sections)), None)


def _rest(text: str, entries: Sequence[Summary]) -> str:
    """What the runs behind a sentence have in common, which are those of the models that it names."""
    named = [entry for entry in entries if entry.label in text]
    if text.startswith("Order decides"):
        return "; ".join(dict.fromkeys(entry.answers.basis for entry in named if entry.answers))
    kind = "reach" if "moves" in text else "flow"
    return basis([run for entry in named if (run := getattr(entry, kind))], states=kind == "flow")


def cards(entries: Sequence[Summary], sections: Sequence[Section] = ()) -> list[Card]:
    """Most alike, least alike, farthest reach, best read-out; then what other studies say; then what is not measured.

    On a page of several models a card names one of them; on a page of one it names a state. What was not measured
    says how to.
    """
    own = [*_alike(entries), _reach(entries), _read_out(entries)] if entries else []
    measured, missing = ([card for card in own if bool(card.value) == known] for known in (True, False))
    facts = [fact for section in sections for fact in section.facts]
    return [*measured, *facts, *missing][:MOST]


def _alike(entries: Sequence[Summary]) -> list[Card]:
    known = similar_entries(entries)
    titles = ("Most alike", "Least alike")
    if not known:
        return [_missing("How alike", "how alike tokens are", "similarity", entries)]
    if len(known) == 1:
        places = [(known[0], known[0].peak), (known[0], known[0].low)]
    else:
        most = max(known, key=lambda entry: entry.curve[entry.peak])
        least = min(known, key=lambda entry: entry.curve[entry.peak])
        places = [(most, most.peak), (least, least.peak)]
    single = len(known) == 1
    return [
        Card(
            title,
            f"{entry.curve[state]:.2f}",
            f"{entry.label}, {'' if single or title == titles[0] else 'at its highest: '}{entry.place(state)}",
            f"mean cosine between tokens; {_between(entry, state)}{measured_on(entry.flow)}",
            HEADLINE,
        )
        for title, (entry, state) in zip(titles, places, strict=True)
    ]


def _between(entry: Summary, state: int) -> str:
    value = entry.similarity(state)
    return f"95 % interval {value.low:.3f} to {value.high:.3f}; " if np.isfinite(value.low) else ""


def _reach(entries: Sequence[Summary]) -> Card:
    known = [(value, entry) for entry in reaching_entries(entries) if (value := entry.tokens_back)]
    if not known:
        return _missing("Farthest reach", "how far back tokens reach", "reach", entries)
    value, entry = max(known, key=lambda pair: pair[0].value)
    others = min(known, key=lambda pair: pair[0].value)
    against = f"; in {others[1].label} it is {tokens(others[0].value)}" if len(known) > 1 else ""
    between = f"95 % interval {value.low:.0f} to {value.high:.0f}; " if np.isfinite(value.low) else ""
    assert entry.reach is not None
    return Card(
        "Farthest reach" if len(known) > 1 else "Reach",
        f"{tokens(value.value)} tokens",
        f"hold half of what moves the last output of {entry.label}{against}",
        f"{between}{basis([entry.reach], states=False)}",
        "recency-influence",
    )


def _read_out(entries: Sequence[Summary]) -> Card:
    known = [(read_out, entry) for entry in entries if (read_out := entry.read)]
    if not known:
        return _missing("Best read-out", "where the answer can be read", "read-out", entries)
    read_out, entry = max(known, key=lambda pair: (pair[0].decodable, pair[0].accuracy.value - pair[0].chance))
    level = f"{read_out.accuracy.value:.2f}"
    if read_out.decodable:
        value, text = level, f"{read_out.label}: {entry.label}, {chosen_words(read_out)} (chance {read_out.chance:.2f})"
    else:
        value = "none"
        text = f"{read_out.label}: no state above chance ({level}, chance {read_out.chance:.2f}) in {entry.label}"
    return Card("Best read-out", value, text, f"{measured_on(entry.probe)}{read_out.beside}", "figure-7")


def _missing(title: str, what: str, kind: str, entries: Sequence[Summary]) -> Card:
    """A card of what no run measured, with the command that does."""
    run = next(run for run in (entries[0].flow, entries[0].probe, entries[0].reach) if run)
    spec = str(run.facts.get("spec") or run.label)
    return Card(title, "", f"not measured yet: {what}", command=f"repflow {COMMANDS[kind].format(shlex.quote(spec))}")
