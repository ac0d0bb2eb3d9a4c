"""Implementations that a configuration may ask for: those that are here, never code from elsewhere.

`attn_implementation: "owner/kernel"` makes transformers fetch a repository through the package `kernels` and run it;
so do two implementations of experts, and flash attention where its own package is missing. A configuration is data:
it does not choose what code runs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers.integrations import hub_kernels

from repflow.core.errors import InputError, teach

LOCAL = {"attn": ("eager", "sdpa", "flex_attention"), "experts": ("eager", "batched_mm", "grouped_mm")}
"""What transformers brings itself; its other experts (deepgemm, sonicmoe) are kernels of the hub."""
FLASH = {
    "flash_attention_2": "flash_attn",
    "flash_attention_3": "flash_attn_interface",
    "flash_attention_4": "flash_attn.cute",
}
"""Flash attention → the package without which transformers fetches a kernel instead."""


def refuse_fetched_code(data: Mapping[str, Any], name: str) -> None:
    """Refuse a configuration that asks for an implementation which is not here, at any depth.

    Args:
        data: config.json as it was read.
        name: of the model, for the message.

    Raises:
        InputError: It names a kernel of the hub, or another implementation that is not local.
    """
    for key, value in _requests(data):
        part, word = "experts" if "experts" in key else "attn", value if isinstance(value, str) else ""
        if value is None or word in LOCAL[part] or (part == "attn" and _installed_flash(word)):
            continue
        local = ", ".join((*LOCAL[part], *(flash for flash in FLASH if part == "attn" and _installed_flash(flash))))
        got = f"{value!r:.80} in the configuration of {name}, which would fetch and run other code"
        if word in FLASH:
            got = f"{word!r} in the configuration of {name}, without the package {FLASH[word].partition('.')[0]}"
        remedy = f"take {key} out of its config.json, or load the model yourself and pass it"
        raise InputError(teach(f"{key}: {local}", got, remedy))


def _requests(data: Any) -> Iterator[tuple[str, Any]]:
    """Every requested implementation, for the whole or for a part: `{"text_config": "sdpa"}`."""
    if isinstance(data, list):
        for entry in data:
            yield from _requests(entry)
    if not isinstance(data, Mapping):
        return
    for key, value in data.items():
        plain = str(key).strip("_").removesuffix("_internal")
        if plain in ("attn_implementation", "experts_implementation"):
            yield from ((plain, entry) for entry in (value.values() if isinstance(value, Mapping) else [value]))
        else:
            yield from _requests(value)


def _installed_flash(value: str) -> bool:
    package = FLASH.get(value)
    try:
        return package is not None and importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a part of a package that is not there
        return False


@contextmanager
def no_fetched_kernels() -> Iterator[None]:
    """Inside, transformers fetches no kernel, whatever a model's own code asks for; it falls back or says so."""
    original = getattr(hub_kernels, "get_kernel", None)
    if original is None:  # an older transformers, which asks the package itself for kernels that were named
        yield
        return

    def refuse(kernel_name: str, *_: Any, **__: Any) -> Any:
        raise ImportError(f"repflow runs no kernels from the hub, and this model asks for {kernel_name!r}")

    hub_kernels.get_kernel = refuse
    try:
        yield
    finally:
        hub_kernels.get_kernel = original
