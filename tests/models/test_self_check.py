"""Models that cannot be read are refused, and the message names the check that failed."""

import pytest
import torch
from torch import nn

from repflow.core.errors import InputError, UnsupportedModelError
from repflow.models import load
from repflow.models.devices import probe_dtype
from repflow.models.self_check import short_chunks
from tests.models.tiny_configs import tiny_model


class Wrapped(nn.Module):
    """A block inside another module, so that what the outside sees can be bent."""

    def __init__(self, block, bend):
        super().__init__()
        self.block, self.bend = block, bend

    def forward(self, *args, **kwargs):
        return self.bend(self.block, *args, **kwargs)


def bent(index, bend):
    network = tiny_model("gpt_neox")
    layers = network.gpt_neox.layers
    layers[index] = Wrapped(layers[index], bend)
    return network


def test_number_of_blocks():
    network = tiny_model("gpt_neox")
    network.config.num_hidden_layers = 5
    with pytest.raises(UnsupportedModelError, match=r"'number of blocks' failed: expected a module list of 5 blocks"):
        load(network)


def test_block_called_twice():
    network = tiny_model("gpt_neox")
    layers = network.gpt_neox.layers
    plain = layers[1].forward
    layers[1].forward = lambda hidden, **kwargs: plain(layers[0](hidden, **kwargs), **kwargs)
    with pytest.raises(UnsupportedModelError, match=r"'block outputs caught' failed.*got \[1, 1, 2, 3, 4\]"):
        load(network)


def test_block_of_another_shape():
    network = bent(1, lambda block, hidden, **kwargs: block(hidden, **kwargs))
    network.config.hidden_size = 16
    with pytest.raises(UnsupportedModelError, match="'embedding caught' failed: expected state 0 of shape"):
        load(network)


def test_something_between_the_blocks():
    network = tiny_model("gpt_neox")
    network.gpt_neox.layers[2].register_forward_pre_hook(lambda module, args: (args[0] * 2, *args[1:]))
    with pytest.raises(UnsupportedModelError, match="'blocks follow each other' failed: the input of block 3"):
        load(network)


def test_something_behind_the_final_norm():
    network = tiny_model("gpt_neox")
    network.gpt_neox.register_forward_hook(
        lambda module, args, output: type(output)(last_hidden_state=output.last_hidden_state * 2)
    )
    with pytest.raises(UnsupportedModelError, match="'final norm' failed"):
        load(network)


def test_head_that_is_not_the_logits():
    network = tiny_model("gpt_neox")

    def sharpen(module, args, output):
        output["logits"] = output.logits**3
        return output

    network.register_forward_hook(sharpen)
    with pytest.raises(UnsupportedModelError, match="'head' failed: its output is not the logits"):
        load(network)


def test_middle_layer_that_goes_nowhere():
    network = tiny_model("gpt_neox")
    layers = network.gpt_neox.layers
    first = {}
    layers[0].register_forward_hook(lambda module, args, output: first.update(value=output.clone()))
    layers[3].forward = lambda hidden, **kwargs: first["value"]
    with pytest.raises(UnsupportedModelError, match="'middle layer' failed"):
        load(network)


def test_model_that_does_not_run():
    def refuse(block, *args, **kwargs):
        raise RuntimeError("no such kernel")

    with pytest.raises(UnsupportedModelError, match=r"'forward pass' failed: .* raised RuntimeError: no such kernel"):
        load(bent(0, refuse))


def test_sublayers_that_do_not_sum_up_are_refused_only_when_asked_for():
    network = tiny_model("llama")
    for block in network.model.layers:
        block.register_forward_hook(lambda module, args, output: output * 1.5)
    model = load(network)
    assert model.n_states == 5
    with pytest.raises(UnsupportedModelError, match=r"'sublayers' failed.*block 1 .*read whole blocks"):
        model.stream(torch.zeros(1, 4, dtype=torch.long), kind="branch:mlp", on_state=lambda i, h: None)


def test_states_overwritten_by_the_next_block_are_copied():
    def in_place(block, hidden, **kwargs):
        output = block(hidden.clone(), **kwargs)
        hidden.zero_()
        return output

    model = load(bent(2, in_place))
    assert model.reading.overwrites
    ids = torch.arange(8)[None]
    for kind in ("residual", "branch"):
        states, expected = [], []
        model.stream(ids, kind=kind, on_state=lambda i, h, states=states: states.append(h))
        load(tiny_model("gpt_neox")).stream(ids, kind=kind, on_state=lambda i, h, states=expected: states.append(h))
        assert all(torch.equal(a, b) for a, b in zip(states, expected, strict=True))


def test_a_model_that_sees_the_future_is_refused():
    """Attention without its causal mask, under the name of a decoder."""
    network = tiny_model("llama")
    network.config.is_causal = False
    for block in network.model.layers:
        block.self_attn.is_causal = False
    network.model.config._attn_implementation = "eager"
    with pytest.raises(UnsupportedModelError, match=r"'causal' failed: block 1 \(LlamaDecoderLayer\) shows a token"):
        load(network)


def test_rounding_that_a_chaotic_model_makes_much_of_is_no_look_ahead():
    """A difference that grows from block to block: between two rows of one batch kernels may round differently."""
    network = tiny_model("gpt_neox")
    for block in network.gpt_neox.layers:

        def grow(_, __, hidden):
            return hidden + (hidden - hidden.mean(0)) * 20

        block.register_forward_hook(grow)

    def seed(_, args):
        return (args[0] + torch.tensor([[[1e-7]], [[-1e-7]]]), *args[1:])

    network.gpt_neox.layers[0].register_forward_pre_hook(seed)
    assert not load(network).reading.causal


def test_unsupported_is_a_wrong_request():
    assert issubclass(UnsupportedModelError, InputError)


@pytest.mark.parametrize("model_type", ["mamba2", "bamba", "zamba2"])
def test_the_check_does_not_fill_its_tokens_up_to_whole_chunks(model_type, monkeypatch):
    """256 by default: 98 % of what Mamba-2's own scan computes would be for padding. The setting is put back."""
    network = tiny_model(model_type)
    layers = [module for module in network.modules() if hasattr(module, "A_log")]
    seen = []
    for layer in layers:
        layer.chunk_size = 256
        layer.register_forward_pre_hook(lambda module, _: seen.append(module.chunk_size))
    load(network)
    assert set(seen) == {8}
    assert {layer.chunk_size for layer in layers} == {256}
    with pytest.raises(ZeroDivisionError), short_chunks(network):
        raise ZeroDivisionError
    assert {layer.chunk_size for layer in layers} == {256}


@pytest.mark.skipif(probe_dtype(torch.float16) is not None, reason="this CPU cannot run float16")
def test_a_model_that_leaves_float16_is_told_so():
    """Not that its middle block changes nothing, which is what an output of NaN alone looks like."""
    network = tiny_model("gpt_neox")
    with torch.no_grad():
        network.gpt_neox.layers[0].mlp.dense_4h_to_h.bias.fill_(60000.0)
        network.gpt_neox.layers[1].mlp.dense_4h_to_h.bias.fill_(60000.0)
    with pytest.raises(
        UnsupportedModelError, match=r"no finite value after block 2 of 4 in float16; load it in bfloat16"
    ):
        load(network, dtype="float16")
