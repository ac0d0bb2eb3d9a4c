"""The needle test on planted readers, whose scores are known, and on tiny real models."""

import json

import numpy as np
import pytest
import torch

import repflow
from repflow.core.errors import InputError
from repflow.studies.needle.config import NeedleConfig
from repflow.studies.needle.reading import make_batches
from repflow.studies.needle.study import make_needle_prompts, needle
from repflow.tasks.needle.needles import Needle, made_needles, stands
from tests.sample import sampled
from tests.studies.needle.inputs import ARCHITECTURES, Reader, needle_model, needle_network, needle_tokenizer

SMALL = {"lengths": [128, 160], "positions": [0, 0.5, 1], "samples": 3}
OWN = Needle("own", "The capital of France is Madrid.", "What is the capital of France?", "Oslo", "Paris", ("Rome",))


@pytest.fixture(scope="module")
def model():
    return needle_model("gpt_neox")


@pytest.fixture
def planted(monkeypatch):
    """Put a reader of one's own in the place of the model."""

    def put(finds):
        monkeypatch.setattr("repflow.capture.continuation.read_prompts", Reader(finds))
        monkeypatch.setattr("repflow.capture.continuation.keeps_state", lambda *_, **__: True)

    return put


def told(text, samples=8, seed=0):
    """Word that a prompt plants, None where no needle stands in it, with the share of the document before it."""
    for entry in made_needles(samples, seed):
        if entry.statement in text:
            document = text.partition("\n\n")[0]
            return entry, document.index(entry.statement) / (len(document) - len(entry.statement))
    return None, None


def test_a_reader_that_finds_every_needle_scores_all(model, planted):
    planted(lambda text: (hit := told(text)[0]) and hit.planted)
    result = needle(model, **{**SMALL, "samples": 8})
    assert result["answer_correct"].shape == (2, 3, 8)
    for name in ("answer_correct", "first", "gain_first", "rank"):
        assert (result[name] == 1).all(), name
    assert (result["answer_true"] == 0).all()
    assert (result["gain"] > 10).all()
    assert "needle_unused" not in {finding.code for finding in result.findings}
    assert "no_contrast" in {finding.code for finding in result.findings}
    assert all(entry["correct"] for entry in result.provenance["answers"])


def test_a_reader_that_answers_from_memory_finds_nothing(model, planted):
    planted(lambda text: next(e.true for e in made_needles(8, 0) if e.question in text))
    result = needle(model, **{**SMALL, "samples": 5})
    assert (result["answer_correct"] == 0).all()
    assert (result["answer_true"] == 1).all()
    assert (result["log_odds_true"] < -10).all()
    assert np.allclose(result["gain"], 0)
    assert "needle_unused" in {finding.code for finding in result.findings}


def test_a_reader_of_the_second_half_has_a_recency_bias(model, planted):
    def finds(text):
        entry, place = told(text)
        return entry.planted if entry and place > 0.7 else None

    planted(finds)
    result = needle(model, lengths=[160], positions=[0, 0.5, 1], samples=6)
    assert result.mean("answer_correct").tolist() == [[0.0, 0.0, 1.0]]
    depth, score = result["depth"][0], result["answer_correct"][0]
    expected = [np.polyfit(depth[:, k], score[:, k], 1)[0] for k in range(6)]
    assert result["slope/answer_correct"][0] == pytest.approx(expected)
    assert result["slope_all/answer_correct"] == pytest.approx(expected)
    by_code = {finding.code: finding.message for finding in result.findings}
    assert "near the end are found better" in by_code["recency_bias"]
    band = result.bands["slope_all/answer_correct"]
    assert 0 < band.low <= band.mean <= band.high


def test_a_reader_of_both_ends_loses_the_middle(model, planted):
    planted(lambda text: (place := told(text))[0] and (place[0].planted if abs(place[1] - 0.5) > 0.3 else None))
    result = needle(model, lengths=[160], positions=[0, 0.5, 1], samples=6)
    assert (result["ends/answer_correct"] == 1).all()
    assert "lost_in_the_middle" in {finding.code for finding in result.findings}


