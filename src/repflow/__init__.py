"""repflow: how representations flow through the layers and tokens of sequence models.

>>> import repflow
>>> model = repflow.load("path/to/model")  # doctest: +SKIP
>>> result = repflow.measure(model, ["The quick brown fox jumps over the lazy dog."])  # doctest: +SKIP
>>> result["token_similarity"]  # doctest: +SKIP

Names are imported when they are first used, so that `import repflow` is quick and needs no torch.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from repflow import moved
from repflow.core.hooks import register_hook
from repflow.version import __version__

if TYPE_CHECKING:
    from repflow import dynamics, metrics, mixers, theory, training
    from repflow.core import errors
    from repflow.core.results import Finding, Result
    from repflow.metrics.custom import register_metric
    from repflow.models.load import load
    from repflow.models.repair import from_hidden_states
    from repflow.store import load_result
    from repflow.studies.compare.study import compare
    from repflow.studies.diagnose.study import diagnose
    from repflow.studies.hidden_attention import hidden_attention
    from repflow.studies.measure import measure
    from repflow.studies.needle.study import needle
    from repflow.studies.probe.study import probe
    from repflow.studies.recency.study import influence
    from repflow.studies.states import states

_HOMES = {
    "Finding": "repflow.core.results",
    "Result": "repflow.core.results",
    "compare": "repflow.studies.compare.study",
    "diagnose": "repflow.studies.diagnose.study",
    "from_hidden_states": "repflow.models",
    "hidden_attention": "repflow.studies.hidden_attention",
    "influence": "repflow.studies.recency.study",
    "load": "repflow.models",
    "load_result": "repflow.store",
    "measure": "repflow.studies.measure",
    "needle": "repflow.studies.needle.study",
    "probe": "repflow.studies.probe.study",
    "register_metric": "repflow.metrics.custom",
    "states": "repflow.studies.states",
}
_MODULES = {
    "dynamics": "repflow.dynamics",
    "errors": "repflow.core.errors",
    "metrics": "repflow.metrics",
    "mixers": "repflow.mixers",
    "theory": "repflow.theory",
    "training": "repflow.training",
}

__all__ = [
    "Finding",
    "Result",
    "__version__",
    "compare",
    "diagnose",
    "dynamics",
    "errors",
    "from_hidden_states",
    "hidden_attention",
    "influence",
    "load",
    "load_result",
    "measure",
    "metrics",
    "mixers",
    "needle",
    "probe",
    "register_metric",
    "states",
    "theory",
    "training",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name in _MODULES:
        return _imported(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'repflow' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(_imported(_HOMES[name]), name)
    globals()[name] = value
    return value


def _imported(module: str) -> Any:
    """A module; what tqdm misses in a notebook, as transformers imports it, is of no use to a reader."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        return importlib.import_module(module)


def __dir__() -> list[str]:
    return sorted(__all__)


def _plot(result: Any, name: str | None = None) -> Any:
    return importlib.import_module("repflow.report.notebook.plot").plot(result, name)


def _html(result: Any) -> str:
    return str(importlib.import_module("repflow.report.notebook.html").html(result))


# Results draw themselves through the report, which sits above them.
register_hook("plot", _plot)
register_hook("html", _html)
moved.register()
