"""Whole layers of transformers' Mamba and Mamba-2 on the Triton kernels of `repflow.mixers`.

Each function reads a layer's weights by name and gives what the layer's own forward gives without cache and mask.
`gpu_blocks` puts them into a model for as long as its block lasts; `layer_obstacle` says why a layer cannot take them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from repflow.mixers.triton import s6 as triton_s6
from repflow.mixers.triton import ssd as triton_ssd
from repflow.mixers.triton.block import MAX_TAPS, MAX_WIDTH, causal_conv_silu, rms_norm
from repflow.mixers.triton.launch import obstacle
from repflow.mixers.triton.mamba2 import Outer, Shape, Weights, mamba2_block, mamba2_inner

LAYERS = {"MambaMixer": "mamba", "FalconMambaMixer": "falcon_mamba", "Mamba2Mixer": "mamba2"}
"""Layers whose forward the functions here repeat, with their packages; others of their kind have further parts."""


def known_layer(mixer: nn.Module) -> bool:
    """Whether a module is one of transformers' layers that the functions here repeat."""
    package = LAYERS.get(type(mixer).__name__)
    return package is not None and type(mixer).__module__.startswith(f"transformers.models.{package}.")


def layer_obstacle(mixer: Any) -> str | None:
    """Why a transformers Mamba or Mamba-2 mixer cannot run on the Triton kernels; None if it can."""
    if not known_layer(mixer):
        return f"a {type(mixer).__name__}"
    two = hasattr(mixer, "dt_bias")
    wanted = ["in_proj", "conv1d", "out_proj", "A_log", "D", *(["norm"] if two else ["x_proj", "dt_proj"])]
    missing = [name for name in wanted if not hasattr(mixer, name)]
    if missing:
        return f"no weight {missing[0]}"
    if getattr(mixer, "activation", "silu") not in ("silu", "swish"):
        return f"activation {mixer.activation}"
    width = mixer.A_log.shape[-1] if not two else mixer.ssm_state_size
    most = triton_ssd.MAX_STATE if two else triton_s6.MAX_STATE
    if width > most:
        return f"state size {width} is above {most}"
    if two and mixer.norm.weight.shape[0] != mixer.num_heads * mixer.head_dim:
        return "a gated norm in groups"
    if two and (mixer.head_dim > triton_ssd.MAX_DIM or mixer.num_heads * mixer.head_dim > MAX_WIDTH):
        return "a head or a layer too wide"
    if mixer.conv1d.weight.shape[-1] > MAX_TAPS:
        return f"a convolution of {mixer.conv1d.weight.shape[-1]} taps"
    return obstacle(mixer.A_log, mixer.D, mixer.conv1d.weight, mixer.out_proj.weight)


def mamba_layer(mixer: Any, hidden: Tensor, tiles: triton_s6.Tiles | None = None) -> Tensor:
    """A MambaMixer (or FalconMambaMixer) without cache and mask: hidden (batch, token, width) → same."""
    x, gate = mixer.in_proj(hidden).chunk(2, dim=-1)
    x = causal_conv_silu(x, mixer.conv1d.weight, mixer.conv1d.bias)
    state = mixer.A_log.shape[1]
    step, b, c = mixer.x_proj(x).split([mixer.x_proj.out_features - 2 * state, state, state], dim=-1)
    eps = getattr(mixer, "rms_eps", None)
    if eps is not None:  # FalconMamba norms all three, without weights
        step, b, c = (nn.functional.rms_norm(part, part.shape[-1:], eps=eps) for part in (step, b, c))
    delta = nn.functional.linear(step, mixer.dt_proj.weight)
    y = triton_s6.selective_scan_triton(
        x, delta, -torch.exp(mixer.A_log.float()), b, c, mixer.D, z=gate, delta_bias=mixer.dt_proj.bias,
        delta_softplus=True,
        tiles=tiles,
    )  # fmt: skip
    output: Tensor = mixer.out_proj(y)
    return output


def mamba2_layer(mixer: Any, hidden: Tensor, tiles: triton_ssd.Tiles | None = None) -> Tensor:
    """A Mamba2Mixer without cache and mask: hidden (batch, token, width) → same."""
    y = mamba2_inner(mixer.in_proj(hidden), _weights(mixer), _shape(mixer, tiles))
    output: Tensor = mixer.out_proj(y)
    return output


def _weights(mixer: Any) -> Weights:
    conv = mixer.conv1d
    return Weights(conv.weight, conv.bias, mixer.dt_bias, mixer.A_log, mixer.D, mixer.norm.weight)


def _shape(mixer: Any, tiles: triton_ssd.Tiles | None) -> Shape:
    if tiles is None:
        tiles = triton_ssd.TRAINING if torch.is_grad_enabled() else triton_ssd.TILES
    low, high = mixer.time_step_limit
    setting = triton_ssd.Setting(tiles, softplus=True, limit=(float(low), float(high)))
    return Shape(
        mixer.num_heads, mixer.head_dim, mixer.n_groups, mixer.ssm_state_size, mixer.norm.variance_epsilon, setting
    )  # fmt: skip


def _stream_dtype(weight: Tensor) -> torch.dtype:
    """Dtype the next product wants: autocast's where it is on, the weights' otherwise."""
    kind = weight.device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else weight.dtype


def _block_forward(block: Any, tiles: Any, usual: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A transformers Mamba(2)Block: residual + mixer(norm(hidden)); its own where a cache or a mask is given."""
    if args or any(kwargs.get(name) is not None for name in ("cache_params", "attention_mask")):
        return usual(hidden_states, *args, **kwargs)
    mixer, gain = block.mixer, block.norm.weight
    rounded = gain.dtype != hidden_states.dtype
    outer = Outer(block.norm.variance_epsilon, _stream_dtype(gain), rounded, block.residual_in_fp32)
    if hasattr(mixer, "dt_bias") and mixer.in_proj.bias is None and mixer.out_proj.bias is None:
        into, out_of = mixer.in_proj.weight, mixer.out_proj.weight
        return mamba2_block(hidden_states, gain, into, out_of, _weights(mixer), _shape(mixer, tiles), outer)
    layer = mamba2_layer if hasattr(mixer, "dt_bias") else mamba_layer
    normed, stream = rms_norm(hidden_states, gain, outer.eps, outer.kind, rounded=rounded)
    return (stream.float() if outer.wide else stream) + layer(mixer, normed, tiles)


def norm_forward(norm: Any, hidden_states: Tensor) -> Tensor:
    """A transformers Mamba(2)RMSNorm by itself."""
    return rms_norm(hidden_states, norm.weight, norm.variance_epsilon)[0]


@contextlib.contextmanager
def gpu_blocks(model: nn.Module, tiles: Any = None) -> Iterator[list[str]]:
    """Run a model's Mamba and Mamba-2 blocks on the Triton kernels; yields the names of the blocks that do.

    A block whose layer cannot (`layer_obstacle`) keeps its own forward.
    """
    changed: list[Any] = []
    names: list[str] = []
    try:
        for name, block in model.named_modules():
            mixer = getattr(block, "mixer", None)
            if not isinstance(mixer, nn.Module) or not hasattr(block, "norm") or not hasattr(block, "residual_in_fp32"):
                continue
            if layer_obstacle(mixer) is not None:
                continue
            block.forward = partial(_block_forward, block, tiles, block.forward)
            changed.append(block)
            names.append(name)
        last = getattr(getattr(model, "backbone", model), "norm_f", None)
        if names and last is not None and obstacle(last.weight) is None:
            last.forward = partial(norm_forward, last)
            changed.append(last)
        yield names
    finally:
        for module in changed:
            del module.forward
