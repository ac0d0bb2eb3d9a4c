"""Class tokens, two directions, dropout and levels of a classifier of sequences."""

import pytest
import torch

import repflow
from repflow.core.errors import InputError
from repflow.models import StackConfig, StackForCausalLM, StackForSequenceClassification, load
from tests.models.stack.inputs import entry

X = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0))


def classifier(mixers=("s6", "softmax_attention"), **options):
    """A small one; one with its class token in front mixes both ways, as it has to."""
    torch.manual_seed(0)
    options = {"bidirectional": options.get("class_token") == "start"} | options
    config = StackConfig(
        mixers=[entry(name) for name in mixers], hidden_size=16, num_labels=5, input_channels=3, **options
    )
    return StackForSequenceClassification(config).eval().double()


@pytest.mark.parametrize(("place", "index"), [("start", 0), ("middle", 4), ("end", 9)])
def test_the_class_is_read_from_the_class_token(place, index):
    network = classifier(class_token=place)
    with torch.no_grad():
        states = network.model(X, output_hidden_states=True)
        assert torch.equal(states.hidden_states[0][:, index], network.model.class_token.expand(2, -1))
        assert torch.equal(network(X).logits, network.score(states.last_hidden_state[:, index]))
        changed = X.clone()
        changed[:, index:] += 1  # a causal stack shows its class token what came before it, and nothing else
        assert torch.equal(network(changed).logits, network(X).logits) == (place != "start")
    network.zero_grad()
    network(X).logits.sum().backward()
    assert network.model.class_token.grad.abs().max() > 0


def test_logits_keep_their_precision_under_autocast():
    network = classifier(mixers=("softmax_attention",), class_token="end", norm="layer").float()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        states = network.model(X).last_hidden_state[:, -1]
        logits = network(X).logits
        assert network.score(states).dtype == torch.float16  # in which many classes would tie
    assert logits.dtype == torch.float32
    assert torch.equal(logits, states.float() @ network.score.weight.T)


def test_it_has_no_position_of_its_own():
    with_positions = classifier(class_token="middle", max_position_embeddings=9)
    plain = classifier(class_token="middle")
    plain.load_state_dict(
        {k: v for k, v in with_positions.state_dict().items() if "position" not in k}, strict=True
    )  # the same but for positions
    hidden = with_positions.model(X, output_hidden_states=True).hidden_states[0]
    other = plain.model(X, output_hidden_states=True).hidden_states[0]
    added = torch.cat([hidden[:, :4] - other[:, :4], hidden[:, 5:] - other[:, 5:]], 1)
    assert torch.allclose(added, with_positions.model.position_embeddings.weight.expand(2, -1, -1))
    with pytest.raises(InputError, match="at most 9 tokens"):
        with_positions(torch.randn(1, 10, 3))


@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_ids_name_it(place):
    network = classifier(class_token=place, vocab_size=257, input_range=[0, 1], max_position_embeddings=9)
    ids = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(1))
    at = network.config.class_place(9)
    marked = torch.cat([ids[:, :at], torch.full((2, 1), 256), ids[:, at:]], 1)
    levels = (ids.double() / 255)[..., None].expand(-1, -1, 3)
    assert torch.allclose(network(marked).logits, network(levels).logits)
    with pytest.raises(InputError, match="one class token in each row of ids, whose id is 256"):
        network(ids)


@pytest.mark.parametrize("name", ["s6", "softmax_attention", "rwkv4", "h3", "s4d"])
def test_two_directions_are_added(name):
    network = classifier([name], bidirectional=True)
    block = network.model.blocks[0]
    hidden = torch.randn(2, 6, 16, dtype=torch.float64)
    with torch.no_grad():
        normed = block.mixer_norm(hidden)
        backward = torch.stack([block.backward_mixer(row.flip(0)[None])[0].flip(0) for row in normed])
        assert torch.allclose(block(hidden), hidden + block.mixer(normed) + backward)
        changed = hidden.clone()
        changed[:, -1] += 1
        assert not torch.allclose(block(changed)[:, 0], block(hidden)[:, 0])


def test_dropout_in_any_layer_and_while_training_alone():
    network = classifier(dropout=[0.0, 0.5], embedding_dropout=0.5)
    quiet = classifier()
    quiet.load_state_dict(network.state_dict())
    assert torch.equal(network(X).logits, quiet(X).logits)
    network.train()
    assert not torch.equal(network(X).logits, network(X).logits)
    assert type(network.model.blocks[0].dropout).__name__ == "Identity"
    block, hidden = network.model.blocks[1], torch.randn(2, 6, 16, dtype=torch.float64)
    added = block(hidden) - hidden
    assert ((added == 0).double().mean() - 0.5).abs() < 0.2  # half of what the mixer adds is left out


