"""Whole Gated DeltaNet layers of transformers' Qwen models on the Triton kernels of `repflow.mixers`.

The function reads a layer's weights by name and gives what its own forward gives without cache and mask.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from repflow.mixers.triton import delta as triton_delta
from repflow.mixers.triton.block import MAX_TAPS
from repflow.mixers.triton.heads import Place, gated_head_norm, mixed_heads
from repflow.mixers.triton.launch import obstacle

LAYERS = {
    "Qwen3NextGatedDeltaNet": "qwen3_next",
    "Qwen3_5GatedDeltaNet": "qwen3_5",
    "Qwen3_5MoeGatedDeltaNet": "qwen3_5_moe",
}
"""Layers whose forward is repeated here, with their packages."""
NORMS = ("Qwen3NextRMSNormGated", "Qwen3_5RMSNormGated", "Qwen3_5MoeRMSNormGated")
UNIT = 1e-6
MAX_VALUE = 512


def known_layer(mixer: nn.Module) -> bool:
    """Whether a module is one of transformers' layers that are repeated here."""
    package = LAYERS.get(type(mixer).__name__)
    return package is not None and type(mixer).__module__.startswith(f"transformers.models.{package}.")


def layer_obstacle(mixer: Any) -> str | None:
    """Why a layer cannot run on the kernels; None if it can."""
    if not known_layer(mixer):
        return f"a {type(mixer).__name__}"
    joint = ["in_proj_qkvz", "in_proj_ba"]
    apart = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"]
    wanted = ["conv1d", "dt_bias", "A_log", "norm", "out_proj", *(joint if hasattr(mixer, joint[0]) else apart)]
    missing = [name for name in wanted if not hasattr(mixer, name)]
    if missing:
        return f"no weight {missing[0]}"
    if mixer.activation not in ("silu", "swish"):
        return f"activation {mixer.activation}"
    if mixer.conv1d.bias is not None or mixer.conv1d.weight.shape[-1] > MAX_TAPS:
        return "a convolution with a bias or many taps"
    if type(mixer.norm).__name__ not in NORMS or getattr(mixer.norm, "activation", "silu") != "silu":
        return "another gated norm"
    most = triton_delta.MAX_KEY if mixer.out_proj.weight.dtype.itemsize == 2 else triton_delta.MAX_KEY_WIDE
    if mixer.head_k_dim > most or mixer.head_v_dim > MAX_VALUE:
        return "a head too wide"
    return obstacle(mixer.A_log, mixer.dt_bias, mixer.conv1d.weight, mixer.out_proj.weight)


def unobserved(mixer: Any) -> bool:
    """Whether skipping the calls of the layer's convolution and norm has no visible effect."""
    for part in (mixer.norm, mixer.conv1d):
        hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
        if any(hooks) or "forward" in part.__dict__:
            return False
    return not torch_module._has_any_global_hook()  # type: ignore[no-untyped-call]


def gated_delta_layer(mixer: Any, hidden: Tensor, tiles: triton_delta.Tiles | None = None) -> Tensor:
    """A Gated DeltaNet layer without cache and mask: hidden (batch, token, width) → same."""
    keys, values, key, value = mixer.num_k_heads, mixer.num_v_heads, mixer.head_k_dim, mixer.head_v_dim
    per = values // keys
    if hasattr(mixer, "in_proj_qkvz"):  # per key head: query, key, its values, their gates
        mixed, gates = mixer.in_proj_qkvz(hidden), mixer.in_proj_ba(hidden).unflatten(-1, (keys, 2 * per))
        z, group = mixed, 2 * key + 2 * per * value
        of_keys = Place(2, keys, key, 0, key, group)
        of_values = Place(1, values, value, 2 * key, 0, group, per)
        of_gates = of_values._replace(first=2 * key + per * value)
        strength, decay = gates[..., :per], gates[..., per:]
    else:
        mixed, z = mixer.in_proj_qkv(hidden), mixer.in_proj_z(hidden)
        of_keys = Place(2, keys, key, 0, keys * key, key)
        of_values = Place(1, values, value, 2 * keys * key, 0, value)
        of_gates = of_values._replace(first=0)
        strength, decay = (proj(hidden)[..., None] for proj in (mixer.in_proj_b, mixer.in_proj_a))
        per = 1
    weight = mixer.conv1d.weight
    queries = mixed_heads(mixed, weight, of_keys, unit=UNIT, scale=key**-0.5)
    v = mixed_heads(mixed, weight[2 * keys * key :], of_values)
    parts = triton_delta.Gates(decay, strength, mixer.A_log, mixer.dt_bias, per)
    y = triton_delta.layer_scan(queries[:, :, :keys], queries[:, :, keys:], v, parts, tiles=tiles)
    normed = gated_head_norm(y, z, of_gates, mixer.norm.weight, mixer.norm.variance_epsilon)
    output: Tensor = mixer.out_proj(normed)
    return output
