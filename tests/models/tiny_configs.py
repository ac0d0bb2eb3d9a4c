"""Tiny random-weight models of every architecture that repflow names, for tests here and elsewhere.

Every model has at least four layers, a vocabulary of 128 and a width of 32 (64 where the architecture rounds up);
the hybrids mix their kinds of layer.
"""

from pathlib import Path

from tools.decoders.options import ATTENTION, COMMON, CONFIGS, HYBRIDS
from tools.decoders.tiny import tiny_config, tiny_model

__all__ = ["ATTENTION", "COMMON", "CONFIGS", "HYBRIDS", "KINDS", "NAMED", "UNLISTED", "VOCAB"]
__all__ += ["save_tiny", "tiny_config", "tiny_model"]

VOCAB = COMMON["vocab_size"]
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


def save_tiny(model_type: str, folder: str | Path) -> Path:
    """Write the tiny model as a Hugging Face folder and return it."""
    tiny_model(model_type).save_pretrained(folder)
    return Path(folder)
