"""The fastest forward pass that trains: Triton kernels for SSM blocks, fused attention.

For whole windows without padding and without a cache. A model's weights and its own forward are as they were once the
block ends.

- Mamba and Mamba-2 blocks, and Bamba's mixers, run on the Triton kernels where these can run.
- GPT-Neo of transformers computes attention by hand in float32; here the same product (no scaling, the local window)
  goes through torch's fused one.
- transformers looks at every batch for packed sequences, which makes the GPU wait in each step and a CUDA graph carry a
  mask as large as the batch. Without a mask torch's attention is causal by itself.
- What is left of a block (norms, MLPs, rotary positions, residual sums) is many small kernels; on a GPU torch.compile
  joins them. A part that does not compile runs as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

COMPILED = ("GPTNeoXLayer", "GPTNeoBlock", "BambaRMSNorm", "BambaMLP")
"""Modules that torch.compile takes whole: nothing inside them runs on our kernels."""
OWN_WINDOW = "repflow_band_"
"""Start of the names of attention that brings its own mask, see `tools.zoo.variants`."""
MASKS = ("create_causal_mask", "create_recurrent_attention_mask")
"""Functions of transformers' modeling files that make a batch's masks."""


@contextmanager
def fast_forward(network: Any) -> Iterator[list[str]]:
    """Run a model by its fastest parts; yields the names of the modules that do not run transformers' own forward."""
    from repflow.models.fastpath.gpu import gpu_blocks

    with ExitStack() as stack:
        stack.enter_context(_no_masks(network))
        names = list(stack.enter_context(gpu_blocks(network)))
        names += stack.enter_context(_swapped(network))
        stack.enter_context(_compiled(network))
        yield names


@contextmanager
def _swapped(network: Any) -> Iterator[list[str]]:
    changed: list[tuple[Any, str]] = []
    names = []
    try:
        for name, module in network.named_modules():
            kind = type(module).__name__
            if kind == "BambaMixer" and _on_kernels(module):
                module.forward = partial(_bamba_forward, module, module.forward)
                changed.append((module, "forward"))
            elif kind == "GPTNeoSelfAttention" and not module.attn_dropout.p:
                module._attn = partial(_neo_attention, module)
                changed.append((module, "_attn"))
            else:
                continue
            names.append(name)
        yield names
    finally:
        for module, attribute in changed:
            delattr(module, attribute)


@contextmanager
def _compiled(network: Any, device: str = "cuda", backend: str = "inductor") -> Iterator[None]:
    """Compile the parts named above where the weights lie on a GPU; modules of one kind share what is compiled."""
    import torch

    parts = [module for module in network.modules() if type(module).__name__ in COMPILED]
    if not parts or next(network.parameters()).device.type != device:
        yield
        return
    with torch._dynamo.config.patch(suppress_errors=True, recompile_limit=64):
        for module in parts:
            module.forward = torch.compile(module.forward, dynamic=False, backend=backend)
        try:
            yield
        finally:
            for module in parts:
                del module.forward


@contextmanager
def _no_masks(network: Any) -> Iterator[None]:
    """Leave out the masks of whole windows, where the attention that runs is causal without one."""
    home = sys.modules[type(network).__module__]
    attention = str(network.config._attn_implementation)
    fused = network.config.model_type == "gpt_neo" or attention == "sdpa" or attention.startswith(OWN_WINDOW)
    usual = {name: getattr(home, name) for name in MASKS if fused and hasattr(home, name)}
    for name in usual:
        setattr(home, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, function in usual.items():
            setattr(home, name, function)


def _on_kernels(mixer: Any) -> bool:
    """Whether the Triton kernels take a BambaMixer: its weights, and a gated norm over all channels at once."""
    from repflow.mixers.triton.launch import obstacle

    plain = mixer.activation in ("silu", "swish") and mixer.norm.weight.shape[0] == mixer.num_heads * mixer.head_dim
    return plain and obstacle(mixer.A_log, mixer.D, mixer.conv1d.weight, mixer.out_proj.weight) is None


def _bamba_forward(mixer: Any, usual: Any, hidden_states: Tensor, **kwargs: Any) -> Tensor:
    """A BambaMixer without cache and mask, which computes what a Mamba2Mixer does."""
    from repflow.models.fastpath.gpu import mamba2_layer

    if any(kwargs.get(name) is not None for name in ("cache_params", "attention_mask")):
        output: Tensor = usual(hidden_states, **kwargs)
        return output
    return mamba2_layer(mixer, hidden_states)


def _neo_attention(layer: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, None]:
    """softmax(Q Kᵀ) V under GPT-Neo's own mask; the one it is handed adds nothing to windows without padding."""
    from torch.nn.functional import scaled_dot_product_attention

    if layer.attention_type == "global":
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0), None
    size = query.shape[-2]
    return scaled_dot_product_attention(query, key, value, attn_mask=layer.bias[..., :size, :size], scale=1.0), None