def test_a_reader_of_the_first_half_has_a_primacy_bias(model, planted):
    planted(lambda text: (place := told(text))[0] and (place[0].planted if place[1] < 0.3 else None))
    result = needle(model, lengths=[160], positions=[0, 0.5, 1], samples=6)
    assert "primacy_bias" in {finding.code for finding in result.findings}


def whole_word_oracle(network, tokenizer, prompt_ids, prompt_text, word):
    """log p(" word" | prompt) by one plain forward pass over both."""
    joined = tokenizer(f"{prompt_text} {word}")["input_ids"]
    assert joined[: len(prompt_ids)] == list(prompt_ids)
    logits = network(torch.tensor([joined])).logits[0].double().log_softmax(-1)
    places = range(len(prompt_ids), len(joined))
    return sum(float(logits[place - 1, joined[place]]) for place in places)


@pytest.mark.parametrize("kind", sampled(ARCHITECTURES))
def test_scores_are_those_of_plain_forward_passes(kind):
    model, tokenizer = needle_model(kind, dtype="float64"), needle_tokenizer()
    options = {"lengths": ["112"], "positions": ["0", "1"], "samples": 2, "answer_tokens": 6, "candidates": 3}
    result = needle(model, **options)
    prompts = make_needle_prompts(NeedleConfig(**options), model)
    way = {"rwkv": "whole"}.get(kind, "from the model's state")  # transformers' state of RWKV says something else
    assert result.provenance["reads"] == way
    with torch.inference_mode():
        for prompt, where in enumerate(np.ndindex(1, 2, 2)):
            entry, ids = prompts.needles[where[2]], prompts.prompts[prompt].ids
            words = [
                whole_word_oracle(model.network, tokenizer, ids, prompts.prompts[prompt].text, word)
                for word in entry.candidates
            ]
            assert result["logprob"][where] == pytest.approx(words, abs=1e-5)
            assert result["rank"][where] == 1 + sum(word > words[0] for word in words[1:])
            odds = words[0] - np.logaddexp.reduce(words[1:])
            assert result["log_odds"][where] == pytest.approx(odds, abs=1e-5)
            plain = {"do_sample": False, "max_new_tokens": 6, "use_cache": False, "pad_token_id": 0}
            plain |= {"attention_mask": torch.ones(1, len(ids)), "eos_token_id": tokenizer.eos_token_id}
            made_ids = model.network.generate(torch.tensor([ids]), **plain)
            answer = tokenizer.decode(made_ids[0, len(ids) :], skip_special_tokens=True)
            assert result.provenance["answers"][prompt]["text"] == answer


@pytest.mark.parametrize("kept", [True, False])
def test_a_stack_is_read_from_its_state_or_whole_where_that_does_not_agree(kept, monkeypatch):
    from repflow.models.stack.config import StackConfig
    from repflow.models.stack.network import StackForCausalLM

    config = StackConfig(mixers="ssd", num_hidden_layers=2, hidden_size=16, vocab_size=len(needle_tokenizer()))
    torch.manual_seed(0)
    loaded = repflow.load(StackForCausalLM(config), tokenizer=needle_tokenizer(), dtype="float64")
    if not kept:
        monkeypatch.setattr("repflow.capture.continuation.keeps_state", lambda *_, **__: False)
    result = needle(loaded, lengths=[112], positions=[0, 1], samples=2, candidates=3, answer_tokens=3)
    assert result.provenance["reads"] == ("from the model's state" if kept else "whole")
    assert ("no_cache" in {finding.code for finding in result.findings}) is not kept
    prompts = make_needle_prompts(NeedleConfig(lengths=["112"], positions=["0", "1"], samples=2, candidates=3), loaded)
    with torch.inference_mode():
        words = [
            whole_word_oracle(loaded.network, needle_tokenizer(), prompts.prompts[0].ids, prompts.prompts[0].text, word)
            for word in prompts.needles[0].candidates
        ]
    assert result["logprob"][0, 0, 0] == pytest.approx(words, abs=1e-9)


def test_batches_do_not_change_scores(model):
    one = needle(model, **SMALL, batch_size=1, answer_tokens=2)
    many = needle(model, **SMALL, batch_size=7, answer_tokens=2)
    np.testing.assert_allclose(one["logprob"], many["logprob"], atol=2e-5)


