"""The same text for two tokenizers: which tokens have read the same characters."""

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from repflow.core.errors import InputError
from repflow.studies.compare.study import compare
from repflow.studies.engine.matching import cut_piece, encode_spans, file_pieces, match_ends, pair_prompts, text_pieces
from repflow.tasks import Encoder, file_prompts
from tests.studies.compare.inputs import TEXTS, bytes_tokenizer, characters_tokenizer, model, words_tokenizer


def pair(tokenizer_a, tokenizer_b, texts=TEXTS, length=None):
    a, b = Encoder(tokenizer_a), Encoder(tokenizer_b)
    return pair_prompts(text_pieces(texts, a, length=length), a, b, task="text")


@pytest.mark.parametrize("trim", [True, False])
def test_matched_tokens_have_read_the_same_text(trim):
    """Decoding the bytes, and counting the words, says the same as the spans."""
    tokenizer = bytes_tokenizer(trim=trim)
    paired = pair(tokenizer, words_tokenizer())
    split = words_tokenizer().backend_tokenizer.pre_tokenizer.pre_tokenize_str
    for prompt, (rows_a, rows_b), text in zip(paired.a, paired.rows, TEXTS, strict=True):
        words = [span for _, span in split(text)]
        assert len(rows_a)
        for i, j in zip(rows_a, rows_b, strict=True):
            assert tokenizer.decode(prompt.ids[: i + 1]) == text[: words[j][1]]
    assert paired.by == ("character",) * 3


def test_every_word_boundary_is_matched():
    paired = pair(bytes_tokenizer(), words_tokenizer())
    for sample in (0, 2):  # words apart by spaces: each ends with a byte-level token
        assert paired.rows[sample][1].tolist() == list(range(paired.b.lengths[sample]))
    assert paired.kept_share[0] == paired.b.lengths[0] / paired.a.lengths[0]


def test_last_token_of_a_character_of_several_bytes():
    ids, spans = encode_spans(bytes_tokenizer(), "🙂 a")
    assert [end for _, end in spans] == [1, 1, 1, 1, 2, 3] or [end for _, end in spans] == [1, 1, 1, 1, 3]
    paired = pair(bytes_tokenizer(), words_tokenizer(), ["🙂 a"])
    assert paired.rows[0][0].tolist() == [3, len(ids) - 1]
    assert paired.rows[0][1].tolist() == [0, 1]


def test_equal_tokenizers_match_token_by_token():
    again = PreTrainedTokenizerFast(tokenizer_object=bytes_tokenizer().backend_tokenizer)
    paired = pair(bytes_tokenizer(), again, length=20)
    assert paired.by == ("token",) * 3
    assert paired.kept_share.tolist() == [1.0] * 3
    assert [p.ids for p in paired.a] == [p.ids for p in paired.b]


def test_equal_ids_of_other_tokens_do_not_match_by_token():
    """Ids 0 and 1 in both, but "x" ends at 1 and "x " at 2: the spans decide."""

    def fixed(vocabulary, splitter):
        tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="y"))
        tokenizer.pre_tokenizer = splitter
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer)

    a = fixed({"x": 0, "y": 1}, pre_tokenizers.Whitespace())
    b = fixed({"x ": 0, "y": 1}, pre_tokenizers.Split(Regex(r"\S\s?"), "isolated"))
    assert encode_spans(a, "x y")[0] == encode_spans(b, "x y")[0] == [0, 1]
    paired = pair(a, b, ["x y"])
    assert paired.by == ("character",)
    assert [rows.tolist() for rows in paired.rows[0]] == [[1], [1]]


@pytest.mark.parametrize(("bos_a", "bos_b", "both"), [(True, True, True), (True, False, False), (False, True, False)])
def test_bos_is_matched_with_bos_alone(bos_a, bos_b, both):
    paired = pair(bytes_tokenizer(bos_a), words_tokenizer(bos_b))
    plain = pair(bytes_tokenizer(), words_tokenizer())
    for (rows_a, rows_b), (own_a, own_b) in zip(paired.rows, plain.rows, strict=True):
        assert ((rows_a[0], rows_b[0]) == (0, 0)) is both
        np.testing.assert_array_equal(rows_a[both:], own_a + bos_a)
        np.testing.assert_array_equal(rows_b[both:], own_b + bos_b)


def test_bos_alone_differs_between_equal_tokenizers():
    paired = pair(bytes_tokenizer(True), bytes_tokenizer())
    assert paired.by == ("token",) * 3
    rows_a, rows_b = paired.rows[0]
    np.testing.assert_array_equal(rows_a, np.arange(1, paired.a.lengths[0]))
    np.testing.assert_array_equal(rows_b, np.arange(paired.b.lengths[0]))


def test_windows_are_those_of_measure(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(" ".join(TEXTS * 3), encoding="utf-8")
    encoder = Encoder(bytes_tokenizer())
    pieces = file_pieces([file], encoder, length=17, samples=6)
    prompts = file_prompts([file], encoder, length=17, samples=6)
    assert [piece.ids for piece in pieces] == [prompt.ids for prompt in prompts]
    for piece in pieces:
        assert piece.text in " ".join(TEXTS * 3)
        assert piece.text in encoder.tokenizer.decode(piece.ids)


def test_window_that_cuts_a_character():
    """Bytes of a character that lies partly outside stand for nothing the other model reads."""
    text = "ab🙂cd"
    ids, spans = encode_spans(characters := bytes_tokenizer(), text)
    first = next(i for i, (start, _) in enumerate(spans) if start == 2)
    piece = cut_piece(text, ids, spans, 0, first + 2)  # two bytes of four
    assert piece.text == "ab"
    piece = cut_piece(text, ids, spans, first + 2, len(ids))
    assert piece.text == "cd"
    assert [end for end in piece.ends if end > 0] == [e - 3 for _, e in spans[first + 4 :]]
    assert match_ends(piece.ends, [1, 2], 2)[-1] == (len(piece.ids) - 1, 1)
    assert characters.decode(piece.ids[2:]) == "cd"


def test_refused_under_half():
    a, b = model("gpt2", characters_tokenizer), model("mamba", words_tokenizer)
    expected = len(TEXTS[0].split()) / len(TEXTS[0])
    with pytest.raises(InputError, match=rf"at least 50% of the tokens .*; got {expected:.1%} in sample 0"):
        compare(a, b, TEXTS[:1])
    with pytest.raises(InputError, match="at least 50%"):
        compare(b, a, TEXTS[:1])


def test_random_ids_need_one_vocabulary():
    a, b = model("gpt2", bytes_tokenizer), model("mamba", words_tokenizer)
    with pytest.raises(InputError, match=r"same vocabulary.*task='text'"):
        compare(a, b, "random", length=16)
    with pytest.raises(InputError, match="same vocabulary"):
        compare(a, b, [[1, 2, 3, 4, 5]])


def test_no_tokenizer_for_text():
    with pytest.raises(InputError, match="tokenizer for text"):
        compare(model("gpt2", bytes_tokenizer), model("mamba"), TEXTS)
