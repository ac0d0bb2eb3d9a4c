"""S_B and S_C of real Mamba layers, and the form x' S_C' S_B x of the tokens that enter them.

Mamba 1 (mamba, falcon_mamba, jamba): B and C are linear in the convolved x of the mixer, width d_inner. Mamba 2 (mamba2
and its kin): they are linear in the block's normed input, width d_model, one pair per group; its convolution of B and C
is left out, as in the paper. S6 and SSD of repflow's own stacks are read in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import UnsupportedModelError, teach

if TYPE_CHECKING:
    from torch import Tensor, nn

    from repflow.models import Model


@dataclass
class MambaLayer:
    """One layer with an S6 or SSD mixer.

    Attributes:
        layer: number of its block, from 0.
        projection: module whose output holds B and C.
        start: column of that output at which B begins; C follows B.
        groups: pairs of B and C.
        state: state size of one of them.
    """

    layer: int
    projection: nn.Module
    start: int
    groups: int
    state: int

    def matrices(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(S_C, S_B) of each group, (state, width) each."""
        weight = self.projection.weight.detach().double().cpu().numpy()  # type: ignore[operator]
        size = self.groups * self.state
        first, second = (weight[self.start + i * size : self.start + (i + 1) * size] for i in (0, 1))
        cut = [slice(g * self.state, (g + 1) * self.state) for g in range(self.groups)]
        return [(second[part], first[part]) for part in cut]

    def forms(self, output: Any) -> Tensor:
        """The form x' S_C' S_B x = C · B per token and group, (batch, token, group), from what the projection gave."""
        size = self.groups * self.state
        first, second = (output[..., self.start + i * size : self.start + (i + 1) * size] for i in (0, 1))
        shape = (*output.shape[:-1], self.groups, self.state)
        return (first.double().reshape(shape) * second.double().reshape(shape)).sum(-1)


class SignedLayer(MambaLayer):
    """S6 of a stack whose maps have eigenvalues of given sign: they are modules of their own, not rows of x_proj."""

    def matrices(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(S_C, S_B), (rank, width) each."""
        first, second = (part.detach().double().cpu().numpy() for part in self.projection.maps())  # type: ignore[operator]
        return [(second, first)]

    def forms(self, output: Any) -> Tensor:
        """C · B per token (batch, token, 1), from B and C themselves."""
        first, second = (part.double() for part in output)
        form: Tensor = (first * second).sum(-1, keepdim=True)
        return form


def mamba_layers(model: Model) -> list[MambaLayer]:
    """Layers of a model whose B and C are read.

    Raises:
        UnsupportedModelError: there is none.
    """
    readable = []
    for layer, block in enumerate(model.blocks):
        for module in block.modules():
            reader = _read(layer, module)
            if reader is not None:
                readable.append(reader)
                break
    if not readable:
        got = f"{model.model_type}, without one"
        known = "mamba, mamba2, falcon_mamba, jamba, bamba, zamba2 ... or a stack with s6 or ssd"
        raise UnsupportedModelError(teach("a model with Mamba layers", got, f"name one of {known}"))
    return readable


def _read(layer: int, module: Any) -> MambaLayer | None:
    from repflow.mixers.base import Mixer

    if isinstance(module, Mixer):
        return _read_own(layer, module)
    x_proj: Any = getattr(module, "x_proj", None)
    in_proj: Any = getattr(module, "in_proj", None)
    state, rank = getattr(module, "ssm_state_size", None), getattr(module, "time_step_rank", None)
    if hasattr(x_proj, "weight") and state and rank is not None and len(x_proj.weight) == rank + 2 * state:
        return MambaLayer(layer, x_proj, int(rank), 1, int(state))
    groups, inner = getattr(module, "n_groups", None), getattr(module, "intermediate_size", None)
    heads = getattr(module, "num_heads", None)
    if not (hasattr(in_proj, "weight") and state and groups and inner and heads):
        return None
    if len(in_proj.weight) != 2 * inner + 2 * groups * state + heads:  # gate, x, B, C, dt
        return None
    return MambaLayer(layer, in_proj, 2 * int(inner), int(groups), int(state))


def _read_own(layer: int, mixer: Any) -> MambaLayer | None:
    """The layer of one of repflow's own mixers, None for families without B and C of the input."""
    if mixer.reordered:  # what it reads are not the tokens as they come
        return None
    if mixer.family == "s6" and mixer.signed is not None:
        return SignedLayer(layer, mixer.signed, 0, 1, mixer.state)
    if mixer.family == "s6":
        return MambaLayer(layer, mixer.x_proj, mixer.dt_rank, 1, mixer.state)
    if mixer.family == "ssd":
        return MambaLayer(layer, mixer.in_proj, mixer.inner * (1 + mixer.gate), mixer.groups, mixer.state)
    return None


@contextmanager
def reading_forms(layers: list[MambaLayer]) -> Iterator[dict[int, Tensor]]:
    """Within it, a forward pass leaves x' M x of each layer, (batch, token, group), in the mapping."""
    forms: dict[int, Tensor] = {}

    def keep(reader: MambaLayer) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            forms[reader.layer] = reader.forms(output).detach()

        return hook

    handles = [reader.projection.register_forward_hook(keep(reader)) for reader in layers]
    try:
        yield forms
    finally:
        for handle in handles:
            handle.remove()
