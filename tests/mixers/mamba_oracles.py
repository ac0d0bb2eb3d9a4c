"""transformers' Mamba and Mamba-2 mixers as oracles in float64.

Their code casts to float32 inside (`.float()`, `torch.float32`); `in_float64` lets those casts keep float64, so that a
comparison shows the formula and not the rounding.
"""

from contextlib import contextmanager
from types import ModuleType

import pytest
import torch
from transformers import Mamba2Config, MambaConfig
from transformers.models.mamba import modeling_mamba
from transformers.models.mamba2 import modeling_mamba2

WIDTH, TOKENS = 12, 23


class WideTorch(ModuleType):
    """torch, with float64 under the name float32."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextmanager
def in_float64():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        for module in (modeling_mamba, modeling_mamba2):
            patch.setattr(module, "torch", WideTorch("torch"))
        yield


def mamba_mixer(state=5, width=WIDTH, **options):
    config = MambaConfig(hidden_size=width, state_size=state, num_hidden_layers=1, **options)
    return modeling_mamba.MambaMixer(config, 0).double().eval()


def mamba2_mixer(state=6, head_dim=4, groups=3, **options):
    config = Mamba2Config(
        hidden_size=WIDTH,
        state_size=state,
        head_dim=head_dim,
        num_heads=2 * WIDTH // head_dim,
        n_groups=groups,
        num_hidden_layers=1,
        chunk_size=8,
        **options,
    )
    return modeling_mamba2.Mamba2Mixer(config, 0).double().eval()


def loud(module, seed=0):
    """Scale matrices up and move everything else, so that the scan is no small part of the output."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if parameter.ndim >= 2 and "A_log" not in name:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.3 * noise)
    return module


def inputs(seed=1, batch=2, tokens=TOKENS):
    return torch.randn(batch, tokens, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def outputs(oracle, x):
    with torch.no_grad(), in_float64():
        return oracle(x)


def relative(actual, expected):
    return float((actual - expected).detach().abs().max() / expected.detach().abs().max())
