"""Phases side by side on one machine: who may begin, what is tried again, what ends at the time."""

import json
import shlex
import sys
import time
from pathlib import Path

import pytest

from tools import carry, jobs
from tools.depth import run as depth
from tools.pixels import run as pixels
from tools.tokens import run as tokens


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """Writes jobs and runs them in a folder of the test's own; returns what became of each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "POLL", 0.02)

    def run(entries, workers=4, gib=10.0):
        lines = [
            line for entry in entries for line in ("[[job]]", *(f"{k} = {json.dumps(v)}" for k, v in entry.items()))
        ]
        (tmp_path / "jobs.toml").write_text("\n".join(lines))
        jobs.Queue(tmp_path / "jobs.toml", workers, gib).run()
        return json.loads((jobs.FOLDER / jobs.STATUS).read_text())

    return run


def command(code):
    return f"python -c '{code}'"


def begun(name):
    """Says when it began and ended, with a while between."""
    return command(
        f'import time; f = open("order", "a"); f.write("+{name} "); f.flush(); time.sleep(.3); f.write("-{name} ")'
    )


def test_jobs_wait_for_each_other_and_for_files_and_are_tried_again(queue, tmp_path):
    known = queue(
        [
            {"name": "last", "command": command("print(1)"), "after": ["third"]},
            {"name": "never", "command": command("print(1)"), "after": ["wrong"]},
            {"name": "wrong", "command": command("raise SystemExit(3)"), "needs": "made"},
            {
                "name": "third",
                "command": command('f = open("tries", "a"); f.write("x"); raise SystemExit(f.tell() < 2)'),
            },
            {"name": "first", "command": command('open("made", "w")')},
        ]
    )
    assert {name: entry.get("code") for name, entry in known.items()} == {
        "first": 0,
        "third": 0,
        "last": 0,
        "wrong": 3,
        "never": None,
    }
    assert (known["third"]["tries"], known["wrong"]["tries"]) == (2, jobs.TRIES)
    assert (tmp_path / "tries").read_text() == "xx"
    assert (jobs.FOLDER / jobs.OVER).exists()


@pytest.mark.parametrize("part", [{"gib": 6}, {"workers": 3}, {"gib": 60}], ids=["memory", "processes", "too large"])
def test_jobs_that_do_not_fit_beside_each_other_run_one_after_the_other(queue, tmp_path, part):
    queue([{"name": name, "command": begun(name), **part} for name in "ab"])
    assert (tmp_path / "order").read_text() == "+a -a +b -b "


def test_jobs_that_fit_run_beside_each_other(queue, tmp_path):
    wait = 'import time, os; open("{}", "w")\nwhile not os.path.exists("{}"): time.sleep(.02)'
    known = queue([{"name": a, "command": command(wait.format(a, b)), "gib": 5} for a, b in ("xy", "yx")])
    assert [entry["code"] for entry in known.values()] == [0, 0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_at_the_time_all_processes_end_and_wait_packs_what_is_there(tmp_path, monkeypatch, capsys):
    """A job with a child of its own, which would go on for an hour."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "POLL", 0.02)
    monkeypatch.setattr(jobs, "PATIENCE", 600.0)
    (tmp_path / "slow.py").write_text(
        "import signal, sys, time\n"
        "def end(*_):\n    time.sleep(.5)\n    open('ended', 'w')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nopen('up', 'w')\ntime.sleep(3600)\n"
    )
    child = 'import subprocess, sys; subprocess.run([sys.executable, "slow.py"])'
    (tmp_path / "child.py").write_text(child)
    (tmp_path / "jobs.toml").write_text('[[job]]\nname = "long"\ncommand = "python child.py"\n')
    line = jobs.Queue(tmp_path / "jobs.toml", 1, 1.0)
    line.folder.mkdir(parents=True)
    while not (tmp_path / "up").exists():
        assert not line._turn()
        time.sleep(0.02)
    process = line.running["long"][0]
    (line.folder / jobs.TIME).write_text("0")
    assert line._turn()
    assert line.ended["long"]["code"] != 0
    assert not jobs.alive(process)
    assert (tmp_path / "ended").exists(), "the queue was over before the child was"
    (tmp_path / "runs" / "texts").mkdir()
    monkeypatch.setattr(sys, "argv", ["jobs", "wait", "--keep", "parts", "--leave", "texts"])
    jobs.main()
    assert "long | " in capsys.readouterr().out
    carry.unpack(tmp_path / "parts", tmp_path / "again")
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["queue"]


@pytest.mark.parametrize(
    "second",
    [{"name": "a"}, {"name": "b", "after": ["c"]}, {"name": "b", "after": ["b"]}],
    ids=["name", "after", "circle"],
)
def test_wrong_files_are_refused_before_anything_runs(queue, second):
    with pytest.raises(SystemExit, match="names of their own and to wait for earlier ones"):
        queue([{"name": "a", "command": "true"}, {"command": "true", **second}])


@pytest.mark.parametrize(
    "file", sorted((Path(jobs.__file__).parent).glob("*/jobs.toml")), ids=lambda file: file.parent.name
)
def test_the_studies_own_jobs_can_be_asked_for(file, monkeypatch, capsys):
    """Every command of a tool of ours has the options that it is given; phases come after those they need."""
    tools = {"tools.depth.run": depth.parsed, "tools.tokens.run": tokens.parsed, "tools.pixels.run": pixels.parsed}
    entries = jobs.read_jobs(file)
    by_name = {job.name: job for job in entries}
    assert entries
    for job in entries:
        words = shlex.split(job.command)
        if words[1:2] == ["-m"] and words[2] in tools:
            monkeypatch.setattr(sys, "argv", words[2:])
            options = tools[words[2]]()
            phases = [by_name[name].command for name in job.after]
            needed = {"seeds": " screen ", "probes": " seeds "}.get(options.phase)
            run = Path(job.needs).parent.name.partition("@")[0]
            stored = needed is not None and run.endswith(f"-{needed.strip()}")  # of an earlier queue
            assert needed is None or stored or any(needed in words for words in phases), job


def test_a_file_that_is_being_written_and_a_program_that_is_not_there_end_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "jobs.toml"
    file.write_text('[[job]]\nname = "none"\ncommand = "no-such-program"\n[[job]]\nname = "b"\ncommand = "true"\n')
    line = jobs.Queue(file, 1, 1.0)
    line.folder.mkdir(parents=True)
    line._turn()
    file.write_text("[[job]]\nname = ")
    while not line._turn():
        time.sleep(0.02)
    assert {name: entry["code"] for name, entry in line.ended.items()} == {"none": 127, "b": 0}
    assert "its last jobs stay" in capsys.readouterr().out


def test_a_new_queue_knows_nothing_of_an_earlier_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs.subprocess, "Popen", lambda *_, **__: None)
    (tmp_path / "jobs.toml").write_text('[[job]]\nname = "a"\ncommand = "true"\n')
    jobs.FOLDER.mkdir(parents=True)
    for name in (jobs.TIME, jobs.OVER, jobs.STATUS):
        (jobs.FOLDER / name).write_text("0")
    monkeypatch.setattr(sys, "argv", ["jobs", "start", "jobs.toml"])
    jobs.main()
    assert [path.name for path in jobs.FOLDER.iterdir()] == ["queue.log"]
