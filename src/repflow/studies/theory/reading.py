"""Where the letters of paper 1's theorems are in a model, and what flows there on real prompts.

Single-head reading: W_V is W_O W_V of all heads together, exact where all heads attend alike. Weights are returned in
the column convention, on the model's device; a layer at a time is made float64 there. Architectures without a
reading are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from repflow.core.errors import UnsupportedModelError, teach

if TYPE_CHECKING:
    from repflow.models import Model

TRANSFORMERS = ("gpt2", "gpt_neo", "gpt_neox", "opt", "phi")
MAMBAS = ("mamba", "falcon_mamba", "mamba2")
STACK = "repflow_stack"


@dataclass(frozen=True)
class Attention:
    """Modules of one Transformer block, by the theorem's letters.

    Attributes:
        entry: module whose input is what attention sees.
        projections: W_Q, W_K and W_V as (head, dim, d) and their biases.
        out: W_O (d, head, dim).
        up: module of W1 and b1.
        down: module of W2 and b2.
        parallel: whether the feed-forward part reads the same state as attention, not what attention made of it.
    """

    entry: Any
    projections: tuple[Tensor, Tensor, Tensor]
    biases: tuple[Tensor, ...]
    out: Tensor
    up: Any
    down: Any
    parallel: bool


@dataclass(frozen=True)
class MambaMixer:
    """Parts of one Mamba mixer, of transformers or of repflow, by the theorem's letters.

    Attributes:
        in_proj: module of W_h and W_z; its rows are u, z in Mamba, z, u, B, C, Δ in Mamba-2.
        taps: W_c (lag, channel), newest token first; a row of ones where there is no convolution.
        bias: of the convolution (channel,).
        channels: number of channels of u.
        skip: D (channel,).
        normed: whether a gated norm follows o ∘ z.
    """

    in_proj: Any
    taps: Tensor
    bias: Tensor
    channels: int
    skip: Tensor
    normed: bool


@dataclass
class Seen:
    """What one layer saw on one prompt: named arrays (token, ...), the batch axis gone."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def check_readable(model: Model) -> str:
    """`transformer` or `mamba`; architectures without a reading get an error that says which have one."""
    if model.model_type in TRANSFORMERS:
        return "transformer"
    if model.model_type in MAMBAS or (model.model_type == STACK and all(map(_is_mamba, model.blocks))):
        return "mamba"
    kinds = ", ".join(sorted(set(model.layer_kinds)))
    why = f"{model.model_type} (layers: {kinds})"
    remedy = (
        "the theorems are about blocks of attention and an ungated feed-forward part, or of one Mamba mixer; "
        "gated feed-forward parts, hybrids and other recurrences have no such reading"
    )
    known = ", ".join([*TRANSFORMERS, *MAMBAS, "stacks of s6 or ssd alone"])
    expected = f"an architecture that Theorems 1 to 5 can be read in ({known})"
    raise UnsupportedModelError(teach(expected, why, remedy))


def _is_mamba(block: Any) -> bool:
    """Whether a block of a stack is one gated S6 or SSD mixer and no more."""
    return block.mixer.family in ("s6", "ssd") and block.mixer.gate and not block.has_mlp


