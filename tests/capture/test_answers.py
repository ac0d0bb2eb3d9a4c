"""Greedy answers and the logit lens, against whole forward passes without any cache."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from repflow.capture import collect_states, run_batch
from repflow.capture.answers import (
    answer_room,
    contains_answer,
    equal_length_batches,
    first_answer_token,
    greedy_answers,
    logit_lens,
    normalise,
)
from repflow.capture.continuation import keeps_state
from repflow.capture.features import FeatureMeter, FeatureShard, StoredFeatures
from repflow.core.errors import InputError
from repflow.models import load
from repflow.tasks import Encoder, Prompt
from tests.capture.inputs import LENGTHS, model, prompts
from tests.models.tiny_configs import VOCAB, tiny_model

KINDS = ("gpt_neo", "gpt_neox", "mamba", "mamba2", "bamba")


def number_tokenizer():
    """One word per id: `t17` is id 17."""
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t2")


def with_tokenizer(kind):
    return load(tiny_model(kind), tokenizer=number_tokenizer())


def by_whole_passes(network, ids, tokens):
    """Plain loop over transformers' own forward, one prompt, no cache, no adapter."""
    grown = torch.tensor([list(ids)])
    with torch.no_grad():
        for _ in range(tokens):
            best = network(grown, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
            grown = torch.cat([grown, best], 1)
            if int(best) == 2:
                break
    return [i for i in grown[0, len(ids) :].tolist() if i != 2]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_are_those_of_whole_forward_passes(kind):
    loaded, inputs = with_tokenizer(kind), prompts()
    network = tiny_model(kind)
    answered = {}
    for batch in equal_length_batches(inputs, range(len(inputs)), tokens=48):
        assert len({inputs.lengths[s] for s in batch}) == 1
        for cached in (True, False):
            texts = greedy_answers(loaded, inputs, batch, tokens=5, cached=cached)
            answered |= {(s, cached): text for s, text in zip(batch, texts, strict=True)}
    for sample in range(len(LENGTHS)):
        expected = by_whole_passes(network, inputs[sample].ids, 5)
        for cached in (True, False):
            assert [int(word[1:]) for word in answered[sample, cached].split()] == expected


def test_checkpoint_settings_do_not_bend_greedy_answers():
    loaded, inputs = with_tokenizer("gpt_neox"), prompts()
    plain = greedy_answers(loaded, inputs, [1], tokens=6)
    own = loaded.network.generation_config
    own.repetition_penalty, own.do_sample, own.temperature, own.forced_eos_token_id = 5.0, True, 9.0, 7
    assert greedy_answers(loaded, inputs, [1], tokens=6) == plain


def test_a_state_that_disagrees_is_noticed():
    ids = torch.tensor([prompt.ids for prompt in prompts((9, 9, 9))])
    assert keeps_state(with_tokenizer("mamba2"), ids)
    assert not keeps_state(with_tokenizer("rwkv"), ids)  # transformers mixes up the rows of a batch


def test_batches_hold_equal_lengths_and_every_sample_once():
    inputs = prompts((5, 9, 5, 5, 9))
    assert equal_length_batches(inputs, [0, 1, 2, 3, 4], tokens=10) == [[1], [4], [0, 2], [3]]


def test_room_for_answers():
    inputs = prompts((60, 64))
    assert [answer_room(model("gpt_neox"), inputs, s, 10) for s in (0, 1)] == [4, 0]
    assert answer_room(model("mamba2"), inputs, 1, 10) == 10


def test_answers_need_a_tokenizer():
    with pytest.raises(
        InputError, match="expected a model with a head and a tokenizer; got gpt_neox without tokenizer"
    ):
        greedy_answers(model("gpt_neox"), prompts(), [0], tokens=2)


@pytest.mark.parametrize(
    ("text", "answers", "right"),
    [
        (' "0a1b-22"}', ["0A1B-22"], True),
        ("0a1b-2", ["0a1b-22"], False),
        ("It was Wilhelm Conrad\nRöntgen.", ["Marie Curie", "wilhelm  conrad röntgen"], True),
        ("the answer", ["an answer"], True),
        ("no marks", ["?!"], False),
        ("what ?!", ["?!"], True),
        ("", ["x"], False),
        ("anything", [], False),
        ("It happened in 1987.", ["9"], False),
        ("It was 9, I think", ["9"], True),
        ("ten in often", ["ten", "oft"], True),
        ("often", ["ten"], False),
        ("Often", ["ofte"], True),
    ],
)
def test_what_counts_as_right(text, answers, right):
    assert contains_answer(text, answers) is right


def test_normal_form():
    assert normalise("The  U.S.A., an 'a'") == "usa"


@pytest.mark.parametrize("kind", KINDS)
def test_lens_is_final_norm_and_head(kind):
    loaded, inputs = model(kind), prompts((12, 12, 12))
    hidden, _, _ = collect_states(loaded, inputs)
    targets = [5, 77, 127]
    for state in range(loaded.n_states):
        rank, logprob = logit_lens(loaded, hidden[state, :, -1], targets)
        with torch.no_grad():
            normed = loaded.final_norm(hidden[state, :, -1:].clone())
            p = torch.log_softmax(loaded.network.get_output_embeddings()(normed)[:, 0].double(), -1).numpy()
        for row, target in enumerate(targets):
            order = np.argsort(-p[row], kind="stable")
            assert rank[row] == 1 + int(np.flatnonzero(order == target)[0])
            assert logprob[row] == pytest.approx(p[row, target], abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_lens_of_the_last_state_is_the_models_own_prediction(kind):
    loaded, inputs = model(kind), prompts((12, 12, 12))
    hidden, _, _ = collect_states(loaded, inputs)
    with torch.no_grad():
        best = loaded.network(torch.tensor([p.ids for p in inputs])).logits[:, -1].argmax(-1).tolist()
    rank, _ = logit_lens(loaded, hidden[-1, :, -1], best)
    assert rank.tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["gpt_neox", "mamba2"])
def test_half_precision_models_are_read_in_the_dtype_of_their_own_states(kind):
    # Mamba's residual stream stays float32 there, GPT-NeoX's does not; bfloat16 products are not safe on every CPU
    loaded = load(tiny_model(kind).half(), tokenizer=number_tokenizer(), dtype="float16")
    inputs = prompts((12, 12, 12))
    meter = FeatureMeter()
    shards = [FeatureShard.from_records({s: r[0] for s, r in run_batch(loaded, inputs, (0, 1, 2), [meter]).items()})]
    features = StoredFeatures(shards, ["last"])
    with torch.no_grad():
        best = loaded.network(torch.tensor([p.ids for p in inputs])).logits[:, -1].argmax(-1).tolist()
    rank, _ = logit_lens(loaded, features.state(features.n_states - 1).to(features.dtype), best)
    assert rank.tolist() == [1, 1, 1]
    assert features.dtype == (torch.float16 if kind == "gpt_neox" else torch.float32)
    assert len(greedy_answers(loaded, inputs, (0, 1, 2), tokens=3, cached=False)) == 3


def test_lens_of_states_that_are_not_finite_is_nan():
    rows = torch.zeros(2, 32)
    rows[1] = torch.nan
    rank, logprob = logit_lens(model("gpt_neox"), rows, [1, 1])
    assert np.isfinite(rank).tolist() == np.isfinite(logprob).tolist() == [True, False]


def test_lens_in_parts_is_the_same(monkeypatch):
    import repflow.capture.answers as module

    rows = torch.randn(7, 32, generator=torch.Generator().manual_seed(0))
    whole = logit_lens(model("mamba2"), rows, list(range(7)))
    monkeypatch.setattr(module, "LENS_BYTES", 2 * 4 * VOCAB)
    for a, b in zip(whole, logit_lens(model("mamba2"), rows, list(range(7))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_first_token_of_the_answer():
    encoder = Encoder(number_tokenizer(), "never")
    ids = tuple(encoder.ids("t5 t6"))
    assert first_answer_token(encoder, Prompt(ids, "t5 t6", answers=("t9 t8", "t1"))) == 9
    assert first_answer_token(encoder, Prompt(ids, None, answers=("t7",))) == 7
    with pytest.raises(InputError, match="an answer with a visible token"):
        first_answer_token(encoder, Prompt(ids, "t5 t6", answers=(" ",)))


def test_blank_tokens_before_the_answer_are_skipped():
    class Characters:
        def __call__(self, text, add_special_tokens=False):
            return {"input_ids": [ord(sign) for sign in text]}

        def decode(self, ids):
            return "".join(map(chr, ids))

    encoder = Encoder.__new__(Encoder)
    encoder.tokenizer, encoder.prefix, encoder._known = Characters(), (), {}
    assert first_answer_token(encoder, Prompt((1, 2), "value:", answers=("7f",))) == ord("7")
