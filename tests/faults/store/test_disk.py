"""A full, limited or read-only disk: a clear error, nothing half-written, and the run resumes."""

import contextlib
import errno
import os
import resource
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from repflow.core.errors import InputError, StoreError
from repflow.store import UnwritableError, verify
from tests.faults.store.study import contents, open_run, run_study

NOBODY = 65534
BIG = {"x": np.random.default_rng(0).normal(size=100_000)}


def mount(folder, options):
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    mount(folder, "size=128k")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def assert_sound_and_resumable(parent, tmp_path):
    assert verify(parent / "run") == []
    assert not list((parent / "run").rglob("*.tmp"))
    run_study(parent)
    run_study(tmp_path, "reference")
    assert contents(parent / "run") == contents(tmp_path / "reference")


def test_full_disk_names_path_and_need_and_the_run_resumes(small_disk, tmp_path):
    with open_run(small_disk) as run:
        run.write_shard("batch-0", {"x": np.zeros(3)})
        with pytest.raises(
            UnwritableError, match=r"no room to write .*big.safetensors: 8000\d\d bytes needed, \d+ bytes"
        ):
            run.write_shard("big", BIG)
        assert run.shards() == ["batch-0"]
        run.discard_shard("batch-0", "another content than the study's")
    assert_sound_and_resumable(small_disk, tmp_path)


def test_disk_that_fills_up_under_the_manifest(small_disk, tmp_path):
    with open_run(small_disk) as run:
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(b"x" * 4096)
        manifest = (run.path / "manifest.jsonl").read_bytes()
        with pytest.raises(StoreError, match=r"no room to write .*manifest\.jsonl"):
            run.record("plan", {"samples": list(range(3000))})
        assert (run.path / "manifest.jsonl").read_bytes() == manifest
        assert run.events("plan") == []
        with pytest.raises(InputError):
            open_run(small_disk, "another")
        assert not (small_disk / "another").exists()
        ballast.unlink()
    assert_sound_and_resumable(small_disk, tmp_path)


def test_file_size_limit(tmp_path):
    with open_run(tmp_path) as run:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            with pytest.raises(UnwritableError, match="no room"):
                run.write_shard("big", BIG)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert run.shards() == []
    assert_sound_and_resumable(tmp_path, tmp_path)


def test_failing_fsync_is_not_acknowledged(tmp_path, monkeypatch):
    def fail(fd):
        raise OSError(errno.EIO, "Input/output error")

    with open_run(tmp_path) as run:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(StoreError, match="Input/output error"):
                run.write_shard("batch-0", {"x": np.zeros(3)})
            with pytest.raises(StoreError):
                run.record("plan", {})
        assert run.shards() == []
        assert run.events("plan") == []
    assert_sound_and_resumable(tmp_path, tmp_path)


def test_read_only_disk(small_disk):
    open_run(small_disk).close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(UnwritableError, match=r"Read-only.*choose another out"):
        open_run(small_disk)
    with pytest.raises(UnwritableError, match=r"Read-only.*choose another out"):
        open_run(small_disk, "another")
    assert verify(small_disk / "run") == []


@contextlib.contextmanager
def as_anyone():
    """Root may write anywhere: for a while, a user who owns nothing."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(NOBODY)
    except PermissionError:
        pytest.skip("root may write anywhere, and cannot be another user here")
    try:
        yield
    finally:
        os.seteuid(0)


def test_folder_without_permission(tmp_path):
    open_run(tmp_path).close()  # imports what it needs, which may lie where nobody else can read
    with tempfile.TemporaryDirectory() as place:  # folders of pytest are closed to others
        locked = Path(place)
        locked.chmod(0o555)
        try:
            with as_anyone(), pytest.raises(UnwritableError, match=f"{place}.*Permission denied"):
                open_run(locked)
        finally:
            locked.chmod(0o700)
        assert not list(locked.iterdir())
