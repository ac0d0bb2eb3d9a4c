"""Reordering as an option of a stack: where it stands, how it is saved, shared and refused."""

import numpy as np
import pytest
import torch

import repflow
from repflow.core.errors import InputError
from repflow.mixers.reorder import Reordered, reorder_options
from repflow.models import StackConfig, StackForCausalLM, StackForSequenceClassification, load
from repflow.models.recurrence.quantities import recurrent_layers
from repflow.studies.twins import study as twins_study
from tests.models.stack.inputs import ids, stack


def later_tokens_matter(network):
    """Largest change of earlier logits when the last token is another one."""
    rows = ids(1, 12)
    changed = rows.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 64
    with torch.no_grad():
        return float((network(rows).logits - network(changed).logits)[:, :-1].abs().max())


@pytest.mark.parametrize("mixers", [["s6"] * 3, ["softmax_attention"] * 3])
@pytest.mark.parametrize(("blocks", "count"), [("first", 1), ("all", 3)])
def test_blocks_that_reorder(tmp_path, mixers, blocks, count):
    network = stack(mixers, reorder={"form": "chunks", "chunk": 4, "blocks": blocks})
    assert sum(isinstance(block.mixer, Reordered) for block in network.model.blocks) == count
    assert later_tokens_matter(network) < 1e-5
    network.save_pretrained(tmp_path)
    again = StackForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids()).logits, network(ids()).logits)
    model = load(str(tmp_path))
    assert model.layer_kinds == [{"s6": "ssm"}.get(mixers[0], "attention")] * 3
    # a recurrence over tokens in another order is not read as one over the tokens
    assert sorted(recurrent_layers(model)) == ([] if mixers[0] != "s6" else list(range(count, 3)))


def test_without_reordering_a_configuration_is_what_it_was():
    assert "reorder" not in StackConfig("s6").to_dict()
    assert StackConfig("s6", reorder={"chunk": 4}).to_dict()["reorder"] == {"blocks": "first", "chunk": 4}


@pytest.mark.parametrize("blocks", ["first", "all"])
def test_shared_weights_are_shared_with_the_block_that_reorders(blocks):
    plain = stack(["s6"] * 3, share=True)
    network = stack(["s6"] * 3, share=True, reorder={"chunk": 4, "blocks": blocks})
    first, last = (network.model.blocks[at].mixer for at in (0, 2))
    assert first.inner.A_log is (last.inner if blocks == "all" else last).A_log
    more = sum(p.numel() for p in network.parameters()) - sum(p.numel() for p in plain.parameters())
    assert more == first.order.K.numel() == 32


def test_a_stack_that_reorders_begins_with_the_weights_of_one_that_does_not():
    plain, network = (stack(["s6"] * 2, reorder=order) for order in (None, {"chunk": 4, "blocks": "all"}))
    own = {name.replace("mixer.inner.", "mixer."): part for name, part in network.named_parameters()}
    assert all(torch.equal(own[name], part) for name, part in plain.named_parameters())
    first, last = (block.mixer.order.K for block in network.model.blocks)
    assert not torch.equal(first, last)
    with torch.device("meta"):
        assert StackForCausalLM(network.config).model.blocks[0].mixer.order.K.is_meta


def test_a_leaky_language_model_is_built_by_name_alone():
    with pytest.raises(InputError, match=r"reads later tokens .*leaky=True"):
        stack(["s6"] * 2, reorder={"form": "whole"})
    with torch.device("meta"), pytest.raises(InputError, match="by its form"):
        StackForCausalLM(StackConfig("s6", reorder={"form": "whole"}))
    network = stack(["s6"] * 2, reorder={"form": "whole", "leaky": True})
    assert later_tokens_matter(network) > 1e-3
    config = StackConfig("s6", hidden_size=8, num_hidden_layers=2, num_labels=2, reorder={"form": "whole"})
    assert StackForSequenceClassification(config)(ids()).logits.shape == (3, 2)


