"""Places: of all who create one key, one succeeds, in every process and whatever the file system can do."""

import errno
import multiprocessing
import os

import pytest

from repflow.core.errors import StoreError
from repflow.store import UnwritableError
from repflow.store.claims.place import FolderPlace

KEYS = [f"claims/cell-{number}/000001" for number in range(40)]


def race(root, name, start, won):
    place = FolderPlace(root)
    start.wait()
    for key in KEYS:
        if place.create(key, f"{name} {key}".encode()):
            won.put((key, name))


def test_one_of_several_processes_creates_a_key(tmp_path):
    context = multiprocessing.get_context("fork")
    start, won = context.Barrier(4), context.Queue()
    racers = [context.Process(target=race, args=(tmp_path, f"racer {number}", start, won)) for number in range(4)]
    for racer in racers:
        racer.start()
    winners = [won.get() for _ in KEYS]
    for racer in racers:
        racer.join()
    assert won.empty()
    assert sorted(key for key, _ in winners) == sorted(KEYS)
    place = FolderPlace(tmp_path)
    for key, name in winners:
        assert place.read(key) == f"{name} {key}".encode()
        assert place.names(key.rpartition("/")[0]) == ["000001"]  # nothing is left beside it


@pytest.fixture(params=["links", "no links"])
def place(request, tmp_path, monkeypatch):
    if request.param == "no links":

        def refuse(*_, **__):
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    return FolderPlace(tmp_path)


def test_operations(place, tmp_path):
    assert place.read("claims/a/000001") is None
    assert place.names("claims/a") == []
    assert place.create("claims/a/000001", b"one")
    assert not place.create("claims/a/000001", b"two")
    assert place.create("claims/a/000002", b"two")
    assert place.names("claims/a") == ["000001", "000002"]
    place.write("workers/w", b"a long heartbeat")
    place.write("workers/w", b"short")
    assert (place.read("claims/a/000001"), place.read("workers/w")) == (b"one", b"short")
    place.delete("workers/w")
    place.delete("workers/w")
    assert place.read("workers/w") is None


def test_a_lost_answer_is_found_out(tmp_path, monkeypatch):
    """A server makes the link, its answer is lost, the client asks again and hears that the name is taken."""
    link = os.link

    def lossy(source, target, **options):
        link(source, target, **options)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", lossy)
    place = FolderPlace(tmp_path)
    assert place.create("claims/a/000001", b"ours")
    assert not place.create("claims/a/000001", b"theirs")


def test_a_place_that_cannot_be_written_says_so(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    place = FolderPlace(tmp_path)
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(UnwritableError, match="no room"):
        place.create("claims/a/000001", b"x")
    with pytest.raises(UnwritableError, match="no room"):
        place.write("workers/w", b"x")


def test_links_out_of_the_place_are_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    root = tmp_path / "study" / ".repflow"
    root.mkdir(parents=True)
    (root / "claims").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        FolderPlace(root).create("claims/a/000001", b"x")
    assert not list((tmp_path / "elsewhere").iterdir())
