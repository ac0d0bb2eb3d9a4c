"""Requests that no prompt can meet are refused at once and with advice that helps; odd files are named."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from repflow.core.errors import InputError
from repflow.tasks import Encoder, TaskOptions, make_task, random_prompts, text_prompts
from repflow.tasks.key_value import KeyValueDrafts
from tests.tasks.word_tokenizer import word_tokenizer


@pytest.fixture
def drafted(monkeypatch):
    """Items of every prompt that was written."""
    asked = []
    own = KeyValueDrafts.draft

    def draft(self, sample, items):
        asked.append(items)
        return own(self, sample, items)

    monkeypatch.setattr(KeyValueDrafts, "draft", draft)
    return asked


def test_more_items_than_tokens_are_refused_before_any_prompt_is_written(drafted):
    task = make_task("kvpr", TaskOptions(items=20_000))
    with pytest.raises(InputError, match="20000 pairs within 300 tokens; got more items than tokens; pass fewer"):
        task.prompts(Encoder(word_tokenizer()), length=300, samples=100, seed=0)
    assert drafted == []


def test_too_many_items_are_seen_on_the_first_prompt_alone(drafted):
    task = make_task("kvpr", TaskOptions(items=250))
    with pytest.raises(InputError, match="pass length"):
        task.prompts(Encoder(word_tokenizer()), length=300, samples=100, seed=0)
    assert len(drafted) <= 2


def test_no_length_is_advised_that_the_model_cannot_take():
    encoder = Encoder(word_tokenizer(), limit=20)
    with pytest.raises(InputError, match="a length that holds 2 pairs; got 10 tokens") as caught:
        make_task("kvpr").prompts(encoder, length=10, samples=4, seed=0)
    assert "the model takes at most 20 tokens" in str(caught.value)
    assert "pass length" not in str(caught.value)
    with pytest.raises(InputError, match=r"pass fewer items$"):
        make_task("kvpr", TaskOptions(items=15)).prompts(encoder, length=20, samples=4, seed=0)
    with pytest.raises(InputError, match=r"pass length=\d+$"):
        make_task("kvpr").prompts(Encoder(word_tokenizer()), length=10, samples=4, seed=0)


def without_unknown():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_text_that_a_tokenizer_without_an_unknown_token_cannot_write_is_taught():
    encoder = Encoder(without_unknown())
    assert text_prompts(["a b a"], encoder)[0].ids == (0, 1, 0)
    with pytest.raises(InputError, match=r"text that the tokenizer can write; got 'a word': .*UNK") as caught:
        text_prompts(["a word"], encoder)
    assert "another tokenizer" in str(caught.value)
    with pytest.raises(InputError, match="text that the tokenizer can write"):
        make_task("kvpr").prompts(encoder, length=300, samples=4, seed=0)


def library(folder, told):
    lines = [
        {"question": f"what is q{i}", "answers": [f"value{i}x"], "title": f"t{i}",
         "text": " ".join([*(f"w{i}" for _ in range(12)), f"value{i}x" if i in told else "nothing"])}
        for i in range(12)
    ]  # fmt: skip
    file = folder / "own.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TaskOptions(documents=str(file), distractors="random", items=3)


def test_a_file_whose_answers_stand_in_no_passage_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"answers that occur in their passages in .*; got none of 12, such as 'value"):
        make_task("mdqa", library(tmp_path, told=())).prompts(Encoder(word_tokenizer()), length=300, samples=6, seed=0)


def test_prompts_without_their_answer_are_counted(tmp_path):
    task = make_task("mdqa", library(tmp_path, told=range(8)))
    (finding,) = task.prompts(Encoder(word_tokenizer()), length=300, samples=12, seed=0).findings
    assert finding.code == "answer_not_in_document"
    assert finding.message.startswith("in 4 of 12 prompts the gold document contains none of the answers")
    whole = make_task("mdqa", library(tmp_path, told=range(12)))
    assert whole.prompts(Encoder(word_tokenizer()), length=300, samples=12, seed=0).findings == ()


def test_ids_left_out_are_never_drawn_and_the_others_stay_even():
    prompts = random_prompts(7, length=500, samples=4, without=[0, 3])
    drawn = [i for prompt in prompts for i in prompt.ids]
    assert set(drawn) == {1, 2, 4, 5, 6}
    assert min(drawn.count(i) for i in set(drawn)) > 300
    with pytest.raises(InputError, match="token ids to draw from"):
        random_prompts(2, length=4, samples=1, without=[0, 1])