def test_whole_channels_are_dropped_at_all_tokens_of_a_row():
    network = classifier(dropout=0.5, channel_dropout=True).train()
    block, hidden = network.model.blocks[0], torch.randn(8, 6, 16, dtype=torch.float64)
    gone = block(hidden) == hidden
    assert torch.equal(gone, gone[:, :1].expand_as(gone))
    assert 0.3 < gone[:, 0].double().mean() < 0.7
    kept = ~gone[:, 0]
    assert len({tuple(row) for row in kept.tolist()}) > 1  # each row drops its own
    quiet = block.eval()(hidden) - hidden
    added = block.train()(hidden) - hidden
    assert torch.allclose(added[added != 0], 2 * quiet[added != 0])


def test_saved_and_loaded(tmp_path):
    options = {"class_token": "end", "bidirectional": [True, False], "dropout": 0.1, "input_range": [0, 1]}
    options["channel_dropout"] = True
    network = classifier(**options).float()
    network.save_pretrained(tmp_path)
    again = StackForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(again(X).logits, network(X).logits)
    assert again.config.channel_dropout is True
    plain = StackConfig("s6").to_dict()
    own = {"class_token", "bidirectional", "dropout", "input_range", "embedding_dropout", "channel_dropout"}
    assert not plain.keys() & own


@pytest.mark.parametrize("place", ["middle", "end"])
def test_measured_and_its_influence_ends_at_the_class_token(place, tmp_path):
    network = classifier(class_token=place, vocab_size=257, max_position_embeddings=100).float()
    model = load(network)
    options = {"length": 65, "samples": 2, "metrics": ["token_similarity"], "out": tmp_path}
    result = repflow.measure(model, "pixels", **options)
    assert result["token_similarity"].shape == (3, 2)
    if place == "end":
        curve = repflow.influence(model, "pixels", length=65, samples=1)
        assert curve["log_influence"].shape[-1] == 65
        probed = repflow.probe(model, "pixels", length=65, samples=40, seeds=1, allow_leak=True)
        assert probed.config["task"] == "pixels"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: classifier(class_token="left"), "class_token"),
        (lambda: classifier(class_token="start", bidirectional=False), "sees nothing but itself; pass class_token"),
        (lambda: classifier(dropout=1.0), "dropout from 0 to below 1"),
        (lambda: classifier(dropout=[0.1]), "dropout for each of 2 layers"),
        (lambda: classifier(bidirectional=[True]), "bidirectional for each of 2 layers"),
        (lambda: classifier(embedding_dropout=-0.1), "embedding_dropout from 0"),
        (lambda: classifier(channel_dropout=True), "channel_dropout beside a dropout"),
        (lambda: classifier(dropout=0.1, channel_dropout=1), "channel_dropout"),
        (lambda: classifier(input_range=[1, 1]), "input_range of two numbers in order"),
        (lambda: classifier(input_range=[0]), "input_range of two numbers in order"),
        (lambda: StackForCausalLM(StackConfig("s6", class_token="end")), "a causal stack without a class token"),
        (lambda: StackForCausalLM(StackConfig("s6", bidirectional=True)), "got layers that mix both ways"),
        (lambda: classifier(class_token="end")(X, attention_mask=torch.eye(2, 9)), "padding"),
        (lambda: classifier(bidirectional=True)(X, attention_mask=torch.ones(2, 9).tril(5)), "of one length"),
    ],
)
def test_refusals(make, words):
    with pytest.raises((InputError, TypeError), match=words):  # a wrong type is refused sooner by `make test-all`
        make()


def test_a_class_token_is_not_sorted_away():
    """Sorted outputs stay where their tokens went, so that another token's would stand at its place."""
    whole = {"form": "whole", "hard": True}
    with pytest.raises(InputError, match=r'add "restore": True to reorder, or leave class_token out'):
        classifier(class_token="end", reorder=whole)
    with pytest.raises(InputError, match="a class token whose output stands at its place"):
        classifier(class_token="end", reorder={**whole, "order": "random"})
    for order in ({**whole, "restore": True}, {**whole, "order": "identity"}, {"form": "chunks", "chunk": 4}):
        assert classifier(class_token="end", reorder=order)(X.double()).logits.isfinite().all()
