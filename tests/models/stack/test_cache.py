"""A stack's cache: `generate` and single passes from it say what whole passes say, for every mixer."""

import pytest
import torch
from transformers import DynamicCache

from repflow.capture.continuation import blocks_agree, keeps_state
from repflow.core.errors import InputError
from repflow.mixers.build import families
from repflow.models import load
from repflow.models.stack.network import StackCache
from tests.models.stack.inputs import HYBRID, ids, stack


def whole_greedy(network, given, tokens):
    grown = given
    with torch.no_grad():
        for _ in range(tokens):
            grown = torch.cat([grown, network(grown).logits[:, -1:].argmax(-1)], 1)
    return grown


@pytest.mark.parametrize("family", families())
def test_generate_from_the_cache(family):
    network = stack([family] * 3).double()
    prompt = ids(batch=2, tokens=7)
    generated = network.generate(prompt, max_new_tokens=8, do_sample=False, use_cache=True)
    assert torch.equal(generated, whole_greedy(network, prompt, 8))
    assert torch.equal(network.generate(prompt, max_new_tokens=8, do_sample=False, use_cache=False), generated)


@pytest.mark.parametrize("options", [{"mlp": "rwkv"}, {"mlp": "swiglu", "embedding_norm": True}, {"norm": "layer"}])
def test_parts_of_a_sequence_are_the_whole(options):
    network = stack(HYBRID, max_position_embeddings=40, **options).double()
    prompt = ids(batch=2, tokens=20)
    with torch.no_grad():
        whole = network(prompt).logits
        cache, outputs = None, []
        for part in prompt.split([6, 1, 1, 9, 3], 1):
            output = network(part, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            outputs.append(output.logits)
    assert cache.get_seq_length() == 20
    torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=0, atol=1e-9 * float(whole.abs().max()))


def test_only_new_tokens_are_run():
    network = stack(["ssd", "softmax_attention"])
    seen = []
    network.model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    network.generate(ids(2, 7), max_new_tokens=4, do_sample=False)
    assert seen == [7, 1, 1, 1]


def test_beams_follow_their_rows():
    network = stack(HYBRID).double()
    options = {"max_new_tokens": 5, "num_beams": 3, "do_sample": False}
    prompt = ids(2, 6)
    assert torch.equal(
        network.generate(prompt, **options, use_cache=True), network.generate(prompt, **options, use_cache=False)
    )


def test_decoding_uses_it():
    model = load(stack(HYBRID))
    assert keeps_state(model, ids(2, 9))
    assert blocks_agree(model, ids(2, 9), tolerance=1e-3)


def test_a_pass_without_a_wish_keeps_nothing():
    network = stack(["ssd"])
    assert network(ids(1, 4)).past_key_values is None
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    assert network(ids(2, 4), attention_mask=mask, use_cache=True).past_key_values is None, "it would hold padding"


def test_transformers_own_cache_stands_for_a_new_one_while_it_is_empty():
    network = stack(["ssd"])
    assert isinstance(network(ids(1, 4), past_key_values=DynamicCache(), use_cache=True).past_key_values, StackCache)
    filled = DynamicCache()
    filled.update(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2), 0)
    with pytest.raises(InputError, match="expected a StackCache; got a DynamicCache with 3 tokens; pass on what"):
        network(ids(1, 4), past_key_values=filled, use_cache=True)


def test_positions_end_where_the_embedding_does():
    network = stack(["ssd"], max_position_embeddings=6)
    cache = network(ids(1, 5), use_cache=True).past_key_values
    with pytest.raises(InputError, match="expected at most 6 tokens, which have a position embedding; got 7"):
        network(ids(1, 2), past_key_values=cache)
