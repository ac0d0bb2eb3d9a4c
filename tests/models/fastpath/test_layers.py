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


REST = ["check_norm_ablations", "check_transformers_without_scan_functions"]
"""Ablated layers on the kernels, one of which check_ablated_copy_leaves_the_original runs; an older transformers."""


@needs_triton
@pytest.mark.parametrize(
    "names",
    [[name for name in NAMES if name not in REST], pytest.param(REST, marks=pytest.mark.slow)],
    ids=("sample", "rest"),
)
def test_layers(names):
    """One test for all: each worker that had one of them would start a process for it."""
    folders = os.pathsep.join(filter(None, [*map(str, CHECKS.parents[:2]), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1", "PYTHONPATH": folders}
    command = [sys.executable, str(CHECKS), *names]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout)
    assert set(outcome) == set(names) <= set(NAMES)
    assert not {name: wrong for name, wrong in outcome.items() if wrong is not None}
