"""Sizes that a configuration names: what no machine could build is refused before anything is built.

transformers builds a list entry by entry, so a configuration of a billion layers would keep it busy for hours before
the first byte of a weight is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from repflow.core.errors import InputError, teach
from repflow.models.anatomy import declared_layers, text_config
from repflow.models.room import size_words, total_bytes

MOST_ENTRIES = 10_000
"""Layers, or experts of a layer; the deepest models have about a thousand, and each entry takes milliseconds."""
COUNTS = re.compile(r"(^|_)(layers?|blocks?|experts|modules|attention_types)(_|$)", re.IGNORECASE)
NOT_COUNTS = re.compile(r"size|dim|width|eps|norm|scale|len|std|dropout|hidden_layers_to|indices|ids", re.IGNORECASE)


def check_counts(data: dict[str, Any], name: str) -> None:
    """Refuse a config.json whose numbers of layers or experts no machine builds; transformers has not seen it yet.

    >>> check_counts({"num_hidden_layers": 10**9}, "tiny")
    Traceback (most recent call last):
    repflow.core.errors.InputError: expected at most 10,000 layers or experts; got num_hidden_layers = 1,000,000,000 \
in the configuration of tiny; check its config.json
    """
    for key, value in _numbers(data):
        if value > MOST_ENTRIES and COUNTS.search(key) and not NOT_COUNTS.search(key):
            got = f"{key} = {value:,} in the configuration of {name}"
            raise InputError(teach(f"at most {MOST_ENTRIES:,} layers or experts", got, "check its config.json"))


def _numbers(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """Every whole number with the nearest key above it; what is nested deeper than configurations are is left out."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield key, value
    elif depth < 8 and isinstance(value, dict):
        for inner, entry in value.items():
            yield from _numbers(entry, str(inner), depth + 1)
    elif depth < 8 and isinstance(value, list):
        for entry in value:
            yield from _numbers(entry, key, depth + 1)


def check_sizes(config: Any, name: str) -> None:
    """Refuse a configuration without layers, width or vocabulary."""
    text = text_config(config)
    check_counts({"num_hidden_layers": declared_layers(config)}, name)
    for key in ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads"):
        value = getattr(text, key, None)
        if isinstance(value, int) and value < 1:
            got = f"{key} = {value} in the configuration of {name}"
            raise InputError(teach("sizes of at least 1", got, "check its config.json"))


def check_weights_fit(elements: int, dtype: torch.dtype, device: torch.device, name: str) -> None:
    """Refuse weights that exceed the whole memory of a device, whatever else runs on it."""
    total, need = total_bytes(device), elements * dtype.itemsize
    if total is None or need <= total:
        return
    half = "--dtype bfloat16, " if dtype.itemsize > 2 else ""
    where = "this machine's memory and swap" if device.type == "cpu" else f"the memory of {device}"
    got = f"{name} with {elements:,} weights, {size_words(need)} in {str(dtype).removeprefix('torch.')}"
    remedy = f"pass {half}--device-map auto, a smaller model, or use a larger machine"
    raise InputError(teach(f"weights within {where}, {size_words(total)}", got, remedy))
