"""What a run was computed with: model, versions, device, threads. Part of every Result's provenance."""

from __future__ import annotations

import functools
import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

from repflow.papers.reading import training_of
from repflow.spec.zoo import is_zoo, record
from repflow.version import __version__

if TYPE_CHECKING:
    from repflow.models import Model

PACKAGES = ("torch", "transformers", "numpy", "scipy", "safetensors")


def machine(device: str = "cpu") -> dict[str, Any]:
    """Versions of what computes, and the device by name. Only what can change a number belongs here."""
    import torch

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    return {
        "repflow": __version__,
        "python": platform.python_version(),
        "packages": dict(_versions()),
        "device": device,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


@functools.cache
def _versions() -> tuple[tuple[str, str], ...]:
    """Versions of the packages, which do not change within a process; looking them up takes 40 ms."""
    return tuple((package, metadata.version(package)) for package in PACKAGES)


def model_facts(model: Model) -> dict[str, Any]:
    """What a Result says about a model.

    The training of a built-in one is recorded here, since a reader of the run may have another zoo (`REPFLOW_ZOO`).
    """
    streams = model.streams
    several = {} if streams is None else {"streams": {"count": streams.count, "readout": streams.name}}
    return {
        "name": model.name,
        "spec": model.spec,
        "type": model.model_type,
        "init": model.init,
        "drawn_on": model.drawn_on,
        "ablate": list(model.ablations),
        "layers": model.n_layers,
        "layer_kinds": model.layer_kinds,
        "width": model.width,
        **several,
        "parameters": sum(p.numel() for p in model.network.parameters()),
        "revision": model.revision,
        "scan": model.scans.at_load,
        "training": training_of(record(model.spec))._asdict() if is_zoo(model.spec) else None,
    }
