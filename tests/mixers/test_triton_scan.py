"""Triton scans in Triton's interpreter, which runs them on the CPU.

bfloat16 is broken there: float16 stands for it, and benchmarks/scan_gpu.py checks bfloat16 on a GPU.
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

from repflow.core.errors import InputError
from repflow.mixers.triton import s6 as triton_s6
from repflow.mixers.triton import ssd as triton_ssd

CHECKS = Path(__file__).parent / "triton_scan_checks.py"
NAMES = re.findall(r"^def (check_\w+)", CHECKS.read_text(encoding="utf-8"), re.MULTILINE)
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: its kernels cannot be checked here"
)


REST = [
    "check_delta_of_a_bad_token",
    "check_falcon_mamba_model",
    "check_mamba2_between_its_projections",
    "check_mamba2_layer_of_tokens_that_are_not_finite",
    "check_replicas_of_even_rows",
    "check_s6_lengths",
    "check_s6_many_channels",
    "check_ssd_lengths",
    "check_ssd_of_first_and_last_tokens_that_are_not_finite",
]
"""Further shapes and places of what the other checks run: every kernel, forward and backward, stays among those."""


@needs_triton
@pytest.mark.parametrize(
    "names",
    [[name for name in NAMES if name not in REST], pytest.param(sorted(REST), marks=pytest.mark.slow)],
    ids=("sample", "rest"),
)
def test_kernels(names):
    """One test for all: each worker that had one of them would start a process for it."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(CHECKS), *names]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout)
    assert set(outcome) == set(names) <= set(NAMES)
    assert not {name: wrong for name, wrong in outcome.items() if wrong is not None}


def s6_inputs(dtype=torch.float32, state=4):
    x, maps = torch.ones(1, 3, 2, dtype=dtype), torch.ones(1, 3, state, dtype=dtype)
    return x, x, -torch.ones(2, state), maps, maps


def ssd_inputs(dtype=torch.float32, dim=4, state=8):
    x, maps = torch.ones(1, 3, 2, dim, dtype=dtype), torch.ones(1, 3, 1, state, dtype=dtype)
    return x, x[..., 0], -torch.ones(2), maps, maps


@needs_triton
@pytest.mark.parametrize(
    ("supported", "inputs", "reason"),
    [
        (triton_s6.supported, s6_inputs(), "tensors on the cpu"),
        (triton_s6.supported, s6_inputs(torch.float64), "dtype float64"),
        (triton_s6.supported, s6_inputs(state=65), "state size 65 is above 64"),
        (triton_ssd.supported, ssd_inputs(), "tensors on the cpu"),
        (triton_ssd.supported, ssd_inputs(torch.float64), "dtype float64"),
        (triton_ssd.supported, ssd_inputs(state=300), "state size 300 is above 256"),
        (triton_ssd.supported, ssd_inputs(dim=200), "head dimension 200 is above 128"),
        (triton_ssd.supported, ssd_inputs(dim=128, state=256), "a head of 128 by 256 numbers in float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_kernels_cannot_take_is_named(supported, inputs, reason):
    assert supported(*inputs) == reason


@needs_triton
def test_asking_for_the_kernel_where_it_cannot_run_is_an_error():
    with pytest.raises(InputError, match='got tensors on the cpu; use selective_scan with path="auto"'):
        triton_s6.selective_scan_triton(*s6_inputs())
    with pytest.raises(InputError, match='got tensors on the cpu; use ssd_scan with path="auto"'):
        triton_ssd.ssd_scan_triton(*ssd_inputs())


def test_without_triton_that_is_the_reason(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert triton_s6.supported(*s6_inputs()) == "Triton is not installed"
