"""kvpr and mdqa as tasks: the gold item, labels, groups, seeds, and several tokenizers at once."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repflow.core.errors import InputError
from repflow.tasks import Encoder, Prompts, Task, TaskOptions, make_task, matched_prompts, parse_length
from repflow.tasks.draw import Draw, balanced
from repflow.tasks.gold import Gold
from tests.tasks.retrieval_inputs import CHAT, bytes_encoder, bytes_tokenizer, words_encoder, write_library

ENCODER = bytes_encoder()
DOCUMENT = re.compile(r"^Document \[(\d+)\]\(Title: (.*?)\) (.*)$", re.MULTILINE)
UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def make(task="kvpr", *, length=700, samples=12, seed=0, encoder=ENCODER, **options):
    return make_task(task, TaskOptions(**options)).prompts(encoder, length=length, samples=samples, seed=seed)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**40), index=st.none() | st.integers(0, 2), format=st.sampled_from(["liu2024", "paper"]))
def test_the_gold_pair_is_at_the_index(seed, index, format):
    prompts = make(seed=seed, index=index, format=format)
    for prompt in prompts:
        pairs = re.findall(r'"([^"]*)": "([^"]*)"', prompt.text)
        place = prompt.label
        assert pairs[place] == (prompt.key, prompt.answers[0])
        assert prompt.text.count(prompt.key) == 2, "once as a pair, once as the query"
        assert prompt.text.count(prompt.answers[0]) == 1
        assert prompt.position == place / (prompt.items - 1)
        assert index is None or place == index
        assert all(UUID4.fullmatch(word) for pair in pairs for word in pair)
        assert len({key for key, _ in pairs}) == len(pairs)
    assert prompts.classes == tuple(map(str, range(prompts[0].items)))
    assert len({prompt.group for prompt in prompts}) == len(prompts)


def check_documents(made, index):
    for prompt in made:
        matches = DOCUMENT.findall(prompt.text)
        assert [int(number) for number, _, _ in matches] == list(range(1, prompt.items + 1))
        holds = [any(a.casefold() in f"{t} {x}".casefold() for a in prompt.answers) for _, t, x in matches]
        assert holds.index(True) == prompt.label
        assert sum(holds) == 1, "no other document holds an answer"
        assert prompt.text.endswith(f"\n\nQuestion: {prompt.key}\nAnswer:")
        assert len({title for _, title, _ in matches}) == prompt.items
        assert index is None or prompt.label == index
        assert prompt.position == prompt.label / (prompt.items - 1)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**40), distractors=st.sampled_from(["bm25", "random"]), index=st.none() | st.integers(0, 2))
def test_the_gold_document_is_at_the_index(tmp_path_factory, seed, distractors, index):
    file = write_library(tmp_path_factory.mktemp("l") / "towns.jsonl", count=25)
    prompts = make("mdqa", length=1200, samples=4, seed=seed, distractors=distractors, index=index, documents=str(file))
    check_documents(prompts, index)


@pytest.mark.parametrize("index", [None, 1])
@pytest.mark.parametrize("distractors", ["bm25", "random"])
def test_the_gold_article_is_at_the_index(distractors, index):
    check_documents(make("mdqa", length=1500, samples=9, seed=2, distractors=distractors, index=index), index)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    items=st.integers(2, 60),
    rounds=st.integers(1, 3),
    classes=st.none() | st.integers(2, 9),
)
def test_labels_are_balanced(seed, items, rounds, classes):
    classes = None if classes is None or classes > items else classes
    gold = Gold(seed, classes=classes)
    count = classes or items
    places = [gold.index(sample, items) for sample in range(rounds * count)]
    assert set(places) <= set(range(items))
    labels = Counter(gold.label(place, items) for place in places)
    assert labels == dict.fromkeys(range(count), rounds)
    assert len(gold.names(items)) == count


def test_labels_of_a_run_are_balanced_and_not_in_order():
    prompts = make(length=900, samples=60)
    counts = Counter(prompt.label for prompt in prompts)
    assert max(counts.values()) - min(counts.values()) <= 1
    items = prompts[0].items
    first, second = ([p.label for p in prompts][at : at + items] for at in (0, items))
    assert sorted(first) == sorted(second) == list(range(items))
    assert first != second
    assert first != sorted(first)


def test_classes_are_relative_positions():
    prompts = make(length=900, samples=40, classes=2)
    assert prompts.classes == ("0-0.5", "0.5-1")
    assert Counter(prompt.label for prompt in prompts) == {0: 20, 1: 20}
    for prompt in prompts:
        place = round(prompt.position * (prompt.items - 1))
        assert prompt.label == (place * 2) // prompt.items
    lengths = [make(length=length, samples=10, classes=3) for length in (500, 1000)]
    assert lengths[0][0].items < lengths[1][0].items
    assert lengths[0].classes == lengths[1].classes


def test_the_bins_of_a_class_hold_every_index():
    gold = Gold(0, classes=3)
    assert {gold.index(sample, 8) for sample in range(300)} == set(range(8))


def test_label_answer():
    prompts = make(samples=40, label="answer")
    assert prompts.classes == tuple("0123456789abcdef")
    assert all(prompts.classes[prompt.label] == prompt.answers[0][0] for prompt in prompts)
    same = make(samples=40)
    assert [p.ids for p in same] == [p.ids for p in prompts], "the label does not change what is read"
    questions = make("mdqa", length=900, samples=30, label="answer")
    assert questions.classes == tuple(sorted({p.answers[0][0].lower() for p in questions}))
    assert all(questions.classes[p.label] == p.answers[0][0].lower() for p in questions)


@pytest.mark.parametrize("task", ["kvpr", "mdqa"])
def test_seeds_and_samples_differ(task):
    by_seed = [make(task, length=900, samples=4, seed=seed) for seed in (0, 1)]
    assert len({prompt.text for prompts in by_seed for prompt in prompts}) == 8
    assert by_seed[0].digest() == make(task, length=900, samples=4, seed=0).digest() != by_seed[1].digest()
    assert by_seed[0].task == task


CODE = """
import hashlib
from tests.tasks.retrieval_inputs import bytes_encoder
from repflow.tasks import TaskOptions, make_task
state = hashlib.sha256()
for task in ("kvpr", "mdqa"):
    for distractors in ("bm25", "random"):
        made = make_task(task, TaskOptions(distractors=distractors))
        for p in made.prompts(bytes_encoder(), length=900, samples=6, seed=5):
            state.update(repr((p.text, p.label, p.answers, p.group, p.position, p.key, p.items)).encode())
