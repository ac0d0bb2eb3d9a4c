"""The tree: few files in a folder, none named after a sibling, no import circle; `tools/house.py` prints the table."""

import pytest

from tools import house

MOST = 25


@pytest.mark.parametrize("tree", house.TREES)
def test_folders_stay_readable(tree):
    crowded = {folder: len(paths) for folder, paths in house.folders(tree).items() if len(paths) > MOST}
    assert not crowded, "split the folder by concept"


@pytest.mark.parametrize("tree", house.TREES)
def test_no_module_is_named_after_a_sibling(tree):
    named = {name for paths in house.folders(tree).values() for name in house.sibling_named(paths)}
    assert not named, "choose the concept's name, or make a folder"


@pytest.mark.parametrize("tree", house.TREES)
def test_no_name_families(tree):
    named = {folder: words for folder, paths in house.folders(tree).items() if (words := house.families(paths))}
    assert not named, "three files with one first word are a folder"


def test_no_import_circles():
    modules, packages = house.circles()
    assert list(modules) == []
    assert list(packages) == []


@pytest.mark.parametrize("what", house.WAYS)
def test_what_is_made_in_one_place(what):
    assert len(house.makers(house.WAYS[what])) == 1, "describe the figure, and let the one renderer draw it"


def test_every_option_of_a_config_is_declared_once():
    declared, distinct = house.config_fields()
    assert declared == distinct > 100, "put the field into repflow.studies.engine.parts and inherit it"


@pytest.mark.parametrize("kind", house.EXAMPLES)
def test_an_addition_touches_few_files(kind):
    files = house.naming(*house.EXAMPLES[kind])
    assert 0 < len(files) <= house.MOST_NAMING[kind], files


def test_names_are_seen(tmp_path):
    paths = [tmp_path / f"{stem}.py" for stem in ("probe", "probe_part", "test_probe_side", "scan")]
    assert house.sibling_named(paths) == ["probe_part"]
    assert house.families(paths) == {"probe": ["probe", "probe_part", "test_probe_side"]}


def test_the_table_is_whole():
    numbers = house.measure()
    assert len({row[0] for row in house.rows(numbers)}) == len(list(house.rows(numbers))) > 12
    assert numbers["study_lines"]["engine"] > 0
    assert {"declared", "distinct"} == numbers["config_fields"].keys()
