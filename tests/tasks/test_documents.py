"""Documents of files and folders, their split, and what is refused."""

import gzip
import json
import lzma

import pytest

from repflow.core.errors import InputError
from repflow.tasks.documents import Document, read_documents, read_labelled, split_documents, split_off


def texts(documents):
    return [document.text for document in documents]


@pytest.mark.parametrize("pack", [None, "gz", "xz"])
def test_files_of_every_form(tmp_path, pack):
    def write(name, text):
        data = text.encode()
        if pack:
            data, name = {"gz": gzip, "xz": lzma}[pack].compress(data), f"{name}.{pack}"
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    assert texts(read_documents(write("a.txt", "one\n<|endoftext|>\n\n<|endoftext|>\ntwo"))) == ["one\n", "two"]
    assert texts(read_documents(write("b.log", "any name\nwill do"))) == ["any name\nwill do"]
    lines = [json.dumps({"text": "x y"}), "", json.dumps({"text": "z", "label": 1}), json.dumps({"text": " "})]
    documents = read_documents(write("c.jsonl", "\n".join(lines)))
    assert texts(documents) == ["x y", "z"]
    assert [document.label for document in documents] == [None, "1"]
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "d.md").write_text("last")
    assert texts(read_documents(tmp_path)) == ["one\n", "two", "x y", "z", "last"]  # b.log only by its name


def test_articles_of_wikitext():
    text = " \n = First = \n\n some words \n\n = = part = = \n\n more \n \n = Second ( x ) = \n\n words = more \n"
    parts = split_documents(text)
    assert [part.splitlines()[0].strip() for part in parts] == ["= First =", "= Second ( x ) ="]
    assert "".join(parts) == text[2:]


def test_a_folder_of_wikitext_is_read_by_its_own_names(tmp_path):
    for name in ("wiki.train.tokens", "wiki.test.tokens", "wiki.valid.raw"):
        (tmp_path / name).write_text(f" \n = Of {name} = \n \n words \n \n = Second = \n \n words of {name} \n")
    assert len(read_documents(tmp_path)) == 6


def test_a_split_is_by_words_and_copies_stay_together():
    documents = read_documents("english")
    train, held = split_off(documents, 0.3, seed=4)
    assert (len(train), len(held)) == (34, 14)
    again = split_off([*documents[::-1], *documents], 0.3, seed=4)
    assert set(texts(again[1])) == set(texts(held))
    assert not set(texts(again[0])) & set(texts(again[1]))
    assert set(texts(split_off(documents, 0.3, seed=5)[1])) != set(texts(held))


def test_of_a_plain_file_the_end_is_held_out(tmp_path):
    lines = [f"line {number} of a plain file\n" for number in range(200)]
    (tmp_path / "plain.txt").write_text("".join(lines))
    train, held = split_off(read_documents(tmp_path / "plain.txt"), 0.1)
    assert (len(train), len(held)) == (1, 1)
    assert train[0].text + held[0].text == "".join(lines)
    assert held[0].text.splitlines(keepends=True) == lines[-len(held[0].text.splitlines()) :]  # whole lines
    assert 0.1 <= len(held[0].text) / len("".join(lines)) < 0.11
    assert held[0].where.endswith("document 1, its end")


@pytest.mark.parametrize("text", ["many words " * 100, "a heading\n" + "many words " * 100], ids=["none", "long"])
def test_a_text_without_short_lines_is_cut_at_a_blank(text):
    (train,), (held,) = split_off([Document(text, "plain.txt")], 0.1)
    assert train.text + held.text == text
    assert train.text[-1] == " "
    assert 0.1 <= len(held.text) / len(text) < 0.11


def test_of_too_few_documents_copies_lose_the_same_end():
    long = Document("one line\n" * 30, "long")
    documents = [Document("a short one", "short"), long, Document(long.text, "copy")]
    train, held = split_off(documents, 0.1)
    assert texts(train) == ["a short one", "one line\n" * 26, "one line\n" * 26]
    assert texts(held) == ["one line\n" * 4]


def test_labelled_texts_of_lines_and_of_folders(tmp_path):
    file = tmp_path / "all.jsonl"
    file.write_text("\n".join(json.dumps({"text": f"{word} {n}", "label": word}) for word in "ab" for n in range(2)))
    for word in "ab":
        (tmp_path / "tree" / word).mkdir(parents=True)
        for n in range(2):
            (tmp_path / "tree" / word / f"{n}.txt").write_text(f"{word} {n}")
    said = [("a 0", "a"), ("a 1", "a"), ("b 0", "b"), ("b 1", "b")]
    for place in (file, tmp_path / "tree"):
        assert [(document.text, document.label) for document in read_labelled(place)] == said


BAD = {
    "nothing there": ("missing.txt", None, "does not exist"),
    "no words": ("empty.txt", "\n \n", "an empty file"),
    "half a line": ("a.jsonl", '{"text": "x"', "line 1: not a JSON object"),
    "no text": ("a.jsonl", '{"words": "x"}', "a string 'text'"),
    "label": ("a.jsonl", '{"text": "x", "label": [1]}', "whole number 'label'"),
    "bytes": ("a.txt", b"\xff\xfe\x00x", "UTF-8"),
    "xz": ("a.txt.xz", b"no archive", "compressed text"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_files_are_refused(tmp_path, case):
    name, content, words = BAD[case]
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=words):
        read_documents(tmp_path / name)


def test_folders_without_text_and_texts_without_labels(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(InputError, match=r"\.raw, also with \.gz"):
        read_documents(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": "p"}\n{"text": "y"}')
    with pytest.raises(InputError, match=r"none at .*line 2"):
        read_labelled(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": "p"}\n{"text": "y", "label": "p"}')
    with pytest.raises(InputError, match="at least two classes"):
        read_labelled(tmp_path / "a.jsonl")
    with pytest.raises(InputError, match=r"hold out 0\.5 of the text; got documents: 1, words of the longest: 1"):
        split_off(read_documents(tmp_path / "a.jsonl")[:1], 0.5)
    with pytest.raises(InputError, match="between 0 and 1"):
        split_off(read_documents("english"), 1.0)
