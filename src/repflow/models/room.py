"""Memory of the machine and its GPUs: how much there is, and how much is free now.

A process may get less than the machine has: a container's limit (cgroup) and the shell's (`ulimit -v`) count as well.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

PROC = Path("/proc")
CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""Limit and usage of a container, under version 2 and version 1 of cgroups."""


def total_bytes(device: torch.device) -> int | None:
    """Bytes that a process could ever get on a device, swap included; None where that cannot be read."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type != "cpu":
        return None
    limits = [_machine(), _address_space(), *(limit for limit, _ in _containers())]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def free_bytes(device: torch.device) -> int | None:
    """Bytes that are free on a device now; None where that cannot be read."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # what torch holds and does not use is free to it
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    if device.type != "cpu":
        return None
    lines = _meminfo()
    limit = _address_space()
    frees = [
        lines["MemAvailable"] + lines.get("SwapFree", 0) if "MemAvailable" in lines else None,
        None if limit is None else limit - _mapped(),
        *(most - used for most, used in _containers()),
    ]
    known = [max(0, free) for free in frees if free is not None]
    return min(known) if known else None


def size_words(count: int) -> str:
    """Bytes for a reader.

    >>> size_words(3 * 2**30), size_words(5 * 2**20)
    ('3.0 GiB', '5 MiB')
    """
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{-(-count // 2**20)} MiB"


def _meminfo() -> dict[str, int]:
    try:
        lines = (PROC / "meminfo").read_text().splitlines()
    except OSError:
        return {}
    parts = [line.split() for line in lines]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in parts if len(words) == 3 and words[1].isdecimal()}


def _machine() -> int | None:
    """Memory and swap of the machine."""
    lines = _meminfo()
    if "MemTotal" in lines:
        return lines["MemTotal"] + lines.get("SwapTotal", 0)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if sys.platform != "win32" else None
    except (ValueError, OSError):
        return None


def _address_space() -> int | None:
    """The limit of `ulimit -v`."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _mapped() -> int:
    """Address space that the process takes."""
    try:
        pages = (PROC / "self" / "statm").read_text().split()[0]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _containers() -> list[tuple[int, int]]:
    """Limits of containers with what they use; a limit beyond any machine means none."""
    limits = []
    for limit, usage in CGROUPS:
        try:
            most, used = limit.read_text().strip(), usage.read_text().strip()
        except OSError:
            continue
        if most.isdecimal() and used.isdecimal() and int(most) < 2**60:
            limits.append((int(most), int(used)))
    return limits
