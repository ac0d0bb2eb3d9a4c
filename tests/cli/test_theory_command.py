"""`repflow theory verify` and `theory apply` through the command line: tables that fit, JSON, exit codes."""

import json

import pytest


@pytest.mark.parametrize("width", [80, 110])
def test_verify_prints_a_table_that_fits(cli, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    done = cli("theory", "verify", "--samples", 2000)
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= width
    flat = " ".join(done.out.split())
    for word in ("statement", "printed", "corrected", "simulation", "gap", "verdict"):
        assert word in flat
    assert "Theorems 5 and 6 say that a Transformer has the larger St" in flat
    assert "wrote runs/theory-verify-2000" in flat


def test_verify_as_json_and_again_from_the_store(cli):
    first = cli("theory", "verify", "--samples", 2000, "--json")
    content = json.loads(first.out)
    assert content["run"] == "runs/theory-verify-2000"
    assert {"statement", "printed", "corrected", "simulation", "gap", "verdict"} <= set(
        content["provenance"]["checks"][0]
    )
    assert cli("theory", "verify", "--samples", 2000, "--json").out == first.out
    assert "theory-verify-2000" in cli("list", "runs").out
    assert cli("verify", "runs/theory-verify-2000").code == 0


def test_a_damaged_run_is_computed_again(cli, checkpoints, tmp_path):
    assert cli("theory", "verify", "--samples", 1000, "--name", "v").code == 0
    assert cli("theory", "apply", checkpoints / "mamba2", "--length", 6, "--samples", 2, "--name", "a").code == 0
    for name in ("v", "a"):
        file = tmp_path / "runs" / name / "result.safetensors"
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert cli("verify", f"runs/{name}").code == 1
        assert cli("verify", "--repair", f"runs/{name}").code == 0
        assert file.read_bytes() == whole


def test_verify_fails_where_a_form_is_wrong(cli, monkeypatch):
    from repflow.theory.simulate import FORMS

    right = FORMS["transformer_trace"]
    monkeypatch.setitem(FORMS, "transformer_trace", lambda *a, **k: 1.5 * right(*a, **k))
    done = cli("theory", "verify", "--samples", 2000)
    assert done.code == 1
    assert "fails" in done.out


@pytest.mark.parametrize("kind", ["gpt_neox", "mamba2"])
def test_apply_prints_the_linearisation_error_first(cli, checkpoints, monkeypatch, kind):
    monkeypatch.setenv("COLUMNS", "80")
    done = cli("theory", "apply", checkpoints / kind, "--length", 8, "--samples", 2)
    assert done.code == 0, done.err
    # the folder's own name may be longer
    assert max(len(line) for line in done.out.splitlines() if not line.startswith("wrote ")) <= 80
    text = " ".join(done.out.split())
    assert text.index("linearisation error") < text.index("block") < text.index("hypotheses not met:")
    assert "no ordering of architectures follows" in text
    assert "St_L² of the stack" in text
    assert ("single-head reading" in text) is (kind == "gpt_neox")
    assert ("Theorem 5's bound is" in text) is (kind == "mamba2")


def test_apply_as_json(cli, checkpoints):
    done = cli("theory", "apply", checkpoints / "mamba2", "--length", 8, "--samples", 2, "--json", "--name", "mine")
    content = json.loads(done.out)
    assert content["run"] == "runs/mine"
    assert content["metrics"]["constants/rho"]["axes"] == ["layer"]
    assert {"layer", "block", "name", "holds", "found"} == set(content["provenance"]["hypotheses"][0])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["verify", "--samples", "5"], "--samples of at least 1000"),
        (["apply", "nowhere"], "nowhere"),
        (["apply", "nowhere", "--length", "1"], "at least 1 prompt of 2 tokens"),
    ],
)
def test_wrong_requests_end_with_2_and_leave_nothing(cli, tmp_path, args, message):
    done = cli("theory", *args)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "runs").exists()


def test_unreadable_architecture(cli, tmp_path):
    from tests.models.tiny_configs import save_tiny

    save_tiny("llama", tmp_path / "llama")
    done = cli("theory", "apply", tmp_path / "llama")
    assert done.code == 2
    assert "can be read in" in done.err
    assert not (tmp_path / "runs").exists()
