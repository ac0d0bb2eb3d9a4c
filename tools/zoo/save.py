"""A trained model's folder: transformers' own files, weights in bfloat16, and the record of the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from repflow.store.disk import write_atomic

RECORD = "training.json"
OF_WEIGHTS = ("evaluation.json", "probe.json", "README.md")
"""What was measured of a folder's weights: gone with them."""


def save_model(network: Any, folder: Path, record: dict[str, Any]) -> None:
    """Write config.json, model.safetensors and training.json; the network is turned to bfloat16 on the way."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    record["digest"] = digest(network := network.to("cpu").to(torch.bfloat16).eval())
    network.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)  # greedy unless asked otherwise, as without it
    for name in OF_WEIGHTS:
        (folder / name).unlink(missing_ok=True)
    write_json(folder / RECORD, record)


def digest(network: Any) -> str:
    """SHA-256 of all parameters by name."""
    import hashlib

    import torch

    state = hashlib.sha256()
    for name, parameter in sorted(network.named_parameters(), key=lambda item: item[0]):
        state.update(name.encode())
        state.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a record as a whole; a number that is not finite becomes null."""
    write_atomic(path, (json.dumps(_finite(content), indent=1) + "\n").encode())


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
