"""Five hundred damaged files of every format are read or refused; and the watch over them can fail."""

import subprocess
import sys
from pathlib import Path

import pytest

from repflow.core.errors import InputError
from repflow.studies.engine.grid import read_study
from tests import warm

FUZZ = Path(__file__).with_name("fuzz.py")


def python(*arguments: str, timeout: int = 3600) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=timeout)


def test_five_hundred_damaged_files():
    done = python(str(FUZZ), "--cases", "500", "--seed", "0")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "500 cases with seed 0: 0 failed" in done.stdout


@pytest.mark.parametrize(
    "line",
    [
        'kind = ["measure"]',
        f"samples = {'9' * 5000}",
        f"x = {'[' * 100_000}",
        "kind = {a = 1}",
        "models = [[1]]",
        f"lengths = ['{'9' * 400}K']",
    ],
)
def test_studies_that_the_fuzzer_found(line, tmp_path):
    (tmp_path / "study.toml").write_text(f"[study]\n{line}\n")
    with pytest.raises(InputError, match=r"study|length"):
        read_study(tmp_path / "study.toml")


WATCHED = """
import os, sys
from pathlib import Path
from tests.faults.guard import ForbiddenError, Guard
guard, folder = Guard(), Path({folder!r})
try:
    with guard.watching(folder):
        {act}
except ForbiddenError as error:
    print("forbidden", error)
except Exception as error:
    print("other", repr(error))
print("seen", len(guard.seen))
"""


@pytest.mark.parametrize(
    "act",
    [
        "import subprocess; subprocess.run(['true'])",
        "os.system('true')",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.getaddrinfo('localhost', 80)",
        "(folder.parent / 'elsewhere').write_text('x')",
        "os.open(folder.parent / 'elsewhere', os.O_CREAT | os.O_WRONLY)",
        "(folder.parent / 'elsewhere').mkdir()",
        "(folder / '..' / 'elsewhere').write_text('x')",
        "Path('/etc/passwd').read_text()",
        "sys.path.insert(0, {folder!r}); import evil",
        "exec(compile(open({folder!r} + '/evil.py').read(), {folder!r} + '/evil.py', 'exec'))",
        "import runpy; runpy.run_path({folder!r} + '/evil.py')",
        "import pickle; pickle.loads(b'cos\\nsystem\\n(S\\'true\\'\\ntR.')",
    ],
)
def test_the_watch_sees(act, tmp_path):
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "evil.py").write_text("print('executed')")
    code = WATCHED.format(folder=str(folder), act=act.format(folder=str(folder)))
    done = python("-c", code)
    assert "forbidden" in done.stdout, done.stdout + done.stderr
    assert "executed" not in done.stdout
    assert not (tmp_path / "elsewhere").exists()


def test_the_watch_allows_what_readers_do(tmp_path):
    act = "(folder / 'x').write_text('x'); import json, html.parser, wave; open(os.devnull, 'w').close()"
    done = python("-c", WATCHED.format(folder=str(tmp_path), act=act))
    assert done.stdout.strip() == "seen 0", done.stdout + done.stderr


FAULTS = {
    "raise KeyError('x')": "FAILED config: KeyError",
    "while True: pass": "FAILED config: HangError",
    "open(folder.parent / 'elsewhere', 'w')": "FAILED config: ForbiddenError: 'a write to",
}


def test_a_failing_case_names_the_command_that_repeats_it(tmp_path):
    """Readers with a fault are put in, one after the other; the hang is one of computing, so no clock is asked."""
    code = "import sys\nfrom tests.faults import fuzz\nfuzz.SECONDS = 1\n"
    code += "sys.argv = ['fuzz', '--seed', '3', '--cases', '1']\n"
    for fault in FAULTS:
        code += f"def broken(files, folder, rng):\n    {fault}\n"
        code += "fuzz.FORMATS['config'] = broken\nprint('CODE', fuzz.main())\n"
    *outputs, rest = "\n".join([*warm.printed(code, cwd=tmp_path), ""]).split("CODE 1\n")
    assert (len(outputs), rest) == (3, "")
    for said, output in zip(FAULTS.values(), outputs, strict=True):
        assert said in output
        assert "again: python -m tests.faults.fuzz --seed 3 --case 0" in output
