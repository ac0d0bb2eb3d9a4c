"""From records of squared influence to the Result of `repflow recency`: curves, fits, shares, bound and findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.intervals import rate_interval
from repflow.core.results import sample_mean
from repflow.studies.recency.measured import Measured, Side, Table
from repflow.theory.influence_curve import (
    WINDOWS,
    ExponentialFit,
    exponential_fit,
    half_reach,
    kappas,
    logarithms,
    lost_in_the_middle,
    ragged,
    recent_share,
)

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.studies.recency.config import RecencyConfig
    from repflow.tasks import Prompts

DEPTH = "depth/"
TWIN = "twin/"
BANDS = ("log_influence", "kappa", "recent_share", "half_reach", "lost_in_the_middle")
"""Arrays whose band is stored."""


def make_result(
    config: RecencyConfig,
    model: Model,
    prompts: Prompts,
    main: Measured,
    twin: Measured | None,
) -> Result:
    """Put a model's numbers, and its twin's, into a Result."""
    from repflow.core.results import Result
    from repflow.studies.engine.prompts import prompt_facts
    from repflow.studies.recency.findings import findings

    side = make_side(config, main)
    other = None if twin is None else make_side(config, twin)
    table = dict(side.table)
    if other is not None:
        table |= {TWIN + name: entry for name, entry in other.table.items()}
    provenance = {
        "task": prompt_facts(prompts),
        "recency": _facts(config, main, side),
        "twin": None if twin is None or other is None else {"init": config.twin, **_facts(config, twin, other)},
    }
    arrays = {name: array for name, (_, array) in table.items()}
    axes = {name: named for name, (named, _) in table.items()}
    entries = [*model.findings, *prompts.findings, *findings(config, main, side, twin, other)]
    result = Result(arrays, axes, {}, provenance, entries)
    for name in [name for name in arrays if name.removeprefix(TWIN) in BANDS]:
        if name.endswith("kappa"):
            result.bands[name] = rate_interval(arrays[name])
        result.band(name)
    return result


def _facts(config: RecencyConfig, measured: Measured, side: Side) -> dict[str, Any]:
    fits = {target: None if fit is None else fit.to_json() for target, fit in zip(config.to, side.fits, strict=True)}
    return {
        "windows": list(WINDOWS),
        "target": config.to[0],
        "targets": list(config.to),
        "at": config.at,
        "exact": measured.options.probes is None,
        "probes": measured.options.probes,
        "fit": fits[config.to[0]],
        "fits": fits,
        "gradient_check": measured.check.difference,
        "future": measured.check.future,
    }


def make_side(config: RecencyConfig, measured: Measured) -> Side:
    """Arrays of one model: the first target's by their plain names, further ones under `to:STATE/`."""
    records = list(measured.records.values())
    table: Table = {}
    fits: list[ExponentialFit | None] = []
    underflowed = nonfinite = 0
    for number, target in enumerate(config.to):
        # (sample, source, distance): the embedding, then the states up to the target
        mean = ragged([record["mean"][number] for record in records])
        count = mean.shape[1] if target == "final" else int(target) + 2
        curves = logarithms(mean[:, :count])
        fit = _fit(curves[:, 0], config)
        fits.append(fit)
        prefix = "" if number == 0 else f"to:{target}/"
        variance = ragged([record["variance"][number] for record in records])
        lengths = np.array([record["mean"].shape[-1] for record in records])
        numbers = _numbers(curves, mean[:, 0], variance, fit, lengths)
        table |= {prefix + name: entry for name, entry in numbers.items()}
        future = np.array([float(record["future"][number]) for record in records])
        table[f"{prefix}future_influence"] = ("sample",), future
        if number == 0:
            underflowed = int((mean[:, 0] == 0).sum())
            nonfinite = sum(int((~np.isfinite(record["mean"][0, 0])).sum()) for record in records)
    if measured.hidden is None:
        for name, key in (("decay_max", "decay_max"), ("theorem_kappa", "kappa")):
            table[name] = ("layer", "sample"), np.stack([record[key] for record in records], axis=1)
    return Side(table, fits, underflowed, nonfinite)


def _fit(curves: np.ndarray, config: RecencyConfig) -> ExponentialFit | None:
    from repflow.core.errors import InputError

    try:
        return exponential_fit(curves, first=config.fit_first, last=config.fit_last)
    except InputError:
        if config.fit_first is not None or config.fit_last is not None:
            raise
        return None


def _numbers(
    curves: np.ndarray, squares: np.ndarray, variance: np.ndarray, fit: ExponentialFit | None, lengths: np.ndarray
) -> Table:
    """Arrays of one target: curves are (sample, source, distance)."""
    own, states = curves[:, 0], np.moveaxis(curves[:, 1:], 1, 0)
    window = (1, 0) if fit is None else (fit.first, fit.last)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(squares > 0, np.sqrt(variance) / (2 * squares), np.nan)  # of ln √q is that of q by 2 q
    return {
        "log_influence": (("sample", "distance"), own),
        "log_influence_error": (("sample", "distance"), error),
        "kappa": (("sample",), kappas(own, *window)),
        "recent_share": (("sample", "window"), recent_share(own, lengths=lengths)),
        "half_reach": (("sample",), half_reach(own)),
        "lost_in_the_middle": (("sample",), lost_in_the_middle(own, lengths=lengths)),
        f"{DEPTH}log_influence": (("state", "distance"), sample_mean(states, ("state", "sample", "distance"))),
        f"{DEPTH}kappa": (("state", "sample"), kappas(states, *window)),
        f"{DEPTH}half_reach": (("state", "sample"), half_reach(states)),
        f"{DEPTH}recent_share": (("state", "sample", "window"), recent_share(states, lengths=lengths)),
    }