print(state.hexdigest())
"""


def test_the_same_in_every_process_and_under_every_hash_seed():
    names = set()
    for seed in ("1", "12345"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True)
        names.add(done.stdout)
    state = hashlib.sha256()
    for task in ("kvpr", "mdqa"):
        for distractors in ("bm25", "random"):
            for p in make(task, length=900, samples=6, seed=5, distractors=distractors):
                fields = (p.text, p.label, p.answers, p.group, p.position, p.key, p.items)
                state.update(repr(fields).encode())
    assert names == {state.hexdigest() + "\n"}


def test_draws_come_from_the_raw_stream():
    """Known values: numpy promises the raw stream of PCG64, so these may never change."""
    assert [hex(int(value)) for value in Draw(1, 2, 3).raw(2)] == ["0xaba411f8f6c9b990", "0x1c6b7489df5024fb"]
    assert Draw(0).order(6) == [3, 2, 1, 0, 4, 5]
    assert balanced(0, 10, 7, 5) == balanced(0, 10, 7, 5) in range(5)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"index": 99}, r"an index from 0 to \d+ \(\d+ pairs in 700 tokens\); got 99; pass a smaller index"),
        ({"index": -1}, "an index of 0 or more; got -1"),
        ({"classes": 1}, "classes of at least 2; got 1"),
        ({"classes": 500}, r"from 2 to \d+ classes \(\d+ pairs in 700 tokens\); got 500"),
        ({"distractors": "bm52"}, "distractors bm25 or random; got 'bm52'; did you mean bm25?"),
        ({"label": "value"}, "label index or answer; got 'value'"),
        ({"documents": "no/such.jsonl"}, "cannot read no/such.jsonl: no such file"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(InputError, match=text):
        make(**options)


def test_bad_sizes_and_names():
    with pytest.raises(InputError, match="unknown task 'kvrp'; did you mean kvpr"):
        make_task("kvrp")
    with pytest.raises(InputError, match="length >= 2 and samples >= 1"):
        make(samples=0)
    with pytest.raises(InputError, match="a seed of 0 or more"):
        make(seed=-1)


@pytest.mark.parametrize(("text", "tokens"), [("300", 300), ("1K", 1000), ("2k", 2000), ("4K", 4000), (7, 7)])
def test_lengths_as_words(text, tokens):
    assert parse_length(text) == tokens


@pytest.mark.parametrize("text", ["4M", "", "K", "1e3", "ten"])
def test_a_length_that_is_none(text):
    with pytest.raises(InputError, match="a length such as 300, 1K or 4K; got"):
        parse_length(text)


def matched(task, match, encoders, **options):
    own_task = make_task(task, TaskOptions(**options))
    return matched_prompts(own_task, encoders, length=800, samples=5, seed=0, match=match)


@pytest.mark.parametrize("task", ["kvpr", "mdqa"])
def test_matching(task):
    encoders = [bytes_encoder(), words_encoder(), bytes_encoder()]
    own = [make_task(task).prompts(e, length=800, samples=5, seed=0)[0].items for e in encoders]
    assert own[0] < own[1], "the second tokenizer takes fewer tokens for the same text"
    text = matched(task, "text", encoders)
    assert [p.text for p in text[0]] == [p.text for p in text[1]] == [p.text for p in text[2]]
    assert text[0].classes == text[1].classes
    items = matched(task, "items", encoders)
    assert {p.items for prompts in (*text, *items) for p in prompts} == {own[0]}
    tokens = matched(task, "tokens", encoders)
    assert [prompts[0].items for prompts in tokens] == own
    for prompts in (*text, *items, *tokens):
        assert max(prompts.lengths) <= 800
    assert text[0] is text[2], "made once for equal tokenizers"
    if task == "mdqa":
        assert [p.text for p in items[0]] != [p.text for p in items[1]], "each cut for its own tokenizer"


def test_matching_needs_a_known_word():
    with pytest.raises(InputError, match="match='text', items, tokens; got 'txt'; did you mean text"):
        matched("kvpr", "txt", [bytes_encoder()])


class Counting:
    """A task of a user's own."""

    name = "counting"

    def __init__(self, own=False):
        self.own = own

    def prompts(self, encoder, *, length, samples, seed):
        texts = [f"{seed} {i} {len(encoder.ids('a quetzal')) if self.own else ''}" for i in range(samples)]
        return Prompts(self.name, tuple(encoder.prompt(encoder.ids(text), text) for text in texts))


