"""Quiet, single-threaded models, built once per architecture."""

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
    return load(tiny_model(model_type))


@pytest.fixture
def model(request) -> Model:
    """Tiny model of the architecture named by the test's parameter; shared, so never change it."""
    return loaded(request.param)


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 128, (3, 20), generator=torch.Generator().manual_seed(7))
