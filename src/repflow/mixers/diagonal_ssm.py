"""A complex diagonal state-space model per channel, the core of S4D and H3, as recurrence and as convolution.

Glossary: u input; A rate (channel, pair), Re A < 0; C read-out; Δ step size per channel; Ā, B̄ discretised A and B = 1.
States come in conjugate pairs of which one is kept: y = 2 Re Σ_pair C h.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor, nn

from repflow.core.errors import InputError, teach
from repflow.mixers.option import at_least, one_of
from repflow.mixers.scan.precision import without_autocast
from repflow.mixers.transition import Transition
from repflow.mixers.triton.long_filter import filter_obstacle, long_filter

DISCRETISATIONS = ("zoh", "bilinear")
INITIALISATIONS = ("lin", "inv", "legs")
BLOCK = 64


class DiagonalSSM(nn.Module):
    """h' = A h + u, y = 2 Re C h, sampled with step Δ.

        zoh         Ā = exp(ΔA)                    B̄ = Δ (exp(ΔA) − 1) / (ΔA)
        bilinear    Ā = (1 + ΔA/2) / (1 − ΔA/2)    B̄ = Δ / (1 − ΔA/2)

    B is 1: C can take up any other. Complex numbers are kept as real and imaginary parameters, so that `.double()` and
    optimisers treat them as any other.

    Args:
        channels: Independent SSMs.
        state: Real numbers of state per channel, even: half as many complex pairs.
        discretisation: `zoh` or `bilinear`.
        init: Rates A at initialisation (Gu et al. 2022): `lin` −1/2 + iπn, `inv` −1/2 + i state/π (state/(2n+1) − 1) or
            `legs`, the eigenvalues of HiPPO-LegS' normal part.
        dt_min, dt_max: Step sizes at initialisation are log-uniform between them.

    >>> DiagonalSSM(1, state=4).rates().imag.tolist()  # doctest: +ELLIPSIS
    [[0.0, 3.14...]]
    """

    def __init__(
        self,
        channels: int,
        *,
        state: int = 64,
        discretisation: str = "zoh",
        init: str = "lin",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
    ) -> None:
        super().__init__()
        at_least(2, state=state)
        if state % 2:
            raise InputError(teach("an even state, of conjugate pairs", str(state), f"give {state + 1}"))
        if not 0 < dt_min <= dt_max:
            raise InputError(teach("0 < dt_min <= dt_max", f"{dt_min:g} and {dt_max:g}", "give step sizes in order"))
        one_of("discretisation", discretisation, DISCRETISATIONS)
        one_of("init", init, INITIALISATIONS)
        self.channels, self.pairs, self.discretisation = channels, state // 2, discretisation
        rates = initial_rates(init, self.pairs).expand(channels, -1)
        low, high = math.log(dt_min), math.log(dt_max)
        self.log_dt = nn.Parameter(low + (high - low) * torch.rand(channels))
        self.log_A_real = nn.Parameter((-rates.real).log())
        self.A_imag = nn.Parameter(rates.imag.clone())
        self.C = nn.Parameter(torch.randn(channels, self.pairs, 2) * 2**-0.5)

    def rates(self) -> Tensor:
        """A (channel, pair), complex; the real part is negative whatever the parameters."""
        return torch.complex(-self.log_A_real.double().exp(), self.A_imag.double())

    def readouts(self) -> Tensor:
        """2 C (channel, pair), complex."""
        return 2 * torch.view_as_complex(self.C.double())

    def discretise(self) -> tuple[Tensor, Tensor, Tensor]:
        """Give log Ā and B̄ / Δ (channel, pair), complex, and Δ (channel,), real, in float64 whatever the parameters.

        They are few, their errors grow with the tokens, and no complex numbers are made of bfloat16.
        """
        step = self.log_dt.double().exp()
        z = step[:, None] * self.rates()
        if self.discretisation == "zoh":
            return z, torch.special.expm1(z) / z, step
        return torch.log((1 + z / 2) / (1 - z / 2)), 1 / (1 - z / 2), step

    def transition(self, u: Tensor) -> Transition:
        """A = Ā, b = (B̄ / Δ) u, c = 2 C, delta = Δ, for u (batch, token, channel)."""
        log_decay, entry, step = self.discretise()
        return diagonal_transition(u, log_decay.exp(), entry, self.readouts(), step[:, None])

    def kernel(self, tokens: int) -> Tensor:
        """Impulse response 2 Re Σ_pair C B̄ Ā^l for l = 0 … tokens − 1, (channel, token).

        Ā^(64 i + j) = Ā^(64 i) Ā^j makes it one matrix product per channel, without a (pair, token) table.
        """
        log_decay, entry, step = self.discretise()
        weight = self.readouts() * entry * step[:, None]
        blocks = torch.arange(-(-tokens // BLOCK), dtype=torch.float64, device=step.device) * BLOCK
        within = torch.arange(BLOCK, dtype=torch.float64, device=step.device)
        far = weight[..., None] * (log_decay[..., None] * blocks).exp()
        near = (log_decay[..., None] * within).exp()
        wide = torch.promote_types(self.C.dtype, torch.float32)
        left = torch.cat([far.real, -far.imag], dim=1).to(wide)
        right = torch.cat([near.real, near.imag], dim=1).to(wide)
        with without_autocast(step.device):  # which would round the product
            return (left.mT @ right).flatten(1)[:, :tokens]

    def forward(self, u: Tensor) -> Tensor:
        """Give y (batch, token, channel) by `long_convolution`."""
        return long_convolution(u, self.kernel(u.shape[1]))


def diagonal_transition(u: Tensor, decay: Tensor, entry: Tensor, c: Tensor, step: Tensor) -> Transition:
    """Transition of u (batch, token, channel) from parts (channel, pair) and step (channel, 1), in u's precision."""
    real = torch.promote_types(u.dtype, torch.float32)
    decay, entry, c = (part.to(real.to_complex())[None, None] for part in (decay, entry, c))
    return Transition(decay, entry * u[..., None], c, step.to(real)[None, None])


