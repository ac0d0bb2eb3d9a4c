"""Tuples made with output_hidden_states are put right for every architecture, against hooks on the blocks."""

import pytest
import torch

from repflow.core.errors import InputError
from repflow.models import from_hidden_states
from repflow.models.families import EMBEDDING, FAMILIES, LAST_BLOCK
from tests.models.tiny_configs import CONFIGS, tiny_model
from tests.sample import sampled


@pytest.mark.parametrize("model", sampled(CONFIGS), indirect=True)
def test_against_hooks(model, ids):
    with torch.no_grad():
        output = model.network(ids, use_cache=False, output_hidden_states=True)
    true = []
    model.stream(ids, on_state=lambda i, h: true.append(h.clone()))
    repaired = from_hidden_states(output.hidden_states, model.model_type)
    assert repaired.hidden.shape == (model.n_states, 3, 20, model.width)
    assert repaired.missing == ([0] if FAMILIES[model.model_type].missing == EMBEDDING else [model.n_layers])
    for index, state in enumerate(repaired.hidden):
        if index in repaired.missing:
            assert torch.isnan(state).all()
        else:
            torch.testing.assert_close(state, true[index], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(repaired.final_norm, output.hidden_states[-1])


def test_every_named_type_is_in_one_row():
    assert {family.missing for family in FAMILIES.values()} == {EMBEDDING, LAST_BLOCK}
    assert set(CONFIGS) < set(FAMILIES)  # tests/models/test_decoders.py compares every row with a tiny model's tuple


def test_rwkv_made_elsewhere_with_rescaling():
    """The rescaled tuple of a plain transformers run keeps its places, though its values are halved."""
    network = tiny_model("rwkv")
    with torch.no_grad():
        states = network(torch.arange(6)[None], output_hidden_states=True).hidden_states
    assert from_hidden_states(states, "rwkv").missing == [0]


def test_one_sample_and_stacked_tensors():
    states = torch.randn(5, 7, 8)
    repaired = from_hidden_states(tuple(states), "gpt2")
    assert repaired.hidden.shape == (5, 7, 8)
    assert torch.equal(repaired.hidden[:4], states[:4])
    assert torch.equal(repaired.final_norm, states[4])
    assert torch.equal(from_hidden_states(states, "gpt2").hidden[:4], states[:4])


@pytest.mark.parametrize(
    ("states", "model_type", "message"),
    [
        ([torch.zeros(2, 3)] * 3, "gpt_nex", r"did you mean gpt_neox.*lists the \d+ that were"),
        ([torch.zeros(2, 3)] * 3, "bert", "decoders.md lists the 88 that were; or have repflow load the model"),
        ([torch.zeros(2, 3)], "gpt2", "at least two entries; got 1"),
        ([torch.zeros(2, 3), torch.zeros(2, 4)], "gpt2", "entries of one shape"),
        ([torch.zeros(2)] * 3, "gpt2", "entries of one shape"),
        ([torch.zeros(2, 3, dtype=torch.long)] * 3, "gpt2", "floating-point states"),
    ],
)
def test_refusals(states, model_type, message):
    with pytest.raises(InputError, match=message):
        from_hidden_states(states, model_type)
