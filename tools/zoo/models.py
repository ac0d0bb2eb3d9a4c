"""Shapes of the six models of the zoo: one width, one vocabulary, tied embeddings, about equal numbers of parameters.

| name | blocks |
|---|---|
| gpt-neo | Transformer, learned positions, global and local attention in turn |
| gpt-neox | Transformer, rotary positions |
| mamba | twice as many Mamba blocks |
| mamba2 | twice as many Mamba-2 blocks |
| hybrid | Bamba: Mamba-2 blocks, then attention |
| hybrid-mirror | Bamba: attention, then Mamba-2 blocks |

A Bamba block holds a small MLP beside its mixer. Its own initialisation forgets within a token or two (time steps of
1.3); the hybrids get that of Mamba-2 instead (time steps from 0.001 to 0.1), so that the models differ in what they are
made of and not in how they start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from repflow.core.errors import InputError, nearest
from repflow.spec.zoo import NAMES

__all__ = ["NAMES", "SIZES", "Size", "build", "make_config", "parameter_count"]


@dataclass(frozen=True)
class Size:
    """Sizes that the six models share.

    Attributes:
        width: channels of the residual stream.
        blocks: Transformer blocks; SSMs have twice as many.
        head: channels of an attention head.
        inner: channels of a Transformer's MLP.
        state: state size of Mamba-2; Mamba has a quarter.
        ssm_head: channels of a Mamba-2 head.
        hybrid: Mamba-2 and attention blocks of a hybrid.
        hybrid_inner: channels of a hybrid's MLP.
    """

    width: int
    blocks: int
    head: int
    inner: int
    state: int
    ssm_head: int
    hybrid: tuple[int, int]
    hybrid_inner: int


SIZES = {
    "tiny": Size(32, 2, 16, 96, 16, 16, (2, 1), 32),
    "4m": Size(192, 8, 32, 896, 64, 64, (10, 3), 128),
    "8m": Size(256, 8, 32, 1152, 64, 64, (10, 3), 192),
}
STEP = (0.001, 0.1)
"""Least and greatest time step at the start, as Mamba-2 draws them."""


def _size(size: str | Size) -> Size:
    if isinstance(size, Size):
        return size
    if size not in SIZES:
        raise InputError(f"unknown size {size!r}; {nearest(size, SIZES)}")
    return SIZES[size]


def make_config(name: str, size: str | Size, vocabulary: int, window: int) -> Any:
    """Configuration of one model; sizes by name or of one's own."""
    from repflow.models.transformers_own import config_class

    if name not in NAMES:
        raise InputError(f"unknown model {name!r}; {nearest(name, NAMES)}")
    sizes = _size(size)
    kind, options = _options(name, sizes, window)
    shared = {
        "vocab_size": vocabulary,
        "hidden_size": sizes.width,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": None,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
    }
    return config_class(kind)(**shared, **options)


def _options(name: str, size: Size, window: int) -> tuple[str, dict[str, Any]]:
    heads, ssm_heads = size.width // size.head, 2 * size.width // size.ssm_head
    if name == "gpt-neo":
        none = dict.fromkeys(("embed_dropout", "attention_dropout", "resid_dropout"), 0.0)
        layers = {"attention_types": [[["global", "local"], size.blocks // 2]], "num_layers": size.blocks}
        rest = {"num_heads": heads, "window_size": window // 2, "max_position_embeddings": window}
        return "gpt_neo", {**layers, **rest, "intermediate_size": size.inner, **none}
    if name == "gpt-neox":
        layers = {"num_hidden_layers": size.blocks, "num_attention_heads": heads, "intermediate_size": size.inner}
        return "gpt_neox", {**layers, "max_position_embeddings": window, "rotary_pct": 1.0}
    if name == "mamba":
        return "mamba", {"num_hidden_layers": 2 * size.blocks, "state_size": size.state // 4}
    if name == "mamba2":
        rest = {"state_size": size.state, "head_dim": size.ssm_head, "num_heads": ssm_heads}
        return "mamba2", {"num_hidden_layers": 2 * size.blocks, **rest, "n_groups": 1, "chunk_size": 64}
    return "bamba", _hybrid(size, heads, ssm_heads, window, early=name == "hybrid")


def _hybrid(size: Size, heads: int, ssm_heads: int, window: int, *, early: bool) -> dict[str, Any]:
    recurrent, attending = size.hybrid
    first = recurrent if early else 0
    return {
        "num_hidden_layers": recurrent + attending,
        "attn_layer_indices": list(range(first, first + attending)),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": size.hybrid_inner,
        "max_position_embeddings": window,
        "mamba_n_heads": ssm_heads,
        "mamba_d_head": size.ssm_head,
        "mamba_d_state": size.state,
        "mamba_chunk_size": 64,
    }


def build(name: str, size: str | Size, vocabulary: int, window: int, seed: int) -> Any:
    """Model of seeded random weights, in float32 on the CPU: the same on every machine."""
    from repflow.models.weights.initialise import random_model

    config = make_config(name, size, vocabulary, window)
    network = random_model(config, "default", seed=seed)
    if config.model_type == "bamba":
        _start_as_mamba2(network, seed)
    return network


def _start_as_mamba2(network: Any, seed: int) -> None:
    """Bias of the time steps so that softplus gives steps spread evenly in their logarithm."""
    import torch

    draws = torch.Generator().manual_seed(seed)
    low, high = map(math.log, STEP)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("dt_bias"):
                step = torch.exp(torch.rand(len(parameter), generator=draws) * (high - low) + low)
                parameter.copy_(step + torch.log(-torch.expm1(-step)))


def parameter_count(network: Any) -> int:
    """Parameters; tied ones once."""
    return sum(parameter.numel() for parameter in network.parameters())