def long_convolution(u: Tensor, kernel: Tensor) -> Tensor:
    """Causal convolution y_t = Σ_{s ≤ t} kernel_{t−s} u_s by Fourier transform, O(n log n), in float32 at least.

    Where autocast asks for half precision on a GPU, rows that are not too long go by products in TF32 (`long_filter`).

    Args:
        u: (batch, token, channel).
        kernel: (channel, token).

    >>> u, kernel = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[1.0, 0.5]])
    >>> long_convolution(u, kernel).flatten().round(decimals=4).tolist()
    [1.0, 2.5]
    """
    if filter_obstacle(u, kernel) is None:
        return long_filter(u, kernel)
    tokens, wide = u.shape[1], torch.promote_types(u.dtype, torch.float32)
    length = transform_length(tokens)
    spectrum = torch.fft.rfft(u.to(wide).mT, n=length) * torch.fft.rfft(kernel.to(wide), n=length)
    return torch.fft.irfft(spectrum, n=length)[..., :tokens].mT.to(u.dtype)


@functools.cache
def transform_length(tokens: int) -> int:
    """Length of a Fourier transform in which nothing comes round, the least even one of factors 2, 3 and 5.

    Others cost several times as much: 2 · 1,025 has the factor 41.

    >>> transform_length(1024), transform_length(1025)
    (2048, 2160)
    """
    length = 2 * tokens
    while True:
        rest = length
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 2


def initial_rates(init: str, pairs: int) -> Tensor:
    """A (pair,) of S4D-Lin, S4D-Inv or S4D-LegS, complex.

    >>> initial_rates("lin", 2).real.tolist()
    [-0.5, -0.5]
    """
    state, n = 2 * pairs, np.arange(pairs)
    if init == "lin":
        imag = np.pi * n
    elif init == "inv":
        imag = state / np.pi * (state / (2 * n + 1) - 1)
    else:
        # HiPPO-LegS plus its rank-one term is −1/2 I + a skew-symmetric matrix, whose eigenvalues are ±i imag
        root = np.sqrt(2 * np.arange(state) + 1.0)
        skew = -0.5 * (np.tril(np.outer(root, root), -1) - np.triu(np.outer(root, root), 1))
        imag = np.linalg.eigvalsh(-1j * skew)[pairs:]
    return torch.complex(torch.full((pairs,), -0.5, dtype=torch.float64), torch.from_numpy(imag)).to(_complex_default())


def _complex_default() -> torch.dtype:
    return torch.get_default_dtype().to_complex()