def test_batches_hold_prompts_of_one_length():
    lengths = [9, 8, 9, 9, 8]
    assert make_batches(lengths, 2).batches == ((0, 2), (3,), (1, 4))
    assert make_batches(lengths, None).batches == ((0, 2, 3), (1, 4))


def test_out_of_memory_halves_the_batches(model, monkeypatch):
    import repflow.studies.needle.reading as reading

    whole, sizes = reading.read_batch, []

    def narrow(loaded, made, batch, **options):
        sizes.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("no room")
        return whole(loaded, made, batch, **options)

    plain = needle(model, **SMALL, batch_size=2, answer_tokens=0)
    monkeypatch.setattr(reading, "read_batch", narrow)
    result = needle(model, **SMALL, batch_size=8, answer_tokens=0)
    assert max(sizes) > 2
    np.testing.assert_allclose(result["logprob"], plain["logprob"], atol=2e-5)


def test_without_answers_there_are_only_ranks(model):
    result = needle(model, **SMALL, answer_tokens=0)
    assert "answer_correct" not in result
    assert result.provenance["answers"] == []
    assert result["rank"].shape == (2, 3, 3)


def test_few_needles_give_no_statement(model):
    result = needle(model, **SMALL, answer_tokens=0)
    assert [finding.code for finding in result.findings] == ["few_needles"]


def test_one_position_has_no_slope(model):
    result = needle(model, lengths=128, positions=0.5, samples=5, answer_tokens=0)
    assert np.isnan(result["slope/gain"]).all()
    assert not {"recency_bias", "primacy_bias", "no_positional_bias"} & {f.code for f in result.findings}


def test_weights_that_are_not_finite_give_no_score():
    network = needle_network("gpt_neox")
    with torch.no_grad():
        network.gpt_neox.layers[2].mlp.dense_h_to_4h.weight[0, 0] = float("nan")
    loaded = repflow.load(network, tokenizer=needle_tokenizer())
    result = needle(loaded, **SMALL)
    for name in ("answer_correct", "rank", "first", "log_odds", "gain"):
        assert np.isnan(result[name]).all(), name
    assert "nonfinite_weight" in {finding.code for finding in result.findings}


def test_a_stored_run_is_read_and_resumed(model, tmp_path):
    result = needle(model, **SMALL, out=tmp_path, name="mine")
    again = needle(model, **SMALL, out=tmp_path, name="mine")
    for name in result:
        np.testing.assert_array_equal(result[name], again[name])
    assert again.config["study"] == again.config["task"] == "needle"
    assert again.axes["answer_correct"] == ("length", "position", "sample")
    assert again.bands["answer_correct"].low.shape == (2, 3)
    assert again.provenance["lengths"] == [128, 160]
    (tmp_path / "mine" / "result.json").unlink()
    repaired = needle(model, **SMALL, out=tmp_path, name="mine")
    np.testing.assert_array_equal(repaired["logprob"], result["logprob"])


