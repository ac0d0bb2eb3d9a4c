"""Help, version and `import repflow` need no torch."""

import resource
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "plotly", "pandas")
CODE = """
import sys
sys.argv = ["repflow", *{args!r}]
from repflow.cli.main import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print("LOADED", *[name for name in {heavy!r} if name in sys.modules])
"""


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["measure", "--help"],
        ["--version"],
        ["verify", "--help"],
        ["theory", "apply", "--help"],
        ["zoo", "--help"],
    ],
)
def test_help_loads_nothing_heavy(args):
    done = run(CODE.format(args=args, heavy=HEAVY))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED"


def test_help_is_quick():
    """Under a second of processor time; the clock on the wall depends on what else the machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "repflow", "measure", "--help"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_help_names_every_field_with_its_text(cli, monkeypatch):
    from dataclasses import fields

    from repflow.studies.measure import MeasureConfig

    monkeypatch.setenv("COLUMNS", "400")
    text = cli("measure", "--help").out
    for field in fields(MeasureConfig):
        if field.name != "model":
            assert f"--{field.name.replace('_', '-')}" in text
            assert field.metadata["help"] in text


def test_commands_are_listed(cli):
    text = cli("--help").out
    for command in ("measure", "compare", "run", "reproduce", "demo", "zoo", "list", "verify", "export", "doctor"):
        assert command in text


def test_version(cli):
    from repflow import __version__

    assert cli("--version").out == f"repflow {__version__}\n"


def test_unknown_option_is_a_wrong_request(cli):
    assert cli("measure", "x", "--lenght", "3").code == 2
    assert cli("run").code == 2
