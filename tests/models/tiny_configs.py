"""Tiny random-weight models of every architecture that repflow names, for tests here and elsewhere.

Every model has at least four layers, a vocabulary of 128 and a width of 32 (64 where the architecture rounds up);
the hybrids mix their kinds of layer.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from repflow.models.transformers_own import config_class

VOCAB = 128
COMMON: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
ATTENTION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
MAMBA2_INSIDE: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_d_head": 8, "mamba_chunk_size": 8}
MIXED = ["linear_attention", "full_attention", "linear_attention", "full_attention"]

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64},
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 4,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 4,
        "max_position_embeddings": 64,
    },
    "gpt_neox": {k: v for k, v in ATTENTION.items() if k != "num_key_value_heads"},
    "llama": ATTENTION,
    "mamba": {"hidden_size": 32, "num_hidden_layers": 4, "state_size": 4},
    "mamba2": {
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_heads": 8,
        "head_dim": 8,
        "state_size": 8,
        "n_groups": 2,
        "chunk_size": 8,
    },
    "falcon_mamba": {"hidden_size": 32, "num_hidden_layers": 4, "state_size": 4},
    # rescale_every=2 makes transformers halve the stream every second block at inference unless the adapter stops it
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 4, "attention_hidden_size": 32, "rescale_every": 2},
    "recurrent_gemma": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "lru_width": 32,
        "attention_window_size": 8,
    },
    "jamba": {**ATTENTION, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 4},
    "bamba": {**ATTENTION, **MAMBA2_INSIDE, "attn_layer_indices": [1, 3]},
    "zamba2": {
        **ATTENTION,
        "num_key_value_heads": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "mamba_d_state": 8,
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "chunk_size": 8,
        "num_mem_blocks": 1,
        "adapter_rank": 4,
        "use_mem_rope": True,
    },
    "falcon_h1": {
        **ATTENTION,
        **MAMBA2_INSIDE,
        "mamba_d_ssm": 64,
        "ssm_out_multiplier": 0.7,
        "attention_out_multiplier": 0.9,
        "lm_head_multiplier": 0.5,
        "embedding_multiplier": 2.0,
    },
    "nemotron_h": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "layers_block_type": ["mamba", "mlp", "attention", "moe", "mamba", "mlp"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 8,
        "n_routed_experts": 2,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
        "max_position_embeddings": 64,
    },
    "granitemoehybrid": {
        **ATTENTION,
        **MAMBA2_INSIDE,
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "num_local_experts": 2,
        "shared_intermediate_size": 64,
        "residual_multiplier": 0.6,
        "logits_scaling": 3.0,
        "embedding_multiplier": 2.0,
    },
    "lfm2": {**ATTENTION, "layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "qwen3_next": {
        **ATTENTION,
        "head_dim": 8,
        "layer_types": MIXED,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "xlstm": {"hidden_size": 64, "num_hidden_layers": 4, "num_heads": 4, "chunk_size": 16},
    "qwen2": ATTENTION,
    "opt": {
        "hidden_size": 32,
        "ffn_dim": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 64,
    },
    "phi": ATTENTION,
    "gemma2": {**ATTENTION, "head_dim": 8, "sliding_window": 8, "final_logit_softcapping": 5.0},
}
DELTA: dict[str, Any] = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
}
EXPERTS: dict[str, Any] = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
LATENT: dict[str, Any] = {  # latent attention beside Kimi's delta rule
    **ATTENTION,
    "num_key_value_heads": 4,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "moe_intermediate_size": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "layer_types": MIXED,
}
HYBRIDS: dict[str, dict[str, Any]] = {
    "kimi_linear": LATENT,
    "bailing_hybrid": {**LATENT, "head_dim": 8, "num_mtp_layers": 0},
    "minimax": {**ATTENTION, "head_dim": 8, "num_local_experts": 2, "block_size": 8, "layer_types": MIXED},
    "olmo_hybrid": {**ATTENTION, **DELTA, "layer_types": MIXED},
    "qwen3_5_text": {**ATTENTION, **DELTA, "head_dim": 8, "layer_types": MIXED},
    "qwen3_5_moe_text": {
        **ATTENTION,
        **DELTA,
        **EXPERTS,
        "head_dim": 8,
        "shared_expert_intermediate_size": 16,
        "layer_types": MIXED,
    },
    "qwen4_exp_text": {  # several residual streams: its states cannot be read yet, its layers can be named
        **ATTENTION,
        **DELTA,
        **EXPERTS,
        "head_dim": 8,
        "shared_expert_intermediate_size": 16,
        "hc_count": 2,
        "hc_lowrank": 4,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "layer_types": ["linear_attention", "indexed_attention"] * 2,
    },
    "zamba": {
        **ATTENTION,
        "num_key_value_heads": 4,
        "mamba_d_state": 8,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    },
    "lfm2_moe": {**ATTENTION, **EXPERTS, "num_dense_layers": 2, "layer_types": ["conv", "full_attention"] * 2},
    "zaya": {**ATTENTION, **EXPERTS, "head_dim": 8, "router_hidden_size": 8, "layer_types": ["hybrid"] * 4},
    "inkling_text": {  # divides by a factor before its head, so that it is refused; its layers can be named
        **ATTENTION,
        "head_dim": 8,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 8,
        "sliding_window_size": 8,
        "d_rel": 4,
        "rel_extent": 16,
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "layer_types": ["hybrid_sliding", "hybrid"] * 2,
    },
}
"""Further hybrids, for tests of kinds of layers alone."""
NAMED = list(CONFIGS)[:18]
UNLISTED = list(CONFIGS)[18:]
KINDS = {
    "gpt2": ["attention"] * 4,
    "gpt_neo": ["attention"] * 4,
    "gpt_neox": ["attention"] * 4,
    "llama": ["attention"] * 4,
    "mamba": ["ssm"] * 4,
    "mamba2": ["ssm"] * 4,
    "falcon_mamba": ["ssm"] * 4,
    "rwkv": ["recurrent"] * 4,
    "recurrent_gemma": ["recurrent", "recurrent", "attention"] * 2,
    "jamba": ["ssm", "attention"] * 2,
    "bamba": ["ssm", "attention"] * 2,
    "zamba2": ["ssm", "attention+ssm"] * 2,
    "falcon_h1": ["attention+ssm"] * 4,
    "nemotron_h": ["ssm", "mlp", "attention", "moe", "ssm", "mlp"],
    "granitemoehybrid": ["ssm", "attention"] * 2,
    "lfm2": ["conv", "attention"] * 2,
    "qwen3_next": ["recurrent", "attention"] * 2,
    "xlstm": ["recurrent"] * 4,
    **{name: ["attention"] * 4 for name in UNLISTED},
}
"""Kind of every block."""


def tiny_config(model_type: str, **changes: Any) -> Any:
    """Configuration of the tiny model of one architecture, with fields changed where another size is wanted."""
    return config_class(model_type)(**{**COMMON, **(CONFIGS | HYBRIDS)[model_type], **changes})


def tiny_model(model_type: str, *, seed: int = 0, spread: float = 4.0, **changes: Any) -> PreTrainedModel:
    """Random model of one architecture in eval mode; `spread` scales matrices so that every branch matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(model_type, **changes))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim >= 2 and name.endswith(("weight", "proj")) and "embed" not in name:
                    parameter.mul_(spread)
                if parameter.ndim >= 2 and not parameter.any():
                    parameter.normal_(0.0, 0.2)  # xLSTM starts with its gates, and so its whole FFN, at zero
    return model.eval()


def save_tiny(model_type: str, folder: str | Path) -> Path:
    """Write the tiny model as a Hugging Face folder and return it."""
    tiny_model(model_type).save_pretrained(folder)
    return Path(folder)
