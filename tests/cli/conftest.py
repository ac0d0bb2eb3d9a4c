"""Tiny checkpoints on disk, and the command line in this process or in one of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.invocation import WIDE, Outcome, invoke


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Folder with the Hugging Face folders gpt_neox and mamba2."""
    import torch

    from tests.models.tiny_configs import save_tiny

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("checkpoints")
    for kind in ("gpt_neox", "mamba2"):
        save_tiny(kind, folder / kind)
    return folder


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Run the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", WIDE)
    return invoke


@pytest.fixture
def process(tmp_path):
    """Run the command line as a process of its own."""

    def run(*args, **env):
        done = subprocess.run(
            [sys.executable, "-m", "repflow", *map(str, args)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": WIDE, **env},
            timeout=3600,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def shared():
    """The development data, or a skip that says where it was looked for."""
    root = Path(os.environ.get("REPFLOW_SHARED", Path(__file__).parents[2].parent / "shared")) / "data"
    if not root.is_dir():
        pytest.skip(f"no development data at {root}")
    return root
