"""Paper 2's Figure 1 (influence of trained and untrained Mamba) and Figure 7 (Mamba against Transformers)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.catalogue import is_exponential
from repflow.core.intervals import bracketed
from repflow.studies.recency.study import RecencyConfig, check_request
from repflow.studies.reproduce.recency import (
    Line,
    above,
    check_recency,
    finish_figure,
    is_random,
    run_options,
    stand_in_labels,
    stand_ins,
    told_lines,
)

if TYPE_CHECKING:
    import numpy as np

    from repflow.capture.run import Progress
    from repflow.core.results import Band, Result
    from repflow.studies.reproduce.config import ReproduceConfig

LENGTHS = {"tiny": 256, "zoo": 512, "paper": 512}
"""Tokens per prompt; Figure 1's axis ends at 500."""
SAMPLES = {"tiny": 4, "zoo": 8, "paper": 32}
TASK = "kvpr"
"""The paper does not say what its models read."""


@dataclass(frozen=True)
class Figure:
    """A figure of paper 2 that shows influence.

    Attributes:
        title: what it shows.
        roles: models in it.
        twins: whether they are also shown without training.
        pairs: models whose ratio is shown.
        note: how it is read where the paper leaves that open.
    """

    title: str
    roles: tuple[str, ...]
    twins: bool = False
    pairs: tuple[tuple[str, str], ...] = ()
    note: str = "the paper does not say what the models read, nor which norm it takes: kvpr prompts, Frobenius norm"


FIGURES = {
    "recency-fig1": Figure(
        "log influence by distance, trained and untrained", ("Mamba-130M", "Mamba-1.4B"), twins=True
    ),
    "recency-fig7": Figure(
        "influence of Mamba and Transformers, and its ratio within the nearest 128 tokens",
        ("Mamba-130M", "Pythia-160M", "Mamba-1.4B", "Pythia-1.4B"),
        pairs=(("Mamba-130M", "Pythia-160M"), ("Mamba-1.4B", "Pythia-1.4B")),
    ),
}


def requests(config: ReproduceConfig, out: str | Path, *, make: bool = True) -> dict[str, RecencyConfig]:
    """What is measured for each model of the figure.

    Args:
        config: the request.
        out: folder of runs.
        make: write tiny models that are not there; False for a dry run.
    """
    figure = FIGURES[config.recipe]
    check_recency(config, figure.roles)
    folder = Path(out) / f"recency-{config.scale}"
    specs = stand_ins(config, figure.roles, folder / "models", make=make)
    made = {}
    for role, (spec, tokenizer) in specs.items():
        made[role] = RecencyConfig(
            model=spec,
            tokenizer=tokenizer,
            twin="default" if figure.twins else None,
            **run_options(config, TASK, LENGTHS, SAMPLES),
        )
        check_request(made[role])
    return made


def run(
    config: ReproduceConfig, *, out: str | Path, name: str | None = None, progress: Progress | None = None
) -> Result:
    """Reproduce one of the two figures.

    Returns:
        Result: ROLE/NAME for every array that is drawn, A over B/log_ratio for the ratios; the paper's statements
        beside ours under `provenance["lines"]`.
    """
    from repflow.core.results import Result
    from repflow.studies.recency import study as recency
    from repflow.studies.recency.study import STUDY

    figure = FIGURES[config.recipe]
    folder = Path(out) / f"recency-{config.scale}"
    asked = requests(config, out)
    found = {
        role: recency.run(request, out=folder, name=STUDY.names(request).earlier, progress=progress)
        for role, request in asked.items()
    }
    arrays: dict[str, np.ndarray] = {}
    axes: dict[str, tuple[str, ...]] = {}
    for role, result in found.items():
        for key in [key for key in result if key.removeprefix("twin/") in DRAWN]:
            arrays[f"{role}/{key}"], axes[f"{role}/{key}"] = result[key], result.axes[key]
    ratios = _ratios(figure, found)
    for pair, ratio in ratios.items():
        for key in ratio:
            arrays[f"{pair}/{key}"], axes[f"{pair}/{key}"] = ratio[key], ratio.axes[key]
    lines = _figure1(found, "xavier" if is_random(config) else "trained") if figure.twins else _figure7(found, ratios)
    labels = stand_in_labels(config, figure.roles, found)
    facts = {
        "title": figure.title,
        "note": figure.note,
        "lines": told_lines(lines, config, labels, next(iter(asked.values())).samples),
        "stand_ins": labels,
        "models": {role: request.model for role, request in asked.items()},
        "runs": {role: f"{folder.name}/{STUDY.names(request).earlier}" for role, request in asked.items()},
        "fits": {role: _fits(result) for role, result in found.items()},
        "ratios": {pair: ratio.provenance["ratio"] for pair, ratio in ratios.items()},
    }
    return finish_figure(Result(arrays, axes, {}, facts), config, out, name)


