"""Whole Mamba, Mamba-2 and Gated DeltaNet layers, and Mamba's norms, on the Triton kernels inside a loaded model.

`repflow.models.fastpath.scans` replaces the scan; on a GPU the convolution, the gate and the norms around it then take
longer than the scan. Here the layer classes of transformers get a dispatcher in front of their `forward`, which
answers for marked layers and passes all other calls on. Layers and norms are still called as modules: hooks on them
see what they always see, and a `forward` that someone put on an instance comes first. A layer keeps its own forward
wherever something inside it could be looked at or must be remembered: watchers of its scan, hooks on its inner norm, a
cache, a mask, gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from repflow.core.errors import InputError, teach
from repflow.mixers.triton.launch import obstacle
from repflow.models.fastpath import delta_layer
from repflow.models.fastpath import gpu as fastpath_gpu
from repflow.models.fastpath.layer_scan import TOLERANCE, LayerScan, left_alone, relative
from repflow.models.fastpath.memory import active

MARK = "_repflow_layer"
IGNORED = ("cache_position", "position_ids")
"""Arguments that mean nothing to a layer without a cache; nor do settings of the model's output, true or false."""
NORMS = ("MambaRMSNorm", "FalconMambaRMSNorm", "Mamba2RMSNorm")


UNCHECKED = "not compared with transformers' yet"
"""State of a layer before its model's self-check."""


def kind_of(module: nn.Module) -> str | None:
    """s6, ssd or delta for a layer that the kernels can run as a whole, by its class; None for all others."""
    if delta_layer.known_layer(module):
        return "delta"
    if not fastpath_gpu.known_layer(module):
        return None
    return "ssd" if hasattr(module, "dt_bias") else "s6"


def switch(mixer: nn.Module, layer: LayerScan, norms: list[nn.Module]) -> None:
    """Let the kernels run a layer and the norms around it, as the layer's setting says."""
    layer.whole = UNCHECKED
    _dispatch(type(mixer), _run_layer)
    object.__setattr__(mixer, MARK, layer)
    for norm in norms:
        if type(norm).__name__ in NORMS and type(norm).__module__.startswith("transformers.models."):
            _dispatch(type(norm), _run_norm)
            object.__setattr__(norm, MARK, layer)


def _dispatch(cls: type[nn.Module], answer: Callable[..., Any]) -> None:
    original = cls.forward
    if hasattr(original, MARK):
        return

    @functools.wraps(original)
    def forward(self: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        layer = self.__dict__.get(MARK)
        if layer is None:
            return original(self, hidden_states, *args, **kwargs)
        return answer(self, layer, original, hidden_states, args, kwargs)

    setattr(forward, MARK, original)
    cls.forward = forward


def _run_norm(
    norm: Any, layer: LayerScan, original: Callable[..., Any], hidden: Tensor, args: tuple, kwargs: dict[str, Any]
) -> Any:
    if args or kwargs or _refused(layer) or _left_alone(layer, hidden) or obstacle(norm.weight, hidden):
        return original(norm, hidden, *args, **kwargs)
    if layer.verifying:
        theirs = original(norm, hidden)
        problem = _differs("norm", partial(fastpath_gpu.norm_forward, norm, hidden), theirs)
        layer.whole = problem or layer.whole
        return theirs
    return fastpath_gpu.norm_forward(norm, hidden)


def _refused(layer: LayerScan) -> str | None:
    """Why the kernels do not run a layer, as far as that is known; during the self-check they may try."""
    return None if layer.verifying and layer.whole == UNCHECKED else layer.whole or layer.refused


def _run_layer(
    mixer: Any, layer: LayerScan, original: Callable[..., Any], hidden: Tensor, args: tuple, kwargs: dict[str, Any]
) -> Any:
    if layer.watchers and not layer.readable:
        expected = f"a transformers whose scan in block {layer.layer + 1} can be read"
        raise InputError(teach(expected, "one that computes it inside the layer", "install transformers 5.22 or later"))
    memory = active()
    if memory is not None and not layer.watchers and layer.kind != "delta":
        return memory.run(mixer, hidden)
    reason = _why_not(mixer, layer, hidden, args, kwargs)
    if reason is not None:
        return _own(mixer, layer, original, hidden, args, kwargs, reason)
    if layer.verifying:
        theirs = _own(mixer, layer, original, hidden, args, kwargs, "the self-check")
        layer.verifying = False
        layer.whole = _differs("whole layer", partial(_kernels, mixer, layer, hidden), theirs)
        return theirs
    layer.note("triton", "the whole layer, on a GPU that Triton serves")
    return _kernels(mixer, layer, hidden)


def _own(
    mixer: Any, layer: LayerScan, original: Callable[..., Any], hidden: Tensor, args: tuple, kwargs: dict[str, Any],
    reason: str,
) -> Any:  # fmt: skip
    if not layer.readable:  # else the scan's own dispatcher says what ran
        layer.note(
            "transformers", f"this transformers has no scan function to replace, and not the whole layer: {reason}"
        )
    return original(mixer, hidden, *args, **kwargs)


def _kernels(mixer: Any, layer: LayerScan, hidden: Tensor) -> Tensor:
    if layer.kind == "delta":
        return delta_layer.gated_delta_layer(mixer, hidden)
    run = fastpath_gpu.mamba2_layer if hasattr(mixer, "dt_bias") else fastpath_gpu.mamba_layer
    return run(mixer, hidden)


def _differs(what: str, run: Callable[[], Tensor], theirs: Tensor) -> str | None:
    """Why the kernels must not be used here; None if they agree with transformers'."""
    try:
        ours = run()
    except RuntimeError as error:  # a kernel that does not compile or launch on this machine
        return f"the kernels failed on this machine: {str(error).strip().splitlines()[0]}"
    off = relative(ours, theirs)
    if off <= TOLERANCE[theirs.dtype]:
        return None
    return f"the {what} differs from transformers' by {off:.1e} of the largest output"


def _why_not(mixer: Any, layer: LayerScan, hidden: Tensor, args: tuple, kwargs: dict[str, Any]) -> str | None:
    """Why the kernels do not run this call of a layer; None if they do."""
    plain = {name for name, value in kwargs.items() if value is None or isinstance(value, bool)}
    extra = [name for name in kwargs if name not in plain and name not in IGNORED]
    if args or extra:
        return f"called with {extra[0] if extra else 'more than its input'}"
    if (refused := _refused(layer)) is not None:
        return refused
    if layer.watchers:
        return "its scan is watched"
    if layer.kind == "delta":
        if not delta_layer.unobserved(mixer):
            return "its convolution or its inner norm is watched or changed"
        return _left_alone(layer, hidden) or delta_layer.layer_obstacle(mixer) or obstacle(hidden)
    if hasattr(mixer, "dt_bias") and not _unobserved(mixer.norm):
        return "its inner norm is watched or changed"
    return _left_alone(layer, hidden) or fastpath_gpu.layer_obstacle(mixer) or obstacle(hidden)


def _left_alone(layer: LayerScan, hidden: Tensor) -> str | None:
    if torch.is_grad_enabled():
        return "gradients are on"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "inside a torch.func transform"
    if torch.autograd.forward_ad._current_level >= 0:
        return "inside forward-mode differentiation"
    return left_alone(layer.setting, (hidden,), layer.kind)


def _unobserved(module: nn.Module) -> bool:
    """Whether skipping the call of a module has no visible effect."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    usual = type(module).__name__ == "MambaRMSNormGated" and "forward" not in module.__dict__
    return usual and not any(hooks) and not torch_module._has_any_global_hook()  # type: ignore[no-untyped-call]
