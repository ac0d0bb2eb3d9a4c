"""Every script in examples/ runs and prints."""

import runpy
from pathlib import Path

import pytest

import repflow

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(script, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPS", "12")  # of those that train
    monkeypatch.setenv("PYTHONPATH", str(Path(repflow.__file__).parents[1]))  # of those that call the command line
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.strip()
    assert "nan" not in printed.lower()


def test_there_are_examples():
    assert len(EXAMPLES) >= 3
