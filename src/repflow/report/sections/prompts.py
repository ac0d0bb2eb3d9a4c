"""The explorer of kept prompts: every token with its path through depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.report.data.comparable import task_name
from repflow.report.data.context import Context
from repflow.report.data.model import Content, Prompts, PromptSample
from repflow.report.data.runs import StoredRun
from repflow.report.draw.curve import joined
from repflow.report.draw.number import plain

METRICS = {
    "cosine with the layer before": "kept/layer_cosine",
    "similarity to the other tokens": "kept/token_similarity_by_token",
    "norm": "kept/token_norm",
}
MOST_VALUES = 240_000
"""Values of all samples together: at most about 0.8 MB of the page."""
LEAST_TOKENS = 48
DIGITS = 4
CUT = "…"
"""Stands for the tokens left out in the middle of a long prompt."""


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Kept prompts of residual states; None where no run kept any."""
    with_prompts = [run for run in runs if run.study == "measure" and run.states == "residual" and _kept(run)]
    labels = {model.label for model in context.models}
    with_prompts = [run for run in with_prompts if run.label in labels]
    if not with_prompts:
        return None
    wanted = [(run, sample) for run in with_prompts for sample in range(len(_kept(run)))]
    chosen, left = _within_budget(wanted)
    per_token = sum(_rows_of(run) for run, _ in chosen)
    most = max(MOST_VALUES // max(per_token, 1), LEAST_TOKENS)
    samples = [_sample(run, sample, most) for run, sample in chosen]
    caption = f"{left} of {len(wanted)} kept prompts are left out to keep the page small." if left else ""
    lead = (
        "The prompts themselves. Choose a sample and a token, and see how far it turns at each layer, how long it is, "
        "and how alike it is to the other tokens of its prompt."
    )
    block = Prompts("prompts-explorer", "One prompt and the path of each token", samples, caption)
    reading = f"Pick a token to see its path through depth. {_counted([run for run, _ in chosen], samples)}"
    return Content(lead, [block], reading=reading)


def _counted(runs: Sequence[StoredRun], samples: Sequence[PromptSample]) -> str:
    """How many prompts the reader can choose from, of how many that were measured."""
    sets = {(task_name(run), run.length): int(run.result.config.get("samples") or 0) for run in runs}
    places = " and ".join(f"{task}, {length} tokens" for task, length in sets)
    shown, total = len({one.label for one in samples}), sum(sets.values())
    return f"Here are {shown} of {max(total, shown)} measured prompts ({places})."


def _kept(run: StoredRun) -> list[dict[str, Any]]:
    """Kept prompts that have their tokens as text and at least one metric by token."""
    has = any(name in run.result for name in METRICS.values())
    return [entry for entry in run.result.provenance.get("kept", []) if entry.get("tokens")] if has else []


def _rows_of(run: StoredRun) -> int:
    return sum(len(run.result[name]) for name in METRICS.values() if name in run.result)


def _within_budget(wanted: list[tuple[StoredRun, int]]) -> tuple[list[tuple[StoredRun, int]], int]:
    """First samples of every run before second ones, as many as leave room for the least number of tokens each."""
    ordered = sorted(wanted, key=lambda entry: entry[1])
    chosen: list[tuple[StoredRun, int]] = []
    total = 0
    for run, sample in ordered:
        need = _rows_of(run) * min(LEAST_TOKENS, _tokens(run, sample))
        if chosen and total + need > MOST_VALUES:
            continue
        total += need
        chosen.append((run, sample))
    fitting = [entry for entry in wanted if entry in chosen]
    return fitting, len(wanted) - len(fitting)


def _tokens(run: StoredRun, sample: int) -> int:
    return len(_kept(run)[sample]["tokens"])


def _sample(run: StoredRun, sample: int, most: int) -> PromptSample:
    entry = _kept(run)[sample]
    tokens = [str(token) for token in entry["tokens"]]
    head, tail = kept_ends(len(tokens), most)
    metrics = {}
    for words, name in METRICS.items():
        values = run.result.arrays.get(name)
        if values is not None and len(values) in (run.layers, run.layers + 1):
            metrics[words] = _thinned(np.asarray(values[:, sample, : len(tokens)], dtype=np.float64), head, tail)
    cut = len(tokens) - head - tail
    note = joined(
        f"{cut} tokens in the middle are left out ({CUT})." if cut else "",
        f"Values are rounded to {DIGITS} significant digits.",
    )
    visible_tokens = tokens if not cut else [*tokens[:head], CUT, *tokens[len(tokens) - tail :]]
    label = f"{task_name(run)}, {run.length} tokens, sample {sample + 1}"
    return PromptSample(run.label, label, visible_tokens, metrics, _about(run, sample, len(tokens)), note)


def kept_ends(count: int, most: int) -> tuple[int, int]:
    """How many tokens to keep at the beginning and at the end; the end holds the question.

    >>> kept_ends(10, 20), kept_ends(100, 30)
    ((10, 0), (15, 15))
    """
    return (count, 0) if count <= most else (most - most // 2, most // 2)


def _thinned(values: np.ndarray, head: int, tail: int) -> list[list[float | None]]:
    if not tail:
        return plain(values, DIGITS)
    ends = values[:, values.shape[1] - tail :]
    return [
        [*first, None, *last] for first, last in zip(plain(values[:, :head], DIGITS), plain(ends, DIGITS), strict=True)
    ]


def _about(run: StoredRun, sample: int, tokens: int) -> str:
    """One line about the prompt: its length and where the gold item lies."""
    facts = run.result.provenance.get("task") or {}
    labels, positions = facts.get("labels") or [], facts.get("gold_positions") or []
    text = f"{tokens} tokens, {run.states} states"
    if sample < len(labels) and labels[sample] is not None:
        text += f", label {labels[sample]} of {len(facts.get('classes') or [])} classes"
    if sample < len(positions) and positions[sample] is not None:
        text += f", gold item at {positions[sample]:.0%} of the items"
    return text
