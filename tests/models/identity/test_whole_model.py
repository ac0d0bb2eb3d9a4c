"""What makes two models the same: every parameter and every buffer that a checkpoint stores. And the padding id."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from repflow.models import load
from tests.models.tiny_configs import tiny_config, tiny_model


def with_buffer(value, *, persistent=True):
    network = copy.deepcopy(tiny_model("gpt_neox"))
    network.base_model.layers[1].register_buffer("scale", torch.tensor([value]), persistent=persistent)
    return load(network).digest()


def test_a_stored_buffer_that_differs_changes_the_digest():
    plain = load(tiny_model("gpt_neox")).digest()
    assert with_buffer(1.0) == with_buffer(1.0)
    assert len({plain, with_buffer(1.0), with_buffer(1.5)}) == 3


def test_a_buffer_that_follows_from_the_configuration_does_not():
    plain = load(tiny_model("gpt_neox")).digest()
    assert with_buffer(1.0, persistent=False) == with_buffer(2.0, persistent=False) == plain


@pytest.mark.parametrize(("kind", "pad", "expected"), [("llama", 5, 5), ("gpt_neox", 5, 5), ("gpt_neox", 0, None)])
def test_the_padding_id_is_what_the_embedding_sets_apart_or_the_configuration_names(kind, pad, expected):
    config = tiny_config(kind)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 0, 1, pad
    assert load(AutoModelForCausalLM.from_config(config).eval()).padding_id == expected


def test_random_prompts_never_hold_the_zero_row():
    import numpy as np

    import repflow

    config = tiny_config("llama")
    config.pad_token_id, config.vocab_size = 5, 12  # so few ids that padding would be drawn
    torch.manual_seed(0)
    model = load(AutoModelForCausalLM.from_config(config).eval())
    assert not model.network.get_input_embeddings().weight[5].any()
    result = repflow.measure(model, "random", length=24, samples=3)
    assert not {5} & {i for sample in result.provenance["kept"] for i in sample["ids"]}
    assert np.isfinite(result["token_similarity"]).all()
    assert np.isfinite(result["layer_cosine"]).all()
