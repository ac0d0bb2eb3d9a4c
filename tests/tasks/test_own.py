"""Prompts of a user's own with labels, groups, positions and answers."""

import gzip
import json

import pytest

from repflow.core.errors import InputError
from repflow.tasks import Encoder, TaskOptions, jsonl_prompts, make_task
from tests.tasks.retrieval_inputs import CHAT, bytes_tokenizer
from tests.tasks.word_tokenizer import word_tokenizer

PLAIN = Encoder(word_tokenizer())


def read(tmp_path, *entries, length=8, samples=99, name="own.jsonl"):
    file = tmp_path / name
    text = "".join((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in entries)
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return make_task(file).prompts(PLAIN, length=length, samples=samples, seed=0)


def test_labels_become_classes(tmp_path):
    rows = [{"prompt": "a b", "label": "red"}, {"prompt": "c d", "label": "blue"}, {"prompt": "e f", "label": "red"}]
    prompts = read(tmp_path, *rows)
    assert prompts.classes == ("blue", "red")
    assert [prompt.label for prompt in prompts] == [1, 0, 1]
    numbers = read(tmp_path, *({"prompt": "a b", "label": n} for n in (10, 9, 10)))
    assert numbers.classes == ("9", "10"), "numbers in the order of numbers"
    assert [prompt.label for prompt in numbers] == [1, 0, 1]


def test_every_field(tmp_path):
    prompts = read(
        tmp_path,
        {"prompt": "a b", "label": 0, "group": "g", "position": 0.25, "answers": ["x", "y"], "key": "k", "other": 1},
        {"prompt": "c d", "label": 1, "group": 7, "position": 1, "answer": "z"},
        {"prompt": "c d", "label": 1},
    )
    assert (prompts[0].group, prompts[0].position, prompts[0].answers, prompts[0].key) == ("g", 0.25, ("x", "y"), "k")
    assert (prompts[1].group, prompts[1].position, prompts[1].answers, prompts[1].key) == ("7", 1.0, ("z",), None)
    assert (prompts[2].group, prompts[2].position, prompts[2].answers) == (None, None, ())


def test_without_labels(tmp_path):
    prompts = read(tmp_path, {"prompt": "a b c"}, {"prompt": "d"}, length=2)
    assert prompts.classes == ()
    assert [prompt.label for prompt in prompts] == [None, None]
    assert prompts.lengths == (2, 1), "cut, since there is nothing to lose"


def test_gzipped(tmp_path):
    assert read(tmp_path, {"prompt": "a b"}, name="own.jsonl.gz").task == "own.jsonl.gz"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({"prompt": "a", "label": None}, "a 'label' on every line or on none; got none on .*line 2"),
        ({"prompt": "a"}, "a 'label' on every line or on none; got none on .*line 2; add it"),
        ({"prompt": "a", "label": "x"}, "labels of one kind, all strings or all whole numbers; got 'x' on .*line 2"),
        ({"prompt": "a", "label": 1.5}, "line 2: expected a string or whole number 'label'; got 1.5"),
        ({"prompt": "a", "label": True}, "line 2: expected a string or whole number 'label'; got True"),
        ({"prompt": "a", "label": 1, "position": 2}, "line 2: expected a 'position' from 0 to 1; got 2"),
        ({"prompt": "a", "label": 1, "position": "x"}, "line 2: expected a 'position' from 0 to 1"),
        ({"prompt": "a", "label": 1, "group": [1]}, r"line 2: expected a string 'group'; got \[1\]"),
        (
            {"prompt": "a", "label": 1, "answers": 3},
            "line 2: expected a string or a list of strings in 'answers'; got 3",
        ),
        ({"label": 1}, "line 2: expected an object with a string 'prompt'; got the keys 'label'"),
        ("{", "line 2: not a JSON object"),
        ({"prompt": "a b c d e f g h i", "label": 1}, "at most 8 tokens in a prompt with a label; got 9 in .*line 2"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, text):
    with pytest.raises(InputError, match=text):
        read(tmp_path, {"prompt": "a b", "label": 1}, line, {"prompt": "c d", "label": 2})


def test_chat_template(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"prompt": "say it", "label": 1}) + "\n")
    encoder = Encoder(bytes_tokenizer(chat=CHAT))
    prompts = make_task(file, TaskOptions(chat_template=True)).prompts(encoder, length=90, samples=1, seed=0)
    assert prompts[0].text == "<s><user>say it</user><assistant>"
    assert jsonl_prompts(file, encoder, length=90, samples=1)[0].text == "say it"
