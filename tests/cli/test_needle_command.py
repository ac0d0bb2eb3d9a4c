"""`repflow needle` and `repflow reproduce recency-fig2` through the command line."""

import json

import pytest

from tests.studies.needle.inputs import needle_network, needle_tokenizer

SMALL = ("--lengths", "128", "--positions", "0,1", "--samples", "2", "--candidates", "3", "--answer-tokens", "2")


@pytest.fixture(scope="module")
def needle_checkpoints(tmp_path_factory):
    """Folders gpt_neox and mamba2 with the tokenizer beside the weights."""
    folder = tmp_path_factory.mktemp("needles")
    for kind in ("gpt_neox", "mamba2"):
        needle_network(kind).save_pretrained(folder / kind)
        needle_tokenizer().save_pretrained(folder / kind)
    return folder


def test_two_models_get_a_heat_map_each_and_stand_side_by_side(cli, needle_checkpoints, tmp_path):
    done = cli("needle", needle_checkpoints / "gpt_neox", needle_checkpoints / "mamba2", *SMALL)
    assert done.code == 0, done.err
    assert done.out.count("Greedy answer holds the planted word") == 2
    assert done.out.count("Log-odds of the planted word") == 2
    assert "Needles side by side" in done.out
    assert "All models read the same token sequences." in done.out
    assert "few_needles" in done.out
    listed = cli("list").out
    assert listed.count("finished") == 2
    assert "6/6" in listed


def test_json_is_one_object_per_model(cli, needle_checkpoints):
    done = cli("needle", needle_checkpoints / "gpt_neox", *SMALL, "--json", "--name", "mine")
    assert done.code == 0, done.err
    content = json.loads(done.out)
    assert content["task"] == "needle"
    assert content["metrics"]["answer_correct"]["axes"] == ["length", "position", "sample"]
    assert content["metrics"]["logprob"]["shape"] == [1, 2, 2, 3]
    again = cli("needle", needle_checkpoints / "gpt_neox", *SMALL, "--json", "--name", "mine")
    assert json.loads(again.out) == content
    assert cli("export", "runs/mine", "--to", "npz").code == 0


def test_other_options_make_another_run(cli, needle_checkpoints, tmp_path):
    asked = ("needle", needle_checkpoints / "gpt_neox", *SMALL)
    for more in ((), ("--seed", "1"), ("--positions", "0,0.5")):
        done = cli(*asked, *more)
        assert done.code == 0, done.err
    names = {folder.name for folder in (tmp_path / "runs").iterdir()}
    assert len(names) == 3
    assert all("-needle-128-" in name for name in names)


def test_a_damaged_run_is_repaired(cli, needle_checkpoints, tmp_path):
    assert cli("needle", needle_checkpoints / "gpt_neox", *SMALL, "--name", "mine").code == 0
    shard = sorted((tmp_path / "runs" / "mine" / "shards").iterdir())[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert cli("verify", "runs/mine").code == 1
    mended = cli("verify", "--repair", "runs/mine")
    assert mended.code == 0, mended.err
    assert "is repaired" in mended.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--lengths", "20"), "a haystack longer than its needle"),
        (("--lengths", "900"), "pass --lengths up to"),
        (("--positions", "2"), "--positions from 0 to 1"),
        (("--haystack", "missing.txt"), "cannot read missing.txt"),
        (("--candidates", "1"), "--candidates"),
        (("--lengths", "128,999999999999"), "at most 1,000,000,000 tokens in all prompts"),
        (("--lengths", "9000000", "--samples", "1"), "got 9000000 tokens; pass --lengths up to"),
        (("--lengths", "128", "--answer-tokens", "9000"), "got 128 tokens; pass fewer --answer-tokens"),
        (("--haystack", "."), "cannot read .: a folder"),
    ],
)
def test_wrong_requests_leave_nothing(cli, needle_checkpoints, tmp_path, options, message):
    done = cli("needle", needle_checkpoints / "gpt_neox", *options)
    assert done.code == 2
    assert message in done.err
    assert not list((tmp_path / "runs").iterdir() if (tmp_path / "runs").exists() else [])


def test_an_answer_in_the_haystack_is_refused(cli, needle_checkpoints, tmp_path):
    words = " ".join(f"Stone {number} lies still." for number in range(100))
    (tmp_path / "told.txt").write_text(f"{words} Someone went to Peru. {words}")
    done = cli("needle", needle_checkpoints / "gpt_neox", *SMALL, "--haystack", "told.txt")
    assert done.code == 2
    assert "expected a haystack without the answer and its rivals; got 'Peru'" in done.err
    done = cli("needle", needle_checkpoints / "gpt_neox", *SMALL, "--haystack", "told.txt", "--skip-told")
    assert done.code == 0, done.err


def test_figure_2_with_models_of_ones_own(cli, needle_checkpoints, tmp_path):
    models = [f"Mamba-Codestral-7B={needle_checkpoints / 'mamba2'}", f"Mistral-7B={needle_checkpoints / 'gpt_neox'}"]
    asked = ("reproduce", "recency-fig2", "--samples", "2", "--length", "128")
    named = [part for model in models for part in ("--model", model)]
    plan = cli(*asked, *named, "--dry-run")
    assert plan.code == 0
    assert "Mistral-7B" in plan.out
    assert not (tmp_path / "runs").exists()
    done = cli(*asked, *named, "--json", "--name", "figure")
    assert done.code == 0, done.err
    content = json.loads(done.out)
    assert [line["holds"] for line in content["provenance"]["lines"]] == [None, None, None]
    assert content["metrics"]["Mistral-7B/answer_correct"]["shape"] == [1, 3, 2]
    assert content["config"]["recipe"] == "recency-fig2"
    wrong = cli(*asked, *named, "--task", "kvpr")
    assert wrong.code == 2
    assert "recency-fig2 without --task; got kvpr" in wrong.err
