"""Everything that a training goes on from, as named tensors: weights, optimiser, random generators, history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from repflow.training.history import History
from repflow.training.identity import kept_tensors
from repflow.training.random_state import RandomState, random_state, set_random_state

WEIGHTS, OPTIMISER, RANDOM, HISTORY = "weights/", "optimiser/", "random/", "history/"


def take(network: nn.Module, optimiser: torch.optim.Optimizer | None, history: History) -> dict[str, Tensor]:
    """Copies on the CPU of all that a training goes on from; a finished one needs no optimiser."""
    tensors = {f"{WEIGHTS}{name}": value for name, value in kept_tensors(network).items()}
    if optimiser is not None:
        for name, parameter in network.named_parameters():
            for key, value in optimiser.state.get(parameter, {}).items():
                tensors[f"{OPTIMISER}{name}/{key}"] = value
    tensors |= {f"{RANDOM}{name}": value for name, value in random_state().tensors().items()}
    tensors |= {f"{HISTORY}{name}": value for name, value in history.tensors().items()}
    return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}


def put_back(
    tensors: Mapping[str, Tensor],
    network: nn.Module,
    optimiser: torch.optim.Optimizer | None,
    history: History,
    names: tuple[str, ...],
) -> None:
    """Put back what `take` gave.

    Raises:
        KeyError: A tensor is missing, which names it.
        ValueError: A tensor has another shape or type.
    """
    with torch.no_grad():
        for name, value in kept_tensors(network).items():
            value.copy_(_of_shape(tensors[f"{WEIGHTS}{name}"], value, name))
    if optimiser is not None:
        for name, parameter in network.named_parameters():
            if moments := dict(_under(tensors, f"{OPTIMISER}{name}/")):
                optimiser.state[parameter] = {
                    key: _placed(optimiser, key, value, parameter) for key, value in moments.items()
                }
    history.restore(tensors[f"{HISTORY}rows"], names)
    set_random_state(RandomState.from_tensors(dict(_under(tensors, RANDOM))))


def _under(tensors: Mapping[str, Tensor], start: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors whose names begin so and hold no further part, by the rest of their names."""
    for name, value in tensors.items():
        rest = name.removeprefix(start)
        if rest != name and "/" not in rest:
            yield rest, value


def _of_shape(stored: Tensor, value: Tensor, name: str) -> Tensor:
    if (stored.shape, stored.dtype) != (value.shape, value.dtype):
        got = f"{stored.dtype} {tuple(stored.shape)}"
        raise ValueError(f"{got} for {name}, which is {value.dtype} {tuple(value.shape)}")
    return stored


def _placed(optimiser: torch.optim.Optimizer, key: str, value: Tensor, parameter: Tensor) -> Tensor:
    _of_shape(value, torch.zeros(()) if key == "step" else parameter, key)
    # the count of steps stays on the CPU unless a CUDA graph has to advance it
    on_cpu = key == "step" and not optimiser.defaults.get("capturable")
    return value.clone() if on_cpu else value.to(parameter.device, copy=True)
