"""`repflow doctor`: what this machine can do."""

from __future__ import annotations

import json
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from repflow.cli.console import note, quiet, stdout_console
from repflow.cli.options import AS_JSON

PACKAGES = ("torch", "transformers", "numpy", "scipy", "safetensors", "tokenizers", "huggingface_hub")
FAST_PATHS = {
    "triton": "fused meters and scans on GPUs",
    "mamba_ssm": "transformers' fast Mamba kernels",
    "causal_conv1d": "transformers' fast Mamba convolution",
}
EXTRAS = {
    "accelerate": ("accelerate",),
    "bm25": ("bm25s",),
    "figures": ("matplotlib",),
    "gguf": ("gguf",),
    "images": ("PIL",),
    "tables": ("pandas", "pyarrow", "xarray"),
}
"""Extra → the modules it brings."""


def command(
    as_json: AS_JSON = False,
) -> None:
    """Say what this machine can do: devices, dtypes (probed in a process of their own), fast paths, extras."""
    note("looking at this machine: devices, dtypes, fast paths, extras")
    with quiet():
        facts = examine()
    if as_json:
        print(json.dumps(facts))
    else:
        _show(facts)


def examine() -> dict[str, Any]:
    """Everything doctor knows, as plain JSON values."""
    import os
    import platform

    import torch

    from repflow.models import probe_dtypes
    from repflow.version import __version__

    return {
        "repflow": __version__,
        "python": platform.python_version(),
        "packages": {package: metadata.version(package) for package in PACKAGES if find_spec(package)},
        "devices": _devices(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_dtypes": probe_dtypes(),
        "fast_paths": {name: find_spec(name) is not None for name in FAST_PATHS},
        "extras": {extra: [m for m in modules if find_spec(m) is None] for extra, modules in EXTRAS.items()},
        "hub_offline": os.environ.get("HF_HUB_OFFLINE", "") in ("1", "ON", "YES", "TRUE"),
    }


def _devices() -> list[dict[str, Any]]:
    import platform

    import torch

    devices: list[dict[str, Any]] = [{"device": "cpu", "name": platform.processor() or platform.machine()}]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(
            {
                "device": f"cuda:{index}",
                "name": properties.name,
                "memory_gib": round(properties.total_memory / 2**30, 1),
                "bfloat16": torch.cuda.is_bf16_supported(),
            }
        )
    if torch.backends.mps.is_available():
        devices.append({"device": "mps", "name": "Apple GPU"})
    return devices


def _show(facts: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    versions = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    rows = [("repflow", f"{facts['repflow']}, Python {facts['python']}"), ("packages", versions)]
    for device in facts["devices"]:
        memory = f", {device['memory_gib']} GiB" if "memory_gib" in device else ""
        rows.append(("device", f"{device['device']}: {device['name']}{memory}"))
    rows.append(("cores", f"{facts['cores']}, {facts['threads']} threads used"))
    rows += [(f"dtype {name}", f"{state} on the CPU") for name, state in facts["cpu_dtypes"].items()]
    for name, present in facts["fast_paths"].items():
        rows.append((f"fast path {name}", f"{'present' if present else 'absent'} ({FAST_PATHS[name]})"))
    for extra, missing in facts["extras"].items():
        absent = f"lacks {', '.join(missing)}; pip install 'repflow[{extra}]'"
        rows.append((f"extra {extra}", absent if missing else "installed"))
    rows.append(("hub", "offline (HF_HUB_OFFLINE)" if facts["hub_offline"] else "used only for hub ids"))
    for title, text in rows:
        table.add_row(title, Text(text))
    stdout_console().print(table)
