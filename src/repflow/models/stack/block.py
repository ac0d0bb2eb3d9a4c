"""Residual block of a stack: a mixer and an optional feed-forward layer, each behind its norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers import build
from repflow.mixers.base import Mixer
from repflow.mixers.build import mixer_options
from repflow.mixers.parts.channel_mixing import ChannelMixing
from repflow.mixers.parts.dropout import ChannelDropout
from repflow.mixers.reorder import Reordered
from repflow.mixers.scan.carry import Carry
from repflow.mixers.triton.layer_norm import LayerNorm
from repflow.models.stack.config import StackConfig


class StackBlock(nn.Module):
    """λ h + mixer(norm(h)), then h + mlp(norm(h)) where the configuration has a feed-forward layer here.

    λ is 1 unless the configuration says otherwise, and so is the correction of NeuTRENO left out. A block that mixes
    both ways has a second mixer, which reads the tokens from the last to the first; the two outputs are added.
    """

    def __init__(self, config: StackConfig, layer: int) -> None:
        super().__init__()
        options = dict(config.mixers[layer])
        family = options.pop("name")
        place = {"layer": layer, "layers": config.num_hidden_layers}
        if "layer" in mixer_options(family):  # its initialisation depends on the layer's place
            options = {**place, **options}
        self.mixer_norm = make_norm(config)
        self.mixer = _mixer(config, layer, family, options)
        self.backward_mixer = _mixer(config, layer, family, options) if config.both_ways(layer) else None
        self.dropout = _dropout(config, layer)
        kind = config.mlp[layer]
        if kind is not None:
            self.mlp_norm = make_norm(config)
            self.mlp = _mlp(kind, config, place)
        self.has_mlp = kind is not None
        self.neutreno = config.neutreno
        self.skip: nn.Parameter | float = config.skip
        if config.skip_learned:
            self.skip = nn.Parameter(torch.tensor(float(config.skip)))

    def forward(
        self,
        hidden_states: Tensor,
        carries: tuple[Carry, Carry] | None = None,
        first: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """(batch, token, width) → same; with carries, of tokens that follow those seen by mixer and MLP.

        Args:
            hidden_states: Residual stream.
            carries: What mixer and MLP kept of earlier tokens.
            first: Normed input of the first block, for NeuTRENO.
            mask: Where padding stands behind tokens (batch, token), for a block that sorts whole sequences.
        """
        normed = self.mixer_norm(hidden_states)
        if carries is not None:
            mixed = self.mixer.advance(normed, carries[0])
        else:
            mixed = self.mixer(normed, mask) if isinstance(self.mixer, Reordered) else self.mixer(normed)
        if self.backward_mixer is not None:
            mixed = mixed + self.backward_mixer(normed.flip(1)).flip(1)
        if self.neutreno:
            if first is None:
                raise InputError(teach("the first block's normed input", "none", "run the whole stack"))
            mixed = mixed + self.neutreno * (first - normed)
        mixed = self.dropout(mixed)
        plain = isinstance(self.skip, float) and self.skip == 1
        hidden_states = hidden_states + mixed if plain else self.skip * hidden_states + mixed
        if self.has_mlp:
            normed = self.mlp_norm(hidden_states)
            if carries is not None and isinstance(self.mlp, ChannelMixing):
                hidden_states = hidden_states + _behind(self.mlp, normed, carries[1])
            else:
                hidden_states = hidden_states + self.dropout(self.mlp(normed))
        return hidden_states


def _dropout(config: StackConfig, layer: int) -> nn.Module:
    share = config.dropped(layer)
    if not share:
        return nn.Identity()
    return ChannelDropout(share) if config.channel_dropout else nn.Dropout(share)


def _mixer(config: StackConfig, layer: int, family: str, options: dict[str, Any]) -> Mixer:
    mixer = build(family, config.hidden_size, **options)
    if not config.reorders(layer):
        return mixer
    assert config.reorder is not None
    return Reordered(mixer, **{key: value for key, value in config.reorder.items() if key != "blocks"})


def _behind(mlp: nn.Module, x: Tensor, carry: Carry) -> Tensor:
    """A feed-forward layer that looks at the token before, on tokens that follow those seen."""
    output: Tensor = mlp(carry.lead(x, 1))[:, -x.shape[1] :]
    carry.seen += x.shape[1]
    return output


class MLP(nn.Module):
    """down(gelu(up(x))), or down(silu(gate(x)) · up(x)) where it is gated.

    >>> MLP(4, 8, gated=True)(torch.ones(1, 3, 4)).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, width: int, hidden: int, *, gated: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False) if gated else None
        self.up_proj = nn.Linear(width, hidden, bias=not gated)
        self.down_proj = nn.Linear(hidden, width, bias=not gated)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, token, width) → same."""
        up = self.up_proj(x)
        return self.down_proj(
            functional.gelu(up) if self.gate_proj is None else functional.silu(self.gate_proj(x)) * up
        )


def make_norm(config: StackConfig, kind: str | None = None) -> nn.Module:
    """Norm of the configuration, or of another kind: rms, layer or none."""
    kind = config.norm if kind is None else kind
    if kind == "none":
        return nn.Identity()
    return (nn.RMSNorm if kind == "rms" else LayerNorm)(config.hidden_size, eps=config.norm_eps)


def _mlp(kind: str, config: StackConfig, place: dict[str, int]) -> nn.Module:
    width = config.hidden_size
    if kind == "rwkv":
        return ChannelMixing(width, config.mlp_size, **place)
    usual = 4 * width if kind == "gelu" else -(-8 * width // 24) * 8
    return MLP(width, config.mlp_size or usual, gated=kind == "swiglu")


def shared_parameters(blocks: nn.ModuleList, groups: list[int]) -> dict[str, str]:
    """Names `blocks.I.x` that stand for `blocks.J.x`, J the first layer of I's group.

    Parameters are shared, not modules: every layer stays a module of its own, whose output can be read.
    """
    aliases: dict[str, str] = {}
    for index, group in enumerate(groups):
        first = groups.index(group)
        if first != index:
            own = {name for name, _ in blocks[first].named_parameters(remove_duplicate=False)}
            for name, _ in blocks[index].named_parameters(remove_duplicate=False):
                # where the first of them alone reorders tokens, its mixer lies one level deeper
                there = name if name in own else name.replace("mixer.", "mixer.inner.", 1)
                aliases[f"blocks.{index}.{name}"] = f"blocks.{first}.{there}"
    return aliases


def pool(hidden: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """Sum up tokens (batch, token, width) → (batch, width): the mean of the real ones, or the last real one.

    >>> hidden, mask = torch.tensor([[[1.0], [3.0], [8.0]]]), torch.tensor([[1, 1, 0]])
    >>> pool(hidden, mask, "mean").item(), pool(hidden, mask, "last").item()
    (2.0, 3.0)
    """
    if mask is None:
        return hidden.mean(1) if pooling == "mean" else hidden[:, -1]
    real = mask.to(device=hidden.device, dtype=hidden.dtype)[..., None]
    if pooling == "mean":
        return torch.where(real > 0, hidden, 0).sum(1) / real.sum(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), real[..., 0].sum(1).long() - 1]
