"""The list of runs in a narrow terminal: names stay whole, what has no room is named."""

import io
from pathlib import Path

from rich.console import Console

from repflow.report.terminal.listing import list_table
from repflow.store import RunSummary


def shown(renderable, width):
    console = Console(width=width, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


def summary(name, **facts):
    return RunSummary(name, Path(name), "models/a-model-of-some-length", "random", **facts)


def test_names_stay_whole_at_80_columns():
    names = ["models-tiny-hybrid-probe-kvpr-300-1000x5", "models-tiny-gpt-random-512"]
    text = shown(list_table([summary(name, finished=True, done=8, total=8) for name in names]), 80)
    for name in names:
        assert name in text
    assert text.count("finished") == 2
    assert "not shown in this width: " in " ".join(text.split())


def test_studies_and_damage_are_told():
    runs = [
        summary("grid", cells=6, done=6, total=8, failed=2),
        summary("whole", cells=3, done=3, total=3, finished=True),
        summary("bad", damaged="run.json is damaged"),
        summary("half", done=2, total=8),
        summary("simulated", done=0, finished=True),
        summary("hopeless", done=0, total=4, failed=4),
        summary("missing", done=0, total=2, reason="cannot run: expected a folder"),
    ]
    text = " ".join(shown(list_table(runs), 200).split())
    assert "6 runs 6 of 8 finished, 2 could not run" in text
    assert "3 runs finished" in text
    assert "damaged: run.json is damaged" in text
    assert "2/8 unfinished" in text
    assert "simulated – finished" in text
    assert "list RUN shows" in text
    assert "hopeless 0 runs 0 of 4 finished, 4 could not run" in text
    assert "missing 0/2 cannot run random" in text
    assert "--json says why" in text
