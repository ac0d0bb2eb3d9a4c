"""Text as training data: ids, windows, perplexity against a loop, leaks, labelled texts."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from repflow.core.errors import DamagedRunError, InputError
from repflow.models import StackConfig, StackForCausalLM
from repflow.models.stack.replicas import ReplicaStack
from repflow.models.tokenizer import open_tokenizer
from repflow.tasks.documents import Document
from repflow.training import Moment, TrainingConfig, train
from repflow.training.history import History
from repflow.training.text import (
    TextBatches,
    TextPerplexity,
    encode_documents,
    labelled_texts,
    measure_leak,
    text_data,
    text_loss,
)

LENGTH = 8


def tokens(*texts):
    return encode_documents([Document(text, str(place)) for place, text in enumerate(texts)], open_tokenizer("bytes"))


def stack(**options):
    torch.manual_seed(0)
    config = StackConfig("s6", hidden_size=8, num_hidden_layers=2, vocab_size=257, initializer_range=1.0, **options)
    return StackForCausalLM(config).double()


LEAKY = {"form": "whole", "leaky": True, "blocks": "all"}


def test_documents_begin_with_the_end_of_text():
    some = tokens("ab", "é")
    assert some.ids.tolist() == [256, 97, 98, 256, 195, 169]
    assert some.document(1).tolist() == [256, 195, 169]
    assert (len(some), some.vocabulary, some.sizes.tolist()) == (2, 257, [2, 2])
    assert len(some.some(4)) == 1
    assert len(some.some(1)) == 1
    assert len(some.some(6)) == 2


def test_an_epoch_has_every_window_once_and_is_the_same_whenever_asked():
    some = tokens("".join(chr(97 + n % 26) for n in range(140)))
    source, again = (TextBatches(some, length=LENGTH, rows=3, seed=1) for _ in range(2))
    later = again.batch(source.epoch_steps)
    starts = []
    for step in range(source.epoch_steps):
        batch = source.batch(step)
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
        starts += [int(first) for first in source._starts(0)[step * 3 : step * 3 + 3]]
    assert len(set(starts)) == len(starts) == 3 * source.epoch_steps
    assert {start % LENGTH for start in starts} == {starts[0] % LENGTH}
    assert torch.equal(source.batch(source.epoch_steps).inputs, later.inputs)
    assert not torch.equal(source.batch(0).inputs, later.inputs)
    assert not torch.equal(TextBatches(some, length=LENGTH, rows=3, seed=2).batch(0).inputs, source.batch(0).inputs)


def test_a_text_smaller_than_one_batch_is_refused():
    some = tokens("x" * 40)
    TextBatches(some, length=LENGTH, rows=4)
    with pytest.raises(InputError, match=r"41 tokens, which hold 4"):
        TextBatches(some, length=LENGTH, rows=5)


@pytest.mark.parametrize("reorder", [None, {"chunk": 4}, LEAKY], ids=["none", "chunks", "leaky"])
def test_losses_of_documents_by_a_loop(reorder):
    """Each window by itself, unpadded; a causal model also token by token from its prefix."""
    network, some = stack(reorder=reorder), tokens("the first text", "b", "a second one, longer than the first")
    loss = text_loss(network, some, length=LENGTH, rows=3)
    said, by_place = np.zeros(3), np.zeros(LENGTH)
    for number in range(3):
        ids = torch.from_numpy(some.document(number).astype(np.int64))
        for start in range(0, len(ids) - 1, LENGTH):
            inputs, targets = ids[start : start + LENGTH], ids[start + 1 : start + LENGTH + 1]
            inputs = inputs[: len(targets)]
            with torch.no_grad():
                logs = network(inputs[None]).logits[0].log_softmax(-1)
                for place, target in enumerate(targets):
                    paid = -float(logs[place, target])
                    if reorder is not LEAKY:
                        alone = network(inputs[None, : place + 1]).logits[0, -1].log_softmax(-1)
                        assert -float(alone[target]) == pytest.approx(paid, abs=1e-9)
                    said[number] += paid
                    by_place[place] += paid
    assert np.allclose(loss.nats, said, rtol=1e-6)  # torch's logits are compared in float32
    assert loss.tokens.tolist() == [len(some.document(number)) - 1 for number in range(3)]
    assert np.allclose(loss.place_nats, by_place, rtol=1e-6)
    assert float(loss.perplexity.mean) == pytest.approx(math.exp(said.sum() / loss.tokens.sum()))
    assert float(loss.bits_per_byte.mean) == pytest.approx(said.sum() / math.log(2) / some.sizes.sum())


class Even(nn.Module):
    """Every id is as likely as any other."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs):
        return self.weight * torch.zeros(*inputs.shape, 257)


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity():
    band = text_loss(Even(), tokens("abc", "de", "fgh"), length=2).perplexity
    assert [float(part) for part in band] == pytest.approx([257.0] * 3)
    assert math.isnan(text_loss(Even(), tokens("abc", "de"), length=2).perplexity.low)


