"""GPUs of this machine, by what CUDA would see, without importing torch."""

from __future__ import annotations

import os
import shutil
import subprocess

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus() -> list[str]:
    """Names by which a process can be given one GPU each; none where there are none or the user hides them.

    >>> before = os.environ.get(VISIBLE)
    >>> os.environ[VISIBLE] = "0,3"
    >>> visible_gpus()
    ['0', '3']
    >>> _ = os.environ.pop(VISIBLE) if before is None else os.environ.update({VISIBLE: before})
    """
    listed = os.environ.get(VISIBLE)
    if listed is not None:
        names = [name.strip() for name in listed.split(",")]
        end = next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))
        return names[:end]  # CUDA stops at the first that is not there
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    count = sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    return [str(number) for number in range(count)]
