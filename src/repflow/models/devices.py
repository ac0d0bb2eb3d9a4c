"""Devices and dtypes: what was requested, and whether this machine can run it."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys

import torch

from repflow.core.errors import InputError, teach
from repflow.spec import request

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in request.DTYPES}
DEFAULT = "auto-float32"
PROBE_SECONDS = 120
# Several sizes, because small products may not reach the vector unit (AMX) that some machines lack in truth.
PROBE = """
import torch
for n in (8, 64, 257):
    a = torch.ones(n, n, dtype=torch.{name})
    b = torch.nn.functional.linear(a, a, a[0])
    c = torch.nn.functional.conv1d(a[None], a[:, None, :4], groups=n)
    assert torch.isfinite(b).all() and torch.isfinite(c).all()
"""


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The requested device; by default the first GPU, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
    except RuntimeError:
        raise InputError(teach("a device such as cpu or cuda:0", repr(device), "see `repflow doctor`")) from None
    if target.type == "cuda" and not torch.cuda.is_available():
        raise InputError(teach("a device of this machine", repr(str(device)), "no GPU is visible here; use cpu"))
    return target


def resolve_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """Floating-point type by name or as itself.

    >>> resolve_dtype("bf16")
    torch.bfloat16
    """
    if isinstance(dtype, torch.dtype):
        if dtype in DTYPES.values():
            return dtype
        raise InputError(teach("a floating-point dtype", f"{dtype}", f"known: {', '.join(DTYPES)}"))
    if dtype == DEFAULT:
        return torch.float32
    return DTYPES[request.dtype_name(dtype)]


def require_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a dtype whose matrix products this CPU cannot run: they could end Python with an illegal instruction."""
    if device.type != "cpu":
        return
    problem = probe_dtype(dtype)
    if problem is not None:
        raise InputError(teach("a dtype this CPU can run", f"{dtype} ({problem})", "use float32 or a GPU"))


def probe_dtype(dtype: torch.dtype) -> str | None:
    """Try small matrix products of a dtype on the CPU, in a process of their own.

    Returns:
        None if they worked, else what happened. float32 and float64 are not probed: every CPU runs them.
    """
    return None if dtype in (torch.float32, torch.float64) else _probe(str(dtype).removeprefix("torch."))


def probe_dtypes() -> dict[str, str]:
    """Every dtype that repflow measures in: `ok`, or what went wrong on this CPU."""
    return {name: probe_dtype(dtype) or "ok" for name, dtype in DTYPES.items()}


@functools.cache
def _probe(name: str) -> str | None:
    command = [sys.executable, "-c", PROBE.format(name=name)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {PROBE_SECONDS} s"
    if done.returncode < 0:
        return f"killed by {signal.Signals(-done.returncode).name}"
    if done.returncode > 0:
        return (done.stderr.strip().splitlines() or ["failed without a message"])[-1]
    return None
