"""Paper 2's Figure 5 (sharpness of Mamba and a Transformer through depth) and Figure 6 (range of the decays)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from repflow.core.intervals import bracketed
from repflow.studies.memory.study import STUDY, MemoryConfig, check_request
from repflow.studies.reproduce.recency import (
    Line,
    above,
    cell_name,
    check_recency,
    finish_figure,
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

LENGTHS = {"tiny": 256, "zoo": 256, "paper": 512}
"""Tokens per prompt; the paper does not say how many it used."""
SAMPLES = {"tiny": 4, "zoo": 4, "paper": 32}
TASK = "kvpr"
STATED_SHARE = 0.6
"""Figure 6: over 60 % of channels have a range below 0.5."""


@dataclass(frozen=True)
class Figure:
    """A figure of paper 2 that shows memories.

    Attributes:
        title: what it shows.
        roles: models in it.
        drawn: arrays of each that are kept.
        note: how it is read where the paper leaves that open.
    """

    title: str
    roles: tuple[str, ...]
    drawn: tuple[str, ...]
    note: str


FIGURES = {
    "recency-fig5": Figure(
        "sharpness of b and h, of mixer and block outputs, through depth",
        ("Mamba-1.4B", "Pythia-1.4B"),
        (*(f"sharpness/{part}" for part in ("input", "entry", "state", "mixer", "block", "embedding")),
         "contractive_share", "never_contractive", "spread_state", "spread_bound"),
        "the paper names a 1.4B Mamba and a transformer of the same size, not what they read: kvpr prompts, Pythia",
    ),
    "recency-fig6": Figure(
        "cumulative histogram of A_max − A_min over channels",
        ("Mamba-130M", "Mamba-1.4B"),
        ("A_range", "range_cumulative", "range_cumulative_layer", "range_cumulative_sample", "half_life"),
        "the paper names neither the model nor the prompts: both sizes of its other figures, kvpr prompts",
    ),
}  # fmt: skip


def requests(config: ReproduceConfig, out: str | Path, *, make: bool = True) -> dict[str, MemoryConfig]:
    """What is measured for each model of the figure.

    Args:
        config: the request.
        out: folder of runs.
        make: write tiny models that are not there; False for a dry run.
    """
    figure = FIGURES[config.recipe]
    check_recency(config, figure.roles)
    folder = Path(out) / f"recency-{config.scale}"
    made = {}
    for role, (spec, tokenizer) in stand_ins(config, figure.roles, folder / "models", make=make).items():
        made[role] = MemoryConfig(model=spec, tokenizer=tokenizer, **run_options(config, TASK, LENGTHS, SAMPLES))
        check_request(made[role])
    return made


def run(
    config: ReproduceConfig, *, out: str | Path, name: str | None = None, progress: Progress | None = None
) -> Result:
    """Reproduce one of the two figures.

    Returns:
        Result: ROLE/NAME for every array that is drawn; the paper's statements beside ours under
        `provenance["lines"]`.
    """
    from repflow.core.results import Result
    from repflow.studies.memory import study as memory

    figure = FIGURES[config.recipe]
    folder = Path(out) / f"recency-{config.scale}"
    asked = requests(config, out)
    names = {role: cell_name(STUDY.names(request).bare, request) for role, request in asked.items()}
    found = {
        role: memory.run(request, out=folder, name=names[role], progress=progress) for role, request in asked.items()
    }
    arrays: dict[str, np.ndarray] = {}
    axes: dict[str, tuple[str, ...]] = {}
    for role, result in found.items():
        for key in [key for key in figure.drawn if key in result]:
            arrays[f"{role}/{key}"], axes[f"{role}/{key}"] = result[key], result.axes[key]
    lines = _figure5(found) if config.recipe == "recency-fig5" else _figure6(found)
    labels = stand_in_labels(config, figure.roles, found)
    facts = {
        "title": figure.title,
        "note": figure.note,
        "lines": told_lines(lines, config, labels, next(iter(asked.values())).samples),
        "stand_ins": labels,
        "models": {role: request.model for role, request in asked.items()},
        "runs": {role: f"{folder.name}/{names[role]}" for role in asked},
        "thresholds": next(iter(found.values())).provenance["thresholds"],
        "transitions": {role: result.provenance["transitions"] for role, result in found.items()},
    }
    return finish_figure(Result(arrays, axes, {}, facts), config, out, name)


def depth_slope(result: Result, name: str) -> Band:
    """Change of a layer metric from the first to the last layer, by least squares per prompt, with its interval."""
    import numpy as np

    from repflow.core.intervals import student_interval

    values = result[name]
    slopes = []
    for sample in values.T:
        known = np.isfinite(sample)
        depth = np.linspace(0, 1, len(sample))[known]
        slopes.append(float(np.polyfit(depth, sample[known], 1)[0]) if known.sum() > 1 else np.nan)
    return student_interval(np.array(slopes))


def _shown(band: Band) -> str:

    return f"{float(band.mean):+.3f}{bracketed(band.low, band.high, '+.3f')}"


def _figure5(found: Mapping[str, Result]) -> list[Line]:
    lines = []
    for role, result in found.items():
        if not role.startswith("Mamba"):
            continue
        lines.append(_order(role, result))
        for part, words in (("mixer", "mixer output"), ("block", "block output")):
            slope = depth_slope(result, f"sharpness/{part}")
            stated = "mixer and block output “tends to decrease rapidly in deeper layers” (4, Figures 5b, 5c)"
            ours = f"sharpness from first to last layer {_shown(slope)}"
            holds = bool(slope.mean < 0) if slope.low > 0 or slope.high < 0 else None  # NaN with one prompt
            lines.append(Line(f"{role}, {words}", stated, ours, holds))
        lines.append(_assumption(role, result))
    mamba, other = found.get("Mamba-1.4B"), found.get("Pythia-1.4B")
    if mamba is not None and other is not None:
        pairs = {
            part: [depth_slope(side, f"sharpness/{part}") for side in (mamba, other)] for part in ("mixer", "block")
        }
        lines += [_against(part, *slopes) for part, slopes in pairs.items()]
    return lines


def _order(role: str, result: Result) -> Line:
    """Per layer, by the interval of the difference over prompts: one layer below settles "all", one open leaves it."""
    import numpy as np

    from repflow.core.intervals import paired_interval

    upper, lower = result["sharpness/input"], result["sharpness/state"]
    band = paired_interval(upper, lower, axis=1)
    known = np.isfinite(band.mean)
    shown, below = int((band.low > 0).sum()), int((band.high < 0).sum())
    means = [np.nanmean(side[known]) if known.any() else np.nan for side in (upper, lower)]
    ours = f"E(b) shown above E(h) in {shown} of {int(known.sum())} layers, below in {below}"
    holds = False if below else True if known.any() and shown == known.sum() else None
    stated = "“b_t is above h_t among all Mamba blocks” (4, Figure 5a)"
    return Line(f"{role}, b and h", stated, f"{ours}; means {means[0]:.3f} and {means[1]:.3f}", holds)


def _assumption(role: str, result: Result) -> Line:
    """Whether the models meet Theorem 4.2's first assumption, and how the spread of h stands to its bound."""
    import numpy as np

    from repflow.core.intervals import LEAST_VALUES

    share, never = result.mean("contractive_share"), result["never_contractive"]
    known = share[np.isfinite(share)]
    inside = result["spread_state"] <= result["spread_bound"]
    measured = np.isfinite(result["spread_state"])
    ours = f"A + Δ ≤ 1 in {known.mean():.1%} of steps"
    if np.isfinite(never).any():
        ours += f", never possible for {np.nanmean(never):.1%} of states"
    if measured.any():
        ours += f"; h spreads within the bound in {inside[measured].mean():.0%} of layers and prompts"
    stated = "A + Δ ≤ 1, which “prevalent SSM models ... can easily achieve” (Theorem 4.2)"
    # one step that breaks it settles "all"; steps that meet it do not, of however few prompts
    holds = False if (known < 1).any() else True if result["contractive_share"].shape[1] >= LEAST_VALUES else None
    return Line(f"{role}, assumption (i)", stated, ours, holds if known.size else None)


