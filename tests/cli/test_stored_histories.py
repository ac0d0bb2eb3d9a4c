"""`repflow compare`, `report`, `list` and `verify` on stored histories of trainings."""

import json

from tests.studies.stored_history import history


def test_compare_puts_histories_side_by_side(cli, tmp_path):
    a, b = history(tmp_path, "a"), history(tmp_path, "b", shift=0.05)
    done = cli("compare", a, b)
    assert done.code == 0
    assert "A = a, B = b on task random" in done.out
    alone = cli("compare", a, "--json")
    assert json.loads(alone.out)["metrics"]["step"]["values"] == [0, 10, 20]
    wrong = cli("compare", a, "zoo:gpt-neox")
    assert wrong.code == 2
    assert "two histories of trainings; got 'zoo:gpt-neox' beside one" in wrong.err


def test_the_page_the_list_and_the_check_take_a_history(cli, tmp_path):
    folder = tmp_path / "watched"
    run = history(folder, "a")
    done = cli("report", folder, "--out", tmp_path / "page.html")
    assert done.code == 0, done.err
    assert "Through training" in (tmp_path / "page.html").read_text()
    assert "3 readings" in cli("list", folder).out
    assert "is sound" in cli("verify", run).out
    next((run / "shards").iterdir()).unlink()
    broken = cli("verify", "--repair", run)
    assert broken.code == 2
    assert "whose request can be repeated" in broken.err
