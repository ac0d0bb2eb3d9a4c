"""Words of architectures: what each builds, and what is refused."""

import pytest

from repflow.core.errors import InputError
from repflow.mixers import families
from repflow.models import StackConfig, StackForCausalLM, StackForSequenceClassification
from repflow.spec.architecture import ADDED, MODELS, TAKEN, Numbers, parse_architecture

ROWS = (
    *("mamba", "mamba/8", "mamba2", "h3", "attention", "transformer", "gla", "mamba2.mamba2.attention"),
    *("mamba+positive", "mamba+negative+shift", "mamba+mixed+scaled", "mamba+complex+scaled", "mamba+scaled"),
    *("mamba+chunks", "mamba+chunks+random", "mamba+chunks+identity", "mamba+chunks+hard+descending+all"),
    *("mamba+leaky", "mamba+leaky+hard+gates+restore", "attention+prefix", "h3+leaky", "transformer+leaky"),
    *("mamba+shared", "mamba-norm", "mamba-norm+final", "mamba-conv", "mamba-conv+shared+leaky", "transformer-mlp"),
    *("mamba+mlp", "2xmamba2.attention", "2xmamba2..attention", "mamba+one", "mamba2+zero", "mamba2/8.attention+poles"),
    *("mamba2+skip@0.8+learned", "transformer+neutreno", "mamba2+frozen", "mamba+diversity@.1", "mamba2+excess+held"),
    *("transformer+smooth+stable@2", "mamba2+supervision@0.3", "transformer+contract", "transformer+embednorm"),
)


@pytest.mark.parametrize("word", ROWS)
def test_every_row_is_built(word):
    row = parse_architecture(word)
    config = StackConfig(hidden_size=16, vocab_size=8, **row.frame(3, Numbers(heads=2)))
    network = StackForCausalLM(config)
    assert [mixer["name"] for mixer in config.mixers] == [(row.families * 3)[layer] for layer in range(3)]
    assert (config.skip, config.neutreno) == (row.strength("skip") or 1, row.strength("neutreno") or 0)
    assert config.sorts_whole == row.leaky
    for part in row.parts & {"positive", "negative", "mixed", "complex"}:
        assert config.mixers[0]["eigenvalues"] == part
    assert (config.reorder is not None) == row.reordered
    assert config.embedding_norm == ("embednorm" in row.parts)
    assert network.model.final_norm.__class__.__name__ == ("Identity" if word == "mamba-norm" else "RMSNorm")


def test_every_part_is_in_some_row():
    parsed = [parse_architecture(word) for word in ROWS]
    assert frozenset().union(*(row.parts for row in parsed)) == set(ADDED)
    assert frozenset().union(*(row.without for row in parsed)) == set(TAKEN)
    assert set(MODELS.values()) <= set(families())


@pytest.mark.parametrize(
    ("word", "layers", "order"),
    [
        ("3xmamba2.attention", 8, "mmmammma"),
        ("10xmamba2..3xattention", 13, "mmmmmmmmmmaaa"),
        ("3xattention..10xmamba2", 13, "aaammmmmmmmmm"),
        ("10xmamba2..3xattention", 26, "m" * 20 + "a" * 6),
        ("mamba2..attention", 5, "mmmaa"),
        ("3xmamba2..2xattention..3xmamba2", 8, "mmmaammm"),
        ("6xmamba2..mamba2.attention", 16, "m" * 12 + "mama"),
    ],
)
def test_layers_take_turns_or_follow_in_stretches(word, layers, order):
    row = parse_architecture(word)
    assert "".join(name[0] for name, _ in row.laid(layers)) == order
    assert row.attention_at(layers) == [at for at, letter in enumerate(order) if letter == "a"]
    assert [mixer["name"] for mixer in row.frame(layers)["mixers"]] == [
        {"m": "ssd", "a": "softmax_attention"}[letter] for letter in order
    ]


def test_a_stretch_without_a_layer_is_refused():
    with pytest.raises(InputError, match=r"layers for every stretch of 10xmamba2\.\.attention"):
        parse_architecture("10xmamba2..attention").laid(4)


def test_a_classifier_of_whole_sequences_is_not_called_leaky():
    frame = parse_architecture("mamba+leaky").frame(2, language=False)
    assert "leaky" not in frame["reorder"]
    StackForSequenceClassification(StackConfig(hidden_size=8, num_labels=2, **frame))


def test_only_what_sorts_needs_a_gate_to_move():
    """By default the first block alone sorts; with +all every block does, and attention has no gate."""
    assert parse_architecture("mamba.attention+leaky+gates").order(Numbers())["gate"] is True
    assert parse_architecture("mamba.mamba+leaky+gates+all").order(Numbers())["gate"] is True


BAD = {
    "Mamba": "a row such as mamba",
    "mambas": "did you mean mamba",
    "attention/8": "attention without a number of states",
    "mamba+sorted": "parts with \\+",
    "mamba-gate": "parts with -",
    "mamba+hard+hard+leaky": "each part once",
    "mamba+positive+negative": "one kind of eigenvalues",
    "mamba2+positive": "in mamba alone",
    "mamba.attention+scaled": "in mamba alone",
    "mamba+shift": "eigenvalues with \\+shift",
    "mamba+chunks+leaky": "one form of reordering",
    "mamba+random": "chunks, prefix or leaky with an order",
    "mamba+chunks+random+hard": "a sort with \\+hard",
    "mamba+chunks+identity+random": "one order",
    "mamba+chunks+gates": "prefix or leaky with \\+gates",
    "attention+leaky+gates": "a gate to move with \\+gates",
    "mamba.attention+leaky+gates+all": "a gate to move with \\+gates",
    "mamba+final": "-norm with \\+final",
    "attention-conv": "a convolution where -conv",
    "mamba2+diversity@-1": "a row such as",
    "mamba2+poles@2": "@ behind diversity",
    "mamba2+one+zero": "one kind of poles",
    "transformer+poles": "poles in mamba or mamba2",
    "mamba/2+poles": "more states than the poles take",
    "mamba+learned": "\\+skip with \\+learned",
    "mamba+held": "a penalty with \\+held",
    "mamba+diversity@0+held": "a value above 0 to hold",
    "mamba+diversity@0+smooth+held": "a value above 0 to hold",
    "mamba-norm+frozen": "norms where \\+frozen",
    "mamba-mlp": "feed-forward layers where -mlp",
}


@pytest.mark.parametrize("word", BAD)
def test_wrong_rows_are_refused(word):
    with pytest.raises(InputError, match=BAD[word]):
        parse_architecture(word)