def test_a_task_of_ones_own_is_matched_by_its_text():
    encoders = [bytes_encoder(), words_encoder()]
    assert isinstance(Counting(), Task)
    matched_sets = matched_prompts(Counting(), encoders, length=50, samples=3, seed=4)
    assert [[p.text for p in prompts] for prompts in matched_sets] == [["4 0 ", "4 1 ", "4 2 "]] * 2
    with pytest.raises(InputError, match="the same text for all models; got texts of the task counting that depend on"):
        matched_prompts(Counting(own=True), encoders, length=50, samples=3, seed=4)


def test_chat_template():
    encoder = Encoder(bytes_tokenizer(chat=CHAT, bos=True))
    prompts = make(encoder=encoder, chat_template=True, samples=5)
    plain = make(encoder=encoder, samples=5)
    for prompt in prompts:
        assert prompt.text.startswith("<s><user>Extract the value")
        assert prompt.text.endswith("\nCorresponding value:</user><assistant>")
        assert prompt.begins
        assert prompt.ids.count(encoder.prefix[0]) == 1, "the template wrote the first token; none is added"
        assert encoder.tokenizer.decode(prompt.ids) == prompt.text
    assert max(prompts.lengths) <= 700
    assert prompts[0].items <= plain[0].items
    with pytest.raises(InputError, match="a tokenizer with a chat template for chat_template=True; got one without"):
        make(chat_template=True)


def test_a_file_is_a_task(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"prompt": "a b", "label": 1}) + "\n")
    task = make_task(file)
    assert task.name == "own.jsonl"
    assert task.prompts(ENCODER, length=40, samples=1, seed=0)[0].label == 0