def mamba_of(mixer: Any) -> MambaMixer:
    """Parts of one Mamba mixer; repflow's own calls its channels `inner` and may have neither convolution nor skip."""
    channels = int(mixer.inner if hasattr(mixer, "inner") else mixer.intermediate_size)
    conv, skip = mixer.conv1d, mixer.D
    nothing = double(mixer.in_proj.weight).new_zeros(channels)
    taps = nothing[None] + 1 if conv is None else double(conv.weight)[:channels, 0].T.flip(0)
    bias = nothing if conv is None or conv.bias is None else double(conv.bias)[:channels]
    weight = nothing[:1] if skip is None else double(skip)
    normed = getattr(mixer, "norm", None) is not None
    wide = weight.repeat_interleave(channels // len(weight))
    return MambaMixer(mixer.in_proj, taps, bias, channels, wide, normed)


def double(tensor: Any) -> Tensor:
    """float64 tensor on the same device; on the CPU if its device has no float64 (Apple's)."""
    plain = torch.as_tensor(tensor).detach()
    return (plain.cpu() if plain.device.type == "mps" else plain).double()


def numpy_of(tensor: Any) -> np.ndarray:
    """float64 array of a tensor."""
    return np.asarray(tensor.detach().double().cpu().numpy())


def linear_of(module: Any) -> tuple[Tensor, Tensor]:
    """Weight (out, in) and bias of a Linear, or of GPT-2's Conv1D, which keeps its transpose."""
    weight = module.weight.detach()
    weight = weight.T if type(module).__name__ == "Conv1D" else weight
    return weight, weight.new_zeros(len(weight)) if module.bias is None else module.bias.detach()


def attention_of(block: Any, model: Model) -> Attention:
    """Modules and weights of one Transformer block."""
    heads = _heads(model)
    kind = model.model_type
    if kind == "gpt2":
        entry, out, up, down = block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj
        parts = [list(part.chunk(3)) for part in linear_of(entry)]
    elif kind == "gpt_neox":
        entry, out = block.attention.query_key_value, block.attention.dense
        up, down = block.mlp.dense_h_to_4h, block.mlp.dense_4h_to_h
        # one head's query, key and value lie together
        parts = [
            [part.reshape(heads, 3, -1, *part.shape[1:])[:, i].reshape(-1, *part.shape[1:]) for i in range(3)]
            for part in linear_of(entry)
        ]
    else:
        inner = block.attn.attention if kind == "gpt_neo" else block.self_attn
        entry = inner.q_proj
        out = inner.dense if kind == "phi" else inner.out_proj
        mlp = block if kind == "opt" else block.mlp
        up, down = (mlp.c_fc, mlp.c_proj) if kind == "gpt_neo" else (mlp.fc1, mlp.fc2)
        pairs = [linear_of(getattr(inner, f"{name}_proj")) for name in "qkv"]
        parts = [[pair[i] for pair in pairs] for i in range(2)]
    matrices = [matrix.reshape(-1, len(parts[0][0]) // heads, matrix.shape[1]) for matrix in parts[0]]
    # keys and values may be shared by several query heads
    wide = [matrix.repeat_interleave(heads // len(matrix), 0) for matrix in matrices]
    weight = linear_of(out)[0]
    parallel = kind == "phi" or (kind == "gpt_neox" and bool(model.network.config.use_parallel_residual))
    return Attention(
        entry, (wide[0], wide[1], wide[2]), tuple(parts[1]), weight.reshape(len(weight), heads, -1), up, down, parallel
    )


def _heads(model: Model) -> int:
    config = model.network.config
    return int(getattr(config, "num_attention_heads", None) or config.num_heads)


@contextmanager
def watching(model: Model, kind: str, layers: list[Any], seen: dict[int, Seen]) -> Iterator[None]:
    """Fill `seen` by layer during the forward pass of one prompt inside the block."""
    with ExitStack() as stack:
        if kind == "transformer":
            for index, layer in enumerate(layers):
                for module, name, output in (
                    (layer.entry, "x", False),
                    (layer.up, "pre", True),
                    (layer.down, "act", False),
                ):
                    stack.callback(_hook(module, _keep(seen, index, name, output=output), output=output).remove)
        else:
            from repflow.models.recurrence.quantities import ssm_quantities

            stack.enter_context(ssm_quantities(model, lambda index, quantities: _keep_scan(seen, index, quantities)))
            for index, block in enumerate(model.blocks):
                mixer: Any = block.mixer
                module = mixer.in_proj
                for name, output in (("x", False), ("projected", True)):
                    stack.callback(_hook(module, _keep(seen, index, name, output=output), output=output).remove)
        yield


def _hook(module: Any, keep: Callable[..., None], *, output: bool) -> Any:
    return module.register_forward_hook(keep) if output else module.register_forward_pre_hook(keep)


def _keep(seen: dict[int, Seen], index: int, name: str, *, output: bool) -> Callable[..., None]:
    def hook(module: Any, args: Any, result: Any = None) -> None:
        value = numpy_of(result if output else args[0])
        # OPT folds batch and token into one axis before its feed-forward part
        seen.setdefault(index, Seen()).arrays[name] = value.reshape(-1, value.shape[-1])

    return hook


def _keep_scan(seen: dict[int, Seen], index: int, quantities: Any) -> None:
    call = (
        quantities.recurrence.call if quantities.call is None else quantities.call
    )  # repflow's own mixers call no such function
    here = seen.setdefault(index, Seen())
    for name in ("x", "delta", "B", "C"):
        here.arrays[f"scan_{name}"] = numpy_of(getattr(call, name))[0]
    here.facts = {"kind": call.kind, "A": numpy_of(call.A)}