def test_perplexity_while_training_alone_and_in_a_group():
    data = text_data("english", share=0.2)
    held = {"held_out": data.held_out}
    how = TrainingConfig(steps=2, device="cpu", evaluate=1)
    rows = TextBatches(data.train, length=LENGTH, rows=2)
    look = TextPerplexity(held, length=LENGTH, most=60)
    alone = stack().float()
    run = train(alone, rows, how, callbacks=[look])
    steps, values = run.logged("held_out_perplexity")
    assert steps.tolist() == [0, 1, 2]
    last = text_loss(alone, data.held_out.some(60), length=LENGTH).perplexity.mean
    assert values[-1] == pytest.approx(float(last), rel=1e-5)
    assert values[0] != values[-1]
    group = ReplicaStack([stack().float(), stack().float()])
    moment = Moment(group, 0, how, History(2, torch.device("cpu")), torch.device("cpu"))
    assert look.on_evaluate(moment) == {f"held_out_perplexity {n}": pytest.approx(values[0], rel=1e-5) for n in (0, 1)}


@pytest.mark.parametrize("reorder", [None, {"chunk": 3}, {"form": "prefix"}, LEAKY], ids=str)
def test_the_leak_is_what_the_prefix_alone_costs(reorder):
    network, some = stack(reorder=reorder), tokens("the first text", "b", "a second one, longer than the first", "c d")
    leak = measure_leak(network, some, length=LENGTH, positions=30, seed=3)
    assert len(leak.whole) == 30
    for number in range(0, 30, 3):
        ids = torch.from_numpy(some.document(int(leak.documents[number])).astype(np.int64))
        place = leak.places[number]
        for start in range(0, len(ids) - 1, LENGTH):  # a window of this document in which the losses are those
            if start + place + 1 >= len(ids):
                continue
            size = min(LENGTH, len(ids) - 1 - start)
            pair = []
            for stop in (size, place + 1):
                with torch.no_grad():
                    logs = network(ids[None, start : start + stop]).logits[0, place].log_softmax(-1)
                pair.append(-float(logs[ids[start + place + 1]]))
            if pair[0] == pytest.approx(leak.whole[number], rel=1e-6):
                assert pair[1] == pytest.approx(leak.prefix[number], rel=1e-6)
                break
        else:
            pytest.fail("no window has this loss")
    if reorder is LEAKY:
        assert np.abs(leak.prefix - leak.whole).max() > 1e-3
        assert leak.gap.low < float(leak.gap.mean) < leak.gap.high
    else:
        assert np.abs(leak.prefix - leak.whole).max() < 1e-6
    assert len(measure_leak(network, some, length=LENGTH, positions=9999).whole) == int(len(some.ids) - len(some))


def test_a_prepared_text_is_read_as_it_was_written(tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("another text")
    data = text_data("english", share=0.2, others={"other": other}, seed=2)
    folder = data.save(tmp_path / "made")
    again = text_data(folder)
    assert again.facts() == data.facts()
    assert again.vocabulary == 257
    assert again.tokenizer("ab")["input_ids"] == [97, 98]
    assert list(again.tests) == ["held_out", "other"]
    with pytest.raises(InputError, match="a tokenizer beside it"):
        text_data(folder, tokenizer="bytes")
    arrays = dict(np.load(folder / "other.npz"))
    np.savez_compressed(folder / "other.npz", **{**arrays, "ids": arrays["ids"] + 1})
    with pytest.raises(DamagedRunError, match="other bytes"):
        text_data(folder)
    (folder / "other.npz").write_bytes(b"x")
    with pytest.raises(InputError, match="prepare it again"):
        text_data(folder)


def test_a_tokenizer_of_the_zoo_and_a_held_out_text(tmp_path):
    held = tmp_path / "held.txt"
    held.write_text("A river carries sand.")
    data = text_data("english", held_out=held, tokenizer="zoo:mamba2")
    assert (data.vocabulary, len(data.train), len(data.held_out)) == (4096, 48, 1)
    assert data.tokenizer.decode(data.held_out.ids[1:]) == "A river carries sand."


def test_labelled_texts_have_folds_with_every_class(tmp_path):
    lines = [{"text": f"{word} {'x' * n}", "label": word} for word in ("good", "bad") for n in range(6)]
    file = tmp_path / "reviews.jsonl"
    file.write_text("\n".join(map(json.dumps, [*lines, lines[0]])))
    data = labelled_texts(file, length=9, folds=3)
    assert (len(data), data.classes, data.rows.inputs.shape) == (13, ("bad", "good"), (13, 9))
    assert data.folds[0] == data.folds[-1]
    for fold in range(3):
        rest, test = data.split(fold)
        assert len(rest.inputs) + len(test.inputs) == 13
        assert test.targets.unique().tolist() == [0, 1]
    assert data.rows.inputs[6].tolist() == [256, *b"bad "] + [256] * 4
    assert data.rows.mask[6].tolist() == [1] * 5 + [0] * 4
    assert data.cut == pytest.approx(3 / 13)  # "good " and four letters or more, "bad " and five
    # 80 % power at 5 %: 2.8016 standard errors of a difference of two shares of 13
    assert data.smallest_effect(0.5) == pytest.approx(2.80159 * math.sqrt(0.5 / 13), rel=1e-4)
    with pytest.raises(InputError, match="at least 7 different texts"):
        labelled_texts(file, length=9, folds=7)
