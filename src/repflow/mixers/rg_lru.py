"""RG-LRU, the recurrent block of Griffin and RecurrentGemma (De et al. 2024): one gated state per channel.

Glossary: u input behind the short convolution; r recurrence gate, i input gate; a decay; Λ its parameter.
Parameter names are those of RecurrentGemma in transformers.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers.base import Mixer
from repflow.mixers.option import at_least, divides
from repflow.mixers.parts.convolution import CausalConvolution
from repflow.mixers.transition import Transition

POWER = 8.0
"""c of the paper: log a = −c r softplus(Λ)."""
STEEPEST = 1000.0
"""Largest slope of the square root in gradients."""


class RGLRU(Mixer):
    """Griffin's recurrent block.

        u = conv(linear_x(x))        r, i = sigmoid(gates(u)), block-diagonal
        log a_t = −8 r_t softplus(Λ)        h_t = a_t h_{t−1} + √(1 − a_t²) i_t u_t
        linear_out(h · gelu(linear_y(x)))

    At the first token there is nothing to forget and the input enters whole, with 1 in place of √(1 − a²).

    Args:
        width: Channels in and out.
        heads: Blocks of the gates' block-diagonal matrices.
        expand: Recurrent channels, as a multiple of the width.
        conv: Tokens under the short convolution; 0 removes it.
        gate: Whether gelu(linear_y(x)) multiplies the output.
        a_min, a_max: At initialisation exp(−softplus(Λ)) lies between them, its square uniform, as in RecurrentGemma's
            code; Griffin's paper says this of its 8th power, the decay at r = 1.

    >>> RGLRU(8, heads=2).state_size
    8
    """

    family: ClassVar[str] = "rg_lru"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        expand: float = 1.0,
        conv: int = 4,
        gate: bool = True,
        a_min: float = 0.9,
        a_max: float = 0.999,
    ) -> None:
        super().__init__(width)
        self.inner = round(expand * width)
        at_least(1, expand=self.inner)
        at_least(0, conv=conv)
        if not 0 < a_min <= a_max < 1:
            raise InputError(teach("0 < a_min <= a_max < 1", f"{a_min:g} and {a_max:g}", "give decays in order"))
        self.linear_y = nn.Linear(width, self.inner) if gate else None
        self.linear_x = nn.Linear(width, self.inner)
        self.conv_1d = CausalConvolution(self.inner, conv) if conv else None
        self.rg_lru = Gates(self.inner, heads, a_min, a_max)
        self.linear_out = nn.Linear(self.inner, width)

    @property
    def state_size(self) -> int:
        """One per recurrent channel."""
        return self.inner

    @property
    def reach(self) -> int:
        """One token at least: the first of a sequence has a step of its own."""
        return max(1, super().reach)

    def transition(self, x: Tensor) -> Transition:
        """A = a, b = i u, c = 1, delta = √(1 − a²), 1 at the first token."""
        u = self.linear_x(x)
        u = u if self.conv_1d is None else self.conv_1d(u)
        log_decay, entry = self.rg_lru(u)
        later = bounded_root(-torch.expm1(2 * log_decay[:, 1:]))
        delta = torch.cat([torch.ones_like(log_decay[:, :1]), later], dim=1)
        A, b, delta = (part.unsqueeze(-1) for part in (log_decay.exp(), entry * u, delta))
        return Transition(A, b, torch.ones_like(A[:1, :1, :1]), delta)

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Gate, project."""
        y = y.to(x.dtype)
        return self.linear_out(
            y if self.linear_y is None else y * functional.gelu(self.linear_y(x), approximate="tanh")
        )


class Gates(nn.Module):
    """Recurrence and input gate of every channel, from the channels of its head."""

    def __init__(self, channels: int, heads: int, a_min: float, a_max: float) -> None:
        super().__init__()
        self.heads, size = heads, divides(channels, heads, "recurrent width", "heads")
        self.recurrent_param = nn.Parameter(_initial_decay(channels, a_min, a_max))
        self.input_gate_weight = nn.Parameter(torch.randn(heads, size, size) * size**-0.5)
        self.input_gate_bias = nn.Parameter(torch.zeros(heads, size))
        self.recurrent_gate_weight = nn.Parameter(torch.randn(heads, size, size) * size**-0.5)
        self.recurrent_gate_bias = nn.Parameter(torch.zeros(heads, size))

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Log a and i (batch, token, channel)."""
        parts = torch.unflatten(u, -1, (self.heads, -1))
        recurrent = torch.einsum("bthi,hij->bthj", parts, self.recurrent_gate_weight) + self.recurrent_gate_bias
        entry = torch.einsum("bthi,hij->bthj", parts, self.input_gate_weight) + self.input_gate_bias
        # float32 at least: the state sums over all tokens, and 1 − a² of a bfloat16 a near 1 has no digits
        wide = torch.promote_types(u.dtype, torch.float32)
        rate = functional.softplus(self.recurrent_param.to(wide))
        return -POWER * recurrent.to(wide).sigmoid().flatten(2) * rate, entry.sigmoid().flatten(2)


class _BoundedRoot(torch.autograd.Function):
    """Square root whose slope is bounded in gradients: at a = 1 the true one is infinite."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return gradient / (2 * root).clamp_min(1 / STEEPEST)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return tangent / (2 * root).clamp_min(1 / STEEPEST)


def bounded_root(x: Tensor) -> Tensor:
    """√x, its slope at most 1000 in gradients."""
    root: Tensor = _BoundedRoot.apply(x)  # type: ignore[no-untyped-call]
    return root


def _initial_decay(channels: int, a_min: float, a_max: float) -> Tensor:
    """Λ such that exp(−softplus(Λ)) has a square uniform between a_min² and a_max².

    >>> bool((-functional.softplus(_initial_decay(9, 0.9, 0.999))).exp().sub(0.95).abs().max() < 0.051)
    True
    """
    square = a_min**2 + (a_max**2 - a_min**2) * torch.rand(channels)
    # softplus(Λ) = −log a; its inverse is log(exp(y) − 1)
    return torch.log(torch.expm1(-0.5 * square.log()))
