"""What transformers' Mamba layers keep of a prompt, in repflow's own form, and how they continue from it by token.

transformers' caches differ from version to version, keep half-precision states in some and forget the step size's
limits in others. Here a layer that is called while a `Memory` is active reads a whole prompt with the fast scan, keeps
the last inputs of its convolution and the scan's final state (float32 at least), and takes every later token from
those. The model around it runs without a cache, so nothing else has to know.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers.scan.forms import selective_scan, ssd_scan
from repflow.mixers.scan.token import conv_token, s6_token, ssd_token
from repflow.mixers.triton.launch import obstacle
from repflow.models.fastpath.gpu import known_layer


@dataclass
class LayerMemory:
    """What one layer keeps.

    Attributes:
        window: The convolution's last inputs (batch, taps − 1, channel), zeros before the first token.
        state: Mamba's (batch, state, channel) or Mamba-2's (batch, head, dim, state).
    """

    window: Tensor
    state: Tensor

    def rows(self, index: Tensor) -> LayerMemory:
        """A copy of these rows of the batch."""
        at = index.to(self.state.device)
        return LayerMemory(self.window[at], self.state[at])


@dataclass
class Memory:
    """What all layers of a network keep of a batch of prompts of equal length."""

    layers: dict[nn.Module, LayerMemory] = field(default_factory=dict)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Layers called inside read from this memory and write to it."""
        before, _active.memory = _active.memory, self
        try:
            yield
        finally:
            _active.memory = before

    def rows(self, index: Tensor) -> Memory:
        """A copy of these rows of the batch, to continue from."""
        return Memory({layer: memory.rows(index) for layer, memory in self.layers.items()})

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return sum(memory.window.nbytes + memory.state.nbytes for memory in self.layers.values())

    def run(self, mixer: Any, hidden: Tensor) -> Tensor:
        """A layer's output for a whole prompt, or for one more token: (batch, token, width) → same."""
        before = self.layers.get(mixer)
        if before is not None and hidden.shape[1] != 1:
            got = f"{hidden.shape[1]} tokens"
            raise InputError(teach("one token at a time behind the prompt", got, "read a new prompt for more"))
        layer = _mamba2 if hasattr(mixer, "dt_bias") else _mamba
        y, after = layer(mixer, hidden, before)
        self.layers[mixer] = after
        output: Tensor = mixer.out_proj(y)
        return output


class _Active(threading.local):
    def __init__(self) -> None:
        self.memory: Memory | None = None


_active = _Active()


def active() -> Memory | None:
    """The memory that layers are to use now."""
    return _active.memory


def remembers(blocks: Sequence[nn.Module]) -> bool:
    """Whether every block's token mixing is a layer that a `Memory` can keep: Mamba, Falcon-Mamba and Mamba-2."""
    mixers = [getattr(block, "mixer", None) for block in blocks]
    return all(
        isinstance(mixer, nn.Module)
        and known_layer(mixer)
        and getattr(mixer, "activation", "silu") in ("silu", "swish")
        and "forward" not in mixer.__dict__
        for mixer in mixers
    )


def _convolved(mixer: Any, x: Tensor, memory: LayerMemory | None) -> tuple[Tensor, Tensor]:
    """Convolution with SiLU of x (batch, token, channel), and the window after it."""
    weight, bias = mixer.conv1d.weight, mixer.conv1d.bias
    if memory is not None:
        return conv_token(x[:, 0], memory.window, weight, bias)[:, None], memory.window
    before = weight.shape[-1] - 1
    window = functional.pad(x[:, max(0, x.shape[1] - before) :], (0, 0, max(0, before - x.shape[1]), 0)).contiguous()
    if obstacle(x, weight, bias) is None:
        from repflow.mixers.triton.block import causal_conv_silu

        return causal_conv_silu(x, weight, bias), window
    padded = functional.pad(x.mT, (before, 0))
    return functional.silu(functional.conv1d(padded, weight, bias, groups=weight.shape[0])).mT, window


