"""RWKV-5.2 time mixing (Eagle, Peng et al. 2024): a matrix state per head, a constant decay per key, a norm and a gate.

Glossary: r receptance, k key, v value, g gate, w decay per head and key, u bonus of the current token; S state (key,
value).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.mixers.base import Mixer
from repflow.mixers.option import at_least, divides
from repflow.mixers.parts.matrix_state import matrix_transition
from repflow.mixers.parts.shift import blend, depth_share, initial_shares, shift
from repflow.mixers.polarize import poles_of, with_poles
from repflow.mixers.scan.precision import without_autocast
from repflow.mixers.transition import Transition

HEAD_DIM = 64
CHUNK = 16


class RWKV5(Mixer):
    """The time mixing of RWKV-5.2.

        S_t = diag(w) S_{t−1} + k_{t−1} v_{t−1}ᵀ        y_t = r_tᵀ (S_t + diag(u) k_t v_tᵀ)
        out_t = W_o (norm(y_t) · silu(g_t))

    The state that token t reads ends with token t − 1; the current one enters by its bonus u, in `readout`. Channels
    are the values, head after head; states are the keys of their head.

    Args:
        width: Channels in and out.
        head_dim: Keys and values of a head; 64, or the width where that is less, if left out.
        gate: Whether silu(g) multiplies the normed output.
        norm: Whether each head's output is normed (GroupNorm).
        norm_eps: Added to the variance. The training code divides y by 8 before a norm with 1e-5, which is 64e-5 here.
        layer: Place in the model, which RWKV's initialisation depends on.
        layers: Number of layers.
        polarize: `one`, `zero` or `both`: keys whose decay is exactly 1, exactly 0 (`repflow.mixers.polarize`).

    >>> RWKV5(8, head_dim=4).state_size  # 2 heads of 4 × 4
    32
    """

    family: ClassVar[str] = "rwkv5"

    def __init__(
        self,
        width: int,
        *,
        head_dim: int | None = None,
        gate: bool = True,
        norm: bool = True,
        norm_eps: float = 64e-5,
        layer: int = 0,
        layers: int = 1,
        polarize: str | None = None,
    ) -> None:
        super().__init__(width)
        at_least(1, layers=layers)
        self.head_dim = min(HEAD_DIM, width) if head_dim is None else head_dim
        self.heads = divides(width, self.head_dim, "width", "head_dim")
        self.poles = poles_of(polarize, self.head_dim)
        late = depth_share(layer, layers)
        place = torch.arange(width) / max(width - 1, 1)
        decay = (-6 + 5 * place ** (0.7 + 1.3 * late)).view(self.heads, self.head_dim)
        first, last = int(self.poles.one), self.head_dim - int(self.poles.zero)
        self.time_decay = nn.Parameter(decay[:, first:last].clone())
        zigzag = 0.1 * ((torch.arange(width) + 1) % 3 - 1)
        self.time_faaaa = nn.Parameter((late * (1 - place) + zigzag).view(self.heads, self.head_dim))
        shares = initial_shares(width, layer, layers)
        self.time_mix_key = nn.Parameter(shares["key"])
        self.time_mix_value = nn.Parameter(shares["value"])
        self.time_mix_receptance = nn.Parameter(shares["receptance"])
        self.time_mix_gate = nn.Parameter(shares["gate"]) if gate else None
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, width, bias=False) if gate else None
        self.ln_x = nn.GroupNorm(self.heads, width, eps=norm_eps) if norm else None
        self.output = nn.Linear(width, width, bias=False)

    @property
    def state_size(self) -> int:
        """Keys × values of every head."""
        return self.width * self.head_dim

    @property
    def reach(self) -> int:
        """Two: the key of the token before, which is blended with the one before that."""
        return 2

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, chunk by chunk."""
        self.check_input(x)
        if self.reference_wanted("chunked", "one constant decay per key"):
            return self.by_recurrence(x)
        before = shift(x)
        r, k, v = self._project(x, before)
        return self._finish(wkv(r, k, v, self._decay()).flatten(2), r, k, v, x, before)

    def transition(self, x: Tensor) -> Transition:
        """A = w, b = k_{t−1}, c = r_t, delta = v_{t−1}, which may be negative."""
        r, k, v = self._project(x, shift(x))
        return matrix_transition(r, shift(k), shift(v), self._decay()[None, None])

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Add the current token by its bonus, norm, gate, project."""
        before = shift(x)
        return self._finish(y, *self._project(x, before), x, before)

    def _project(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """r, k, v (batch, token, head, dim)."""
        r = self.receptance(blend(x, before, self.time_mix_receptance))
        k = self.key(blend(x, before, self.time_mix_key))
        v = self.value(blend(x, before, self.time_mix_value))
        r, k, v = (torch.unflatten(part, -1, (self.heads, self.head_dim)) for part in (r, k, v))
        return r, k, v

    def _decay(self) -> Tensor:
        """Decay w (head, key) = exp(−exp(time_decay)), with its poles, in float32 at least."""
        speed = self.time_decay.to(torch.promote_types(self.time_decay.dtype, torch.float32))
        return with_poles(torch.exp(-torch.exp(speed)), self.poles)

    def _finish(self, y: Tensor, r: Tensor, k: Tensor, v: Tensor, x: Tensor, before: Tensor) -> Tensor:
        y = y + ((r * self.time_faaaa * k).sum(-1, keepdim=True) * v).flatten(2)
        if self.ln_x is not None:
            y = self.ln_x(y.to(x.dtype).flatten(0, 1)).view_as(y)
        if self.gate is not None and self.time_mix_gate is not None:
            y = y * functional.silu(self.gate(blend(x, before, self.time_mix_gate)))
        return self.output(y.to(x.dtype))


def wkv(r: Tensor, k: Tensor, v: Tensor, decay: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """Chunked y_t = r_tᵀ Σ_{s<t} diag(w^{t−1−s}) k_s v_sᵀ.

    Powers of w are built up, never divided out, so w may be 0 or 1.

    Args:
        r: Receptances (batch, token, head, key).
        k: Keys (batch, token, head, key).
        v: Values (batch, token, head, value).
        decay: w (head, key).
        chunk: Tokens in a chunk.

    Returns:
        y (batch, token, head, value).

    >>> one = torch.ones(1, 3, 1, 1)
    >>> wkv(one, one, one, torch.tensor([[0.5]]), chunk=2).flatten().tolist()
    [0.0, 1.0, 1.5]
    """
    with without_autocast(v.device):  # which would round the products
        return _wkv(r, k, v, decay, min(chunk, r.shape[1]))


def _wkv(r: Tensor, k: Tensor, v: Tensor, decay: Tensor, chunk: int) -> Tensor:
    tokens = r.shape[1]
    missing = -tokens % chunk
    kind = torch.promote_types(r.dtype, decay.dtype)
    padded = [functional.pad(part.to(kind), (0, 0, 0, 0, 0, missing)) for part in (r, k, v)]
    r, k, v = (torch.unflatten(part, 1, (-1, chunk)) for part in padded)
    power = decay.to(kind) ** torch.arange(chunk + 1, device=r.device)[:, None, None]  # (chunk + 1, head, key)
    place = torch.arange(chunk, device=r.device)
    gap = place[:, None] - 1 - place[None]
    weight = power[gap.clamp(min=0)] * (gap >= 0)[..., None, None]
    score = torch.einsum("bcthk,bcshk,tshk->bchts", r, k, weight)
    y = torch.einsum("bchts,bcshv->bcthv", score, v)
    added = torch.einsum("bcshk,shk,bcshv->bchkv", k, power[:chunk].flip(0), v)
    state, starts = torch.zeros_like(added[:, 0]), []
    for index in range(added.shape[1]):
        starts.append(state)
        state = power[chunk][..., None] * state + added[:, index]
    y = y + torch.einsum("bcthk,thk,bchkv->bcthv", r, power[:chunk], torch.stack(starts, dim=1))
    return y.flatten(1, 2)[:, :tokens]
