"""Every Triton kernel of the package is compiled for a GPU, without one, from every mixture of dtypes it may meet.

Triton's interpreter, in which the other tests run the kernels, has no types and cannot see what the compiler refuses.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "compile_checks.py"
NAMES = re.findall(r"^def (check_\w+)", CHECKS.read_text(encoding="utf-8"), re.MULTILINE)
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: its kernels cannot be compiled here"
)


@pytest.fixture(scope="module")
def outcome():
    paths = os.pathsep.join([str(CHECKS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    env.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(CHECKS)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@needs_triton
def test_every_kernel_compiles(outcome):
    """One test for all: each worker that had one of them would compile everything again."""
    assert set(outcome["checks"]) == set(NAMES)
    assert not {name: wrong for name, wrong in outcome["checks"].items() if wrong is not None}
    assert outcome["left"] == [], "kernels that no check compiles"
