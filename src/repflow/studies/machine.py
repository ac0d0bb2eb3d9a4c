"""With what a run was made: versions, device, threads. Part of every Result's provenance."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

from repflow.version import __version__

PACKAGES = ("torch", "transformers", "numpy", "scipy", "safetensors")


def machine(device: str = "cpu") -> dict[str, Any]:
    """Versions of what computes, and the device by name. Only what can change a number belongs here."""
    import torch

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    return {
        "repflow": __version__,
        "python": platform.python_version(),
        "packages": {package: metadata.version(package) for package in PACKAGES},
        "device": device,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }
