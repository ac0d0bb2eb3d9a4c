"""Models with state-space layers whose scans matter, and transformers' scan functions."""

import sys

import torch
from transformers import AutoModelForCausalLM, ZambaConfig

from tests.models.tiny_configs import ATTENTION, COMMON, tiny_model

S6 = ["mamba", "falcon_mamba", "jamba", "zamba"]
SSD = ["mamba2", "bamba", "zamba2", "nemotron_h", "granitemoehybrid", "falcon_h1"]


def tiny_zamba():
    """Two Mamba heads in every layer, each with a scan of its own."""
    options = {**COMMON, **ATTENTION, "num_key_value_heads": 4, "mamba_d_state": 4}
    config = ZambaConfig(**options, layers_block_type=["mamba", "hybrid", "mamba", "hybrid"], n_mamba_heads=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


def lively(model_type, **changes):
    """A tiny model whose SSM term is of the size of the skip: at its own initialisation it is 1e-8 of the output."""
    network = tiny_zamba() if model_type == "zamba" else tiny_model(model_type, **changes)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in network.named_parameters():
        if any(part in name for part in ("x_proj", "in_proj", "conv1d.weight", "dt_proj")):
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return network


def scan_function(model_type, name):
    tiny_model(model_type)  # imports its file
    return getattr(sys.modules[f"transformers.models.{model_type}.modeling_{model_type}"], name)
