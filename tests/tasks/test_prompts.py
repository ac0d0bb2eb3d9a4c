"""Prompts: random ids, given ids, the first token, digests and the checks before a run."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repflow.core.errors import InputError
from repflow.tasks import (
    TASKS,
    Encoder,
    Prompt,
    Prompts,
    check_fit,
    check_lengths,
    id_prompts,
    random_prompts,
    text_prompts,
)
from repflow.tasks.prompt import bos_prefix
from tests.tasks.word_tokenizer import BOS, WORDS, A, word_tokenizer

ADDING = word_tokenizer("<s> $A")
PLAIN = word_tokenizer()


def ids_of(prompts):
    return [prompt.ids for prompt in prompts]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(2, 40), samples=st.integers(1, 6), more=st.integers(0, 5))
def test_random_sample_depends_on_the_seed_and_its_number_alone(seed, length, samples, more):
    few = random_prompts(50, length=length, samples=samples, seed=seed)
    many = random_prompts(50, length=length, samples=samples + more, seed=seed)
    assert ids_of(few) == ids_of(many)[:samples]
    assert few.lengths == (length,) * samples
    assert all(0 <= i < 50 for ids in ids_of(many) for i in ids)
    assert few.task == "random"


def test_random_samples_and_seeds_differ():
    a = random_prompts(1000, length=30, samples=3, seed=0)
    b = random_prompts(1000, length=30, samples=3, seed=1)
    assert len({*ids_of(a), *ids_of(b)}) == 6
    assert a.digest() == random_prompts(1000, length=30, samples=3, seed=0).digest() != b.digest()


def test_random_ids_are_uniform_over_the_whole_vocabulary():
    ids = np.concatenate([np.asarray(p.ids) for p in random_prompts(16, length=1000, samples=4)])
    share = np.bincount(ids, minlength=16) / ids.size
    assert share.min() > 0.04
    assert share.max() < 0.09


@pytest.mark.parametrize("bos", ["model", "always", "never"])
@pytest.mark.parametrize("adds", [True, False])
def test_first_token_of_random_prompts(bos, adds):
    prompts = random_prompts(40, length=9, samples=3, tokenizer=ADDING if adds else PLAIN, bos=bos, bos_id=BOS)
    begins = bos == "always" or (bos == "model" and adds)
    bare = random_prompts(40, length=9 - begins, samples=3)
    assert prompts.lengths == (9, 9, 9), "the first token counts"
    for prompt, alone in zip(prompts, bare, strict=True):
        assert prompt.begins == begins
        assert prompt.ids == ((BOS,) if begins else ()) + alone.ids
        assert prompt.tokens == tuple(WORDS[i] for i in prompt.ids)


def test_without_a_tokenizer_only_always_adds_a_first_token():
    assert bos_prefix(None, "model", BOS) == ()
    assert bos_prefix(None, "never", BOS) == ()
    assert bos_prefix(None, "always", BOS) == (BOS,)
    bare = random_prompts(40, length=4, samples=1)[0]
    assert bare.tokens == tuple(map(str, bare.ids))
    with pytest.raises(InputError, match="a beginning-of-sequence token for bos='always'; got none; use bos='model'"):
        bos_prefix(None, "always", None)
    with pytest.raises(InputError, match="bos = model, always or never; got 'sometimes'"):
        bos_prefix(ADDING, "sometimes", None)


def test_a_text_token_with_the_id_of_the_models_bos_is_no_bos():
    """Without a BOS token of its own, a tokenizer may give the text "a" the id that the config calls BOS."""
    for adds in ("", "$A </s>"):
        tokenizer = word_tokenizer(adds, bos=False)
        assert tokenizer("a")["input_ids"][0] == A
        assert bos_prefix(tokenizer, "model", A) == ()
    assert bos_prefix(word_tokenizer("<s> $A </s>"), "model", BOS) == (BOS,)
    assert bos_prefix(ADDING, "model", None) == (BOS,), "the tokenizer knows its own"
    assert bos_prefix(ADDING, "model", A) == (), "what it adds is not what the model calls BOS"


@pytest.mark.parametrize("bos", ["model", "always", "never"])
@pytest.mark.parametrize("adds", [True, False])
def test_first_token_of_texts(bos, adds):
    tokenizer = ADDING if adds else PLAIN
    prompt = text_prompts(["b a d"], Encoder(tokenizer, bos, BOS))[0]
    begins = bos == "always" or (bos == "model" and adds)
    assert prompt.ids == ((BOS,) if begins else ()) + (A + 1, A, A + 3)
    assert prompt.begins == begins
    assert prompt.text == "b a d"
    cut = text_prompts(["b a d e f"], Encoder(tokenizer, bos, BOS), length=3)
    assert cut.lengths == (3,)


def test_text_needs_a_tokenizer():
    with pytest.raises(InputError, match="a model with a tokenizer for text; got none; pass tokenizer=FOLDER"):
        Encoder(None)


@pytest.mark.parametrize(("length", "samples"), [(1, 4), (0, 4), (-3, 4), (8, 0), (8, -1)])
def test_sizes_of_random_prompts(length, samples):
    with pytest.raises(InputError, match=f"length >= 2 and samples >= 1; got length {length}, samples {samples}"):
        random_prompts(50, length=length, samples=samples)


def test_negative_seed_is_refused():
    with pytest.raises(InputError, match="a seed of 0 or more; got -1"):
        random_prompts(50, length=4, samples=1, seed=-1)


def test_given_ids_are_taken_as_they_are():
    prompts = id_prompts([[3, 1, 2], [BOS, 4]], 10, bos_id=BOS)
    assert ids_of(prompts) == [(3, 1, 2), (BOS, 4)]
    assert [p.begins for p in prompts] == [False, True]
    assert prompts[0].tokens == ("3", "1", "2")
    assert id_prompts([[3, 4]], 10, tokenizer=PLAIN)[0].tokens == ("a", "b")
    for rows in (torch.tensor([[3, 1], [2, 0]]), np.array([[3, 1], [2, 0]]), [torch.tensor([3, 1]), np.array([2, 0])]):
        assert ids_of(id_prompts(rows, 10)) == [(3, 1), (2, 0)]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[1, 2], [1, 10]], "token ids from 0 to 9; got 1 to 10 in sample 1; encode with this model's own tokenizer"),
        ([[-1, 2]], "token ids from 0 to 9; got -1 to 2 in sample 0"),
        ([[1, 2.5]], "whole numbers as token ids (batch, token); got [1, 2.5] in sample 0"),
        (torch.tensor([[1.0, 2.0]]), "whole numbers as token ids"),
        ([[[1, 2], [3, 4]]], "whole numbers as token ids"),
        (["12"], "whole numbers as token ids"),
        ([7], "whole numbers as token ids"),
    ],
)
def test_bad_ids_are_named(rows, text):
    with pytest.raises(InputError, match=re.escape(text)):
        id_prompts(rows, 10)


def test_bool_is_not_smuggled_in_as_an_id_of_another_value():
    assert ids_of(id_prompts([[True, False]], 10)) == [(1, 0)]


@settings(max_examples=60, deadline=None)
@given(
    a=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=3),
    b=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_digests_are_equal_exactly_for_equal_ids(a, b):
    first, second = (id_prompts(rows, 4) for rows in (a, b))
    assert (first.digest() == second.digest()) == (a == b)


def test_digest_sees_ids_alone():
    plain = Prompts("a", (Prompt((1, 2)), Prompt((3,))))
    dressed = Prompts("b", (Prompt((1, 2), "one two", ("one", "two"), True), Prompt((3,))))
    assert plain.digest() == dressed.digest()
    assert plain.digest() != Prompts("a", (Prompt((1,)), Prompt((2, 3)))).digest(), "where a sample ends matters"
    assert plain.digest() != Prompts("a", (Prompt((3,)), Prompt((1, 2)))).digest(), "and the order"


def test_prompts_are_a_sequence():
    prompts = random_prompts(9, length=4, samples=3)
    assert len(prompts) == 3
    assert prompts[-1] == list(prompts)[2]
    assert prompts[:2] == tuple(prompts)[:2]
    assert TASKS == ("text", "random", "kvpr", "mdqa", "recall", "pixels")


def test_lengths_are_counted_once():
    """Loops over 22,000 prompts look lengths up one by one: counted anew each time, that is as many squared."""
    prompts = random_prompts(9, length=4, samples=3)
    assert prompts.lengths is prompts.lengths
    assert prompts.lengths == (4, 4, 4)


def test_lengths_that_cannot_be_measured_are_named():
    check_lengths(id_prompts([[1, 2], [1, 2, 3]], 10), 3)
    check_lengths(id_prompts([[1] * 5000], 10), None)
    with pytest.raises(InputError, match="at least one prompt; got none"):
        check_lengths(Prompts("ids", ()), 8)
    with pytest.raises(InputError, match="prompts of at least 2 tokens; got 1 in sample 1; similarity between tokens"):
        check_lengths(id_prompts([[1, 2], [3]], 10), 8)
    with pytest.raises(InputError, match="got 0 in sample 0"):
        check_lengths(id_prompts([[]], 10), 8)
    with pytest.raises(InputError, match="at most 2 tokens for this model; got 3; pass length=2 or less"):
        check_lengths(id_prompts([[1, 2, 3]], 10), 2)


def test_ids_beyond_the_vocabulary_do_not_fit():
    check_fit(id_prompts([[1, 9]], 10), 8, 10)
    with pytest.raises(InputError, match="token ids from 0 to 8; got 9; use the model's own tokenizer"):
        check_fit(id_prompts([[1, 9]], 10), 8, 9)
