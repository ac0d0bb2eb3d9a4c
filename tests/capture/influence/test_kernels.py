"""Influence on the Triton kernels, in Triton's interpreter.

CI has the gradients of whole models on the kernels, tests/mixers/triton_scan_checks.py, and influence without them.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "kernel_checks.py"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_influence_through_the_kernels_is_that_of_transformers_layers():
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, str(CHECKS)], capture_output=True, text=True, env=env, timeout=3600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {"check_mamba": None, "check_mamba2": None}, done.stdout
