"""States of the random generators of Python, NumPy, torch and CUDA: seeded, kept, put back; and deterministic mode."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """States of all generators.

    Attributes:
        python: of `random`.
        numpy: of `numpy.random`.
        torch: of torch's generator on the CPU (byte,).
        cuda: of torch's generator on each GPU (byte,).
    """

    python: Any
    numpy: Any
    torch: Tensor
    cuda: tuple[Tensor, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """As named tensors."""
        _, words, gauss = self.python
        kind, keys, place, has_gauss, numpy_gauss = self.numpy
        assert kind == "MT19937"
        # floats travel as bits: nothing is printed and read again
        return {
            "python": torch.tensor([*words, gauss is not None], dtype=torch.int64),
            "python_gauss": torch.tensor([gauss or 0.0], dtype=torch.float64),
            "numpy": torch.tensor([*keys.tolist(), place, has_gauss], dtype=torch.int64),
            "numpy_gauss": torch.tensor([numpy_gauss], dtype=torch.float64),
            "torch": self.torch,
            **{f"cuda.{index}": state for index, state in enumerate(self.cuda)},
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> RandomState:
        """From what `tensors` gave."""
        *words, has = tensors["python"].tolist()
        *keys, place, has_numpy = tensors["numpy"].tolist()
        gauss = float(tensors["python_gauss"]) if has else None
        numpy = ("MT19937", np.array(keys, dtype=np.uint32), place, has_numpy, float(tensors["numpy_gauss"]))
        cuda = [tensors[f"cuda.{index}"] for index in range(sum(name.startswith("cuda.") for name in tensors))]
        return cls((3, tuple(words), gauss), numpy, tensors["torch"], tuple(cuda))


def random_state() -> RandomState:
    """States as they are now."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return RandomState(random.getstate(), np.random.get_state(), torch.get_rng_state(), tuple(cuda))


def set_random_state(state: RandomState) -> None:
    """Put all states back; those of GPUs that are not here are left out."""
    random.setstate(state.python)
    np.random.set_state(state.numpy)
    torch.set_rng_state(state.torch)
    if state.cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(list(state.cuda[: torch.cuda.device_count()]))


def seed_all(seed: int) -> None:
    """Seed all generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def own_random_state() -> Iterator[None]:
    """Whatever is drawn or seeded inside, the generators go on afterwards as if nothing had happened."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


@contextmanager
def deterministic(enabled: bool) -> Iterator[None]:
    """Inside, torch uses deterministic algorithms alone, and raises where an operation has none."""
    if not enabled:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with a fixed workspace alone
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
