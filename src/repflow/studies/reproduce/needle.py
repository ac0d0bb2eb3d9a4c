"""Paper 2's Figure 2 (and 9): needles in a haystack, Mamba-Codestral-7B beside Mistral-7B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.intervals import Band, bracketed, paired_interval
from repflow.studies.needle.study import STUDY, NeedleConfig
from repflow.studies.reproduce.recency import RecencyRecipe, loading_options
from repflow.studies.reproduce.recipe import cell_name
from repflow.studies.reproduce.statement import Reading, Results, Statement, above

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.studies.reproduce.config import ReproduceConfig
    from repflow.studies.reproduce.models import StandIn

SSM, TRANSFORMER = "Mamba-Codestral-7B", "Mistral-7B"
LENGTHS = {"tiny": ("160", "240"), "zoo": ("256", "512"), "paper": ("1000", "2000", "4000", "8000")}
"""Tokens per prompt. The figure's axes are not readable in its text."""
POSITIONS = {"tiny": ("0", "0.5", "1"), "zoo": ("0", "0.25", "0.5", "0.75", "1")}
TENTHS = tuple(f"{tenth / 10:g}" for tenth in range(11))
SAMPLES = {"tiny": 4, "zoo": 16, "paper": 16}
LITTLE = {"answer_correct": 0.1, "gain": 1.0}
"""Change from start to end that counts as none: ten points of accuracy, or one nat of log-odds."""
NOTE = (
    "the paper takes the haystack of LLMTest_NeedleInAHaystack and does not give its lengths and number of needles: "
    "made-up prose here, other statements of the kinds in its Figure 8, its instruction behind the document"
)


class NeedleRecipe(RecencyRecipe):
    """Where each of two models finds what was planted."""

    name = "recency-fig2"
    note = NOTE
    roles = (SSM, TRANSFORMER)
    drawn = ("answer_correct", "first", "rank", "log_odds", "gain", "depth", "slope/answer_correct", "slope/gain")

    def settled(self, config: ReproduceConfig) -> ReproduceConfig:
        """The task is the needle."""
        if config.tasks:
            raise InputError(teach(f"{config.recipe} without --task", ", ".join(config.tasks), "leave --task out"))
        return config

    def request(self, config: ReproduceConfig, model: StandIn) -> tuple[str, NeedleConfig]:
        """Needles at every length and position."""
        wanted = NeedleConfig(
            lengths=[str(length) for length in config.lengths or LENGTHS[config.scale]],
            positions=list(POSITIONS.get(config.scale, TENTHS)),
            samples=config.samples or SAMPLES[config.scale],
            **loading_options(config, model),
        )
        return cell_name(STUDY.names(wanted).earlier, wanted), wanted

    def statements(self, roles: Sequence[str], *, random: bool = False) -> list[Statement]:
        """What the paper says of the slopes over position."""
        stable = "“the retrieval accuracy of the Transformer remains stable regardless of the needle position”"
        rises = "“the SSM achieves higher accuracy when the needle is placed closer to the end of the context”"
        biased = "“a positional bias towards local tokens in the SSM”, and none in the Transformer"
        all_statements = [
            Statement(f"{TRANSFORMER}, position", stable, "3.2", (TRANSFORMER,), _transformer),
            Statement(f"{SSM}, position", rises, "3.2", (SSM,), _ssm),
            Statement(f"{SSM} minus {TRANSFORMER}", biased, "3.2", (SSM, TRANSFORMER), _both),
        ]
        return [statement for statement in all_statements if {*statement.needs} <= {*roles}]

    def facts(self, results: Results) -> dict[str, Any]:
        """Lengths and positions that were run."""
        first = next(iter(results.values())).provenance
        return {"lengths": first["lengths"], "positions": first["positions"]}


def _transformer(result: Result) -> Reading:
    score, band = position_slope(result)
    text = f"{_said(score, band)}; {_overall(result)}; stable: within ±{_margin(score)}"
    return Reading(text, _decided(band, _stable(score, band), result))


def _ssm(result: Result) -> Reading:
    score, band = position_slope(result)
    return Reading(f"{_said(score, band)}; {_overall(result)}", _decided(band, _rises(band), result))


def _both(ssm: Result, transformer: Result) -> Reading:
    """Both by one score, prompt by prompt."""
    score = "answer_correct" if _contrast(ssm) and _contrast(transformer) else "gain"
    band = paired_interval(ssm[f"slope_all/{score}"], transformer[f"slope_all/{score}"])
    return Reading(_said(score, band), _decided(band, _rises(band), ssm, transformer))


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


RECIPES = {"recency-fig2": NeedleRecipe()}
