"""Paper 2's Figure 5 (sharpness of Mamba and a Transformer through depth) and Figure 6 (range of the decays)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from repflow.core.intervals import bracketed
from repflow.studies.memory.study import STUDY, MemoryConfig
from repflow.studies.reproduce.recency import RecencyRecipe, run_options
from repflow.studies.reproduce.recipe import cell_name
from repflow.studies.reproduce.statement import Reading, Results, Statement, above

if TYPE_CHECKING:
    from repflow.core.results import Band, Result
    from repflow.studies.reproduce.config import ReproduceConfig
    from repflow.studies.reproduce.models import StandIn

LENGTHS = {"tiny": 256, "zoo": 256, "paper": 512}
"""Tokens per prompt; the paper does not say how many it used."""
SAMPLES = {"tiny": 4, "zoo": 4, "paper": 32}
TASK = "kvpr"
STATED_SHARE = 0.6
"""Figure 6: over 60 % of channels have a range below 0.5."""


@dataclass(frozen=True, kw_only=True)
class MemoryRecipe(RecencyRecipe):
    """A figure of paper 2 that shows memories.

    Attributes:
        name: in the table of recipes.
        roles: models in it.
        judged: its statements, from the models that are run.
        drawn: arrays of each that are kept.
        note: how it is read where the paper leaves that open.
    """

    name: str
    roles: tuple[str, ...]
    judged: Callable[[Sequence[str]], Iterator[Statement]]
    drawn: tuple[str, ...]
    note: str

    def request(self, config: ReproduceConfig, model: StandIn) -> tuple[str, MemoryConfig]:
        """Memory statistics of every layer."""
        memory = MemoryConfig(**run_options(config, model, TASK, LENGTHS, SAMPLES))
        return cell_name(STUDY.names(memory).bare, memory), memory

    def statements(self, roles: Sequence[str], *, random: bool = False) -> list[Statement]:
        """What the paper says of these models."""
        return list(self.judged(roles))

    def facts(self, results: Results) -> dict[str, Any]:
        """Thresholds of the histogram, and which layers have transitions."""
        return {
            "thresholds": next(iter(results.values())).provenance["thresholds"],
            "transitions": {role: result.provenance["transitions"] for role, result in results.items()},
        }


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


def _figure5(roles: Sequence[str]) -> Iterator[Statement]:
    order = "“b_t is above h_t among all Mamba blocks”"
    falls = "mixer and block output “tends to decrease rapidly in deeper layers”"
    small = "A + Δ ≤ 1, which “prevalent SSM models ... can easily achieve”"
    slower = "“transformers have a slower decay of feature sharpness”"
    for role in roles:
        if not role.startswith("Mamba"):
            continue
        yield Statement(f"{role}, b and h", order, "4, Figure 5a", (role,), _order)
        for part in ("mixer", "block"):
            reader = partial(_falls, part=part)
            yield Statement(f"{role}, {part} output", falls, "4, Figures 5b, 5c", (role,), reader)
        yield Statement(f"{role}, assumption (i)", small, "Theorem 4.2", (role,), _assumption)
    pair = ("Mamba-1.4B", "Pythia-1.4B")
    for part in ("mixer", "block") if {*pair} <= {*roles} else ():
        what = f"Mamba-1.4B against Pythia-1.4B, {part} output"
        yield Statement(what, slower, "4", pair, partial(_slower, part=part))


def _order(result: Result) -> Reading:
    """Per layer, by the interval of the difference over prompts: one layer below settles "all", one open leaves it."""
    import numpy as np

    from repflow.core.intervals import paired_interval

    upper, lower = result["sharpness/input"], result["sharpness/state"]
    band = paired_interval(upper, lower, axis=1)
    known = np.isfinite(band.mean)
    above_count, below = int((band.low > 0).sum()), int((band.high < 0).sum())
    means = [np.nanmean(side[known]) if known.any() else np.nan for side in (upper, lower)]
    ours = f"E(b) shown above E(h) in {above_count} of {int(known.sum())} layers, below in {below}"
    holds = False if below else True if known.any() and above_count == known.sum() else None
    return Reading(f"{ours}; means {means[0]:.3f} and {means[1]:.3f}", holds)


def _falls(result: Result, part: str) -> Reading:
    slope = depth_slope(result, f"sharpness/{part}")
    holds = bool(slope.mean < 0) if slope.low > 0 or slope.high < 0 else None  # NaN with one prompt
    return Reading(f"sharpness from first to last layer {_shown(slope)}", holds)


def _assumption(result: Result) -> Reading:
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
    # one step that breaks it settles "all"; steps that meet it do not, of however few prompts
    holds = False if (known < 1).any() else True if result["contractive_share"].shape[1] >= LEAST_VALUES else None
    return Reading(ours, holds if known.size else None)


def _slower(mamba: Result, other: Result, part: str) -> Reading:
    a, b = (depth_slope(side, f"sharpness/{part}") for side in (mamba, other))
    apart = a.high < b.low or b.high < a.low
    return Reading(f"Mamba {_shown(a)}, Transformer {_shown(b)}", bool(a.mean < b.mean) if apart else None)


def _figure6(roles: Sequence[str]) -> Iterator[Statement]:
    stated = "“over 60 % of channels have (A_max − A_min) values smaller than 0.5”"
    for role in roles:
        yield Statement(role, stated, "6, Figure 6", (role,), _range)


def _range(result: Result) -> Reading:
    """The paper does not say over how many prompts a range is taken: both ways must lie on one side."""
    import numpy as np

    from repflow.studies.memory.study import HALF, range_share

    if "range_cumulative" not in result:
        return Reading("no layer has a transition", None)
    share = range_share(result)
    band = result.band("range_cumulative_sample")
    mean, low, high = (
        float(np.interp(HALF, result.provenance["thresholds"], side)) for side in (band.mean, band.low, band.high)
    )
    interval = bracketed(low, high, ".1%") or " (too few prompts for an interval)"
    holds = above((low, high), (STATED_SHARE, STATED_SHARE))
    text = f"{share:.1%} over all prompts; within one prompt {mean:.1%}{interval}"
    return Reading(text, holds if holds == (share > STATED_SHARE) else None)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        MemoryRecipe(
            name="recency-fig5",
            roles=("Mamba-1.4B", "Pythia-1.4B"),
            judged=_figure5,
            drawn=(
                *(f"sharpness/{part}" for part in ("input", "entry", "state", "mixer", "block", "embedding")),
                *("contractive_share", "never_contractive", "spread_state", "spread_bound"),
            ),
            note="the paper names a 1.4B Mamba and a transformer of the same size, not what they read: kvpr prompts, "
            "Pythia",
        ),
        MemoryRecipe(
            name="recency-fig6",
            roles=("Mamba-130M", "Mamba-1.4B"),
            judged=_figure6,
            drawn=("A_range", "range_cumulative", "range_cumulative_layer", "range_cumulative_sample", "half_life"),
            note="the paper names neither the model nor the prompts: both sizes of its other figures, kvpr prompts",
        ),
    )
}
