"""Ratio of two models' influence by distance, and how fast it falls (paper 2, Figure 7b)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.intervals import bracketed
from repflow.papers.values import RATIO_DISTANCES
from repflow.studies.engine.opening import keep_result
from repflow.theory.influence_curve import ratio_fit
from repflow.version import __version__

if TYPE_CHECKING:
    from repflow.core.results import Result

RATIO = "recency-ratio"


def influence_ratio(
    a: Result, b: Result, *, nearest: int = RATIO_DISTANCES, out: str | Path | None = None, name: str | None = None
) -> Result:
    """Divide one model's influence curve by another's.

        ln ratio(distance) = mean ln influence of a − mean ln influence of b

    Prompts are drawn together for the interval where both models read the same tokens.

    Args:
        a: result of `repflow.influence` or `repflow recency`.
        b: another, at the same token t.
        nearest: distances that are compared, from the nearest; the fit leaves the token itself out.
        out: folder of runs to store the ratio in.
        name: name of the stored run; by default from both models.

    Returns:
        Result: `log_ratio` (distance,) with `log_ratio_low` and `log_ratio_high`, and `log_ratio_fit`; κ of the ratio
        under `provenance["ratio"]`.
    """
    from repflow.core.results import Result

    for result in (a, b):
        if "log_influence" not in result:
            expected, got = "two results of repflow.influence", f"one with {', '.join(list(result)[:3])}"
            raise InputError(teach(expected, got, "run `repflow recency` on both models"))
    for key in ("at", "to"):
        if a.config.get(key) != b.config.get(key):
            got = f"{a.config.get(key)} and {b.config.get(key)}"
            raise InputError(teach(f"curves with the same --{key}", got, "measure both in one way"))
    digests = [result.provenance.get("digests", {}).get("prompts") for result in (a, b)]
    paired = digests[0] is not None and digests[0] == digests[1]
    ratio = ratio_fit(a["log_influence"], b["log_influence"], paired=paired, nearest=nearest)
    names = [_label(result) for result in (a, b)]
    arrays = {
        "log_ratio": ratio.log_ratio,
        "log_ratio_low": ratio.low,
        "log_ratio_high": ratio.high,
        "log_ratio_fit": ratio.fit.line(np.arange(len(ratio.log_ratio))),
    }
    facts = {"models": names, "paired": paired, "nearest": nearest, **ratio.fit.to_json()}
    config = {
        "study": RATIO, "model": names[0], "against": names[1], "task": a.config.get("task"),
        "nearest": nearest, "length": a.config.get("length"), "samples": a.config.get("samples"),
    }  # fmt: skip
    result = Result(arrays, dict.fromkeys(arrays, ("distance",)), config, {"ratio": facts}, [_said(facts)])
    if out is None:
        return result
    provenance = {"repflow": __version__, "digests": {"a": str(digests[0]), "b": str(digests[1])}}
    return keep_result(result, out, name or ratio_name(a, b, nearest), provenance)


def _label(result: Result) -> str:
    init = result.config.get("init", "trained")
    return f"{result.config.get('model', '')}{'' if init == 'trained' else f' ({init})'}"


def ratio_name(a: Result, b: Result, nearest: int = RATIO_DISTANCES) -> str:
    """Folder name of a stored ratio: both models, and a hash of what was requested of them."""
    from repflow.store import safe_name

    request = json.dumps([a.config, b.config, nearest], sort_keys=True, default=str)
    tag = hashlib.sha256(request.encode()).hexdigest()[:8]
    return safe_name("-".join(["recency-ratio", _label(a), "over", _label(b), tag]))


def _said(facts: dict[str, Any]) -> Any:
    from repflow.core.results import Finding

    first, second = facts["models"]
    interval = bracketed(facts["kappa_low"], facts["kappa_high"], ".4g")
    more = f"{first if facts['kappa'] > 0 else second} is the more local of the two"
    if facts["kappa"] == 0:
        more = "neither is the more local"
    elif facts["kappa_low"] is not None and facts["kappa_low"] <= 0 <= facts["kappa_high"]:
        more = "neither is the more local: the interval contains 0"
    text = f"influence of {first} over {second}: κ = {facts['kappa']:.4g}{interval} per token"
    fitted = "" if facts["r2"] is None else f", R² {facts['r2']:.3f}"  # a ratio of one everywhere has no variance
    return Finding("ratio", None, f"{text}{fitted}; {more}")
