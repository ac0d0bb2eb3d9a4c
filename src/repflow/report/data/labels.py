"""What each model is called on a page: short, and unique, whatever the names in the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repflow.core.results import Result
from repflow.report.data.model import PageModel

DIGITS = 8
"""Digits of a digest that distinguish two models of one name."""


@dataclass(frozen=True)
class _Identity:
    base: str
    spec: str
    digest: str
    seed: str
    dtype: str


def sides(result: Result) -> list[dict[str, Any]]:
    """Facts of the model of a result, of both where two are compared; [] where it has none."""
    about = result.provenance
    if isinstance(about.get("model"), dict):
        return [about["model"]]
    both = about.get("models")
    if isinstance(both, dict) and set(both) == {"a", "b"}:
        return [both["a"], both["b"]]
    return []


def base_label(facts: dict[str, Any]) -> str:
    """Short name of a model, with its random scheme and what was taken out of it.

    >>> base_label({"name": "gpt2", "init": "xavier", "ablate": ["norm"]})
    'gpt2 (xavier), ablated: norm'
    """
    name, init = str(facts.get("name") or facts.get("spec") or "model"), str(facts.get("init", "trained"))
    name = name if init == "trained" else f"{name} ({init})"
    return f"{name}, ablated: {', '.join(facts['ablate'])}" if facts.get("ablate") else name


def label(result: Result) -> str:
    """Short name of the model, with its random scheme and what was taken out of it."""
    name = str(result.provenance.get("model", {}).get("name") or result.config.get("model", ""))
    init = result.config.get("init", "trained")
    ablated = ", ".join(result.config.get("ablate") or [])
    name = name if init == "trained" else f"{name} ({init})"
    return f"{name}, ablated: {ablated}" if ablated else name


class Labels:
    """Labels of the models of some results; models of one name are distinguished by seed, spec or digest."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._known: dict[str, list[_Identity]] = {}
        for result in results:
            for one in _identities(result):
                alike = self._known.setdefault(one.base, [])
                if one.digest and one.digest not in [other.digest for other in alike]:
                    alike.append(one)

    def of(self, result: Result) -> tuple[str, str]:
        """Label of a result's model, and of the second one where two are compared; "" for none."""
        labels = [self._label(one) for one in _identities(result)]
        return (*labels, "", "")[0], (*labels, "", "")[1]

    def _label(self, one: _Identity) -> str:
        alike = self._known[one.base]
        if not one.digest:  # a summary of a study, of which the cells know the weights
            one = next((other for other in alike if other.spec == one.spec), one)
        if len(alike) < 2 or not one.digest:
            return one.base
        for part, suffix in (("seed", f", seed {one.seed}"), ("spec", f" [{one.spec}]"), ("dtype", f", {one.dtype}")):
            if len({getattr(other, part) for other in alike}) == len(alike) and getattr(one, part):
                return one.base + suffix
        return f"{one.base} [{one.digest[:DIGITS]}]"


def _identities(result: Result) -> list[_Identity]:
    digests, config = result.provenance.get("digests", {}), result.config
    seed = config.get("init_seed") if config.get("init_seed") is not None else config.get("seed")
    identities = []
    for facts, key in zip(sides(result), ("a", "b"), strict=False):
        digest = digests.get("weights") or digests.get(f"weights_{key}") or ""
        weight_seed = str(seed) if facts.get("init", "trained") != "trained" and seed is not None else ""
        dtype = str(result.provenance.get("dtype", ""))
        identities.append(_Identity(base_label(facts), str(facts.get("spec", "")), str(digest), weight_seed, dtype))
    return identities


def page_models(labelled: Sequence[tuple[str, dict[str, Any]]]) -> list[PageModel]:
    """Models of a page in the order in which they come, trained ones before random ones.

    Args:
        labelled: label and facts of the model of every run.
    """
    facts: dict[str, dict[str, Any]] = {}
    for label, about in labelled:
        if label and about:
            facts.setdefault(label, about)
    ordered = sorted(facts, key=lambda label: facts[label].get("init", "trained") != "trained")
    return [
        PageModel(
            label, place, int(facts[label].get("layers", 0)), [str(k) for k in facts[label].get("layer_kinds", [])]
        )
        for place, label in enumerate(ordered)
    ]
