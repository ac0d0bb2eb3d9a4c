"""Losses against their definitions, term by term in float64."""

import math

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from repflow.core.errors import InputError
from repflow.training import Batch, CrossEntropy, Loss
from repflow.training.losses import (
    next_tokens,
    read_logits,
    rows_at,
    token_accuracy,
    token_cross_entropy,
    weighted_mean,
)
from tests.training.tiny_training import VOCABULARY, classifier, network

DRAWS = torch.Generator().manual_seed(3)
IDS = torch.randint(0, VOCABULARY, (3, 5), generator=DRAWS)


def nats(logits, target):
    total = sum(math.exp(value) for value in logits.tolist())
    return math.log(total) - logits[target].item()


def test_cross_entropy_is_the_definitions_weighted_mean():
    logits = torch.randn(3, 5, 7, generator=DRAWS, dtype=torch.float64)
    targets = torch.randint(0, 7, (3, 5), generator=DRAWS)
    weights = torch.rand(3, 5, generator=DRAWS, dtype=torch.float64)
    each = token_cross_entropy(logits, targets)
    places = [(row, token) for row in range(3) for token in range(5)]
    expected = sum(float(weights[at]) * nats(logits[at], targets[at]) for at in places) / float(weights.sum())
    assert each.dtype == torch.float64
    assert float(weighted_mean(each, weights)) == pytest.approx(expected, rel=1e-12)
    assert float(weighted_mean(each, torch.zeros(3, 5))) == 0.0
    right = sum(int(logits[at].argmax()) == int(targets[at]) for at in places if weights[at] > 0.5)
    chosen = (weights > 0.5).double()
    assert float(token_accuracy(logits, targets, chosen)) == pytest.approx(right / int(chosen.sum()))


def test_without_targets_the_next_token_is_the_target_as_in_transformers():
    model = network().eval()
    loss, metrics = CrossEntropy(accuracy=True)(model, Batch(IDS))
    assert loss.item() == pytest.approx(model(IDS, labels=IDS).loss.item(), rel=1e-6)
    right = model(IDS).logits[:, :-1].argmax(-1) == IDS[:, 1:]
    assert float(metrics["accuracy"]) == pytest.approx(float(right.float().mean()))


def test_padding_is_not_predicted():
    model = network().eval()
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
    padded = CrossEntropy()(model, Batch(IDS, mask=mask))[0].item()
    labels = IDS.masked_fill(mask == 0, -100)
    assert padded == pytest.approx(model(IDS, labels=labels).loss.item(), rel=1e-6)
    targets = torch.roll(labels, -1, 1)
    targets[:, -1] = -100
    assert CrossEntropy()(model, Batch(IDS, targets=targets))[0].item() == pytest.approx(padded, rel=1e-6)
    assert float(CrossEntropy().weight(Batch(IDS, targets=targets))) == 7


@pytest.mark.parametrize("kind", ["stack", "transformers"])
def test_logits_at_positions_are_those_of_all_tokens(kind):
    if kind == "stack":
        model = network().eval()
    else:
        torch.manual_seed(0)
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=VOCABULARY, **sizes)).eval()
    positions = torch.tensor([[0, 4], [2, 2], [3, 1]])
    logits = read_logits(model, Batch(IDS, positions=positions))
    assert logits.shape == (3, 2, VOCABULARY)
    torch.testing.assert_close(logits, rows_at(model(IDS).logits, positions), rtol=1e-5, atol=1e-6)
    targets = torch.tensor([[1, 2], [3, 4], [5, 6]])
    weights = torch.tensor([[1.0, 0.0], [2.0, 1.0], [0.0, 1.0]])
    loss, _ = CrossEntropy()(model, Batch(IDS, targets, weights, positions))
    kept = [(0, 0, 1.0), (1, 0, 2.0), (1, 1, 1.0), (2, 1, 1.0)]
    expected = sum(w * nats(logits[row, at].double(), targets[row, at]) for row, at, w in kept) / 5
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_a_classifier_and_a_plain_module_have_the_same_loss():
    model, inputs, labels = classifier().eval(), torch.randn(5, 7, 3, generator=DRAWS), torch.tensor([0, 1, 2, 3, 0])
    loss, metrics = CrossEntropy(accuracy=True)(model, Batch(inputs, labels))
    output = model(inputs, labels=labels)
    assert loss.item() == pytest.approx(output.loss.item(), rel=1e-6)
    assert float(metrics["accuracy"]) == pytest.approx(float((output.logits.argmax(-1) == labels).float().mean()))
    plain = torch.nn.Linear(4, 3)
    x = torch.randn(6, 4, generator=DRAWS)
    loss, _ = CrossEntropy()(plain, Batch(x, torch.tensor([0, 1, 2, 0, 1, 2])))
    expected = torch.nn.functional.cross_entropy(plain(x), torch.tensor([0, 1, 2, 0, 1, 2]))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_target_that_is_left_out_counts_nowhere_whatever_its_weight():
    """Loss by the weights, accuracy by the number of targets that have one."""
    model = network().eval()
    logits = model(IDS).logits.double()
    guess = logits.argmax(-1)
    guess[:, ::2] = (guess[:, ::2] + 1) % VOCABULARY  # wrong at these
    targets = guess.masked_fill(torch.tensor([[0, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 1]]).bool(), -100)
    weights = 3 * torch.rand(3, 5, generator=DRAWS)
    weights[0, 0] = 0.0
    loss, metrics = CrossEntropy(accuracy=True)(model, Batch(IDS, targets, weights))
    kept = [(row, at) for row in range(3) for at in range(5) if targets[row, at] >= 0 and weights[row, at] > 0]
    assert len(kept) == 10
    whole = sum(float(weights[at]) for at in kept)
    expected = sum(float(weights[at]) * nats(logits[at], targets[at]) for at in kept) / whole
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    right = sum(at[1] % 2 == 1 for at in kept)
    assert float(metrics["accuracy"]) == pytest.approx(right / 10)
    assert float(CrossEntropy().weight(Batch(IDS, targets, weights))) == pytest.approx(whole)


def test_what_is_no_loss_is_refused():
    assert isinstance(CrossEntropy(), Loss)
    with pytest.raises(
        InputError, match=r"expected targets, where the inputs are not token ids .*; got none; pass Batch"
    ):
        CrossEntropy()(classifier(), Batch(torch.randn(2, 3, 3)))
    with pytest.raises(InputError, match=r"expected weights of the targets' shape; got \(3, 5\) and \(3,\)"):
        CrossEntropy()(network(), Batch(IDS, IDS[:, 0], torch.ones(3, 5)))


def test_the_last_token_has_no_next_one():
    targets, weights = next_tokens(IDS, torch.full((3, 5), 2.0))
    assert torch.equal(targets[:, :-1], IDS[:, 1:])
    assert weights.tolist() == [[2, 2, 2, 2, 0]] * 3
