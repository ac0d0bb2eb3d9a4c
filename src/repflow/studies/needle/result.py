"""The needle test's Result: scores per cell, slopes over position, and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from repflow.core.intervals import share_interval
from repflow.core.results import Finding, Result, sample_band
from repflow.studies.needle.scores import ends_over_middle, log_odds, rank, slope
from repflow.tasks.needle.needles import stands
from repflow.tasks.needle.prompts import NeedlePrompts

CELL = ("length", "position", "sample")
SLOPES = ("answer_correct", "first", "gain_first", "log_odds", "gain")
SHARES = ("answer_correct", "answer_true", "first", "gain_first")
WORDS = {"answer_correct": "greedy accuracy", "log_odds": "the log-odds of the planted word"}
KEPT_ANSWERS = 2000
LEAST_NEEDLES = 5
"""Needles from which an interval over them is taken for a statement."""


def needle_result(
    documents: NeedlePrompts, logprobs: Mapping[int, np.ndarray], answers: Mapping[int, str], *, answered: bool
) -> Result:
    """Put the scores together.

    Args:
        documents: the prompts.
        logprobs: per prompt, log-probability of every candidate.
        answers: per prompt, the greedy answer.
        answered: whether answers were requested.
    """
    shape = documents.shape
    cells = int(np.prod(shape))
    logprob = np.stack([logprobs[prompt] for prompt in range(cells)]).reshape(*shape, -1)
    bare = np.stack([logprobs[prompt] for prompt in range(cells, len(documents.prompts))]).reshape(
        shape[0], shape[2], -1
    )
    arrays = _scores(logprob)
    if answered:
        arrays = _judged(documents, answers, logprob) | arrays
    without = _scores(bare)
    arrays["gain"] = arrays["log_odds"] - without["log_odds"][:, None]
    # words differ in length and in how common they are; what the needle adds to each does not
    arrays["gain_first"] = _first(rank(logprob - bare[:, None]))
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(arrays, CELL)
    arrays |= {"depth": documents.depth, "logprob": logprob}
    axes |= {"depth": CELL, "logprob": (*CELL, "candidate")}
    for name, values in without.items():
        arrays[f"without/{name}"], axes[f"without/{name}"] = values, ("length", "sample")
    for name in SLOPES:
        if name in arrays:
            slopes = slope(arrays[name], documents.depth)
            arrays[f"slope/{name}"], axes[f"slope/{name}"] = slopes, ("length", "sample")
            arrays[f"slope_all/{name}"], axes[f"slope_all/{name}"] = slopes.mean(0), ("sample",)
            arrays[f"ends/{name}"], axes[f"ends/{name}"] = ends_over_middle(arrays[name]), ("length", "sample")
    result = Result(arrays, axes)
    for name in arrays:
        if "sample" in axes[name] and name not in ("logprob", "depth"):
            shares = name.removeprefix("without/") in SHARES
            values = arrays[name]
            result.bands[name] = share_interval(values, axis=-1) if shares else sample_band(values, axes[name])
    result.provenance = _facts(documents, answers, arrays, answered)
    result.findings = _findings(result)
    return result


def _scores(logprob: np.ndarray) -> dict[str, np.ndarray]:
    """What follows from the candidates' log-probabilities."""
    places = rank(logprob)
    return {
        "first": _first(places),
        "rank": places,
        "log_odds": log_odds(logprob),
        "log_odds_true": logprob[..., 0] - logprob[..., 1],
    }


def _first(places: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(places), np.nan, places == 1)


def first_line(answer: str) -> str:
    r"""What counts as an answer: its first line with words; a base model continues with its own questions.

    >>> first_line("\n Madrid.\nQuestion: What is the capital of Spain?")
    'Madrid.'
    """
    return next((line.strip() for line in answer.splitlines() if line.strip()), "")


