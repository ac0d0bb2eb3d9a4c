"""Words of regions and replacements."""

import pytest

from repflow.core.errors import InputError
from repflow.spec.corruption import (
    PAPER,
    TEXT,
    Region,
    check_regions,
    check_replacements,
    parse_region,
    parse_regions,
    scaled_region,
)

LONG = "9" * 5000


@pytest.mark.parametrize(
    ("word", "start", "end"),
    [("992:1024", 992, 1024), (":32", 0, 32), ("-32:", 992, 1024), ("first:10", 0, 10), ("last:10", 1014, 1024),
     ("middle:32", 496, 528), ("middle:31", 496, 527), ("-64:-32", 960, 992)],
)  # fmt: skip
def test_regions(word, start, end):
    assert parse_region(word, 1024) == Region(start, end)


@pytest.mark.parametrize(
    "word", ["1000:1100", "5:5", "9:5", "last:2000", "middle:0", "-2000:", "x", ":", "1", "first:-1"]
)
def test_outside(word):
    with pytest.raises(InputError, match="a region"):
        parse_region(word, 1024)


@pytest.mark.parametrize(
    ("word", "near"),
    [("firts:4", "first:4"), ("window:16", "windows:16"), ("paer", "paper"), ("recency-table2", "recency-table")],
)
def test_the_nearest_region_is_named(word, near):
    with pytest.raises(InputError, match=rf"windows:K, or paper, .*fewer; got '{word}'; did you mean {near}"):
        check_regions([word])


@pytest.mark.parametrize("word", ["-:", "-:-", "0:" + LONG, "first:" + LONG, "windows:" + LONG], ids=list("abcde"))
def test_words_that_are_no_numbers(word):
    """A lone minus stood for nothing at all, and Python refuses numbers of so many digits with an error of its own."""
    with pytest.raises(InputError, match=r"; (write|did you mean) ") as caught:
        check_regions([word])
    assert len(str(caught.value)) < 400


def test_windows_cover_everything_once_and_end_with_the_sequence():
    regions = parse_regions(["windows:10"], 64)
    assert {token for region in regions for token in range(region.start, region.end)} == set(range(64))
    assert regions[-1] == Region(54, 64)
    assert parse_regions(["windows"], 1024) == [Region(start, start + 32) for start in range(0, 1024, 32)]
    assert parse_regions(["windows"], 10) == [Region(token, token + 1) for token in range(10)]
    for size in range(1, 12):
        for tokens in range(size, 40):
            regions = parse_regions([f"windows:{size}"], tokens)
            assert {token for region in regions for token in range(region.start, region.end)} == set(range(tokens))
            assert {len(region) for region in regions} == {size}
            assert len(regions) == -(-tokens // size)
    assert [str(region) for region in parse_regions(["0:4", "first:4", "last:4"], 8)] == ["0:4", "4:8"]
    for words in (["windows:0"], ["windows:x"], [], ["9:3"]):
        with pytest.raises(InputError):
            check_regions(words)
    with pytest.raises(InputError, match="windows of at most 8"):
        parse_regions(["windows:9"], 8)


def test_regions_of_the_paper_scale():
    assert [scaled_region(word, 1024) for word in PAPER["recency-table3"]] == list(PAPER["recency-table3"])
    assert scaled_region("928:1024", 64) == "58:64"
    assert [scaled_region(word, 32) for word in ("0:10", "1014:1024")] == ["0:1", "31:32"]  # one token at least


def test_replacements():
    with pytest.raises(InputError, match="did you mean shuffle"):
        check_replacements(["shufle"], ("normal", "shuffle"))
    with pytest.raises(InputError, match="different replacements"):
        check_replacements(["normal", "normal"], ("normal",))
    with pytest.raises(InputError, match="normal replaces pixels alone"):
        check_replacements(["normal"], TEXT)
