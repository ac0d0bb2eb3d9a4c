"""Content of files, read once until they change."""

import os

from repflow.studies.laboratory.files import FromFiles, file_marks


def test_content_is_read_again_behind_a_look_at_changed_files_alone(tmp_path):
    folder, beside = tmp_path / "texts" / "below", tmp_path / "beside.txt"
    folder.mkdir(parents=True)
    file = folder / "a.txt"
    file.write_text("one")
    beside.write_text("x")
    read = []
    places = {"places": lambda place, number: (place, None)}
    texts = FromFiles(lambda place, number: read.append(number) or file.read_text(), **places)
    assert [texts(str(tmp_path / "texts"), 1) for _ in range(2)] == ["one", "one"]
    assert read == [1]
    file.write_text("two")
    os.utime(file, ns=(1, 1))  # of the same size: its time alone is another
    beside.write_text("y")
    assert texts(str(tmp_path / "texts"), 1) == "one"  # a run that goes on
    assert texts.look(str(tmp_path / "texts"), 1)
    assert texts(str(tmp_path / "texts"), 1) == "two"
    assert not texts.look(str(tmp_path / "texts"), 1)
    assert not texts.look("never read", 1)
    (folder / "b.txt").touch()
    assert texts.look(str(tmp_path / "texts"), 1)
    assert [texts(str(tmp_path / "texts"), number) for number in (1, 2, 3, 2, 1)] == ["two"] * 5
    assert read == [1, 1, 1, 2, 3, 1]  # the last two requests are kept


def test_marks_are_of_files_folders_and_patterns(tmp_path, monkeypatch):
    for name in ("part.1", "part.2", "other"):
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    assert [mark[:2] for mark in file_marks(["part.*"])] == [("part.1", 6), ("part.2", 6)]
    assert len(file_marks([str(tmp_path), "other", f"{tmp_path}/p*.*"])) == 6
    assert file_marks(["drawn:8", "zoo:mamba2"]) == []
