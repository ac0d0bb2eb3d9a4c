"""Metrics: pure functions on hidden states, and the streaming meters that compute the same numbers in one pass.

Every metric of the catalogue is a function here by its name, as its module lists it in `__all__`; one of a module that
this file does not import is taken from the home that its row names.
"""

from typing import Any

from repflow.core.catalogue import METRICS
from repflow.metrics import cka, depth, neighbours, rank, similarity, sinks
from repflow.metrics.cka import *
from repflow.metrics.conformance import check_metric
from repflow.metrics.depth import *
from repflow.metrics.factory import function_of
from repflow.metrics.neighbours import *
from repflow.metrics.rank import *
from repflow.metrics.similarity import *
from repflow.metrics.sinks import *

__all__ = ["check_metric"]
__all__ += cka.__all__
__all__ += depth.__all__
__all__ += neighbours.__all__
__all__ += rank.__all__
__all__ += similarity.__all__
__all__ += sinks.__all__


def __getattr__(name: str) -> Any:
    """A metric of the catalogue whose module is not among these."""
    if name not in METRICS:
        raise AttributeError(f"module 'repflow.metrics' has no attribute {name!r}")
    return function_of(name)
