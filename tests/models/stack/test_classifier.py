"""Classifiers of token ids and of real inputs: pooled, saved, loaded and measured like language models."""

import pytest
import torch

import repflow
from repflow.core.errors import InputError
from repflow.models import StackConfig, StackForCausalLM, StackForSequenceClassification, load, twin
from tests.models.stack.inputs import entry, ids
from tests.models.test_conformance import collect, worst

LENGTHS = torch.tensor([9, 4, 1])
MASK = torch.arange(9)[None] < LENGTHS[:, None]


def classifier(**options):
    torch.manual_seed(0)
    config = StackConfig(
        mixers=[entry("ssd"), entry("softmax_attention")], hidden_size=16, vocab_size=64, num_labels=5, **options
    )
    return StackForSequenceClassification(config).eval()


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_pooling_sees_real_tokens_alone(pooling):
    network = classifier(pooling=pooling)
    with torch.no_grad():
        batch = network(ids(tokens=9), attention_mask=MASK.long()).logits
        for row, length in enumerate(LENGTHS.tolist()):
            alone = ids(tokens=9)[row : row + 1, :length]
            assert torch.allclose(network(alone).logits[0], batch[row], atol=1e-6)
            states = network.model(alone).last_hidden_state[0]
            assert torch.allclose(
                network.score(states.mean(0) if pooling == "mean" else states[-1]), batch[row], atol=1e-6
            )


@pytest.mark.parametrize("channels", [1, 3])
def test_real_inputs(channels):
    network = classifier(input_channels=channels)
    x = torch.randn(2, 7, channels)
    with torch.no_grad():
        logits = network(x).logits
        hidden = network.model(inputs_embeds=network.model.input_projection(x)).last_hidden_state
    assert logits.shape == (2, 5)
    assert torch.allclose(logits, network.score(hidden.mean(1)), atol=1e-6)
    levels = 2 * ids(tokens=7)[..., None].expand(-1, -1, channels) / 63 - 1  # ids are levels from −1 to 1
    with torch.no_grad():
        assert torch.allclose(network(ids(tokens=7)).logits, network(levels).logits, atol=1e-6)
    with pytest.raises(InputError, match=rf"expected inputs \(batch, token, {channels}\)"):
        network(torch.zeros(2, 7, 2))


@pytest.mark.parametrize("options", [{}, {"input_channels": 1, "pooling": "last", "norm": "none"}], ids=str)
def test_saved_loaded_and_measured(options, tmp_path):
    network = classifier(**options)
    network.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert isinstance(model.network, StackForSequenceClassification)
    assert (model.head, model.layer_kinds) == (None, ["ssm", "attention"])
    with torch.no_grad():
        assert torch.equal(model.network(ids()).logits, network(ids()).logits)
        expected = network.model(ids(), output_hidden_states=True).hidden_states
    assert worst(collect(model, ids())[0], expected) < 1e-5
    assert repflow.measure(model, ids())["token_similarity"].shape == (3, 3)
    twin_model = twin(model, "xavier", seed=1)
    assert isinstance(twin_model.network, StackForSequenceClassification)
    assert twin_model.network.score.out_features == 5


def test_learns_a_class():
    network = classifier(input_channels=1).train()
    torch.manual_seed(0)
    x = torch.randn(40, 6, 1)
    labels = (x.mean((1, 2)) > 0).long()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(40):
        loss = network(x, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float((network(x).logits.argmax(-1) == labels).float().mean()) > 0.9


def test_one_configuration_for_two_models(tmp_path):
    config = StackConfig(mixers=[entry("ssd")], hidden_size=16, vocab_size=64, num_labels=5)
    for network in (StackForSequenceClassification(config), StackForCausalLM(config)):
        network.save_pretrained(tmp_path / type(network).__name__)
        assert type(load(tmp_path / type(network).__name__).network) is type(network)
    assert config.task == "language"


def test_no_classes_are_refused():
    with pytest.raises(InputError, match="num_labels of at least 1; got 0"):
        StackForSequenceClassification(StackConfig(mixers="s6", num_labels=0))
