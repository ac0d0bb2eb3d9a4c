"""A laboratory's study in phases: the program called in this process, cut off at once, carried, and taken up again."""

import sys

import pytest


def program(run, monkeypatch):
    """What `python -m tools.LABORATORY.run WORDS` does, as a function of the words."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["run", *map(str, words)])
        run.main()

    return call


def carried(call, options, phases, study, folder, capsys):
    """Run phases of which the first was stopped and carried from another folder; the folder of their runs.

    Args:
        call: `program` of the study.
        options: of every phase.
        phases: in their order; the second needs the first.
        study: first word of the phases' names.
        folder: an empty one.
        capsys: pytest's.
    """
    there, here, parts = folder / "there", folder / "here", folder / "parts"
    with pytest.raises(SystemExit, match=f"run {study}-{phases[0]} first"):
        call(phases[1], *options, "--out", there)
    call(phases[0], *options, "--out", there, "--seconds", 0, "--keep", parts)
    assert "stopped after 0 s, as asked" in capsys.readouterr().out
    for phase in phases:
        call(phase, *options, "--out", here, *(["--from", parts] if phase == phases[0] else []))
        assert f"{phase} is done" in capsys.readouterr().out
    return here
