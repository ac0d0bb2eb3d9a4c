"""transformers' own configurations and torch forms, where another package has put its own in their place.

flash-linear-attention does both once it is imported, and transformers imports it with the code of any delta-rule model:
it registers its own Mamba and Mamba-2 under transformers' names, and transformers takes its kernels for tensors on a
CPU too, where they cannot run. mamba_ssm and causal_conv1d are taken in the same way.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from transformers.models.auto.configuration_auto import (
    CONFIG_MAPPING,
    CONFIG_MAPPING_NAMES,
    model_type_to_module_name,
)

KERNELS = "transformers.integrations.hub_kernels"
PACKED = ("cu_seqlens", "seq_idx")


def config_class(model_type: str) -> Any:
    """Configuration class of a model type: transformers' own, or a registered one where it has none.

    >>> config_class("mamba2").__module__
    'transformers.models.mamba2.configuration_mamba2'
    """
    if model_type in CONFIG_MAPPING_NAMES:
        module = importlib.import_module(f"transformers.models.{model_type_to_module_name(model_type)}")
        own = getattr(module, CONFIG_MAPPING_NAMES[model_type], None)
        if own is not None:
            return own
    return CONFIG_MAPPING[model_type]


def is_displaced(model_type: Any) -> bool:
    """Whether another package has registered its own configuration under one of transformers' names."""
    return model_type in CONFIG_MAPPING_NAMES and CONFIG_MAPPING[model_type] is not config_class(model_type)


def run_torch_forms_on_cpu(network: nn.Module) -> None:
    """Let the layers of a network run transformers' torch forms on CPU tensors; on a GPU the kernels stay.

    transformers chooses between a package's kernel and its own form when a modeling file is imported, whatever the
    tensors will be. The functions of those files are replaced for good, by ones that look at the tensors first.
    """
    homes = {home for module in network.modules() for home in (cls.__module__ for cls in type(module).__mro__)}
    for home in homes:
        if home.startswith("transformers.models."):
            for name, function in list(vars(sys.modules[home]).items()):
                if _takes_kernel(function):
                    setattr(sys.modules[home], name, _by_device(function))


def _takes_kernel(function: Any) -> bool:
    """Whether a function is transformers' choice of a kernel from another package over a torch form of its own."""
    if not isinstance(function, FunctionType) or function.__globals__.get("__name__") != KERNELS:
        return False
    return hasattr(function, "__wrapped__") and bool(
        inspect.getclosurevars(function).nonlocals.get("is_new_implementation")
    )


def _by_device(kernel: Callable[..., Any]) -> Callable[..., Any]:
    torch_form: Callable[..., Any] = kernel.__wrapped__  # type: ignore[attr-defined]
    known = frozenset(inspect.signature(torch_form).parameters)

    @functools.wraps(torch_form)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        on_cpu = all(value.device.type == "cpu" for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        # packed sequences are the kernels' alone: the torch forms would let one flow into the next
        if not on_cpu or any(kwargs.get(name) is not None for name in PACKED):
            return kernel(*args, **kwargs)
        return torch_form(*args, **{name: value for name, value in kwargs.items() if name in known})

    return chosen
