"""Original mamba_ssm checkpoints (the published state-spaces/mamba-* and mamba2-*), converted in memory.

Their configuration gives the width and the number of layers; everything else is read from the weights' shapes.

| letter | meaning | read from |
|---|---|---|
| D | inner width | columns of out_proj |
| H | heads (Mamba-2) | length of A_log |
| N | state size | columns of A_log (Mamba), (conv channels - D) / 2 / groups (Mamba-2) |
| R | rank of Δ (Mamba) | columns of dt_proj |

Not included: attention layers, MLP layers, LayerNorm instead of RMSNorm, per-channel D, and Mamba-2 with several
groups, whose gated norm is per group there and over all channels in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Mamba2Config, MambaConfig, PreTrainedModel

from repflow.core.errors import InputError, UnsupportedModelError, teach

KEYS = {"d_model", "n_layer", "vocab_size"}
EPSILON = 1e-5  # mamba_ssm's norm_epsilon, which its published configurations never change


def is_original(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is mamba_ssm's own."""
    return config.keys() >= KEYS and "model_type" not in config and "architectures" not in config


def convert(config: Mapping[str, Any], weights: dict[str, Tensor]) -> PreTrainedModel:
    """Build the transformers model of an original checkpoint, in float32.

    Args:
        config: The original config.json.
        weights: The original state dictionary.

    Returns:
        MambaForCausalLM or Mamba2ForCausalLM with these weights.
    """
    _refuse_what_differs(config, weights)
    weights = {_rename(name): tensor.float() for name, tensor in weights.items()}
    target = config_of(config, weights)
    head = weights.get("lm_head.weight")
    embedding = weights["backbone.embeddings.weight"]
    target.tie_word_embeddings = head is None or torch.equal(head, embedding)
    network = AutoModelForCausalLM.from_config(target, dtype=torch.float32)
    weights.setdefault("lm_head.weight", embedding)
    result = network.load_state_dict(weights, strict=False, assign=True)
    network.tie_weights()
    if result.missing_keys or result.unexpected_keys:
        got = f"missing {result.missing_keys[:3]}, unexpected {result.unexpected_keys[:3]}"
        raise UnsupportedModelError(teach("the parameters of a mamba_ssm language model", got, "convert it by hand"))
    return network


def config_of(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> MambaConfig | Mamba2Config:
    """Read the configuration from the shapes of the first block's weights."""
    mixer = {name.split(".mixer.")[1]: tensor for name, tensor in weights.items() if ".layers.0.mixer." in name}
    if not {"A_log", "out_proj.weight", "conv1d.weight"} <= mixer.keys():
        raise UnsupportedModelError(
            teach(
                "backbone.layers.0.mixer.A_log and the other weights of a mixer", f"{sorted(mixer)}", "check the file"
            )
        )
    width, inner = mixer["out_proj.weight"].shape
    shared = {
        "hidden_size": width,
        "num_hidden_layers": 1 + max(int(n.split(".")[2]) for n in weights if n.startswith("backbone.layers.")),
        "vocab_size": weights["backbone.embeddings.weight"].shape[0],
        "expand": inner // width,
        "conv_kernel": mixer["conv1d.weight"].shape[-1],
        "use_conv_bias": "conv1d.bias" in mixer,
        "use_bias": "in_proj.bias" in mixer,
        "residual_in_fp32": bool(config.get("residual_in_fp32", True)),
        "layer_norm_epsilon": EPSILON,
        **{"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
    }
    if mixer["A_log"].ndim == 2:
        rank, state = mixer["dt_proj.weight"].shape[1], mixer["A_log"].shape[1]
        return MambaConfig(**shared, state_size=state, time_step_rank=rank)
    return _mamba2_config(config, mixer, shared)


def _mamba2_config(config: Mapping[str, Any], mixer: Mapping[str, Tensor], shared: dict[str, Any]) -> Mamba2Config:
    cfg = config.get("ssm_cfg") or {}
    inner, heads = mixer["out_proj.weight"].shape[1], mixer["A_log"].shape[0]
    if mixer["D"].shape[0] != heads or heads * (inner // heads) != inner:
        raise UnsupportedModelError(teach(f"one D per head ({heads})", f"{mixer['D'].shape[0]}", "convert it by hand"))
    state = (mixer["conv1d.weight"].shape[0] - inner) // 2
    limit = tuple(cfg.get("dt_limit", (0.0, float("inf"))))
    chunk = int(cfg.get("chunk_size", 256))
    return Mamba2Config(
        **shared,
        num_heads=heads,
        head_dim=inner // heads,
        state_size=state,
        n_groups=1,
        chunk_size=chunk,
        time_step_limit=limit,
    )


def _refuse_what_differs(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    cfg = config.get("ssm_cfg") or {}
    problems = {
        "attention layers": bool(config.get("attn_layer_idx")),
        "MLP layers": bool(config.get("d_intermediate")),
        "LayerNorm": not config.get("rms_norm", True) or any(name.endswith("norm.bias") for name in weights),
        "several groups": int(cfg.get("ngroups", 1)) > 1,
        "a norm before the gate": bool(cfg.get("norm_before_gate", False)) or not cfg.get("rmsnorm", True),
    }
    reasons = [name for name, present in problems.items() if present]
    if reasons:
        raise UnsupportedModelError(
            teach(
                "a plain mamba_ssm model",
                f"one with {', '.join(reasons)}",
                "transformers has no such Mamba; convert it by hand",
            )
        )


def _rename(name: str) -> str:
    return name.replace("backbone.embedding.weight", "backbone.embeddings.weight")


def read_config(config: Mapping[str, Any]) -> MambaConfig | Mamba2Config:
    """Configuration from an original config.json alone, with mamba_ssm's defaults; for random weights."""
    cfg = config.get("ssm_cfg") or {}
    _refuse_what_differs(config, {})
    multiple = int(config.get("pad_vocab_size_multiple", 8))
    width, expand = int(config["d_model"]), int(cfg.get("expand", 2))
    shared = {
        "hidden_size": width,
        "num_hidden_layers": int(config["n_layer"]),
        "vocab_size": -(-int(config["vocab_size"]) // multiple) * multiple,
        "expand": expand,
        "conv_kernel": int(cfg.get("d_conv", 4)),
        "tie_word_embeddings": bool(config.get("tie_embeddings", True)),
        "layer_norm_epsilon": EPSILON,
        **{"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
    }
    layer = cfg.get("layer", "Mamba1")
    if layer not in ("Mamba1", "Mamba2"):
        raise InputError(teach("ssm_cfg.layer Mamba1 or Mamba2", repr(layer), "check the configuration"))
    if layer == "Mamba1":
        return MambaConfig(**shared, state_size=int(cfg.get("d_state", 16)))
    head_dim = int(cfg.get("headdim", 64))
    heads = expand * width // head_dim
    return Mamba2Config(
        **shared, num_heads=heads, head_dim=head_dim, n_groups=1, state_size=int(cfg.get("d_state", 128))
    )
