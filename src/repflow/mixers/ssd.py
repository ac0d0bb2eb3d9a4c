"""SSD, the mixer of Mamba-2 (Dao and Gu 2024): one decay per head, groups of heads that share B and C, a gated norm.

Glossary: u inputs (batch, token, head, dim); delta step size (batch, token, head); A decay rate (head,), negative; B
input map, C read-out (batch, token, group, state); D skip; z gate; N states; E = expand · width = heads · head_dim
channels.

Parameter names are those of mamba_ssm and transformers, so that their weights load as they are.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.mixers.base import Mixer
from repflow.mixers.option import at_least, divides, one_of
from repflow.mixers.parts.convolution import CausalConvolution
from repflow.mixers.parts.step import initial_step_bias
from repflow.mixers.polarize import poles_of, with_poles
from repflow.mixers.scan.forms import Path, in_one_step, ssd_scan
from repflow.mixers.transition import Transition
from repflow.mixers.triton.block import MAX_TAPS, MAX_WIDTH
from repflow.mixers.triton.launch import obstacle
from repflow.mixers.triton.mamba2 import Shape, Weights, mamba2_inner
from repflow.mixers.triton.ssd import TILES, TRAINING, Setting, supported

HEAD_DIM = 64


class GatedRMSNorm(nn.Module):
    """RMS norm of y · silu(z), over all channels or group by group.

        v = y · silu(z)        v / √(mean v² + eps) · weight

    >>> round(GatedRMSNorm(2)(torch.tensor([[3.0, 4.0]]), None).square().mean().item(), 4)
    1.0
    """

    def __init__(self, channels: int, *, groups: int = 1, eps: float = 1e-5) -> None:
        super().__init__()
        divides(channels, groups, "inner width", "norm_groups")
        self.weight = nn.Parameter(torch.ones(channels))
        self.groups, self.eps = groups, eps

    def forward(self, y: Tensor, gate: Tensor | None) -> Tensor:
        """Norm y (batch, token, channel), gated where there is a gate, in float32 at least."""
        wide = y.to(torch.promote_types(y.dtype, torch.float32))
        if gate is not None:
            wide = wide * functional.silu(gate.to(wide.dtype))
        parts = torch.unflatten(wide, -1, (self.groups, -1))
        parts = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * parts.flatten(-2).to(y.dtype)


class SSD(Mixer):
    """The mixer of Mamba-2.

        z, uBC, dt = in_proj(x)        u, B, C = silu(conv(uBC))        delta = softplus(dt + dt_bias)
        h_t = exp(delta_t A) h_{t−1} + delta_t u_t ⊗ B_t        y_t = h_t C_t + D u_t
        out_t = out_proj(norm(y_t · silu(z_t)))

    Args:
        width: Channels in and out.
        state: States per channel, N.
        expand: Inner channels as a multiple of the width.
        head_dim: Channels of a head; 64, or all inner channels where there are fewer, if left out.
        groups: Groups of heads that share B and C.
        conv: Tokens under the short convolution; 0 removes it (silu stays).
        conv_bias: Whether the convolution has a bias.
        bias: Whether in_proj and out_proj have biases.
        gate: Whether y is multiplied by silu(z).
        skip: Whether D u is added.
        norm: Whether the RMS norm stands behind the gate.
        norm_groups: Groups that are normed apart; mamba_ssm norms each of its B/C groups, transformers all channels at
            once.
        norm_eps: Added to the mean square.
        dt_min, dt_max, dt_floor: Step sizes at initialisation are log-uniform between the first two, the third at
            least.
        a_init: Rates −A at initialisation: `uniform` in [1, 16] (mamba_ssm) or `range`, 1 … heads (transformers).
        polarize: `one`, `zero` or `both`: states of every head whose decay is exactly 1, exactly 0
            (`repflow.mixers.polarize`).

    >>> SSD(8, state=4, head_dim=4).state_size  # 16 channels × 4 states
    64
    """

    family: ClassVar[str] = "ssd"
    kind: ClassVar[str] = "ssm"

    def __init__(
        self,
        width: int,
        *,
        state: int = 128,
        expand: int | float = 2,
        head_dim: int | None = None,
        groups: int = 1,
        conv: int = 4,
        conv_bias: bool = True,
        bias: bool = False,
        gate: bool = True,
        skip: bool = True,
        norm: bool = True,
        norm_groups: int = 1,
        norm_eps: float = 1e-5,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        dt_floor: float = 1e-4,
        a_init: str = "uniform",
        polarize: str | None = None,
    ) -> None:
        super().__init__(width)
        self.inner = int(expand * width)
        at_least(1, state=state, expand=self.inner)
        at_least(0, conv=conv)
        one_of("a_init", a_init, ("uniform", "range"))
        self.head_dim = min(HEAD_DIM, self.inner) if head_dim is None else head_dim
        self.heads = divides(self.inner, self.head_dim, "inner width", "head_dim")
        divides(self.heads, groups, "number of heads", "groups")
        self.state, self.groups, self.gate = state, groups, gate
        self.poles = poles_of(polarize, state)
        self.mixed = self.inner + 2 * groups * state
        self.in_proj = nn.Linear(width, self.inner * gate + self.mixed + self.heads, bias=bias)
        self.conv1d = CausalConvolution(self.mixed, conv, bias=conv_bias) if conv else None
        self.dt_bias = nn.Parameter(initial_step_bias(self.heads, dt_min, dt_max, dt_floor))
        rates = torch.arange(1.0, self.heads + 1) if a_init == "range" else torch.empty(self.heads).uniform_(1, 16)
        self.A_log = nn.Parameter(rates.log())
        self.D = nn.Parameter(torch.ones(self.heads)) if skip else None
        self.norm = GatedRMSNorm(self.inner, groups=norm_groups, eps=norm_eps) if norm else None
        self.out_proj = nn.Linear(self.inner, width, bias=bias)

    @property
    def state_size(self) -> int:
        """Channels × states, with and without polarization."""
        return self.inner * self.state

    def forward(self, x: Tensor, *, path: Path = "auto") -> Tensor:
        """Mix tokens by `ssd_scan`: once for the free states, once for the state of decay 1, not at all for decay 0.

        On a GPU a layer of the usual form is one step between its projections (`repflow.mixers.triton.mamba2`).
        """
        self.check_input(x)
        projected = self.in_proj(x)
        if in_one_step(projected, partial(self._step_obstacle, projected), path=path):
            whole: Tensor = self.out_proj(mamba2_inner(projected, *self._step_parts()))
            return whole
        u, z, delta, B, C = self._parts(projected)
        first, last = int(self.poles.one), self.state - int(self.poles.zero)
        y = ssd_scan(u, delta, self._rates(), B[..., first:last], C[..., first:last], D=self.D, path=path)
        assert isinstance(y, Tensor)
        if self.poles.one:
            constant = ssd_scan(u, delta, torch.zeros_like(self._rates()), B[..., :1], C[..., :1], path=path)
            assert isinstance(constant, Tensor)
            y = y + constant
        if self.poles.zero:
            y = y + self._per_head(B[..., last:] * C[..., last:]) * delta.unsqueeze(-1) * u
        return self._finish(y.flatten(2), z)

    def _step_obstacle(self, projected: Tensor) -> str | None:
        """Why one step cannot take all between the projections, on a GPU; None if it can."""
        convolution, norm = self.conv1d, self.norm
        if self.poles.fixed or not self.gate or self.D is None:
            return "fixed decays, no gate or no skip"
        if norm is None or norm.groups > 1 or convolution is None or convolution.kernel_size[0] > MAX_TAPS:
            return "another norm or convolution"
        u, maps = projected.new_empty(1, 1, self.heads, self.head_dim), projected.new_empty(1, 1, 1, self.state)
        wide = f"a layer of {self.inner} channels" if self.inner > MAX_WIDTH else None
        return wide or supported(u, self.dt_bias, self.A_log, maps, maps, self.D) or obstacle(projected, norm.weight)

    def _step_parts(self) -> tuple[Weights, Shape]:
        """Parameters and sizes of that step."""
        assert self.conv1d is not None
        assert self.D is not None
        assert self.norm is not None
        tiles = TRAINING if torch.is_grad_enabled() else TILES
        shape = Shape(self.heads, self.head_dim, self.groups, self.state, self.norm.eps, Setting(tiles, softplus=True))
        own = self.conv1d
        return Weights(own.weight, own.bias, self.dt_bias, self.A_log, self.D, self.norm.weight), shape

    def transition(self, x: Tensor) -> Transition:
        """A = exp(delta A), equal within a head but for its poles, b = u B, c = C, delta; channels head by head."""
        u, _, delta, B, C = self._project(x)
        decay = torch.exp(delta * self._rates())[..., None, None]
        if self.poles.fixed:
            decay = with_poles(decay.expand(*decay.shape[:-1], self.state - self.poles.fixed), self.poles)
        B, C = (self._per_head(part).unsqueeze(3).expand(-1, -1, -1, self.head_dim, -1) for part in (B, C))
        decay, delta = decay.expand(-1, -1, -1, self.head_dim, -1), delta.repeat_interleave(self.head_dim, dim=2)
        decay, entered, c = (part.flatten(2, 3) for part in (decay, u.unsqueeze(-1) * B, C))
        return Transition(decay, entered, c, delta.unsqueeze(-1))

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Skip, gate, norm, output projection."""
        u, z, *_ = self._project(x)
        return self._finish(y if self.D is None else y + (self.D[:, None] * u).flatten(2), z)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
        """Inputs u (batch, token, head, dim), gate z, delta, B and C (batch, token, group, state)."""
        return self._parts(self.in_proj(x))

    def _parts(self, projected: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
        """The same of what the projection has given."""
        z, mixed, dt = torch.split(projected, [self.inner * self.gate, self.mixed, self.heads], dim=-1)
        mixed = functional.silu(mixed if self.conv1d is None else self.conv1d(mixed))
        u, *maps = torch.split(mixed, [self.inner] + [self.groups * self.state] * 2, dim=-1)
        B, C = (torch.unflatten(part, -1, (self.groups, self.state)) for part in maps)
        delta = functional.softplus(dt + self.dt_bias)
        return torch.unflatten(u, -1, (self.heads, self.head_dim)), z if self.gate else None, delta, B, C

    def _per_head(self, part: Tensor) -> Tensor:
        """(batch, token, group, state) → (batch, token, head, state)."""
        return part.repeat_interleave(self.heads // self.groups, dim=2)

    def _rates(self) -> Tensor:
        """A (head,) in float32 at least."""
        return -torch.exp(self.A_log.to(torch.promote_types(self.A_log.dtype, torch.float32)))

    def _finish(self, y: Tensor, z: Tensor | None) -> Tensor:
        if self.norm is not None:
            y = self.norm(y, z)
        elif z is not None:
            y = y * functional.silu(z)
        # a Transition's y is in float32 at least
        return self.out_proj(y.to(self.out_proj.weight.dtype))
