"""`repflow memory` through the command line: tables, JSON, several models, maps, repair, exit codes."""

import json

import pytest

from tests.cli.small_request import SMALL


def test_a_transformer_beside_an_ssm(cli, checkpoints, tmp_path):
    done = cli("memory", checkpoints / "mamba2", checkpoints / "gpt_neox", *SMALL, "--attention")
    assert done.code == 0, done.err
    flat = " ".join(done.out.split())
    for words in ("mamba2: memory by layer", "gpt_neox: memory by layer", "share of units with A_max − A_min",
                  "Sharpness through depth, and memory", "no_transition", "decay_range", "entropy"):  # fmt: skip
        assert words in flat
    first = [cells[0] for words in done.out.splitlines() if len(cells := words.split()) > 2 and cells[1] == "ssd"]
    assert first == ["1", "2", "3", "4"]
    runs = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(runs) == 2
    assert all("random-24-memory-attention-" in name for name in runs)
    again = cli("memory", checkpoints / "mamba2", checkpoints / "gpt_neox", *SMALL, "--attention")
    assert again.out == done.out


@pytest.mark.parametrize("width", [80, 110])
def test_tables_fit(cli, checkpoints, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    done = cli("memory", checkpoints / "mamba2", *SMALL, "--name", "m")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= width


def test_json_and_repair(cli, checkpoints, tmp_path):
    done = cli("memory", checkpoints / "mamba2", *SMALL, "--name", "m", "--json")
    content = json.loads(done.out)
    assert content["run"] == "runs/m"
    assert content["metrics"]["range_cumulative"]["axes"] == ["threshold"]
    assert content["metrics"]["sharpness/state"]["shape"] == [4, 3]
    for name in ("result.safetensors", "shards/batch-000000-3.safetensors"):
        file = tmp_path / "runs" / "m" / name
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert cli("verify", "runs/m").code == 1
        assert cli("verify", "--repair", "runs/m").code == 0
        assert file.read_bytes() == whole


def test_maps(cli, checkpoints):
    done = cli("memory", checkpoints / "mamba2", *SMALL, "--name", "m", "--maps", "0", "--maps", "2")
    assert done.code == 0, done.err
    assert "wrote runs/m\nwrote runs/m-maps" in done.out
    assert "m-maps" in cli("list", "runs").out


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--units", "0"), "--units of at least 1"), (("--length", "2"), "--length of at least 3; got 2"),
     (("--maps", "9"), "a layer from 0 to 3; got 9")],
)  # fmt: skip
def test_wrong_requests(cli, checkpoints, options, message, tmp_path):
    done = cli("memory", checkpoints / "mamba2", *SMALL, *options)
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_figure_six_on_given_models(cli, checkpoints):
    model = f"Mamba-130M={checkpoints / 'mamba2'}"
    done = cli("reproduce", "recency-fig6", "--model", model, "--task", "random", "--length", "24", "--samples", "2")
    assert done.code == 0, done.err
    flat = " ".join(done.out.split())
    assert "over 60 % of channels" in flat
    assert "stand_in" in flat


def test_another_number_of_prompts_is_another_run(cli, checkpoints):
    asked = ("reproduce", "recency-fig6", "--model", f"Mamba-130M={checkpoints / 'mamba2'}", "--task", "random")
    for samples, verdict in ((3, None), (1, "open")):  # the second was refused: its run had the name of the first
        done = cli(*asked, "--length", "24", "--samples", samples, "--json")
        assert done.code == 0, done.err
        (line,) = json.loads(done.out)["provenance"]["lines"]
        assert "nan" not in line["ours"]
        if verdict:
            assert line["holds"] is None
            assert "too few prompts for an interval" in line["ours"]
