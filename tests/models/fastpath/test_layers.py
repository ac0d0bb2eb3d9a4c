"""Whole layers on the Triton kernels inside loaded models, in Triton's interpreter."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "layer_checks.py"
NAMES = re.findall(r"^def (check_\w+)", CHECKS.read_text(encoding="utf-8"), re.MULTILINE)
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: its kernels cannot be checked here"
)


@pytest.fixture(scope="module")
def outcome():
    folders = os.pathsep.join(filter(None, [*map(str, CHECKS.parents[:2]), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1", "PYTHONPATH": folders}
    done = subprocess.run(
        [sys.executable, str(CHECKS)], capture_output=True, text=True, env=env, timeout=3600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@needs_triton
def test_layers(outcome):
    """One test for all: each worker that had one of them would run every check again."""
    assert set(outcome) == set(NAMES)
    assert not {name: wrong for name, wrong in outcome.items() if wrong is not None}
