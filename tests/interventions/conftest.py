"""Quiet, single-threaded tiny models."""

import functools

import pytest
import torch
import transformers

from repflow.models import Model, load
from tests.models.tiny_configs import tiny_model

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@functools.cache
def loaded(model_type: str) -> Model:
    """Tiny model with branches that matter and norms whose scales are not the identity."""
    network = tiny_model(model_type, spread=1.0 if model_type == "recurrent_gemma" else 2.0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" in name or ".ln" in name or "pre_ln" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return load(network)


@pytest.fixture
def model(request) -> Model:
    """Model of the architecture named by the test's parameter; shared, so never change it."""
    return loaded(request.param)


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 128, (2, 12), generator=torch.Generator().manual_seed(7))