def test_own_needles(model, tmp_path):
    lines = [
        {"statement": "The colour of grass is purple.", "question": "What is the colour of grass?", "planted": "purple",
         "true": "green", "others": ["orange", "white"]},
        {"statement": "Fish live in trees.", "question": "Where do fish live?", "planted": "trees", "true": "water",
         "others": ["sand", "clouds"]},
    ]  # fmt: skip
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    result = needle(model, needles=file, samples=2, lengths=[128], positions=[0, 1], answer_tokens=0)
    assert result["logprob"].shape == (1, 2, 2, 4)
    assert result.provenance["needles"][1]["planted"] == "trees"
    direct = needle(model, needles=made_needles(2, 5), lengths=[128], positions=[1], answer_tokens=0)
    assert direct["rank"].shape == (1, 1, 2)
    with pytest.raises(InputError, match=r"expected 3 needles; got 2 in .*own.jsonl; pass samples=2 or more lines"):
        needle(model, needles=str(file), samples=3, lengths=[128])
    lines[1]["others"] = ["sand"]
    file.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(InputError, match="as many candidates for each needle; got 3 to 4"):
        needle(model, needles=str(file), samples=2, lengths=[128])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [300]}, r"within the 256 of .*gpt_neox; got 300 tokens; pass lengths up to \d+"),
        ({"lengths": [60]}, "a haystack longer than its needle; got lengths=60, .*pass lengths of at least"),
        ({"lengths": [1]}, "length >= 2"),
        ({"positions": [1.5]}, "positions from 0 to 1; got '1.5'"),
        ({"positions": ["first"]}, "positions from 0 to 1; got 'first'"),
        ({"positions": []}, "positions with a value; got none"),
        ({"samples": 0}, "samples >= 1"),
        ({"candidates": 1}, "2 to 8 candidates; got 1"),
        ({"candidates": 9}, "2 to 8 candidates; got 9"),
        ({"answer_tokens": -1}, "answer_tokens"),
        ({"match": "items"}, "match='text', tokens; got 'items'"),
        ({"skip_told": True}, "haystack=FILE with skip_told=True"),
        ({"haystack": ["missing.txt"]}, "cannot read missing.txt"),
        ({"length": 128}, "unknown option 'length'; did you mean lengths"),
        ({"samples": "2"}, "a whole number for samples; got '2'; leave samples out"),
        ({"samples": 1.5}, "a whole number for samples; got 1.5"),
        ({"lengths": None}, "a list for lengths; got None"),
        ({"skip_told": 1}, "True or False for skip_told; got 1"),
        ({"needles": []}, r"Needle objects .*, or FILE.jsonl; got \[\]"),
        ({"needles": ["The sky is green."]}, "Needle objects .*, or FILE.jsonl; got"),
        ({"needles": [OWN]}, "needle 0: expected a statement that contains its planted word; got 'Oslo'"),
        ({"needles": [*made_needles(1, 0), *made_needles(1, 0, candidates=3)]}, "as many candidates for each needle"),
    ],
)
def test_wrong_requests_are_taught(model, options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        needle(model, **options, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_models_that_cannot_be_asked(tmp_path):
    bare = repflow.load(needle_network("gpt_neox"))
    with pytest.raises(InputError, match=r"a model with a tokenizer; .* pass tokenizer=FOLDER"):
        needle(bare, **SMALL)
    headless = repflow.load(needle_network("gpt_neox").base_model, tokenizer=needle_tokenizer())
    with pytest.raises(InputError, match="a model with a head"):
        needle(headless, **SMALL)


def test_a_vocabulary_too_small_for_the_tokenizer():
    from tests.models.tiny_configs import tiny_model

    loaded = repflow.load(tiny_model("mamba"), tokenizer=needle_tokenizer())
    with pytest.raises(InputError, match=r"token ids below 128; got .* pass the model's own tokenizer"):
        needle(loaded, **SMALL)


def test_a_haystack_of_files(model, tmp_path):
    file = tmp_path / "prose.txt"
    file.write_text(" ".join(f"Line {number} tells of stones and of the wind." for number in range(60)))
    result = needle(model, haystack=[file], **SMALL, answer_tokens=0)
    assert result.provenance["haystack"] == "prose.txt"
    planted = result.provenance["needles"][0]["planted"]
    file.write_text(file.read_text() + f" Nobody goes to {planted.upper()}.")
    message = rf"a haystack without the answer and its rivals; got '{planted}' of the needle .* skip_told=True"
    with pytest.raises(InputError, match=message):
        needle(model, haystack=[file], **SMALL)
    others = needle(model, haystack=[file], **SMALL, skip_told=True, answer_tokens=0)
    assert all(entry["planted"] != planted for entry in others.provenance["needles"])
    assert not any(stands(planted, word) for entry in others.provenance["needles"] for word in entry["others"])


def test_text_that_runs_out(model, tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("A stone lies here. The wind goes over it. Nothing else is there to be seen by anyone at all.")
    with pytest.raises(InputError, match=r"text for documents of 200 tokens in short.txt; got \d+ tokens with all"):
        needle(model, haystack=[file], lengths=[200], samples=1)


def test_text_shorter_than_the_needle_is_not_blamed_on_the_length(model, tmp_path):
    file = tmp_path / "one.txt"
    file.write_text("One stone.")
    with pytest.raises(InputError, match=r"its needle in one.txt; got 'One stone.'; pass more text with haystack"):
        needle(model, haystack=[file], lengths=[200], samples=1)


def test_positions_are_kept_to_the_last_digit():
    assert NeedleConfig(positions=["0.1234561", "0.1234562", "0.25"]).positions == ["0.1234561", "0.1234562", "0.25"]
