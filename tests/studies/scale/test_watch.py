"""`repflow list --watch`: who works on what, failures with their reasons, workers that are gone; and --retry-failed."""

import json
import shutil
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from repflow.cli.main import app
from repflow.cli.watch import follow
from repflow.core.errors import InputError
from repflow.store.claims.attempt import OWN
from repflow.store.claims.ledger import Entry, Kind, add_entry
from repflow.store.claims.liveness import Heartbeat, Worker
from repflow.store.claims.place import FolderPlace
from repflow.store.claims.watching import Onlooker


@pytest.fixture
def study(tmp_path):
    """A finished cell, a failed one, one at work and one whose process has ended."""
    place, worker = FolderPlace(tmp_path / "grid" / OWN), Worker()
    ended = replace(worker, token="cd" * 6, born="1")
    for cell, kind, who in [
        ("a", Kind.DONE, worker),
        ("b", Kind.FAILED, worker),
        ("c", Kind.CLAIM, worker),
        ("d", Kind.CLAIM, ended),
    ]:
        add_entry(place, Entry(1, kind, cell=cell, reason="no such task" * (kind is Kind.FAILED), **who.facts()))
    beat = Heartbeat(place, worker)
    beat.doing(cell="c", done=2, total=8, phase="reading states")
    beat.beat()
    Heartbeat(place, ended).beat()
    return tmp_path


def test_an_onlooker_sees_who_works_on_what(study):
    (view,) = Onlooker(study).look()
    assert view.folder == study / "grid"
    assert (view.ended, view.failed) == (["a"], {"b": "no such task"})
    assert set(view.held) == {"c", "d"}
    assert list(view.silent) == ["d"]
    (worker,) = view.workers
    assert (worker["cell"], worker["done"], worker["total"]) == ("c", 2, 8)


def test_it_follows_until_nobody_works(study, capsys):
    follow(study, as_json=True, wait=lambda _: shutil.rmtree(study / "grid" / OWN / "workers"))
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["studies"][0]["workers"][0]["cell"] == "c"
    assert last["studies"][0]["workers"] == []


def test_the_table(study, capsys):
    follow(study / "grid", as_json=False, wait=lambda _: shutil.rmtree(study / "grid" / OWN / "workers"))
    text = capsys.readouterr().out
    assert "1 finished, 1 failed, 1 worker" in text.replace("\n", "")
    assert "2/8" in text
    assert "b: no such task" in text
    assert "is gone; the next worker takes over" in text.replace("\n", " ")


def test_a_folder_without_workers_and_none(tmp_path):
    quiet = CliRunner().invoke(app, ["list", str(tmp_path), "--watch"])
    assert (quiet.exit_code, "no workers have met in" in quiet.stdout) == (0, True)
    with pytest.raises(InputError, match="a folder of runs"):
        Onlooker(tmp_path / "nothing")


def test_a_failed_cell_keeps_its_error_blocks_nobody_and_is_tried_again_when_asked(shop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(shop / "a", "a")
    text = '[study]\nkind = "measure"\nmodels = ["a", "c"]\ntasks = ["random"]\nlengths = [12]\nsamples = 2\n'
    (tmp_path / "s.toml").write_text(text)

    def run(*options):
        return CliRunner().invoke(app, ["run", "s.toml", "--json", *options])

    def statuses(done):
        return [json.loads(line)["status"] for line in done.stdout.splitlines()]

    worker = CliRunner().invoke(app, ["run", "s.toml", "--worker"])
    assert "1 cells finished here, 1 failed here" in worker.stderr
    (view,) = Onlooker(tmp_path / "runs").look()
    (reason,) = view.failed.values()
    assert "'c'" in reason or " c" in reason
    assert statuses(run()) == ["finished", "cannot run"]
    shutil.copytree(shop / "a", "c")
    again = run()
    assert statuses(again) == ["finished", "cannot run"]  # it stays as it is
    assert "--retry-failed tries it again" in again.stderr
    assert statuses(run("--retry-failed")) == ["finished", "finished"]
    (view,) = Onlooker(tmp_path / "runs").look()
    assert (len(view.ended), view.failed) == (2, {})
