"""`repflow dynamics` and `repflow reproduce dynamics-fig*` through the command line."""

import json

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from repflow.core.recipes import NAMES
from repflow.core.results import Result
from repflow.dynamics.figures import FIGURES
from repflow.report.draw.dynamics import dynamics_figure
from repflow.report.terminal.dynamics import apply_view, figure_view
from repflow.store import load_result
from repflow.studies.dynamics.paths import times
from repflow.studies.reproduce.dynamics import run as run_figure


@pytest.fixture
def cli(tmp_path, monkeypatch):
    from repflow.cli.main import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])


def lines_of(result):
    return {line["quantity"]: line for line in result.provenance["lines"]}


def test_recipes_are_the_figures():
    """Those that are simulated; the token laboratory's are trained."""
    assert list(FIGURES) == [name for name in NAMES if name in FIGURES and name.startswith("dynamics")]


def test_simulate_prints_stores_and_draws(cli, tmp_path):
    done = cli("dynamics", "simulate", "--x0", "0.5,1.5", "--mu", 1, "--s-delta", 1, "--a", 1, "--name", "two")
    assert done.exit_code == 0, done.stderr
    assert "fast-divergence (Theorem 4.4)" in done.stdout
    assert "t = 0.0919059677692" in done.stdout
    stored = load_result(tmp_path / "runs/two")
    assert stored["tokens"].shape[1] == 2
    assert stored["attention"].shape[1:] == (2, 2)
    plotted = (tmp_path / "runs/two.html").read_text(encoding="utf-8").rpartition("Plotly.newPlot(")[2]
    traces = json.JSONDecoder().raw_decode(plotted[plotted.index("[") :])[0]  # plotly.js before it has every word
    assert [(trace["type"], trace.get("name")) for trace in traces] == [
        *(("scatter", f"x_{token}") for token in (1, 2)),
        ("heatmap", None),
    ]
    again = cli("dynamics", "simulate", "--x0", "0.5,1.5", "--mu", 1, "--s-delta", 1, "--a", 1, "--name", "two")
    assert again.exit_code == 0
    assert cli("verify", "runs/two").exit_code == 0


def test_simulate_json_in_two_dimensions(cli, tmp_path):
    request = ["--x0", "0.1,1;0.15,1.5", "--mu", "1,0;0,-1", "--s-delta", "0,0;0,0", "--until", "1e6", "--no-picture"]
    done = cli("dynamics", "simulate", *request, "--json")
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["picture"] is None
    assert content["provenance"]["classification"]["evidence"]["outcomes"] == ["to zero", "to zero"]
    assert content["metrics"]["tokens"]["axes"] == ["time", "token", "dim"]
    assert not list((tmp_path / "runs").glob("*.html"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--x0", "1,0", "--mu", "1", "--s-delta", "1"], "x_l(0) ≠ 0"),
        (["--x0", "1,2", "--mu", "1", "--s-delta", "1", "--a", "-1"], "a > 0"),
        (["--x0", "one", "--mu", "1", "--s-delta", "1"], "numbers in --x0"),
        (["--x0", "1,2;3", "--mu", "1", "--s-delta", "1"], "rows of one length"),
        (["--x0", "1,2;3,4", "--mu", "1,2;3,4", "--s-delta", "1"], "s_delta"),
        (["--x0", "1", "--mu", "1", "--s-delta", "1", "--until", "-1"], "--until"),
        (["--x0", "1", "--mu", "1", "--s-delta", "1", "--points", "1"], "--points"),
        (["--mu", "1", "--s-delta", "1"], "--x0"),
    ],
)
def test_wrong_simulations_leave_nothing(cli, tmp_path, args, words):
    done = cli("dynamics", "simulate", *args)
    assert done.exit_code == 2
    assert words in done.stderr
    assert not (tmp_path / "runs").exists()


def test_negative_decay_as_printed(cli):
    request = ["--x0", "-1.79,-0.34", "--mu", "-1.58", "--s-delta", "-0.17", "--a", "-1.08", "--until", "1"]
    done = cli("dynamics", "simulate", *request, "--paper-sign", "--json")
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["metrics"]["tokens"]["values"][-1][1] == pytest.approx(-0.032708, abs=5e-7)
    assert [finding["code"] for finding in content["findings"]] == ["paper_sign"]


def test_figure_3(cli, tmp_path):
    done = cli("reproduce", "dynamics-fig3")
    assert done.exit_code == 0, done.stderr
    assert "loose" in done.stdout
    assert "8 statements: 8 hold, 0 do not hold, 0 open" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 110
    lines = lines_of(load_result(tmp_path / "runs/dynamics-fig3"))
    assert lines["√t |x_1|, t = 1e12"]["measured"] == pytest.approx(0.675684, abs=2e-6)
    assert lines["slope of x_4, a = -1.08"]["measured"] == pytest.approx(-4.7240, abs=1e-4)
    assert (tmp_path / "runs/dynamics-fig3.html").stat().st_size > 1e6


