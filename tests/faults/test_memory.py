"""Too little memory: known before the run where it can be, else one plain message; nothing stored is lost."""

import json
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import repflow
from repflow.capture import forecast
from repflow.capture.forecast import MemoryWarning, batch_bytes
from repflow.cli.console import complain
from repflow.cli.main import app
from repflow.core.errors import InputError, OutOfMemoryError, command_line, out_of_memory, refusing
from repflow.models import load, room, size
from repflow.store import verify
from tests import warm
from tests.faults.damaged_checkpoints import whole_folder
from tests.models.tiny_configs import tiny_model

IDS = np.arange(64).reshape(4, 16) % 128
CPU = torch.device("cpu")


def limited(limit: str, code: str, cwd: Path) -> SimpleNamespace:
    """Run Python under `ulimit -v`: what it had when the limit came, plus `limit` bytes."""
    begin = "import resource, torch, numpy as np\nimport repflow.models.room as room\n"
    fix = f"most = room._mapped() + {limit}\nresource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
    process = warm.Process(warm.script, begin + fix + code, cwd=cwd)
    out, err = process.communicate()
    return SimpleNamespace(returncode=process.returncode, stdout=out, stderr=err)


def test_the_limit_of_the_shell_counts_and_a_shortage_is_recognised_in_each_library(tmp_path):
    code = """
from repflow.core.errors import out_of_memory
def shortage(work):
    try:
        work()
    except (RuntimeError, MemoryError, OSError) as error:
        return out_of_memory(error)
print(room.total_bytes(torch.device('cpu')) == most, room.free_bytes(torch.device('cpu')))
print([shortage(work) for work in (
    lambda: torch.empty(2**30), lambda: np.empty(2**30), lambda: bytearray(2**30), lambda: 'x' * 2**30,
)])
"""
    limits, shortages = limited("2**26", code, tmp_path).stdout.splitlines()
    equal, free = limits.split()
    assert equal == "True"
    assert 0 < int(free) <= 2**26
    assert shortages == "[True, True, True, True]"


def memory_warnings(model, **options):
    """Result of a measurement, and its warnings that memory may run out."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", MemoryWarning)
        result = repflow.measure(model, IDS.tolist(), **options)
    return result, [str(note.message) for note in notes if note.category is MemoryWarning]


def test_a_warning_names_the_batch_size_that_fits(monkeypatch):
    model = load(tiny_model("llama"))
    one = batch_bytes(model, 1, 16)
    monkeypatch.setattr(forecast, "free_bytes", lambda device: 2 * one)
    whole, (text,) = memory_warnings(model)
    assert re.search(r"4 prompts of 16 tokens take about 1 MiB.*cpu has 1 MiB free; .*batch_size=2", text)
    halved, silent = memory_warnings(model, batch_size=2)
    assert silent == [], "the advice works"
    np.testing.assert_allclose(halved["token_similarity"], whole["token_similarity"], rtol=1e-5)
    monkeypatch.setattr(forecast, "free_bytes", lambda device: one - 1)
    assert "use shorter prompts or dtype='bfloat16'" in memory_warnings(model)[1][0]


def test_enough_memory_is_not_mentioned():
    assert memory_warnings(load(tiny_model("llama")))[1] == []


def test_the_forecast_is_of_the_size_of_what_is_taken():
    """Within a factor of ten of what a pass of a wider model allocates at its peak, as torch's profiler counts."""
    model = load(tiny_model("llama", hidden_size=256, intermediate_size=1024))
    ids = torch.zeros(8, 32, dtype=torch.long)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        model.stream(ids, on_state=lambda state, hidden: None)
    steps = np.cumsum([event.nbytes() for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"])
    peak = steps.max()
    assert peak / 10 < batch_bytes(model, 8, 32) < peak * 10


def test_weights_beyond_the_machine_are_refused_before_they_are_read(tmp_path, monkeypatch):
    folder = whole_folder("llama", tmp_path)
    monkeypatch.setattr(size, "total_bytes", lambda device: 100_000)
    match = r"weights within this machine's memory and swap, 1 MiB; got .* weights.*; pass dtype='bfloat16', device_map"
    with pytest.raises(InputError, match=match):
        load(folder)
    with pytest.raises(InputError, match=match):
        load(folder, init="default")


def test_container_limits_are_read(tmp_path, monkeypatch):
    (tmp_path / "max").write_text("1000000\n")
    (tmp_path / "now").write_text("400000\n")
    monkeypatch.setattr(room, "CGROUPS", ((tmp_path / "max", tmp_path / "now"), (tmp_path / "none", tmp_path / "none")))
    assert (room.total_bytes(CPU), room.free_bytes(CPU)) == (1_000_000, 600_000)
    (tmp_path / "max").write_text("max\n")
    assert room.total_bytes(CPU) > 10**8


def test_a_shortage_while_reading_is_not_called_damage():
    with pytest.raises(OutOfMemoryError, match=r"memory for reading m; got too little memory \(could not create"):  # noqa: SIM117
        with refusing("a model", "m", "download it again"):
            raise RuntimeError("could not create a primitive")


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("std::bad_alloc"), OSError(12, "Cannot allocate memory")]
)
def test_the_command_line_says_what_to_change(error, capsys):
    assert out_of_memory(error)
    with command_line():
        assert complain(error, "gpt2") == 1
    said = capsys.readouterr().err
    assert "MemoryError:" not in said
    assert "smaller --batch-size" in said
    assert "rerun the same command to resume" in said


def test_what_is_stored_survives_a_shortage(tmp_path):
    """A run that ends for lack of memory in its second batch resumes after the first one, with the same numbers."""
    folder, runs = whole_folder("llama", tmp_path / "m"), tmp_path / "runs"
    code = f"""
import sys, repflow.capture.run as run
from repflow.cli.main import app
real, count = run.start_batch, [0]
def short(*args, **kwargs):
    count[0] += 1
    if count[0] > 1:
        torch.empty(2**40)
    return real(*args, **kwargs)
run.start_batch = short
app(["measure", {str(folder)!r}, "--task", "random", "--length", "16", "--samples", "4", "--batch-size", "1",
     "--out", {str(runs)!r}, "--name", "r"])
"""
    done = limited("2**40", code, tmp_path)
    assert done.returncode == 1
    assert "out of memory on a single sample" in done.stderr
    assert len(list((runs / "r" / "shards").iterdir())) == 1
    assert verify(runs / "r") == []
    for name in ("r", "fresh"):
        assert CliRunner().invoke(app, _measure(folder, runs, name)).exit_code == 0
    values = [json.loads((runs / name / "result.json").read_text())["metrics"] for name in ("r", "fresh")]
    assert values[0] == values[1]


def _measure(folder: Path, runs: Path, name: str) -> list[str]:
    options = {"task": "random", "length": "16", "samples": "4", "batch-size": "1", "out": str(runs), "name": name}
    return ["measure", str(folder), *(word for key, value in options.items() for word in (f"--{key}", value))]
