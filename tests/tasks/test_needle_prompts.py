"""Needles, haystacks and the prompts made of them."""

import json

import numpy as np
import pytest

from repflow.core.errors import InputError
from repflow.tasks import Encoder
from repflow.tasks.needle.haystack import FileProse, MadeUpProse, split_sentences
from repflow.tasks.needle.needles import clashing, file_needles, made_needles, stands, told_in
from repflow.tasks.needle.prompts import (
    INSTRUCTION,
    NeedleSweep,
    candidate_ids,
    cut_words,
    joined,
    needle_prompts,
    with_needle,
)
from repflow.tasks.needle.table import KINDS
from tests.studies.needle.inputs import needle_tokenizer
from tests.tasks.word_tokenizer import word_tokenizer

PAPER = {
    "capital": "The capital of France is Madrid.",
    "inventor": "The telephone was invented by Elon Musk.",
    "planet": "The largest planet in our solar system is Earth.",
    "country": "The country known for the Great Wall is Brazil.",
}


@pytest.fixture(scope="module")
def made():
    sweep = NeedleSweep((128, 256), (0.0, 0.5, 1.0))
    return needle_prompts(made_needles(4, 3), MadeUpProse(3), sweep, [Encoder(needle_tokenizer())])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_kinds_are_sound(kind):
    assert len(kind.values) >= 8
    assert clashing(kind.values) is None
    assert kind.statement.rstrip(".").endswith("{value}")
    for subject, true in kind.facts.items():
        question = kind.question.format(subject=subject)
        assert not stands(true, question)
        assert sum(not stands(value, question) for value in kind.values) >= 8
        assert not any(stands(value, kind.statement.format(subject=subject, value="")) for value in [true])


@pytest.mark.parametrize("name", sorted(PAPER))
def test_the_papers_statements_are_among_ours(name):
    kind = next(kind for kind in KINDS if kind.name == name)
    possible = {
        kind.statement.format(subject=subject, value=value)
        for subject, true in kind.facts.items()
        for value in kind.values
        if value != true
    }
    assert PAPER[name] in possible


def test_needles_are_false_and_differ():
    needles = made_needles(400, 7)
    known = {kind.name: kind for kind in KINDS}
    for needle in needles:
        assert needle.planted != needle.true
        assert len(set(needle.candidates)) == 8
        assert needle.true in known[needle.kind].facts.values()
        assert stands(needle.planted, needle.statement)
        assert not any(stands(word, needle.question) for word in needle.candidates)
    subjects = sum(len(kind.facts) for kind in KINDS)
    assert len({needle.question for needle in needles[:subjects]}) == subjects
    assert len({needle.kind for needle in needles[: len(KINDS)]}) == len(KINDS)
    assert made_needles(5, 7) == needles[:5]
    assert made_needles(5, 8) != needles[:5]


def test_needles_avoid_a_text():
    words = {word for needle in made_needles(6, 0) for word in needle.candidates}
    text = " ".join(sorted(words)[:10])
    assert all(told_in(needle, text) is None for needle in made_needles(6, 0, avoid=text))
    every = " ".join(value for kind in KINDS for value in kind.values)
    with pytest.raises(InputError, match="2 needles without a word that occurs in the haystack; got 0"):
        made_needles(2, 0, avoid=every)


def test_made_up_prose_never_tells_an_answer():
    for sample, needle in enumerate(made_needles(20, 0)):
        stream = MadeUpProse(0).sentences(sample, needle)
        text = " ".join(next(stream).text for _ in range(200))
        assert told_in(needle, text) is None


def test_documents_have_the_length_asked_for(made):
    lengths = np.array(made.prompts.lengths[:24]).reshape(2, 3, 4)
    for row, length in zip(lengths, (128, 256), strict=True):
        assert (row <= length).all()
        assert (row > length - 6).all()


def test_every_prompt_holds_its_needle_once_and_the_rest_is_the_same(made):
    for place, where in enumerate(np.ndindex(2, 3, 4)):
        needle, text = made.needles[where[2]], made.prompts[place].text
        bare = made.prompts[24 + 4 * where[0] + where[2]].text
        assert text.count(needle.statement) == 1
        assert needle.statement not in bare
        document = text.partition("\n\n")[0]
        assert document.replace(needle.statement, "").split() == bare.partition("\n\n")[0].split()
        assert text.endswith(f"\n\n{INSTRUCTION}\nQuestion: {needle.question}\nAnswer:")
        assert not any(stands(word, bare.partition("\n\n")[0]) for word in needle.candidates)
        assert made.prompts[place].answers == (needle.planted,)


