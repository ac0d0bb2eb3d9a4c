"""Paper 2's Figure 1 (influence of trained and untrained Mamba) and Figure 7 (Mamba against Transformers)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from repflow.core.catalogue import is_exponential
from repflow.core.intervals import bracketed
from repflow.studies.recency.study import STUDY, RecencyConfig
from repflow.studies.reproduce.recency import RecencyRecipe, run_options
from repflow.studies.reproduce.statement import Reading, Results, Statement, above

if TYPE_CHECKING:
    import numpy as np

    from repflow.core.results import Band, Result
    from repflow.studies.reproduce.config import ReproduceConfig
    from repflow.studies.reproduce.models import StandIn

LENGTHS = {"tiny": 256, "zoo": 512, "paper": 512}
"""Tokens per prompt; Figure 1's axis ends at 500."""
SAMPLES = {"tiny": 4, "zoo": 8, "paper": 32}
TASK = "kvpr"
"""The paper does not say what its models read."""
NOTE = "the paper does not say what the models read, nor which norm it takes: kvpr prompts, Frobenius norm"


@dataclass(frozen=True, kw_only=True)
class InfluenceRecipe(RecencyRecipe):
    """A figure of paper 2 that shows influence.

    Attributes:
        name: in the table of recipes.
        roles: models in it.
        judged: its statements, from the models that are run and the words for their weights.
        untrained: whether they are also shown without training.
        pairs: models whose ratio is shown.
        note: how it is read where the paper leaves that open.
    """

    name: str
    roles: tuple[str, ...]
    judged: Callable[[Sequence[str], str], Iterator[Statement]]
    untrained: bool = False
    pairs: tuple[tuple[str, str], ...] = ()
    note: str = NOTE
    drawn = ("log_influence", "recent_share", "half_reach", "lost_in_the_middle", "kappa", "theorem_kappa", "decay_max")

    def request(self, config: ReproduceConfig, model: StandIn) -> tuple[str, RecencyConfig]:
        """Influence on one prompt after the other."""
        twin = "default" if self.untrained else None
        recency = RecencyConfig(twin=twin, **run_options(config, model, TASK, LENGTHS, SAMPLES))
        return STUDY.names(recency).earlier, recency

    def statements(self, roles: Sequence[str], *, random: bool = False) -> list[Statement]:
        """What the paper says of these models."""
        return list(self.judged(roles, "xavier" if random else "trained"))

    def arrays(self, results: Results) -> dict[str, tuple[np.ndarray, tuple[str, ...]]]:
        """ROLE/NAME, and A over B/NAME for the ratios."""
        entries = super().arrays(results)
        for pair, ratio in self.ratios(results).items():
            entries |= {f"{pair}/{name}": (ratio[name], ratio.axes[name]) for name in ratio}
        return entries

    def facts(self, results: Results) -> dict[str, Any]:
        """Exponential fits of the curves, and of the ratios."""
        return {
            "fits": {role: _fits(result) for role, result in results.items()},
            "ratios": {pair: ratio.provenance["ratio"] for pair, ratio in self.ratios(results).items()},
        }

    def ratios(self, results: Results) -> dict[str, Result]:
        """Influence of a Mamba over that of its Transformer."""
        pairs = [pair for pair in self.pairs if set(pair) <= results.keys()]
        return {f"{a} over {b}": _ratio(results[a], results[b]) for a, b in pairs}


def _ratio(a: Result, b: Result) -> Result:
    from repflow.studies.recency.ratio import influence_ratio

    return influence_ratio(a, b)


def _fits(result: Result) -> dict[str, Any]:
    twin = result.provenance.get("twin")
    return {"trained": result.provenance["recency"]["fit"], "twin": None if twin is None else twin["fit"]}


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


def _figure1(roles: Sequence[str], weights: str) -> Iterator[Statement]:
    linear = "“a linear decay rate of influence scores, both at initialization and throughout training”"
    start = "“the adopted initialization scheme further amplifies the locality bias”"
    bound = "|∂y_t/∂x_s| = O(exp(−κ(t − s))), κ = Θ(log(1/A_max))"
    for role in roles:
        own, twin = partial(_decay, side="trained"), partial(_decay, side="twin")
        yield Statement(f"{role}, {weights}", linear, "3.1", (role,), own)
        yield Statement(f"{role}, without training", linear, "3.1", (role,), twin, trained=False)
        yield Statement(f"{role}, initialization", start, "3.1", (role,), partial(_amplified, weights=weights))
        yield Statement(f"{role}, bound", bound, "Theorem 3.1", (role,), _bound)


def _decay(result: Result, side: str) -> Reading:
    fit = _fits(result)[side]
    return Reading(_kappa(fit), _straight(fit))


def _amplified(result: Result, weights: str) -> Reading:
    trained, twin = (_fits(result)[side] for side in ("trained", "twin"))
    holds = None if not trained or not twin else above(_ends(twin), _ends(trained))
    return Reading(f"without training {_kappa(twin)}; {weights} {_kappa(trained)}", holds)


def _bound(result: Result) -> Reading:
    message = next((finding.message for finding in result.findings if finding.code == "loose_bound"), None)
    return Reading(message or "the layers' decays cannot be read", None)


def _figure7(roles: Sequence[str], weights: str) -> Iterator[Statement]:
    middle = "“lost in the middle” pattern: beginning and end high, middle low"
    nearest = "“highly influential tokens are more concentrated in the nearest positions”"
    faster = "“Mamba exhibits an exponentially faster decay speed compared to Pythia”"
    for role in roles:
        if role.startswith("Pythia"):
            yield Statement(f"{role}, shape", middle, "E.1", (role,), _shape)
    for mamba, pythia in PAIRS:
        if {mamba, pythia} <= {*roles}:
            yield Statement(f"{mamba}, concentration", nearest, "E.1", (mamba, pythia), _concentration)
            pair = f"{mamba} over {pythia}, ratio"
            yield Statement(pair, faster, "E.1, Figure 7b", (mamba, pythia), _faster)


def _shape(result: Result) -> Reading:
    index = result.band("lost_in_the_middle")
    text = f"index {_shown(index, '+.2f')} (both ends over the middle where above 0)"
    return Reading(text, above((index.low, index.high), (0.0, 0.0)))


def _concentration(mamba: Result, pythia: Result) -> Reading:
    near, far = (result.band("half_reach") for result in (mamba, pythia))
    text = f"half of all influence within the last {_shown(near, '.1f')} tokens, "
    text += f"the Transformer's {_shown(far, '.1f')}"
    return Reading(text, above((far.low, far.high), (near.low, near.high)))


def _faster(mamba: Result, pythia: Result) -> Reading:
    facts = _ratio(mamba, pythia).provenance["ratio"]
    falls = above(_ends(facts), (0.0, 0.0))
    shape = "; it falls, not as an exponential" if falls and not is_exponential(facts) else ""
    return Reading(f"{_kappa(facts)}{shape}", None if shape else falls)


PAIRS = (("Mamba-130M", "Pythia-160M"), ("Mamba-1.4B", "Pythia-1.4B"))
RECIPES = {
    recipe.name: recipe
    for recipe in (
        InfluenceRecipe(name="recency-fig1", roles=("Mamba-130M", "Mamba-1.4B"), judged=_figure1, untrained=True),
        InfluenceRecipe(
            name="recency-fig7",
            roles=("Mamba-130M", "Pythia-160M", "Mamba-1.4B", "Pythia-1.4B"),
            judged=_figure7,
            pairs=PAIRS,
        ),
    )
}
