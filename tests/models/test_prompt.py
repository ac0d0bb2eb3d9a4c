"""Prompts that a model would misread are refused with the remedy."""

import functools

import pytest
import torch

from repflow.core.errors import InputError
from repflow.models import load
from tests.models.tiny_configs import tiny_model


@functools.cache
def gpt2():
    return load(tiny_model("gpt2"))


def run(ids, mask=None, **options):
    gpt2().stream(ids, mask, on_state=lambda i, h: None, **options)


def test_wrong_rank():
    with pytest.raises(InputError, match=r"ids of shape \(batch, token\); got \(5,\); pass ids\[None\]"):
        run(torch.arange(5))


def test_empty():
    with pytest.raises(InputError, match="ids of shape"):
        run(torch.zeros(1, 0, dtype=torch.long))


def test_id_beyond_the_vocabulary():
    with pytest.raises(InputError, match="from 0 to 127; got ids from 0 to 128"):
        run(torch.tensor([[0, 128]]))


def test_mask_of_another_shape():
    with pytest.raises(InputError, match=r"mask of shape \(batch, token\) \(2, 3\); got \(2, 4\)"):
        run(torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 4, dtype=torch.bool))


@pytest.mark.parametrize("mask", [[False, True, True], [True, False, True]])
def test_padding_elsewhere_than_on_the_right(mask):
    with pytest.raises(InputError, match="padding on the right"):
        run(torch.zeros(1, 3, dtype=torch.long), torch.tensor([mask]))


def test_longer_than_the_model():
    with pytest.raises(InputError, match="at most 64 tokens, the limit of gpt2; got 65"):
        run(torch.zeros(1, 65, dtype=torch.long))


def test_unknown_kind():
    with pytest.raises(InputError, match="did you mean branch:attention"):
        run(torch.zeros(1, 3, dtype=torch.long), kind="branch:atention")
