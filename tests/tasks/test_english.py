"""The built-in English text, and random ids with a finding where a model has no tokenizer for it."""

import pytest

import repflow
from repflow.core.errors import InputError
from repflow.tasks import Encoder
from repflow.tasks.english import english_prompts, english_texts, paragraphs
from tests.models.tiny_configs import tiny_model


class Letters:
    """A tokenizer that writes a letter per token, as small as one can be."""

    bos_token_id = eos_token_id = unk_token_id = None
    all_special_ids = ()

    def __call__(self, text, **_):
        return {"input_ids": [ord(letter) % 128 for letter in text]}

    def decode(self, ids, **_):
        return "".join(map(chr, ids))


@pytest.fixture
def encoder():
    return Encoder(Letters(), "never")


def test_a_few_thousand_plain_words():
    words = " ".join(paragraphs()).split()
    assert 4_000 <= len(words) <= 8_000
    assert all(text == text.strip() and text.isascii() for text in paragraphs())
    assert len({*paragraphs()}) == len(paragraphs())


def test_prompts_are_of_the_length_and_share_nothing_while_they_are_short(encoder):
    prompts = english_prompts(encoder, length=500, samples=8)
    assert set(prompts.lengths) == {500}
    assert prompts.task == "text"
    starts = [prompt.text[:60] for prompt in prompts]
    assert len({*starts}) == 8
    assert all(start in " ".join(paragraphs()) for start in starts)


def test_prompts_depend_on_the_seed_alone(encoder):
    one, again, other = (english_prompts(encoder, length=64, samples=3, seed=seed) for seed in (1, 1, 2))
    assert one.digest() == again.digest() != other.digest()


def test_more_prompts_than_paragraphs(encoder):
    assert len(english_prompts(encoder, length=32, samples=100)) == 100


def test_a_length_beyond_the_text_is_refused(encoder):
    tokens = len("\n".join(paragraphs()))
    assert english_prompts(encoder, length=tokens, samples=1).lengths == (tokens,)
    with pytest.raises(InputError, match=r"text for prompts of .* tokens; got a built-in text of .*; pass text"):
        english_texts(encoder, length=tokens + 1, samples=1)


def test_without_a_tokenizer_ids_are_random_and_a_finding_says_so():
    model = tiny_model("gpt_neox")
    result = repflow.measure(model, length=8, samples=2)
    asked = repflow.measure(model, "random", length=8, samples=2)
    assert result.provenance["digests"]["prompts"] == asked.provenance["digests"]["prompts"]
    assert result.config == asked.config  # as when random ids were the default
    (finding,) = [finding for finding in result.findings if finding.code == "random_ids"]
    assert "without a tokenizer" in finding.message


def test_a_folder_without_a_tokenizer_has_the_name_it_had(tmp_path, monkeypatch):
    from repflow.studies.measure import STUDY, MeasureConfig

    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare").mkdir()
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "tokenizer.json").write_text("{}")
    assert STUDY.run_name(MeasureConfig(model="bare")) == "bare-random-512"
    assert STUDY.run_name(MeasureConfig(model="whole")) == "whole-text-512"
    assert STUDY.run_name(MeasureConfig(model="bare", tokenizer="whole")).startswith("bare-text-512")


def test_a_model_with_a_tokenizer_reads_the_text():
    model = repflow.load("zoo:mamba2")
    result = repflow.measure(model, length=16, samples=2)
    assert result.config["task"] == "text"
    assert "random_ids" not in {finding.code for finding in result.findings}


@pytest.mark.parametrize(
    "study", ["recency", "memory", "compare", "theory apply", "dynamics apply", "twins", "measure"]
)
def test_every_study_of_running_text_begins_with_it(study):
    from repflow.core.studies import STUDIES
    from repflow.studies.engine.table import study_at

    row = next(row for row in STUDIES if row.command == study)
    assert study_at(row).config().task == "text"


def test_runs_of_the_former_default_are_found(tmp_path, monkeypatch):
    """A run that was stored when random ids were the default has the name and the config of an explicit request."""
    from repflow.studies.measure import STUDY, MeasureConfig

    names = STUDY.names(MeasureConfig(model="zoo:mamba2", task="random"))
    assert names.current == "zoo-mamba2-random-512"
    assert STUDY.names(MeasureConfig(model="zoo:mamba2")).current == "zoo-mamba2-text-512"
