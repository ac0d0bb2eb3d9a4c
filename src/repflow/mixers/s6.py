"""S6, the selective state-space model of Mamba (Gu and Dao 2023), with the options that papers 2 and 3 need.

Glossary: u channels behind the convolution; delta step size; A decay rate (channel, state), negative; B input map, C
read-out (batch, token, state); D skip; z gate; N states; E = expand · width channels.

Parameter names are those of mamba_ssm and transformers, so that their weights load as they are.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers.base import Mixer
from repflow.mixers.eigen import check_norm, constrained_maps, spectral_norm, spectrum
from repflow.mixers.option import at_least, one_of
from repflow.mixers.parts.convolution import CausalConvolution
from repflow.mixers.parts.step import initial_step_bias
from repflow.mixers.polarize import free_and_fixed, scanned_rates
from repflow.mixers.scan.forms import Path, selective_scan
from repflow.mixers.transition import Transition


class S6(Mixer):
    """The mixer of Mamba.

        u, z = in_proj(x)        u = silu(conv(u))        dt, B, C = x_proj(u)        delta = softplus(dt_proj(dt))
        h_t = exp(delta_t A) h_{t−1} + delta_t B_t u_t        y_t = C_t · h_t + D u_t        out_proj(y_t silu(z_t))

    Args:
        width: Channels in and out.
        state: States per channel, N.
        expand: Inner channels as a multiple of the width.
        dt_rank: Rank of the step size's projection; width / 16, rounded up, if left out.
        conv: Tokens under the short convolution; 0 removes it (silu stays).
        conv_bias: Whether the convolution has a bias.
        bias: Whether in_proj and out_proj have biases.
        gate: Whether y is multiplied by silu(z).
        skip: Whether D u is added.
        dt_min, dt_max, dt_floor: Step sizes at initialisation are log-uniform between the first two, the third at
            least.
        dt_scale: Spread of dt_proj at initialisation, dt_scale / √dt_rank.
        dt_init: `random` (uniform in ± the spread) or `constant`.
        dt_bias: `drawn`, or `zero` as where a model zeroes the biases of all its linear layers, paper 2's code among
            them: step sizes then start at softplus(0) = .69 and the longest decay at .50.
        polarize: `one`, `zero` or `both`: states whose decay is exactly 1, exactly 0 (`repflow.mixers.polarize`).
        pole_states: `replaced`, of the `state` states, or `added` to them.
        zero_rate: Rate v of the pole at 0, whose decay is then exp(delta v); a decay of exactly 0 if left out.
        placebo: Freeze the first and last state at their initial decay in place of the poles.
        eigenvalues: `positive`, `negative`, `mixed` or `complex`: those of S_Cᵀ S_B (`repflow.mixers.eigen`); free if
            left out.
        eigenvalue_shift: What is added to their sizes; paper 3's code has .7 for positive and negative ones.
        eigenvalue_norm: Spectral norm of S_Cᵀ S_B at the start, constrained or free; as drawn if left out.

    >>> S6(8, state=4).state_size  # 16 channels × 4 states
    64
    """

    family: ClassVar[str] = "s6"
    kind: ClassVar[str] = "ssm"

    def __init__(
        self,
        width: int,
        *,
        state: int = 16,
        expand: int | float = 2,
        dt_rank: int | None = None,
        conv: int = 4,
        conv_bias: bool = True,
        bias: bool = False,
        gate: bool = True,
        skip: bool = True,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        dt_floor: float = 1e-4,
        dt_scale: float = 1.0,
        dt_init: str = "random",
        dt_bias: str = "drawn",
        polarize: str | None = None,
        pole_states: str = "replaced",
        zero_rate: float | None = None,
        placebo: bool = False,
        eigenvalues: str | None = None,
        eigenvalue_shift: float = 0.0,
        eigenvalue_norm: float | None = None,
    ) -> None:
        super().__init__(width)
        self.inner = int(expand * width)
        self.dt_rank = math.ceil(width / 16) if dt_rank is None else dt_rank
        at_least(1, state=state, expand=self.inner, dt_rank=self.dt_rank)
        at_least(0, conv=conv)
        one_of("dt_init", dt_init, ("random", "constant"))
        one_of("dt_bias", dt_bias, ("drawn", "zero"))
        free, self.poles = free_and_fixed(
            polarize, state, pole_states=pole_states, zero_rate=zero_rate, placebo=placebo
        )
        self.state = state = len(free) + self.poles.fixed
        self.gate = gate
        self.in_proj = nn.Linear(width, self.inner * (2 if gate else 1), bias=bias)
        self.conv1d = CausalConvolution(self.inner, conv, bias=conv_bias) if conv else None
        if eigenvalue_shift and eigenvalues is None:
            remedy = "pass eigenvalues='positive', or leave the shift out"
            raise InputError(teach("eigenvalues with eigenvalue_shift", "none", remedy))
        self.signed = None
        if eigenvalues is not None:
            self.signed = constrained_maps(self.inner, state, eigenvalues, eigenvalue_shift)
        self.x_proj = nn.Linear(self.inner, self.dt_rank + (0 if self.signed else 2 * state), bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.inner)
        self.A_log = nn.Parameter(free.log().repeat(self.inner, 1))
        self.D = nn.Parameter(torch.ones(self.inner)) if skip else None
        self.out_proj = nn.Linear(self.inner, width, bias=bias)
        self._initialise_step(dt_init, dt_scale, initial_step_bias(self.inner, dt_min, dt_max, dt_floor))
        if dt_bias == "zero":  # drawn all the same, so that nothing else differs at a seed
            nn.init.zeros_(self.dt_proj.bias)
        self._scale_maps(eigenvalue_norm)

    @torch.no_grad()
    def _scale_maps(self, norm: float | None) -> None:
        """Give S_Cᵀ S_B a spectral norm."""
        check_norm(norm)
        if norm is None:
            return
        if self.signed is not None:
            self.signed.scale_to(norm)
        else:
            self.x_proj.weight[self.dt_rank :] *= (norm / spectral_norm(*self.maps())) ** 0.5

    def _initialise_step(self, dt_init: str, dt_scale: float, bias: Tensor) -> None:
        spread = dt_scale * self.dt_rank**-0.5
        with torch.no_grad():
            self.dt_proj.weight.uniform_(-spread, spread) if dt_init == "random" else self.dt_proj.weight.fill_(spread)
            self.dt_proj.bias.copy_(bias)

    @property
    def state_size(self) -> int:
        """Channels × states, fixed ones included."""
        return self.inner * self.state

    def forward(self, x: Tensor, *, path: Path = "auto") -> Tensor:
        """Mix tokens by `selective_scan`; a state of decay 0 needs no scan."""
        self.check_input(x)
        u, z = self._project(x)
        return self._finish(self.core(u, path=path), z)

    def core(self, tokens: Tensor, *, path: Path = "auto") -> Tensor:
        """The scan with its skip over channels u (batch, token, channel)."""
        y, _ = self._scan(tokens, None, path)
        return y

    def _scan(self, u: Tensor, initial: Tensor | None, path: Path = "auto") -> tuple[Tensor, Tensor]:
        """Outputs (batch, token, channel) and the last state (batch, channel, scanned state)."""
        delta, B, C = self._select(u)
        last = self.state - int(self.poles.unscanned)
        y, final = selective_scan(
            u,
            delta,
            self._rates(),
            B[..., :last],
            C[..., :last],
            D=self.D,
            initial=initial,
            return_final=True,
            path=path,
        )
        if self.poles.unscanned:
            y = y + delta * u * (B[..., last:] * C[..., last:])
        return y, final

    def transition(self, x: Tensor) -> Transition:
        """A = exp(delta A) with its poles, b = u B, c = C, delta; channels are the E inner ones."""
        u, _ = self._project(x)
        delta, B, C = self._select(u)
        decay = torch.exp(delta.unsqueeze(-1) * self._rates())
        if self.poles.unscanned:
            decay = functional.pad(decay, (0, 1))
        return Transition(decay, u.unsqueeze(-1) * B.unsqueeze(2), C.unsqueeze(2), delta.unsqueeze(-1))

    def decay_rates(self) -> Tensor:
        """A of the states that are scanned."""
        return self._rates()

    def decay_steps(self, x: Tensor) -> Tensor:
        """Δ."""
        return self._select(self._project(x)[0])[0]

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Skip, gate, output projection."""
        u, z = self._project(x)
        return self._finish(y if self.D is None else y + self.D * u, z)

    @property
    def score_width(self) -> int:
        """Channels of S_Δ u."""
        return self.inner

    def score_features(self, tokens: Tensor) -> Tensor:
        """S_Δ u, what the step size is made of before softplus (paper 3, Equation 13)."""
        return self.dt_proj(self.x_proj(tokens)[..., : self.dt_rank])

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Channels u behind the convolution, and the gate z."""
        return self._project(x)

    def leave(self, y: Tensor, gate: Tensor | None) -> Tensor:
        """Gate and output projection."""
        return self._finish(y, gate)

    def core_behind(self, past: Tensor, tokens: Tensor, size: int) -> Tensor:
        """Chunks side by side: the state that each leaves, these joined one by one, then each from its own start."""
        rows, count, channels = len(past), past.shape[1] // size, past.shape[2]
        folded = past.reshape(rows * count, size, channels)
        _, left = self._scan(folded, None)
        delta, _, _ = self._select(folded)
        decay = torch.exp(delta.sum(1).unsqueeze(-1) * self._rates())
        left, decay = (part.reshape(rows, count, *part.shape[1:]) for part in (left, decay))
        starts = [torch.zeros_like(left[:, 0])]
        for chunk in range(count):
            starts.append(decay[:, chunk] * starts[-1] + left[:, chunk])
        missing = (count + 1) * size - tokens.shape[1]  # tokens behind the last one change nothing before them
        whole = functional.pad(tokens, (0, 0, 0, missing)).reshape(rows * (count + 1), size, channels)
        y, _ = self._scan(whole, torch.stack(starts, 1).flatten(0, 1))
        return y.reshape(rows, (count + 1) * size, channels)[:, : tokens.shape[1]]

    def maps(self) -> tuple[Tensor, Tensor]:
        """S_B and S_C, each (state, channel), without states that a constraint leaves empty."""
        if self.signed is not None:
            return self.signed.maps()
        S_B, S_C = torch.split(self.x_proj.weight[self.dt_rank :], self.state)
        return S_B, S_C

    def input_output_matrix(self) -> Tensor:
        """S_Cᵀ S_B (channel, channel), of rank N at most: C_t · B_t = u_tᵀ S_Cᵀ S_B u_t."""
        S_B, S_C = self.maps()
        return S_C.mT @ S_B

    def spectrum(self) -> Tensor:
        """Its eigenvalues (state,) other than the zeros of rank deficiency, complex."""
        return spectrum(*self.maps())

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Channels u behind the convolution and the gate z, both (batch, token, channel)."""
        both = self.in_proj(x)
        u, z = both.chunk(2, dim=-1) if self.gate else (both, None)
        return functional.silu(u if self.conv1d is None else self.conv1d(u)), z

    def _select(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step sizes (batch, token, channel), B and C (batch, token, state)."""
        sizes = [self.dt_rank] + ([] if self.signed else [self.state] * 2)
        low, *maps = torch.split(self.x_proj(u), sizes, dim=-1)
        B, C = maps if self.signed is None else self.signed(u)
        return functional.softplus(self.dt_proj(low)), B, C

    def _rates(self) -> Tensor:
        """A (channel, scanned state) in float32 at least: 0 in front for a decay of 1, nothing for a decay of 0."""
        log = self.A_log.to(torch.promote_types(self.A_log.dtype, torch.float32))
        return scanned_rates(-torch.exp(log), self.poles)

    def _finish(self, y: Tensor, z: Tensor | None) -> Tensor:
        # a Transition's y is in float32 at least
        return self.out_proj((y if z is None else y * functional.silu(z)).to(self.out_proj.weight.dtype))