def _mamba(mixer: Any, hidden: Tensor, memory: LayerMemory | None) -> tuple[Tensor, LayerMemory]:
    """A Mamba layer without its projection out."""
    x, gate = mixer.in_proj(hidden).chunk(2, dim=-1)
    x, window = _convolved(mixer, x, memory)
    size = mixer.A_log.shape[1]
    step, b, c = mixer.x_proj(x).split([mixer.x_proj.out_features - 2 * size, size, size], dim=-1)
    eps = getattr(mixer, "rms_eps", None)
    if eps is not None:  # FalconMamba norms all three, without weights
        step, b, c = (functional.rms_norm(part, part.shape[-1:], eps=eps) for part in (step, b, c))
    dt, bias = functional.linear(step, mixer.dt_proj.weight), mixer.dt_proj.bias
    if memory is not None:
        parts = (x[:, 0], dt[:, 0], bias, mixer.A_log, b[:, 0], c[:, 0], mixer.D, gate[:, 0])
        return s6_token(memory.state, *parts)[:, None], memory
    wide = torch.promote_types(x.dtype, torch.float32)
    rate = -torch.exp(mixer.A_log.to(wide))
    if obstacle(x, dt, rate, b, c, mixer.D) is None:
        from repflow.mixers.triton.s6 import selective_scan_triton

        y, final = selective_scan_triton(
            x, dt, rate, b, c, mixer.D, None, True, z=gate, delta_bias=bias, delta_softplus=True
        )
    else:
        delta = functional.softplus(dt.to(wide) if bias is None else dt.to(wide) + bias.to(wide))
        y, final = selective_scan(x, delta, rate, b, c, D=mixer.D, return_final=True)
        y = y * functional.silu(gate)
    return y, LayerMemory(window, final.mT.contiguous())


def _mamba2(mixer: Any, hidden: Tensor, memory: LayerMemory | None) -> tuple[Tensor, LayerMemory]:
    """A Mamba-2 layer without its projection out."""
    inner, maps = mixer.num_heads * mixer.head_dim, mixer.n_groups * mixer.ssm_state_size
    gate, mixed, dt = mixer.in_proj(hidden).split([inner, inner + 2 * maps, mixer.num_heads], dim=-1)
    mixed, window = _convolved(mixer, mixed, memory)
    x, b, c = mixed.split([inner, maps, maps], dim=-1)  # type: ignore[no-untyped-call]
    limits = (float(mixer.time_step_limit[0]), float(mixer.time_step_limit[1]))
    if memory is not None:
        parts = (x[:, 0], dt[:, 0], mixer.dt_bias, mixer.A_log, b[:, 0], c[:, 0], mixer.D, limits)
        return _gated(mixer, ssd_token(memory.state, *parts)[:, None], gate), memory
    x = x.unflatten(-1, (mixer.num_heads, mixer.head_dim))
    b, c = (part.unflatten(-1, (mixer.n_groups, mixer.ssm_state_size)) for part in (b, c))
    wide = torch.promote_types(x.dtype, torch.float32)
    rate = -torch.exp(mixer.A_log.to(wide))
    from repflow.mixers.triton import ssd as triton_ssd

    if triton_ssd.supported(x, dt, rate, b, c, mixer.D) is None:
        y, final = triton_ssd.ssd_scan_triton(
            x, dt, rate, b, c, mixer.D, None, True, delta_bias=mixer.dt_bias, delta_softplus=True, limit=limits
        )
    else:
        delta = functional.softplus(dt.to(wide) + mixer.dt_bias.to(wide)).clamp(*limits)
        y, final = ssd_scan(x, delta, rate, b, c, D=mixer.D, return_final=True)
    return _gated(mixer, y.flatten(2), gate), LayerMemory(window, final.contiguous())


def _gated(mixer: Any, y: Tensor, gate: Tensor) -> Tensor:
    """Mamba-2's gated norm."""
    if obstacle(y, gate, mixer.norm.weight) is None and mixer.norm.weight.shape[0] == y.shape[-1]:
        from repflow.mixers.triton.block import norm_forward

        return norm_forward(y, mixer.norm.weight, mixer.norm.variance_epsilon, gate.dtype, gate=gate)
    output: Tensor = mixer.norm(y, gate)
    return output
