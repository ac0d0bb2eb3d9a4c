"""Attention weights of a model's attention layers, handed out while it runs.

Fused kernels never form the weights. transformers' eager form does, so that a model is run with it inside the block
and put back after it; GPT-Neo and repflow's own attention form them anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from repflow.core.errors import InputError, teach
from repflow.mixers.softmax_attention import SoftmaxAttention
from repflow.models.families import OWN_ATTENTION

if TYPE_CHECKING:
    from repflow.models.pretrained import Model

OnWeights = Callable[[int, Tensor], object]


@contextmanager
def attention_weights(model: Model, on_weights: OnWeights) -> Iterator[None]:
    """Hand out the weights (batch, head, token, token) of every attention layer during the passes inside the block.

    Args:
        model: A loaded model.
        on_weights: Called with the block's index and its weights, when its attention is done.

    Raises:
        InputError: At the pass: a layer's attention gives no weights, since a fused kernel hides them.
    """
    current = [0]

    def enter(index: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            current[0] = index

        return hook

    def after(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        if isinstance(module, SoftmaxAttention):
            on_weights(current[0], module.weights(args[0]))
        else:
            on_weights(current[0], _weights_of(model, current[0], module, output))

    modules = {id(module): module for block in model.blocks for module in attention_modules(model, block)}
    with ExitStack() as stack:
        stack.enter_context(_eager(model.network))
        for index, block in enumerate(model.blocks):
            stack.callback(block.register_forward_pre_hook(enter(index)).remove)
        for module in modules.values():  # zamba's blocks share one
            stack.callback(module.register_forward_hook(after, with_kwargs=True).remove)
        yield


def attention_modules(model: Model, block: nn.Module) -> list[nn.Module]:
    """Modules of a block that attend; of one inside the other (GPT-Neo) the inner one."""
    modules = [module for module in block.modules() if model.reading.mixers.get(module) == "attention"]
    return [m for m in modules if not any(inner is not m and inner in modules for inner in m.modules())]


def attention_layers(model: Model) -> list[int]:
    """Blocks that attend."""
    return [index for index, block in enumerate(model.blocks) if attention_modules(model, block)]


@contextmanager
def _eager(network: nn.Module) -> Iterator[None]:
    """Let transformers form the weights; attention that an ablation changed is left as it is."""
    configs: dict[int, Any] = {id(m.config): m.config for m in network.modules() if hasattr(m, "config")}
    names = {key: getattr(config, "_attn_implementation", None) for key, config in configs.items()}
    changed = {
        key: name for key, name in names.items() if name not in (None, "eager") and not name.startswith(OWN_ATTENTION)
    }
    try:
        for key in changed:
            configs[key]._attn_implementation = "eager"
        yield
    finally:
        for key, name in changed.items():
            configs[key]._attn_implementation = name


def _weights_of(model: Model, layer: int, module: nn.Module, output: Any) -> Tensor:
    parts = output if isinstance(output, (tuple, list)) else [output]
    for part in parts[1:]:
        if isinstance(part, Tensor) and part.ndim == 4 and part.shape[-1] == part.shape[-2]:
            return part
    kind = getattr(getattr(module, "config", None), "_attn_implementation", None) or "its own code"
    expected = f"attention weights from {type(module).__name__} in block {layer + 1} of {model.name}"
    remedy = "load the transformers model with attn_implementation='eager' (before ablating it) and pass that"
    raise InputError(teach(expected, f"none: {kind} hides them in a fused kernel", remedy))
