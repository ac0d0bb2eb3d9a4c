import os
from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repflow.core.errors import InputError
from repflow.store import RunFolder, check_name, safe_name

BAD = [
    "", ".", "..", ".hidden", "-rf", "a/b", "a\\b", "/abs", "../up", "a\0b", "a\nb", "a\x7fb", "con", "NUL.txt", "Com1",
    "x" * 201, "é" * 101, "end.", "end ", " start", "a:b", "a*b", 'a"b', "bidi\u202etxt", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_names_are_refused_and_leave_nothing(tmp_path, name):
    with pytest.raises(InputError, match=r"(?s)expected a run name that is one safe path component; got .*try '"):
        RunFolder.open(tmp_path, name, config={}, provenance={})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["gpt2", "a b", "Modèle", "a..b", "console", "x" * 200, "2024.01"])
def test_good_names_are_taken(tmp_path, name):
    RunFolder.open(tmp_path, name, config={}, provenance={}).close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@given(st.text() | st.sampled_from(BAD))
def test_safe_name_is_always_safe(text):
    assert check_name(safe_name(text)) == safe_name(text)


@given(st.text())
def test_accepted_names_stay_inside_their_folder(text):
    try:
        check_name(text)
    except InputError:
        return
    assert os.path.normpath(f"/parent/{text}") == f"/parent/{text}"
    assert PurePosixPath(text).name == PureWindowsPath(text).name == text


def test_specs():
    assert safe_name("state-spaces/mamba2-2.7b") == "state-spaces-mamba2-2.7b"
    assert safe_name("./models/gpt2/") == "models-gpt2"
    assert safe_name("config:tiny.json") == "config-tiny.json"
    assert safe_name("模型") != safe_name("模")
