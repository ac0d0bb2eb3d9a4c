"""recall: rows against the definition of multi-query associative recall, token by token; prompts; refusals."""

import itertools

import numpy as np
import pytest
import torch

import repflow
from repflow.core.errors import InputError
from repflow.models import StackConfig, StackForCausalLM
from repflow.tasks import RecallSetting, recall_prompts, recall_rows
from repflow.tasks.recall import read_rows


def drawn(rows=20, seed=0, **options):
    setting = RecallSetting(**{"length": 32, "pairs": 5, "vocabulary": 64, **options})
    return setting, recall_rows(setting, rows, torch.Generator().manual_seed(seed))


SETTINGS = [
    {},
    {"length": 33, "pairs": 8},
    {"length": 20, "pairs": 5, "power": 1.0},
    {"filler": "random"},
    {"repeat_keys": True, "vocabulary": 12},
    {"repeat_values": True, "vocabulary": 13},
    {"without": (3, 40)},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_every_row_is_what_the_definition_says(options):
    setting, batch = drawn(**options)
    half, pairs = setting.vocabulary // 2, setting.pairs
    for ids, positions, targets, numbers, distances in zip(
        *(part.tolist() for part in (batch.ids, batch.positions, batch.targets, batch.pairs, batch.distances)),
        strict=True,
    ):
        assert len(ids) == setting.length
        keys, values = ids[0 : 2 * pairs : 2], ids[1 : 2 * pairs : 2]
        assert all(1 <= key < half and key not in setting.without for key in keys)
        assert all(half <= value < setting.vocabulary and value not in setting.without for value in values)
        assert setting.repeat_keys or len(set(keys)) == pairs
        assert setting.repeat_values or len(set(values)) == pairs
        assert len(set(positions)) == pairs, "each key once more"
        assert [ids[at] for at in positions] == keys
        table = dict(zip(keys, values, strict=True))  # of a key that comes twice, the last
        assert targets == [table[key] for key in keys]
        for key, at, number, distance in zip(keys, positions, numbers, distances, strict=True):
            assert at >= 2 * pairs, "behind its pair"
            assert (at - 2 * pairs) % 2 == 0
            assert keys[number] == key
            assert key not in keys[number + 1 :]
            assert distance == at - (2 * number + 1) >= 1
        others = [ids[at] for at in range(2 * pairs, setting.length) if at not in positions]
        assert all(0 <= token < setting.vocabulary for token in others)
        assert any(others) == (setting.filler == "random")


def test_every_row_is_a_new_one_and_a_seed_gives_the_same():
    _, batch = drawn(rows=200)
    assert len({tuple(row) for row in batch.ids.tolist()}) == 200
    assert torch.equal(batch.ids, drawn(rows=200)[1].ids)
    assert not torch.equal(batch.ids, drawn(rows=200, seed=1)[1].ids)


def test_keys_and_values_are_counted_as_they_are_drawn():
    """0 fills the rest and is no key, whether it is left out by name or not; nor does what is beyond count."""
    for without, keys, values in (((), 7, 8), ((0,), 7, 8), ((3, 8, 15), 6, 6), ((40,), 7, 8), ((3, 3), 6, 8)):
        setting = RecallSetting(length=16, pairs=2, vocabulary=16, without=without)
        assert (setting.keys, setting.values) == (keys, values)


@pytest.mark.parametrize("power", [0.01, 1.0, 2.0])
def test_places_follow_the_power_law_without_replacement(power):
    """First places of 3 pairs among 4, against the chances of drawing key after key without replacement."""
    rows = 40_000
    _, batch = drawn(rows=rows, length=14, pairs=3, power=power)
    weight = np.arange(1, 5.0) ** (power - 1)
    values = np.zeros((4, 4, 4))
    np.add.at(values, tuple(((batch.positions - 6) // 2).numpy().T), 1)
    for order in itertools.permutations(range(4), 3):
        chance, left = 1.0, weight.sum()
        for place in order:
            chance, left = chance * weight[place] / left, left - weight[place]
        spread = (chance * (1 - chance) / rows) ** 0.5
        assert abs(values[order] / rows - chance) < 5 * spread


def test_keys_and_values_are_uniform_over_their_halves():
    _, batch = drawn(rows=20_000, length=8, pairs=2, vocabulary=10)
    keys = torch.bincount(batch.ids[:, 0], minlength=10)
    values = torch.bincount(batch.ids[:, 3], minlength=10)
    assert keys.nonzero().flatten().tolist() == [1, 2, 3, 4]
    assert values.nonzero().flatten().tolist() == [5, 6, 7, 8, 9]
    assert float((keys[1:5] / 20_000 - 1 / 4).abs().max()) < 5 * (0.25 * 0.75 / 20_000) ** 0.5
    assert float((values[5:] / 20_000 - 1 / 5).abs().max()) < 5 * (0.2 * 0.8 / 20_000) ** 0.5


def test_rows_from_elsewhere_are_read_as_they_were_made():
    setting, batch = drawn()
    again = read_rows(batch.ids, batch.positions, setting.pairs)
    assert torch.equal(again.targets, batch.targets)
    assert torch.equal(again.distances, batch.distances)


@pytest.mark.parametrize(
    ("positions", "pairs", "message"),
    [
        ([[2, 6]], 2, "expected queries behind the 2 pairs, from token 4 to 6; got one at token 2 of row 0; move the"),
        ([[4, 7]], 2, "got one at token 7 of row 0"),
        ([[5, 6]], 2, "queries whose key is in a pair of their row; got 0 at token 5 of row 0"),
        ([[4, 6]], 4, "ids (row, token) and positions (row, query), behind the pairs; got (1, 7) and (1, 2) with 4"),
    ],
)
def test_rows_whose_queries_cannot_be_answered_are_refused(positions, pairs, message):
    with pytest.raises(InputError) as caught:
        read_rows(torch.tensor([[5, 9, 6, 8, 6, 0, 5]]), torch.tensor(positions), pairs)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pairs": 9}, "expected from 1 to 8 pairs in 32 tokens, of which a pair and its query take 4; got 9"),
        ({"pairs": 0}, "expected from 1 to 8 pairs in 32 tokens"),
        ({"vocabulary": 10}, "expected a vocabulary with at least 5 keys for 5 pairs; got 4 of 10 ids; pass fewer"),
        ({"vocabulary": 12, "without": (7, 8)}, "expected a vocabulary with at least 5 values for 5 pairs"),
        ({"vocabulary": 3, "repeat_keys": True}, "at least 1 keys for 5 pairs; got 0 of 3 ids"),
        ({"filler": "noise"}, "expected filler zeros or random; got 'noise'"),
        ({"power": float("nan")}, "expected a finite power; got nan"),
        ({"length": 1}, "expected length >= 2"),
    ],
)
def test_rows_that_cannot_be_made_are_refused(options, message):
    with pytest.raises(InputError) as caught:
        drawn(**options)
    assert message in str(caught.value)


def test_prompts_end_with_the_query_of_the_gold_pair():
    prompts = recall_prompts(64, length=32, samples=16, seed=3)
    assert prompts.classes == tuple(map(str, range(8)))
    assert sorted(prompt.label for prompt in prompts) == sorted(2 * list(range(8)))
    for prompt in prompts:
        assert prompt.items == 8
        assert prompt.ids[-1] == prompt.ids[2 * prompt.label] == int(prompt.key)
        assert prompt.position == prompt.label / 7
        table = dict(zip(prompt.ids[0:16:2], prompt.ids[1:16:2], strict=True))
        asked = [token for token in prompt.ids[16:] if token]
        assert sorted(asked) == sorted(table)
        assert 16 < len(prompt.ids) <= 32


def test_a_prompt_depends_on_the_seed_and_its_number_alone():
    few, many = (recall_prompts(64, length=24, samples=count, seed=5, pairs=3, classes=3) for count in (2, 6))
    assert few.samples == many.samples[:2]
    assert few.digest() != recall_prompts(64, length=24, samples=2, seed=6, pairs=3, classes=3).digest()


def test_prompts_take_an_index_and_bins():
    prompts = recall_prompts(64, length=32, samples=8, pairs=6, classes=2)
    assert prompts.classes == ("0-0.5", "0.5-1")
    assert sorted(prompt.label for prompt in prompts) == [0] * 4 + [1] * 4
    fixed = recall_prompts(64, length=32, samples=4, pairs=6, index=2)
    assert {prompt.label for prompt in fixed} == {2}
    with pytest.raises(InputError, match="an index from 0 to 5"):
        recall_prompts(64, length=32, samples=4, pairs=6, index=6)


def stack(vocabulary=64):
    torch.manual_seed(0)
    config = StackConfig(mixers="s6", num_hidden_layers=2, hidden_size=8, vocab_size=vocabulary)
    return StackForCausalLM(config).eval()


def test_measure_recency_probe_and_compare_read_it():
    network = stack()
    assert repflow.measure(network, "recall", length=24, samples=4)["token_similarity"].shape == (3, 4)
    curve = repflow.influence(network, "recall", length=24, samples=2)
    assert curve.config["task"] == "recall"
    probed = repflow.probe(network, "recall", length=24, items=2, samples=20, seeds=1, allow_leak=True)
    assert probed["probe_accuracy"].shape[0] == 3
    assert repflow.compare(network, stack(), "recall", length=24, samples=2)["cka_cross"].shape == (3, 3, 2)


def test_a_vocabulary_that_is_too_small_is_refused():
    with pytest.raises(InputError, match="vocabulary with at least 6 keys for 6 pairs; got 5 of 12 ids"):
        repflow.measure(stack(12), "recall", length=24, samples=2)
    with pytest.raises(InputError, match="expected task='kvpr' or mdqa with label; got task='recall'"):
        repflow.probe(stack(), "recall", label="answer", samples=20)