def test_every_result_of_a_leaky_model_says_so():
    leaky = stack(["s6"] * 2, reorder={"form": "whole", "leaky": True})
    model = load(leaky)
    assert [finding.code for finding in model.findings] == ["leaky"]
    assert not model.reading.causal
    samples = [ids()[0, :9].tolist(), ids()[1, :5].tolist()]  # two lengths: one of them is padded
    result = repflow.measure(leaky, samples, metrics=["token_norm"])
    assert [finding.code for finding in result.findings].count("leaky") == 1
    for number, sample in enumerate(samples):
        alone = repflow.measure(leaky, [sample], metrics=["token_norm"])["token_norm"][:, 0]
        assert np.allclose(result["token_norm"][:, number, : len(sample)], alone, rtol=1e-4)
    assert not any(f.code == "leaky" for f in load(stack(["s6"] * 2, reorder={"chunk": 4})).findings)


def test_results_of_several_runs_or_models_say_once_that_one_is_leaky(tmp_path):
    """A study of runs takes it over from them; a comparison names the model."""
    for name, order in (("leaky", {"form": "whole", "leaky": True}), ("causal", {"chunk": 4})):
        stack(["s6"] * 3, reorder=order).save_pretrained(tmp_path / name)
    leaky, causal = (str(tmp_path / name) for name in ("leaky", "causal"))
    small = {"task": "random", "samples": 3}
    twins = twins_study.run(twins_study.TwinsConfig(model=leaky, inits=["default"], lengths=["9"], seeds=1, **small))
    assert [finding.code for finding in twins.findings].count("leaky") == 1
    for letter, pair in (("A", (leaky, causal)), ("B", (causal, leaky))):
        said = [finding.message for finding in repflow.compare(*pair, ids().tolist()).findings]
        assert [message[:3] for message in said if "sorts whole sequences" in message] == [f"{letter}: "]


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_classifier_that_sorts_whole_texts_does_not_see_padding(hard, pooling):
    torch.manual_seed(0)
    config = StackConfig("s6", hidden_size=8, num_hidden_layers=2, num_labels=2, vocab_size=64, pooling=pooling,
                         reorder={"form": "whole", "hard": hard, "blocks": "all"})  # fmt: skip
    network = StackForSequenceClassification(config).double().eval()
    rows, mask = ids(3, 10), torch.ones(3, 10)
    mask[1, 6:] = mask[2, 3:] = 0
    with torch.no_grad():
        batch = network(rows, attention_mask=mask).logits
        alone = [network(rows[at : at + 1, : int(mask[at].sum())]).logits[0] for at in range(3)]
    assert torch.allclose(batch, torch.stack(alone), rtol=1e-9)


def test_a_model_that_reorders_keeps_no_cache():
    network = stack(["s6"] * 2, reorder={"chunk": 4})
    with pytest.raises(InputError, match="use_cache=False"):
        network(ids(), use_cache=True)
    longer = network.generate(ids(1, 6), max_new_tokens=3, do_sample=False, use_cache=False)
    assert longer.shape == (1, 9)


BAD = {
    "unknown": ({"chunks": 4}, "did you mean chunk"),
    "blocks": ({"blocks": "last"}, "first, all"),
    "kind": ({"chunk": "4"}, "a whole number"),
    "temperature": ({"temperature": 0.0}, "hard=True"),
    "ties": ({"ties": "break"}, "share, refuse"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_options_are_refused(case):
    reorder, words = BAD[case]
    with pytest.raises(InputError, match=words):
        StackConfig("s6", reorder=reorder)


def test_chunks_as_long_as_all_positions_are_refused():
    with pytest.raises(InputError, match="below the 16 tokens"):
        StackConfig("s6", reorder={}, max_position_embeddings=16)
    assert StackConfig("s6", reorder={"form": "prefix"}, max_position_embeddings=16).reorder is not None


def test_options_have_names():
    with pytest.raises(InputError, match="options by name"):
        reorder_options("chunks")
