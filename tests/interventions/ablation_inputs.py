"""Helpers of the ablation tests: all states of a model, and what went in and out of its modules."""

from typing import Any

import torch
from torch import Tensor, nn

from repflow.models import Model


def states(model: Model, ids: Tensor) -> Tensor:
    """(state, batch, token, width), the final norm's output last."""
    all_states: list[Tensor] = []
    model.stream(
        ids, on_state=lambda _, hidden: all_states.append(hidden.clone()), on_final_norm=lambda h: all_states.append(h)
    )
    return torch.stack(all_states)


def calls(model: Model, modules: list[nn.Module], ids: Tensor) -> list[tuple[tuple, dict[str, Any], Any]]:
    """Arguments and output of the one call of each module in a forward pass."""
    seen: dict[int, tuple[tuple, dict[str, Any], Any]] = {}

    def keep(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        seen[id(module)] = (args, kwargs, output)

    handles = [module.register_forward_hook(keep, with_kwargs=True) for module in modules]
    with torch.no_grad():
        model.network(input_ids=ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return [seen[id(module)] for module in modules]


def mean_over(values: Tensor, window: int | None) -> Tensor:
    """Mean over the last `window` tokens up to each token, by a plain loop; values are (batch, token, ...)."""
    rows = []
    for token in range(values.shape[1]):
        first = 0 if window is None else max(0, token + 1 - window)
        rows.append(values[:, first : token + 1].mean(1))
    return torch.stack(rows, 1)