DRAWN = ("log_influence", "recent_share", "half_reach", "lost_in_the_middle", "kappa", "theorem_kappa", "decay_max")


def _fits(result: Result) -> dict[str, Any]:
    twin = result.provenance.get("twin")
    return {"trained": result.provenance["recency"]["fit"], "twin": None if twin is None else twin["fit"]}


def _ratios(figure: Figure, found: Mapping[str, Result]) -> dict[str, Result]:
    from repflow.studies.recency.ratio import influence_ratio

    pairs = [pair for pair in figure.pairs if set(pair) <= found.keys()]
    return {f"{a} over {b}": influence_ratio(found[a], found[b]) for a, b in pairs}


def _kappa(fit: dict[str, Any] | None) -> str:
    if fit is None or fit["kappa"] is None:
        return "no fit"
    return f"κ = {fit['kappa']:.4f}{bracketed(fit['kappa_low'], fit['kappa_high'], '.4f')}, R² {fit['r2']:.3f}"


def _ends(fit: dict[str, Any]) -> tuple[float, float]:
    """Interval of a stored κ; NaN where one prompt gives none."""
    low, high = fit["kappa_low"], fit["kappa_high"]
    return (math.nan, math.nan) if low is None or high is None else (float(low), float(high))


def _shown(band: Band, spec: str) -> str:
    return f"{float(band.mean):{spec}}{bracketed(band.low, band.high, spec)}"


def _straight(fit: dict[str, Any] | None) -> bool | None:
    """Whether logarithms fall, on a straight line and better than on a power law; None without an interval of κ."""
    if fit is None or fit["r2"] is None or not all(map(math.isfinite, _ends(fit))):
        return None
    falls = above(_ends(fit), (0.0, 0.0))
    return falls and is_exponential(fit)


def _figure1(found: Mapping[str, Result], weights: str = "trained") -> list[Line]:
    """Lines of Figure 1; `weights` are those of the models that stand for trained ones."""
    lines = []
    for role, result in found.items():
        fits = _fits(result)
        for words, key in ((weights, "trained"), ("without training", "twin")):
            stated = "“a linear decay rate of influence scores, both at initialization and throughout training” (3.1)"
            trained = key == "trained"
            lines.append(Line(f"{role}, {words}", stated, _kappa(fits[key]), _straight(fits[key]), trained))
        trained, twin = fits["trained"], fits["twin"]
        holds = None if not trained or not twin else above(_ends(twin), _ends(trained))
        stated = "“the adopted initialization scheme further amplifies the locality bias” (3.1)"
        ours = f"without training {_kappa(twin)}; {weights} {_kappa(trained)}"
        lines.append(Line(f"{role}, initialization", stated, ours, holds))
        lines.append(_theorem(role, result))
    return lines


def _theorem(role: str, result: Result) -> Line:
    stated = "|∂y_t/∂x_s| = O(exp(−κ(t − s))), κ = Θ(log(1/A_max)) (Theorem 3.1)"
    said = next((finding.message for finding in result.findings if finding.code == "loose_bound"), None)
    return Line(f"{role}, bound", stated, said or "the layers' decays cannot be read", None)


def _figure7(found: Mapping[str, Result], ratios: Mapping[str, Result]) -> list[Line]:
    lines = []
    for role, result in found.items():
        if not role.startswith("Pythia"):
            continue
        index = result.band("lost_in_the_middle")
        stated = "“lost in the middle” pattern: beginning and end high, middle low (E.1)"
        ours = f"index {_shown(index, '+.2f')} (both ends over the middle where above 0)"
        lines.append(Line(f"{role}, shape", stated, ours, above((index.low, index.high), (0.0, 0.0))))
    for pair, ratio in ratios.items():
        mamba, pythia = pair.split(" over ")
        near, far = (found[role].band("half_reach") for role in (mamba, pythia))
        stated = "“highly influential tokens are more concentrated in the nearest positions” (E.1)"
        ours = f"half of all influence within the last {_shown(near, '.1f')} tokens, "
        ours += f"the Transformer's {_shown(far, '.1f')}"
        holds = above((far.low, far.high), (near.low, near.high))
        lines.append(Line(f"{mamba}, concentration", stated, ours, holds))
        facts = ratio.provenance["ratio"]
        stated = "“Mamba exhibits an exponentially faster decay speed compared to Pythia” (E.1, Figure 7b)"
        falls = above(_ends(facts), (0.0, 0.0))
        shape = "; it falls, not as an exponential" if falls and not is_exponential(facts) else ""
        lines.append(Line(f"{pair}, ratio", stated, f"{_kappa(facts)}{shape}", None if shape else falls))
    return lines