def test_figure_4_says_loose_and_not_met():
    result = run_figure("dynamics-fig4")
    lines = lines_of(result)
    assert lines["max S_Δ x_l(0)"]["verdict"].startswith("open: (12) not met")
    assert lines["x_10 / x_1, t = 1e200"]["verdict"].startswith("holds, loose")
    assert lines["x_1 / ln t, t = 1e200"]["measured"] == pytest.approx(1.469, abs=5e-4)
    assert set(result.provenance["panels"]) == {"slow-divergence", "slow-divergence as printed"}


def test_figure_5_json(cli):
    done = cli("reproduce", "dynamics-fig5", "--json")
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    by_quantity = {line["quantity"]: line for line in content["provenance"]["lines"]}
    assert f"{by_quantity['blow-up time T']['measured']:.12f}" == "0.497240909911"
    assert by_quantity["P_6,5 close to T"]["measured"] == 0
    assert by_quantity["P_6,5 close to T"]["verdict"].startswith("does not hold")
    assert content["picture"].endswith("dynamics-fig5.html")


def test_figure_6_tells_what_each_token_does():
    result = run_figure("dynamics-fig6")
    lines = lines_of(result)
    assert lines["mixed: ‖x_1‖, t = 1e6"]["verdict"] == "does not hold: settles"
    assert lines["mixed: norm 1000 of x_4, t"]["measured"] == pytest.approx(0.10664, abs=5e-6)
    assert lines["positive: blow-up of x_3, t"]["measured"] == pytest.approx(0.112517, abs=5e-7)
    assert all(line["verdict"] == "holds" for line in result.provenance["lines"] if "eigenvalue" in line["quantity"])
    figure = dynamics_figure(result)
    assert len(figure.data) == 3 * (4 + 1)
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    for part in figure_view(result):
        console.print(part)
    assert "0.112517" in console.export_text()


def test_reproduce_takes_no_models_for_them(cli):
    done = cli("reproduce", "dynamics-fig3", "--scale", "paper")
    assert done.exit_code == 2
    assert "expected dynamics-fig3 without --scale; got paper; leave --scale out" in done.stderr
    assert "no model" in done.stderr
    assert cli("reproduce", "dynamics-fig3", "--dry-run").exit_code == 0
    assert "dynamics-fig6" in cli("reproduce", "dynamics-fig9").stderr


def test_repair_computes_a_run_anew(cli, tmp_path):
    assert cli("reproduce", "dynamics-fig5").exit_code == 0
    stored = next((tmp_path / "runs/dynamics-fig5").glob("result*"))
    data = bytearray(stored.read_bytes())
    data[len(data) // 2] ^= 1
    stored.write_bytes(bytes(data))
    assert cli("verify", "runs/dynamics-fig5").exit_code == 1
    done = cli("verify", "--repair", "runs/dynamics-fig5")
    assert done.exit_code == 0, done.stderr + done.stdout
    assert load_result(tmp_path / "runs/dynamics-fig5").provenance["lines"]


def test_apply_command(cli, tmp_path):
    import torch
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    small = MambaConfig(hidden_size=16, num_hidden_layers=3, vocab_size=50, state_size=4)
    MambaForCausalLM(small).save_pretrained(tmp_path / "tiny")
    done = cli("dynamics", "apply", "tiny", "--samples", 2, "--length", 8)
    assert done.exit_code == 0, done.stderr
    assert "x'Mx" in done.stdout.replace("\n", " ")
    assert "prediction" in done.stdout
    content = json.loads(cli("dynamics", "apply", "tiny", "--samples", 2, "--length", 8, "--json").stdout)
    assert content["metrics"]["form_positive"]["shape"] == [3, 2]
    assert cli("dynamics", "apply", "tiny", "--samples", 0).exit_code == 2
    assert cli("dynamics", "apply", "nowhere").exit_code == 2


def test_apply_table_says_where_norms_are_needed():
    arrays = {name: np.array([1, 2]) for name in ("negative", "zero", "positive", "lowest", "highest")}
    arrays["form_positive"] = np.array([[0.5], [0.25]])
    arrays["token_norm"] = np.array([[1.0], [2.0], [3.0]])
    arrays["token_norm_without_norms"] = np.full((3, 1), np.nan)
    axes = {name: ("ssm_layer", "sample")[: array.ndim] for name, array in arrays.items()}
    facts = {"ssm_layers": [0, 1], "model": {"name": "m", "type": "mamba", "layers": 2}}
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    for part in apply_view(Result(arrays, axes, {"task": "random"}, facts)):
        console.print(part)
    text = console.export_text()
    assert "25 %" in text
    first = [words.split()[0] for words in text.splitlines() if " %" in words]
    assert first == ["1", "2"]
    assert "–" in text


def test_times_end_before_an_end():
    moments = times(5.0, 50, end=2.0)
    assert moments[0] == 0
    assert 0 < 2.0 - moments[-1] < 1e-8
    assert (np.diff(moments) > 0).all()
