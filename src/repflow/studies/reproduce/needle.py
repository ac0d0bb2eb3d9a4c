"""Paper 2's Figure 2 (and 9): needles in a haystack, Mamba-Codestral-7B beside Mistral-7B."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.intervals import Band, bracketed, paired_interval
from repflow.studies.needle.study import STUDY, NeedleConfig, check_request
from repflow.studies.reproduce.recency import (
    Line,
    above,
    cell_name,
    check_recency,
    finish_figure,
    stand_in_labels,
    stand_ins,
    told_lines,
)

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.core.results import Result
    from repflow.studies.reproduce.config import ReproduceConfig

SSM, TRANSFORMER = "Mamba-Codestral-7B", "Mistral-7B"
LENGTHS = {"tiny": ("160", "240"), "zoo": ("256", "512"), "paper": ("1000", "2000", "4000", "8000")}
"""Tokens per prompt. The figure's axes are not readable in its text."""
POSITIONS = {"tiny": ("0", "0.5", "1"), "zoo": ("0", "0.25", "0.5", "0.75", "1")}
TENTHS = tuple(f"{tenth / 10:g}" for tenth in range(11))
SAMPLES = {"tiny": 4, "zoo": 16, "paper": 16}
DRAWN = ("answer_correct", "first", "rank", "log_odds", "gain", "depth", "slope/answer_correct", "slope/gain")
LITTLE = {"answer_correct": 0.1, "gain": 1.0}
"""Change from start to end that counts as none: ten points of accuracy, or one nat of log-odds."""
TITLE = "retrieval of a counterfactual statement by length and position"
NOTE = (
    "the paper takes the haystack of LLMTest_NeedleInAHaystack and does not give its lengths and number of needles: "
    "made-up prose here, other statements of the kinds in its Figure 8, its instruction behind the document"
)


def requests(config: ReproduceConfig, out: str | Path, *, make: bool = True) -> dict[str, NeedleConfig]:
    """What is run for each model of the figure.

    Args:
        config: the request.
        out: folder of runs.
        make: write tiny models that are not there; False for a dry run.
    """
    check_recency(config, (SSM, TRANSFORMER))
    if config.tasks:
        raise InputError(teach(f"{config.recipe} without --task", ", ".join(config.tasks), "leave --task out"))
    folder = Path(out) / f"recency-{config.scale}"
    specs = stand_ins(config, (SSM, TRANSFORMER), folder / "models", make=make)
    made = {}
    for role, (spec, tokenizer) in specs.items():
        made[role] = NeedleConfig(
            model=spec,
            tokenizer=tokenizer,
            lengths=[str(length) for length in config.lengths or LENGTHS[config.scale]],
            positions=list(POSITIONS.get(config.scale, TENTHS)),
            samples=config.samples or SAMPLES[config.scale],
            seed=config.seed,
            match="tokens",
            dtype=config.dtype,
            device=config.device,
            scan=config.scan,
            batch_size=config.batch_size,
        )
        check_request(made[role])
    return made


def run(
    config: ReproduceConfig, *, out: str | Path, name: str | None = None, progress: Progress | None = None
) -> Result:
    """Reproduce the figure.

    Returns:
        Result: ROLE/NAME for every array that is drawn; the paper's statements beside ours under `provenance["lines"]`.
    """
    from repflow.core.results import Result
    from repflow.studies.needle import study as needle

    folder = Path(out) / f"recency-{config.scale}"
    asked = requests(config, out)
    names = {role: cell_name(STUDY.names(request).earlier, request) for role, request in asked.items()}
    found = {
        role: needle.run(request, out=folder, name=names[role], progress=progress) for role, request in asked.items()
    }
    drawn = {f"{role}/{key}": (result, key) for role, result in found.items() for key in DRAWN if key in result}
    arrays = {name: result[key] for name, (result, key) in drawn.items()}
    axes = {name: result.axes[key] for name, (result, key) in drawn.items()}
    labels = stand_in_labels(config, (SSM, TRANSFORMER), found)
    facts = {
        "title": TITLE,
        "note": NOTE,
        "lines": told_lines(figure_lines(found), config, labels, next(iter(asked.values())).samples),
        "stand_ins": labels,
        "models": {role: request.model for role, request in asked.items()},
        "runs": {role: f"{folder.name}/{names[role]}" for role in asked},
        "lengths": next(iter(found.values())).provenance["lengths"],
        "positions": next(iter(found.values())).provenance["positions"],
    }
    whole = Result(arrays, axes, {}, facts)
    whole.bands = {name: result.bands[key] for name, (result, key) in drawn.items() if key in result.bands}
    return finish_figure(whole, config, out, name)


