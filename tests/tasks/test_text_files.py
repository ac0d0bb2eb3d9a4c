"""The tasks that read files: windows of text, and prompts in JSON lines."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repflow.core.errors import InputError
from repflow.tasks import Encoder, file_prompts, jsonl_prompts
from tests.tasks.word_tokenizer import BOS, WORDS, word_tokenizer

PLAIN = Encoder(word_tokenizer())
ADDING = Encoder(word_tokenizer("<s> $A"))


def numbers(start, stop):
    return " ".join(map(str, range(start, stop)))


@pytest.fixture
def two_files(tmp_path):
    """0..49 and 50..99, one word and so one token each."""
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    files[0].write_text(numbers(0, 50))
    files[1].write_text(numbers(50, 100))
    return files


def words_of(prompts):
    return [[int(token) for token in prompt.tokens if token.isdigit()] for prompt in prompts]


@settings(max_examples=40, deadline=None)
@given(length=st.integers(2, 20), samples=st.integers(1, 6), adds=st.booleans())
def test_windows_are_exact_and_spread_and_stay_in_their_file(tmp_path_factory, length, samples, adds):
    folder = tmp_path_factory.mktemp("text")
    files = [folder / "a.txt", folder / "b.txt"]
    files[0].write_text(numbers(0, 50))
    files[1].write_text(numbers(50, 100))
    encoder = ADDING if adds else PLAIN
    size = length - adds
    in_all = 2 * (50 // size)
    if in_all < samples:
        with pytest.raises(InputError, match=f"text for {samples} windows of {length} tokens; got {in_all}"):
            file_prompts(files, encoder, length=length, samples=samples)
        return
    prompts = file_prompts(files, encoder, length=length, samples=samples)
    assert prompts.task == "text"
    assert prompts.lengths == (length,) * samples
    assert all(prompt.begins == adds and (prompt.ids[0] == BOS) == adds for prompt in prompts)
    rows = words_of(prompts)
    assert all(row == list(range(row[0], row[0] + size)) for row in rows), "whole, in order"
    assert all((row[0] < 50) == (row[-1] < 50) for row in rows), "never across two files"
    starts = [row[0] for row in rows]
    assert starts == sorted(set(starts)), "no window twice"
    places = [start % 50 // size + (start >= 50) * (50 // size) for start in starts]
    gaps = {b - a for a, b in pairwise([*places, in_all])}
    assert max(gaps) - min(gaps) <= 1, "evenly"


def test_windows_are_spread_over_all_files(two_files):
    prompts = file_prompts(two_files, PLAIN, length=10, samples=5)
    assert [row[0] for row in words_of(prompts)] == [0, 20, 40, 60, 80]
    assert prompts[1].text == numbers(20, 30)
    assert prompts[1].ids == tuple(WORDS.index(str(i)) for i in range(20, 30))


def test_a_short_file_is_left_out_and_too_little_text_refused(tmp_path, two_files):
    short = tmp_path / "short.txt"
    short.write_text("1 2 3")
    prompts = file_prompts([short, *two_files], PLAIN, length=10, samples=10)
    assert words_of(prompts)[0][0] == 0
    with pytest.raises(InputError, match=r"text for 11 windows of 10 tokens; got 10 \(longest file: 50 tokens\)"):
        file_prompts([short, *two_files], PLAIN, length=10, samples=11)
    with pytest.raises(InputError, match=r"got 0 \(longest file: 3 tokens\); pass more text, a smaller length"):
        file_prompts([short], PLAIN, length=4, samples=1)
    with pytest.raises(InputError, match="length >= 2"):
        file_prompts(two_files, PLAIN, length=1, samples=1)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff\xfe\x00a", "expected UTF-8 text in .*; convert the file to UTF-8"),
        (b"", "an empty file"),
        (b" \n\t ", "an empty file"),
        (None, "cannot read .*No such file"),
    ],
)
def test_unreadable_text(tmp_path, content, text):
    file = tmp_path / "t.txt"
    if content is not None:
        file.write_bytes(content)
    for read_file in (
        lambda: file_prompts([file], PLAIN, length=4, samples=1),
        lambda: jsonl_prompts(file, PLAIN, length=4, samples=1),
    ):
        with pytest.raises(InputError, match=text):
            read_file()


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        file_prompts([tmp_path], PLAIN, length=4, samples=1)


def test_byte_order_mark_is_not_text(tmp_path):
    file = tmp_path / "t.txt"
    file.write_bytes(b"\xef\xbb\xbfa b c")
    assert file_prompts([file], PLAIN, length=3, samples=1)[0].tokens == ("a", "b", "c")
    lines = tmp_path / "t.jsonl"
    lines.write_bytes(b'\xef\xbb\xbf{"prompt": "a b"}\r\n\r\n{"prompt": "c d", "other": 1}\r\n')
    assert [p.text for p in jsonl_prompts(lines, PLAIN, length=None, samples=None)] == ["a b", "c d"]


def test_json_lines(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": text}) for text in ("a b c", "d e", "f g h i")) + "\n\n")
    prompts = jsonl_prompts(file, ADDING, length=3, samples=None)
    assert prompts.task == "own.jsonl"
    assert prompts.lengths == (3, 3, 3), "cut with the first token counted"
    assert jsonl_prompts(file, PLAIN, length=None, samples=2).lengths == (3, 2)
    assert jsonl_prompts(file, PLAIN, length=512, samples=8).lengths == (3, 2, 4)


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0c", "\x1e"])
def test_a_line_ends_at_a_newline_only(tmp_path, sign):
    """JSON allows U+2028 and its like inside a string as they are."""
    file = tmp_path / "own.jsonl"
    line = json.dumps({"prompt": f"a {sign} b"}, ensure_ascii=False)
    if ord(sign) < 32:
        line = line.replace(json.dumps(sign)[1:-1], " ") + sign  # raw control characters may stand outside strings only
        with pytest.raises(InputError, match="line 1: not a JSON object"):
            jsonl_prompts(_written(file, line), PLAIN, length=None, samples=None)
        return
    assert len(jsonl_prompts(_written(file, line + "\n" + line), PLAIN, length=None, samples=None)) == 2


def _written(file, text):
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{not json", r"own.jsonl, line 2: not a JSON object \("),
        ('["a"]', "line 2: expected an object with a string 'prompt'"),
        ('{"text": "a"}', "line 2: expected an object with a string 'prompt'"),
        ('{"prompt": 7}', "line 2: expected an object with a string 'prompt'; got"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, text):
    file = _written(tmp_path / "own.jsonl", '{"prompt": "a b"}\n' + line + '\n{"prompt": "c"}\n')
    with pytest.raises(InputError, match=text):
        jsonl_prompts(file, PLAIN, length=8, samples=8)


@pytest.mark.parametrize(("length", "samples"), [(1, 3), (-1, 3), (8, 0), (8, -1)])
def test_sizes_of_json_lines(tmp_path, length, samples):
    """A negative size must not count from the end, as a slice would."""
    file = _written(tmp_path / "own.jsonl", '{"prompt": "a b c"}\n')
    with pytest.raises(InputError, match="length >= 2 and samples >= 1"):
        jsonl_prompts(file, PLAIN, length=length, samples=samples)
