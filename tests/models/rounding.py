"""How much a model makes of rounding: the yardstick for two float32 passes that only round differently."""

import functools

import torch

from repflow.models.conformance import MARGIN, amplification, nudged, states_of, worst
from tests.models.tiny_configs import tiny_model

__all__ = ["MARGIN", "amplification", "nudged", "states_of", "tolerance", "worst"]


@functools.cache
def tolerance(model_type):
    """Relative difference up to which two float32 passes of a tiny model are the same."""
    ids = torch.randint(0, 128, (3, 20), generator=torch.Generator().manual_seed(7))
    return MARGIN * amplification(tiny_model(model_type), ids)
