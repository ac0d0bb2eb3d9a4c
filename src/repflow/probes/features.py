"""Where a probe's inputs come from: one state at a time, so that memory holds few of them."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from repflow.core.errors import InputError, teach


@runtime_checkable
class Features(Protocol):
    """The vectors a probe reads, state by state.

    Attributes:
        n_states: Number of states.
        n_samples: Rows of each state.
        width: Columns of each state.
    """

    n_states: int
    n_samples: int
    width: int

    def state(self, index: int) -> Tensor:
        """Features of one state, (sample, width), floating point."""


class ArrayFeatures:
    """Features held in one array or tensor (state, sample, width). A numpy memmap is read state by state.

    >>> features = ArrayFeatures(np.zeros((13, 100, 8), np.float32))
    >>> features.n_states, tuple(features.state(2).shape)
    (13, (100, 8))
    """

    def __init__(self, array: Any) -> None:
        if getattr(array, "ndim", None) != 3:
            raise InputError(
                teach(
                    "an array or tensor (state, sample, width)",
                    f"{type(array).__name__} of shape {getattr(array, 'shape', None)}",
                    "stack the states along a new first axis",
                )
            )
        self.array = array
        self.n_states, self.n_samples, self.width = (int(size) for size in array.shape)

    def state(self, index: int) -> Tensor:
        """One state, without a copy where the array can be written to."""
        part = self.array[index]
        if isinstance(part, Tensor):
            return part
        part = np.asarray(part)
        # torch refuses to share a read-only memmap without a warning; one state's copy is cheap
        return torch.from_numpy(part if part.flags.writeable and part.flags.c_contiguous else part.copy())


class KeptFeatures:
    """Features whose states stay on a device once they were read there: several fits read the same ones.

    >>> features = KeptFeatures(ArrayFeatures(np.zeros((13, 100, 8), np.float32)), "cpu")
    >>> features.state(2) is features.state(2)
    True
    """

    def __init__(self, features: Features, device: str | torch.device) -> None:
        self.features, self.device = features, torch.device(device)
        self.n_states, self.n_samples, self.width = features.n_states, features.n_samples, features.width
        self._kept: dict[int, Tensor] = {}

    def state(self, index: int) -> Tensor:
        """One state, on the device."""
        if index not in self._kept:
            self._kept[index] = self.features.state(index).to(self.device)
        return self._kept[index]


def feature_bytes(features: Features) -> int:
    """Bytes of all states in float32."""
    return features.n_states * features.n_samples * features.width * 4
