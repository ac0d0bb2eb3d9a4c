"""Triton kernels in Triton's interpreter, which runs them on the CPU.

bfloat16 is broken there: float16 stands for it, and benchmarks/overhead.py checks bfloat16 on a GPU.
That the compiler takes them is seen by tests/mixers/test_compile.py.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from repflow.metrics import fused

HERE = Path(__file__).parent
NAMES = re.findall(r"^def (check_\w+)", (HERE / "fused_checks.py").read_text(encoding="utf-8"), re.MULTILINE)
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: its kernels cannot be checked here"
)


def python(code_or_file, **env):
    """Run Python in a process of its own: Triton reads TRITON_INTERPRET once, when it is imported."""
    command = [sys.executable, *([str(code_or_file)] if isinstance(code_or_file, Path) else ["-c", code_or_file])]
    whole = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run(command, capture_output=True, text=True, env=whole, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def outcome():
    return json.loads(python(HERE / "fused_checks.py", TRITON_INTERPRET="1"))


@needs_triton
def test_kernels(outcome):
    """One test for all: each worker that had one of them would run every check again."""
    assert set(outcome) == set(NAMES)
    assert not {name: wrong for name, wrong in outcome.items() if wrong is not None}


def test_on_a_cpu_the_plain_path_is_taken():
    assert not fused.usable(torch.zeros(1, 2, 8))


def test_without_triton_the_plain_path_is_taken():
    """Blocked rather than absent, and in its interpreter mode: the import alone must decide."""
    code = (
        "import importlib.abc, importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name == 'triton' else find(name, package)\n"
        "sys.modules['triton'] = None\n"
        "import torch\n"
        "from tests.metrics.inputs import feed, sample_states, values\n"
        "from repflow.metrics import fused\n"
        "from repflow.metrics.flow import FlowMeter\n"
        "assert fused.INTERPRETED and not fused.usable(torch.zeros(1, 2, 8))\n"
        "made = feed(FlowMeter(4, 6), sample_states(0, (6, 3), dtype=torch.float32), [[0, 1]])\n"
        "assert 'repflow.metrics.kernels' not in sys.modules\n"
        "print(sorted(values(made))[:1])\n"
    )
    assert python(code, TRITON_INTERPRET="1").strip() == "['channel_share']"
