"""What reaches a terminal: names that would act on it are spelled, and no stream, locale or signal ends in a riddle."""

import json
import os
import signal
import subprocess
import sys

import pytest

from repflow.cli.console import INTERRUPTED, TERMINATED, ProgressLine, complain, guarded, note
from repflow.core.errors import InputError, nearest
from repflow.store import RunFolder

HOSTILE = "ev\x1b[31mil\u202e\nruns are sound\x07"
SPELLED = "ev[U+001B][31mil[U+202E][U+000A]runs are sound[U+0007]"
ACTING = set("\x1b\u202e\x07")
TINY = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 64}


def stored(parent, name="run", **config):
    RunFolder.open(parent, name, config={"model": HOSTILE, "task": HOSTILE, **config}, provenance={}).close()


def test_notes_errors_and_hints_spell_names(capsys):
    note(f"no {HOSTILE}")
    complain(InputError(f"unknown model {HOSTILE}; {nearest(HOSTILE[:-1], [HOSTILE])}"), HOSTILE)
    ProgressLine(HOSTILE).phase("loading")
    shown = capsys.readouterr().err
    assert not ACTING & set(shown)
    assert shown.count("\n") == 3
    assert shown.count(SPELLED) == 5


def test_an_error_from_python_is_spelled_too():
    assert not ACTING & set(str(InputError(HOSTILE)))
    assert nearest("evil", [HOSTILE]) == f"known: {SPELLED}"


def test_work_without_tokens_says_no_time_that_is_left(capsys, monkeypatch):
    line = ProgressLine("grid", "models")
    monkeypatch.setattr("repflow.cli.console.LINE_SECONDS", -1.0)
    line(0, 3, 0)
    line(1, 3, 0)
    line(3, 3, 0)
    assert capsys.readouterr().err == "grid: 1/3 models\ngrid: 3/3 models, 0:00 left\n"


def test_a_file_that_may_not_be_opened_is_a_wrong_request(capsys):
    assert complain(PermissionError(13, "Permission denied", "images.npy")) == complain(InputError("x"))
    assert "images.npy: permission denied; change its permissions\n" in capsys.readouterr().err


def test_another_librarys_lines_are_one(capsys):
    complain(RuntimeError("first\n  second"))
    assert capsys.readouterr().err == "error: RuntimeError: first second (REPFLOW_DEBUG=1 shows where)\n"


def test_list_and_verify_spell_what_is_stored_and_how_folders_are_called(cli, tmp_path):
    stored(tmp_path / "runs")
    (tmp_path / "runs" / "run").rename(tmp_path / "runs" / HOSTILE)
    (tmp_path / "runs" / HOSTILE / "manifest.jsonl").write_text("?\n")
    for asked in (("list", "runs"), ("verify", f"runs/{HOSTILE}"), ("verify", "runs"), ("list", HOSTILE)):
        done = cli(*asked)
        assert not ACTING & set(done.out + done.err)
        assert "\nruns are sound" not in done.out + done.err
    assert SPELLED in cli("list", "runs").out


def test_measure_spells_the_models_name(cli, tmp_path):
    name = HOSTILE.replace("\n", " ")
    (tmp_path / f"{name}.json").write_text(json.dumps(TINY))
    done = cli("measure", f"config:{name}.json", "--length", "12", "--samples", "2")
    assert done.code == 0, done.err
    assert not ACTING & set(done.out + done.err)
    done = cli("measure", HOSTILE, "--length", "12", "--samples", "2")
    assert done.code == 2
    assert not ACTING & set(done.out + done.err)
    assert "\nruns are sound" not in done.err


def test_a_metric_of_ones_own_alone_is_shown(cli, tmp_path):
    (tmp_path / "own.py").write_text("def size(hidden):\n    return hidden.abs().mean((1, 2))\n")
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(TINY))
    asked = ("--length", "12", "--samples", "2", "--metrics", "own.py:size")
    done = cli("measure", "config:a.json", "config:b.json", *asked)
    assert done.code == 0, done.err
    assert "size" in done.out


def shell(command, cwd, **env):
    """A command line in a shell, with `repflow` for this one."""
    text = command.replace("repflow", f"{sys.executable} -m repflow")
    return subprocess.run(text, shell=True, cwd=cwd, capture_output=True, text=True, env=os.environ | env, check=False)


@pytest.mark.parametrize(
    ("command", "env"),
    [
        ("repflow list runs", {"PYTHONIOENCODING": "ascii"}),
        ("repflow list runs", {"COLUMNS": "0"}),
        ("repflow list --help", {"COLUMNS": "0"}),
        ("repflow list runs >&-", {}),
        ("repflow list runs 2>&-", {}),
        ("repflow verify runs/run >&- 2>&-", {}),
    ],
)
def test_odd_streams_end_well(tmp_path, command, env):
    stored(tmp_path / "runs", models=["–"], model="", task="größe")
    done = shell(command, tmp_path, **env)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
    if env.get("PYTHONIOENCODING"):
        assert r"gr\xf6\xdfe" in done.stdout
    elif env and "help" not in command:
        assert "größe" in done.stdout


def test_a_locale_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "say.py").write_text(
        "from repflow.cli.console import complain\n"
        "from repflow.core.errors import InputError\n"
        "try:\n"
        "    try:\n"
        "        b'\\xc3'.decode('ascii')\n"
        "    except UnicodeError as error:\n"
        "        raise InputError('the tokenizer cannot be read') from error\n"
        "except InputError as error:\n"
        "    complain(error)\n"
    )
    for locale, named in (({"LC_ALL": "C", "PYTHONUTF8": "0"}, True), ({"PYTHONUTF8": "1"}, False)):
        done = shell(f"{sys.executable} say.py", tmp_path, **locale)
        assert ("set PYTHONUTF8=1" in done.stderr) == named
        assert ("tokenizer" in done.stderr) != named  # which is not to blame


@pytest.mark.parametrize(
    ("number", "word", "code"),
    [(signal.SIGTERM, "terminated", TERMINATED), (signal.SIGINT, "interrupted", INTERRUPTED)],
)
def test_a_signal_ends_a_command_with_a_word(capsys, number, word, code):
    import typer

    def command():
        os.kill(os.getpid(), number)
        for _ in range(10**7):
            pass

    before = signal.getsignal(signal.SIGTERM)
    # a shell that starts the tests in the background has them ignore SIGINT
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(typer.Exit) as stopped:
            guarded(command)()
    finally:
        signal.signal(signal.SIGINT, ours)
    assert stopped.value.exit_code == code
    assert capsys.readouterr().err == f"{word}; rerun the same command to resume\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_deleted_working_directory_is_named(cli, tmp_path, monkeypatch):
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    done = cli("list", tmp_path)
    assert done.code == 2
    assert "expected a working directory that exists" in done.err