def _against(part: str, mamba: Band, other: Band) -> Line:
    apart = mamba.high < other.low or other.high < mamba.low
    stated = "“transformers have a slower decay of feature sharpness” (4)"
    ours = f"Mamba {_shown(mamba)}, Transformer {_shown(other)}"
    what = f"Mamba-1.4B against Pythia-1.4B, {part} output"
    return Line(what, stated, ours, bool(mamba.mean < other.mean) if apart else None)


def _figure6(found: Mapping[str, Result]) -> list[Line]:
    import numpy as np

    from repflow.studies.memory.study import HALF, range_share

    lines = []
    for role, result in found.items():
        stated = "“over 60 % of channels have (A_max − A_min) values smaller than 0.5” (6, Figure 6)"
        if "range_cumulative" not in result:
            lines.append(Line(role, stated, "no layer has a transition", None))
            continue
        share = range_share(result)
        band = result.band("range_cumulative_sample")
        mean, low, high = (
            float(np.interp(HALF, result.provenance["thresholds"], side)) for side in (band.mean, band.low, band.high)
        )
        interval = bracketed(low, high, ".1%") or " (too few prompts for an interval)"
        ours = f"{share:.1%} over all prompts; within one prompt {mean:.1%}{interval}"
        # the paper does not say over how many prompts a range is taken: both must lie on one side
        holds = above((low, high), (STATED_SHARE, STATED_SHARE))
        lines.append(Line(role, stated, ours, holds if holds == (share > STATED_SHARE) else None))
    return lines
