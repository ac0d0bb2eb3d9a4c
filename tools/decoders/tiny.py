"""Tiny random models of any decoder that transformers has: its defaults made small, by the names of their fields.

options.py has what an architecture needs beyond that: hybrids that mix their kinds of layer, sizes that
must divide one another.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from repflow.models.stack.network import auto_class
from repflow.models.transformers_own import config_class
from tools.decoders.options import COMMON, CONFIGS, FURTHER, HYBRIDS

MOST = 4_000_000
"""Parameters beyond which a configuration is not tiny: some field was not made small."""
SIZES = (
    (
        r"^(hidden_size|d_model|n_embd|(model_|embed_|emb_)?dim|dim_model|word_embed_proj_dim|embedding_size|lru_width)$",
        32,
    ),
    (r"^((in|out)put_embedding_size|attention_hidden_size|out_hidden_size|output_dim|projection_dim|conv_dim)$", 32),
    (r"^(num_hidden_layers|n_layers?|num_layers|(de|en)coder_layers|depth|num_blocks)$", 4),
    (r"(^|_)(num_(attention_|mamba_|linear_)?heads|n_heads?|((de|en)coder_)?attention_heads)$", 4),
    (r"(num_key_value_heads|n(um)?_kv_heads)$", 2),
    (r"intermediate_size|ffn_dim|^n_inner$|d_ff$|ffn_hidden_size|^inner_dim$|_ffn_size$|^dim_ff$", 32),
    (r"head_dim$|head_size$|headdim$|rotary_dim|d_kv$|dim_head|attention_key_size", 8),
    (r"vocab_size|codebook_size|_vocab$", 128),
    (r"max_position_embeddings|n_positions|max_seq|n_ctx|max_source|max_target|max_length", 64),
    (r"window|attn_chunk|attention_chunk|chunk_size", 8),
    (r"num_(local_|moe_|routed_)?experts$|n_routed_experts|moe_num_experts", 4),
    (r"experts_per_tok|top_?k$|moe_k$", 2),
    (r"^(n_group|topk_group|n_shared_experts)$", 1),
    (r"lora_rank", 16),
)
"""Names of fields that are sizes, and their size in a tiny model."""
TEXT = ("text_config", "decoder")


def decoders() -> list[str]:
    """Model types for which transformers has a causal language model, and a few that it has in another form alone."""
    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *FURTHER})


def tiny_config(model_type: str, **changes: Any) -> Any:
    """Configuration of the tiny model of one architecture, with fields changed where another size is wanted."""
    own = config_class(model_type)
    whole = (CONFIGS | HYBRIDS).get(model_type)
    options = _joined(small_fields(own()), FURTHER.get(model_type, {})) if whole is None else whole
    options = COMMON | options | changes
    if model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        options.setdefault("is_decoder", True)
    return own(**options)


def _joined(small: dict[str, Any], further: dict[str, Any]) -> dict[str, Any]:
    inside = {name: small[name] | fields for name, fields in further.items() if name in TEXT}
    return small | further | inside


def small_fields(config: Any) -> dict[str, Any]:
    """Fields of a configuration that are sizes, made small; those of the configurations inside it as well."""
    fields: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if isinstance(value, int) and not isinstance(value, bool):
            size = next((size for pattern, size in SIZES if re.search(pattern, name)), value)
            fields |= {name: size} if 0 < size < value else {}
        elif value is None and name == "head_dim":
            fields[name] = 8
    if hasattr(config, "kv_lora_rank") and "num_key_value_heads" in fields:  # latent attention: each head has its keys
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    if "qk_head_dim" in fields:
        fields["qk_head_dim"] = 16
    for name in config.sub_configs:
        if (inner := getattr(config, name, None)) is not None:
            fields[name] = small_fields(inner)
            if name in TEXT:
                fields[name] |= COMMON
    return fields


def tiny_model(model_type: str, *, seed: int = 0, spread: float = 4.0, **changes: Any) -> PreTrainedModel:
    """Random model of one architecture in eval mode; `spread` scales matrices so that every branch matters."""
    config = tiny_config(model_type, **changes)
    kind = auto_class(config)
    if model_type not in CONFIGS | HYBRIDS:
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in kind.from_config(config).parameters())
        if count > MOST:
            raise ValueError(f"{model_type} is not tiny: {count:,} parameters; write its sizes into FURTHER")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind.from_config(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim >= 2 and name.endswith(("weight", "proj")) and "embed" not in name:
                    parameter.mul_(spread)
                if parameter.ndim >= 2 and not parameter.any():
                    parameter.normal_(0.0, 0.2)  # xLSTM starts with its gates, and so its whole FFN, at zero
    return model.eval()