def _judged(documents: NeedlePrompts, answers: Mapping[int, str], logprob: np.ndarray) -> dict[str, np.ndarray]:
    """Whether the greedy answers hold the planted and the true word; NaN where the model's numbers are not finite."""
    planted, true = np.empty(int(np.prod(documents.shape))), np.empty(int(np.prod(documents.shape)))
    for prompt in range(len(planted)):
        needle, line = documents.needles[documents.sample(prompt)], first_line(answers[prompt])
        planted[prompt], true[prompt] = stands(needle.planted, line), stands(needle.true, line)
    sound = np.isfinite(logprob).all(-1)
    return {
        "answer_correct": np.where(sound, planted.reshape(documents.shape), np.nan),
        "answer_true": np.where(sound, true.reshape(documents.shape), np.nan),
    }


def _facts(
    documents: NeedlePrompts, answers: Mapping[int, str], arrays: Mapping[str, np.ndarray], answered: bool
) -> dict[str, Any]:
    lengths = np.array(documents.prompts.lengths[: int(np.prod(documents.shape))]).reshape(documents.shape[0], -1)
    entries = []
    if answered:
        for place, where in enumerate(np.ndindex(documents.shape)):
            if place >= KEPT_ANSWERS:
                break
            entry: dict[str, Any] = dict(zip(CELL, where, strict=True))
            entries.append(entry | {"text": answers[place], "correct": bool(arrays["answer_correct"][where] == 1)})
    return {
        "lengths": list(documents.sweep.lengths),
        "positions": list(documents.sweep.positions),
        "prompt_tokens": [[int(row.min()), int(row.max())] for row in lengths],
        "instruction": documents.sweep.instruction,
        "haystack": documents.haystack,
        "needles": [
            {
                **{name: getattr(needle, name) for name in ("kind", "statement", "question", "planted", "true")},
                "others": list(needle.others),
            }
            for needle in documents.needles
        ],
        "chance": [1 / len(needle.candidates) for needle in documents.needles],
        "answers": entries,
    }


def _findings(result: Result) -> list[Finding]:
    """Positional bias by both scores, and whether the needle was read at all."""
    findings = []
    count = result["gain"].shape[-1]
    if count < LEAST_NEEDLES:
        text = f"{count} needles per cell are too few to say anything about positions; pass --samples 16 or more"
        return [Finding("few_needles", None, text)]
    gain = sample_band(result["gain"].mean((0, 1)), ("sample",))
    if np.isfinite(gain.low) and gain.low <= 0:
        text = (
            f"the needle raises the log-odds of its word by {gain.mean:.2f} nats [{gain.low:.2f}, {gain.high:.2f}] over"
            " the same document without it: nothing shows that it was read, so slopes say little"
        )
        findings.append(Finding("needle_unused", None, text))
    for name in WORDS:
        if f"slope_all/{name}" in result:
            findings += _bias(result, name)
    ends = sample_band(result["ends/gain"].mean(0), ("sample",))
    if ends.low > 0:
        text = (
            f"at both ends of the document the needle raises the log-odds of its word by {ends.mean:.2f} nats"
            f" [{ends.low:.2f}, {ends.high:.2f}] more than in between, which a slope does not show"
        )
        findings.append(Finding("lost_in_the_middle", None, text))
    return findings


def _bias(result: Result, name: str) -> list[Finding]:
    band = result.band(f"slope_all/{name}")
    if not np.isfinite(band.low):
        return []
    values = result[name]
    if name in SHARES and len(np.unique(values[np.isfinite(values)])) == 1:
        end = "0" if np.nanmax(values) == 0 else "1"
        return [Finding("no_contrast", None, f"{WORDS[name]} is {end} in every cell: it cannot show a positional bias")]
    scale, unit = (100, "percentage points") if name in SHARES else (1, "nats")
    mean, low, high = (scale * float(value) for value in (band.mean, band.low, band.high))
    span = f"{WORDS[name]} changes by {mean:+.2f} {unit} [{low:+.2f}, {high:+.2f}] from the document's start to its end"
    if low > 0:
        return [Finding("recency_bias", None, f"{span}: needles near the end are found better")]
    if high < 0:
        return [Finding("primacy_bias", None, f"{span}: needles near the start are found better")]
    return [Finding("no_positional_bias", None, f"{span}: no slope over position can be distinguished from zero")]