def figure_lines(found: Mapping[str, Result]) -> list[Line]:
    """The paper's statements on Figure 2 beside the slopes over position."""
    lines = []
    if TRANSFORMER in found:
        stated = "“the retrieval accuracy of the Transformer remains stable regardless of the needle position” (3.2)"
        score, band = position_slope(found[TRANSFORMER])
        ours = f"{_said(score, band)}; {_overall(found[TRANSFORMER])}"
        holds = _decided(band, _stable(score, band), found[TRANSFORMER])
        ours += f"; stable: within ±{_margin(score)}"
        lines.append(Line(f"{TRANSFORMER}, position", stated, ours, holds))
    if SSM in found:
        stated = "“the SSM achieves higher accuracy when the needle is placed closer to the end of the context” (3.2)"
        score, band = position_slope(found[SSM])
        ours = f"{_said(score, band)}; {_overall(found[SSM])}"
        lines.append(Line(f"{SSM}, position", stated, ours, _decided(band, _rises(band), found[SSM])))
    if len(found) == 2:
        stated = "“a positional bias towards local tokens in the SSM”, and none in the Transformer (3.2)"
        score = "slope_all/answer_correct" if all(_contrast(result) for result in found.values()) else "slope_all/gain"
        band = paired_interval(found[SSM][score], found[TRANSFORMER][score])
        said = _said(score.removeprefix("slope_all/"), band)
        lines.append(Line(f"{SSM} minus {TRANSFORMER}", stated, said, _decided(band, _rises(band), *found.values())))
    return lines


def position_slope(result: Result) -> tuple[str, Band]:
    """Slope over position and its score.

    Greedy accuracy, or the gain in log-odds where accuracy is the same in every cell: it has no slope to speak of.
    """
    score = "answer_correct" if _contrast(result) else "gain"
    return score, result.band(f"slope_all/{score}")


def _contrast(result: Result) -> bool:
    values = result["answer_correct"]
    return len(np.unique(values[np.isfinite(values)])) > 1


def _said(score: str, band: Band) -> str:
    scale, unit = (100, "points of greedy accuracy") if score == "answer_correct" else (1, "nats of log-odds")
    mean, low, high = (scale * float(value) for value in (band.mean, band.low, band.high))
    return f"slope {mean:+.1f} {unit}{bracketed(low, high, '+.1f')} from start to end"


def _overall(result: Result) -> str:
    unread = "" if _read(result) else "; nothing shows that the needle was read"
    return (
        f"accuracy {np.nanmean(result['answer_correct']):.0%}, planted word first {np.nanmean(result['first']):.0%} "
        f"(chance {np.mean(result.provenance['chance']):.0%}){unread}"
    )


def _read(result: Result) -> bool:
    """Whether the needle is shown to change what the model says."""
    return not {"needle_unused", "few_needles"} & {finding.code for finding in result.findings}


def _stable(score: str, band: Band) -> bool | None:
    """Whether a slope is shown to be nothing to speak of; an interval around zero alone may just be wide."""
    if bool(band.low > 0 or band.high < 0):
        return False
    return True if max(abs(band.low), abs(band.high)) <= LITTLE[score] else None


def _margin(score: str) -> str:
    return f"{100 * LITTLE[score]:.0f} points" if score == "answer_correct" else f"{LITTLE[score]:g} nat"


def _rises(band: Band) -> bool | None:
    """Whether a slope is above zero; None where its interval holds zero."""
    return above((band.low, band.high), (0.0, 0.0))


def _decided(band: Band, holds: bool | None, *results: Result) -> bool | None:
    """A verdict; None with too few needles for an interval, or a model that does not read them: it has no bias."""
    return holds if np.isfinite(band.low) and all(map(_read, results)) else None
