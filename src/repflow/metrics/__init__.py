"""Metrics: pure functions on hidden states, and the streaming meters that compute the same numbers in one pass.

Every metric of the catalogue is a function here by its name, also one that this file does not list: it is then taken
from the home that its row names.
"""

from typing import Any

from repflow.core.catalogue import METRICS
from repflow.metrics.cka import cka_matrix, linear_cka
from repflow.metrics.conformance import check_metric
from repflow.metrics.depth import (
    depth_stability,
    direction_smoothness,
    direction_stability,
    paper_smoothness,
    paper_stability,
    path_energy,
    relative_smoothness,
    relative_stability,
    resample_depth,
    smoothness,
    stability,
)
from repflow.metrics.factory import function_of
from repflow.metrics.neighbours import mutual_neighbours, neighbour_chance
from repflow.metrics.rank import effective_rank
from repflow.metrics.similarity import (
    common_share,
    layer_cosine,
    sharpness,
    token_norm,
    token_similarity,
    token_similarity_by_token,
    token_similarity_excess,
)
from repflow.metrics.sinks import channel_share, gram_share

__all__ = [
    "channel_share",
    "check_metric",
    "cka_matrix",
    "common_share",
    "depth_stability",
    "direction_smoothness",
    "direction_stability",
    "effective_rank",
    "gram_share",
    "layer_cosine",
    "linear_cka",
    "mutual_neighbours",
    "neighbour_chance",
    "paper_smoothness",
    "paper_stability",
    "path_energy",
    "relative_smoothness",
    "relative_stability",
    "resample_depth",
    "sharpness",
    "smoothness",
    "stability",
    "token_norm",
    "token_similarity",
    "token_similarity_by_token",
    "token_similarity_excess",
]


def __getattr__(name: str) -> Any:
    """A metric of the catalogue that is not listed above."""
    if name not in METRICS:
        raise AttributeError(f"module 'repflow.metrics' has no attribute {name!r}")
    return function_of(name)
