"""Tokenizers from every form of folder and file."""

import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from repflow.core.errors import InputError
from repflow.models import load
from tests.models.tiny_configs import save_tiny, tiny_model

SHARED = Path(os.environ.get("REPFLOW_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data" / "tokenizers"


@pytest.fixture
def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<|endoftext|>": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def test_from_the_models_folder(tmp_path, words):
    save_tiny("gpt2", tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<|endoftext|>").save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.tokenizer("b a").input_ids == [1, 0]
    assert model.bos_token_id == 2, "the tokenizer's, not the configuration's"


@pytest.mark.parametrize("form", ["folder", "file"])
def test_lone_file(tmp_path, words, form):
    file = tmp_path / "20B_tokenizer.json"
    words.save(str(file))
    model = load(tiny_model("gpt2"), tokenizer=file if form == "file" else tmp_path)
    assert model.tokenizer("a b c").input_ids == [0, 1, 3]
    assert model.bos_token_id == 2


def test_gpt2_files(tmp_path):
    (tmp_path / "encoder.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "Ġ": 3, "<|endoftext|>": 4}))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\na b\n")
    model = load(tiny_model("gpt2"), tokenizer=tmp_path)
    assert model.tokenizer("ab ba").input_ids == [2, 3, 1, 0]
    assert model.tokenizer.decode([2, 3, 1, 0]) == "ab ba"


def test_an_object_is_taken_as_it_is(words):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    model = load(tiny_model("gpt2"), tokenizer=tokenizer)
    assert model.tokenizer is tokenizer
    assert model.bos_token_id == 1, "from the configuration"


def test_refusals(tmp_path):
    with pytest.raises(InputError, match="a folder with a tokenizer"):
        load(tiny_model("gpt2"), tokenizer=tmp_path)
    (tmp_path / "x_tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"expected a \*tokenizer\.json file.* which is other JSON"):
        load(tiny_model("gpt2"), tokenizer=tmp_path)
    (tmp_path / "vocab.txt").write_text("a")
    with pytest.raises(InputError, match=r"a \*tokenizer\.json file"):
        load(tiny_model("gpt2"), tokenizer=tmp_path / "vocab.txt")


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="needs the shared data")
@pytest.mark.parametrize(("name", "ids"), [("neox20b", [12092, 1533]), ("gpt2", [15496, 995])])
def test_published_tokenizers(name, ids):
    model = load(tiny_model("gpt2"), tokenizer=SHARED / name)
    assert model.tokenizer("Hello world").input_ids == ids
    assert model.tokenizer.decode(ids) == "Hello world"
    assert model.bos_token_id == {"neox20b": 0, "gpt2": 50256}[name]