def test_depth_is_where_the_needle_stands(made):
    assert (made.depth[:, 0] == 0).all()
    assert (made.depth[:, 2] == 1).all()
    assert np.abs(made.depth[:, 1] - 0.5).max() < 0.2
    encoder = Encoder(needle_tokenizer())
    for place, where in enumerate(np.ndindex(2, 3, 4)):
        document = made.prompts[place].text.partition("\n\n")[0]
        before, _, after = document.partition(made.needles[where[2]].statement)
        sizes = [len(encoder.text_ids(part.strip())) for part in (before, after)]
        assert made.depth[where] == pytest.approx(sizes[0] / sum(sizes))


def test_longer_documents_begin_like_shorter_ones(made):
    for sample in range(4):
        short, long = (made.prompts[24 + 4 * row + sample].text.partition("\n\n")[0] for row in (0, 1))
        assert long.startswith(short.rpartition(" ")[0])


def test_candidates_are_written_as_they_follow_the_prompt(made):
    tokenizer = needle_tokenizer()
    for sample, needle in enumerate(made.needles):
        prompt = made.prompts[sample]
        for word, ids in zip(needle.candidates, made.candidates[sample], strict=True):
            assert tokenizer.decode(ids) == f" {word}"
            assert tokenizer(f"{prompt.text} {word}")["input_ids"] == [*prompt.ids, *ids]


def test_no_blank_before_an_answer_where_the_prompt_ends_with_one():
    needle = made_needles(1, 0)[0]
    ids = candidate_ids(Encoder(needle_tokenizer()), "<|assistant|>\n", needle)
    assert needle_tokenizer().decode(ids[0]) == needle.planted


def test_several_tokenizers_get_the_same_text_within_their_lengths():
    wide, narrow = Encoder(needle_tokenizer()), Encoder(_letters())
    needles, sweep = made_needles(2, 0), NeedleSweep((700,), (0.0, 1.0))
    one, other = (needle_prompts(needles, MadeUpProse(0), sweep, pair) for pair in ([wide, narrow], [narrow, wide]))
    assert [prompt.text for prompt in one.prompts] == [prompt.text for prompt in other.prompts]
    assert max(other.prompts.lengths) <= 700
    assert max(one.prompts.lengths) < 400


def _letters():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    signs = {sign: place for place, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=signs, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_words_that_the_tokenizer_does_not_know():
    with pytest.raises(InputError, match=r"a tokenizer that distinguishes the candidates; got '.*' written like '.*'"):
        candidate_ids(Encoder(word_tokenizer()), "a b c", made_needles(1, 0)[0])


def test_needle_places():
    sentences = split_sentences("One is here. Two is there.\n\nThree is not. Four is.")
    assert with_needle(sentences, "X is Y.", 0.0)[0].startswith("X is Y. One is here.")
    assert with_needle(sentences, "X is Y.", 1.0)[0].endswith("Four is. X is Y.")
    text, begin = with_needle(sentences, "X is Y.", 0.55)
    assert text == "One is here. Two is there. X is Y.\nThree is not. Four is."
    assert text[begin:].startswith("X is Y.")
    assert joined(cut_words(sentences, 100)) == "One is here. Two is there.\nThree is not. Four is."
    assert cut_words(sentences, 0) == []


def test_files_are_read_around(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("One. Two. Three. Four.")
    prose = FileProse([file], 2)
    needle = made_needles(1, 0)[0]
    assert [s.text for s in prose.sentences(1, needle)] == ["Three.", "Four.", "One.", "Two."]
    prose.check([needle])
    file.write_text(f"One. {needle.true}!")
    with pytest.raises(InputError, match=rf"got '{needle.true}' of the needle .* in .*a.txt; pass other text"):
        FileProse([file], 1).check([needle])


LINE = {"statement": "Grass is purple.", "question": "What is grass?", "planted": "purple", "true": "green"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({**LINE, "others": ["red"], "planted": "blue"}, "line 1: expected a statement that contains its planted word"),
        ({**LINE, "others": ["grass"]}, "line 1: expected a question without a candidate in it; got 'grass'"),
        ({**LINE, "others": ["greenish"]}, "that do not begin another; got 'green' and 'greenish'"),
        ({**LINE, "others": []}, "line 1: expected a string or a list of strings in 'others'"),
        ({"statement": "Grass is purple."}, "line 1: expected an object with a string 'question'"),
    ],
)
def test_own_needles_are_checked(line, message, tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps(line))
    with pytest.raises(InputError, match=message):
        file_needles(file)
