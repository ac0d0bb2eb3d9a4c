"""As many items as fit, never over the length, the same number in all prompts."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repflow.core.errors import InputError
from repflow.tasks import Encoder, TaskOptions, fit, make_task
from repflow.tasks.fit import MIN_WORDS
from tests.tasks.retrieval_inputs import bytes_encoder, bytes_tokenizer, words_encoder, write_library

ENCODERS = [
    bytes_encoder(),
    bytes_encoder(split=False),
    bytes_encoder(bos=True),
    bytes_encoder(size=700, split=False),
    words_encoder(),
]


def lengths(prompts, encoder):
    """Exact lengths, each text encoded by itself."""
    return [len(encoder.prefix) + len(encoder.text_ids(prompt.text)) for prompt in prompts]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return str(write_library(tmp_path_factory.mktemp("library") / "towns.jsonl"))


@settings(max_examples=15, deadline=None)
@given(
    which=st.integers(0, len(ENCODERS) - 1),
    length=st.integers(350, 900),
    samples=st.integers(1, 40),
    seed=st.integers(0, 2**31),
    format=st.sampled_from(["liu2024", "paper"]),
)
def test_pairs_fill_the_length_and_one_more_would_not_fit(which, length, samples, seed, format):
    encoder = ENCODERS[which]
    task = make_task("kvpr", TaskOptions(format=format))
    prompts = task.prompts(encoder, length=length, samples=samples, seed=seed)
    assert list(prompts.lengths) == lengths(prompts, encoder)
    assert max(prompts.lengths) <= length
    assert len({prompt.items for prompt in prompts}) == 1
    assert {len(re.findall('": "', prompt.text)) for prompt in prompts} == {prompts[0].items}
    more = make_task("kvpr", TaskOptions(format=format, items=prompts[0].items + 1))
    with pytest.raises(InputError, match=f"{prompts[0].items + 1} pairs within {length} tokens"):
        more.prompts(encoder, length=length, samples=samples, seed=seed)


@settings(max_examples=15, deadline=None)
@given(
    which=st.integers(0, len(ENCODERS) - 1),
    length=st.integers(420, 900),
    samples=st.integers(1, 20),
    seed=st.integers(0, 2**31),
    distractors=st.sampled_from(["bm25", "random"]),
)
def test_documents_fill_the_length(library, which, length, samples, seed, distractors):
    encoder = ENCODERS[which]
    options = {"documents": library, "distractors": distractors}
    prompts = make_task("mdqa", TaskOptions(**options)).prompts(encoder, length=length, samples=samples, seed=seed)
    assert list(prompts.lengths) == lengths(prompts, encoder)
    assert max(prompts.lengths) <= length
    assert len({prompt.items for prompt in prompts}) == 1
    assert {len(re.findall(r"^Document \[", prompt.text, re.M)) for prompt in prompts} == {prompts[0].items}
    more = TaskOptions(**options, items=prompts[0].items + 1)
    with pytest.raises(InputError, match=r"documents within|at most"):
        make_task("mdqa", more).prompts(encoder, length=length, samples=samples, seed=seed)


def test_only_one_distractor_is_cut_and_at_a_word(library):
    entries = map(json.loads, Path(library).read_text(encoding="utf-8").splitlines())
    whole = {entry["title"]: entry["text"] for entry in entries}
    encoder = bytes_encoder()
    cut_somewhere = set()
    for length in range(500, 900, 23):
        prompts = make_task("mdqa", TaskOptions(documents=library)).prompts(encoder, length=length, samples=6, seed=1)
        for prompt in prompts:
            documents = re.findall(r"^Document \[\d+\]\(Title: (.*?)\) (.*)$", prompt.text, re.M)
            cut = [place for place, (title, text) in enumerate(documents) if text != whole[title]]
            assert len(cut) <= 1
            for place in cut:
                title, text = documents[place]
                assert place != prompt.label, "never the gold document"
                assert whole[title].startswith(text + " ")
                assert len(text.split()) >= MIN_WORDS
                cut_somewhere.add((place, len(documents)))
    assert len({place for place, _ in cut_somewhere}) > 2, (
        "not always the same place, which would reveal where gold is not"
    )


def test_many_samples_agree_with_few_on_what_one_sample_is():
    task = make_task("kvpr", TaskOptions(items=5))
    few = task.prompts(bytes_encoder(), length=900, samples=3, seed=7)
    many = task.prompts(bytes_encoder(), length=900, samples=200, seed=7)
    assert tuple(few) == many[:3]


def test_a_length_that_cannot_hold_two_items():
    for task, unit in (("kvpr", "pairs"), ("mdqa", "documents")):
        with pytest.raises(InputError, match=rf"a length that holds 2 {unit}; got 60 tokens, where 2 need (\d+)") as e:
            make_task(task).prompts(bytes_encoder(), length=60, samples=3, seed=0)
        need = int(re.search(r"pass length=(\d+)", str(e.value))[1])
        only = make_task(task).prompts(bytes_encoder(), length=need, samples=1, seed=0)
        assert only[0].items == 2


def test_fixed_items():
    prompts = make_task("kvpr", TaskOptions(items=3)).prompts(bytes_encoder(), length=4000, samples=5, seed=0)
    assert {prompt.items for prompt in prompts} == {3}
    with pytest.raises(InputError, match="items of at least 2; got 1"):
        make_task("kvpr", TaskOptions(items=1)).prompts(bytes_encoder(), length=4000, samples=5, seed=0)
    with pytest.raises(InputError, match=r"90 pairs within 500 tokens; got \d+ in prompt 0; pass length=\d+ or more"):
        make_task("kvpr", TaskOptions(items=90)).prompts(bytes_encoder(), length=500, samples=5, seed=0)


def test_a_library_too_small(tmp_path):
    file = write_library(tmp_path / "small.jsonl", count=3)
    prompts = make_task("mdqa", TaskOptions(documents=str(file))).prompts(
        bytes_encoder(), length=4000, samples=6, seed=0
    )
    assert prompts[0].items == 3
    with pytest.raises(InputError, match="at most 3 documents, which is all there are for prompt 0; got items=4"):
        options = TaskOptions(documents=str(file), items=4)
        make_task("mdqa", options).prompts(bytes_encoder(), length=4000, samples=1, seed=0)
    one = write_library(tmp_path / "one.jsonl", count=1)
    with pytest.raises(InputError, match="at least 2 documents for every prompt; got 1 for prompt 0"):
        make_task("mdqa", TaskOptions(documents=str(one))).prompts(bytes_encoder(), length=4000, samples=1, seed=0)


def test_no_tokenizer():
    with pytest.raises(InputError, match="a model with a tokenizer for text; got none"):
        Encoder(None)


def test_bos_counts(library):
    plain, begun = Encoder(bytes_tokenizer()), Encoder(bytes_tokenizer(bos=True))
    for prompt in make_task("kvpr").prompts(begun, length=700, samples=3, seed=0):
        assert prompt.begins
        assert prompt.ids[0] == begun.prefix[0]
    assert not make_task("kvpr").prompts(plain, length=700, samples=1, seed=0)[0].begins


@pytest.mark.parametrize("items", [3, 6])
def test_a_later_sample_that_does_not_fit_lowers_the_number_for_all(items, monkeypatch):
    encoder = bytes_encoder()
    first = make_task("kvpr", TaskOptions(items=items)).prompts(encoder, length=4000, samples=1, seed=0)
    length = first.lengths[0]  # just enough for the first sample, and so too short for some other
    monkeypatch.setattr(fit, "FIRST", 0)
    assert make_task("kvpr").prompts(encoder, length=length, samples=1, seed=0)[0].items == items
    prompts = make_task("kvpr").prompts(encoder, length=length, samples=90, seed=0)
    assert {prompt.items for prompt in prompts} == {items - 1}
    assert max(prompts.lengths) <= length
    monkeypatch.setattr(fit, "FIRST", 1000)
    assert tuple(make_task("kvpr").prompts(encoder, length=length, samples=90, seed=0)) == tuple(prompts)
