"""GLA, gated linear attention (Yang et al. 2023): every key channel of every head forgets at a rate the token decides.

Glossary: q, k, v query, key, value of a head; α decay (head, key), shared by the values of a head.
Parameter names are those of flash-linear-attention's layer.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers.base import Mixer
from repflow.mixers.option import at_least, divides
from repflow.mixers.parts.convolution import CausalConvolution
from repflow.mixers.parts.head_norm import head_norm
from repflow.mixers.parts.matrix_state import matrix_transition, split_heads
from repflow.mixers.scan.precision import without_autocast
from repflow.mixers.transition import Transition

GAIN = 2**-2.5
CHUNK = 16
CLOSED = -88.0
"""Log decay of a closed gate, e^−88 = 6e-39: larger ones would cost the differences of their sums their digits."""


class GatedMatrix(Mixer):
    """A matrix state with a decay per key and token, whatever makes queries, keys, values and decays.

    Attributes:
        heads: Heads.
        state: Keys per head.
        value: Values per head.
    """

    heads: int
    state: int
    value: int

    @property
    def state_size(self) -> int:
        """Values × keys of every head."""
        return self.heads * self.value * self.state

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, chunk by chunk."""
        self.check_input(x)
        if self.reference_wanted("chunked", "one decay per key and token"):
            return self.by_recurrence(x)
        return self.readout(gated_scan(*self.project(x)).flatten(2), x)

    def transition(self, x: Tensor) -> Transition:
        """A = decay, b = key, c = query / √state, delta = value."""
        queries, keys, values, log_decay = self.project(x)
        return matrix_transition(queries, keys, values, log_decay.exp())

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scaled queries, keys, values and log decays (batch, token, head, dim)."""
        raise NotImplementedError


class GLA(GatedMatrix):
    """Gated linear attention.

        α_t = sigmoid(W₂ W₁ x_t + b)^(1 / temperature)
        S_t = S_{t−1} diag(α_t) + v_t k_tᵀ        o_t = S_t q_t / √state
        o_proj(norm(o) · silu(g_proj(x)))

    Args:
        width: Channels in and out.
        heads: Heads.
        state: Keys per head; width / (2 heads) if left out.
        expand: Values of all heads together, as a multiple of the width.
        rank: Rank of the decay's projection W₂ W₁.
        temperature: Divides log sigmoid, so that decays start near 1.
        conv: Tokens under a short convolution with silu of queries, keys and values; 0, as in the paper, has none.
        norm: Whether an RMS norm of each head's output stands before the gate.
        gate: Whether silu(g_proj(x)) multiplies the output.

    >>> GLA(8, heads=2).state_size  # 8 values × 2 keys
    16
    """

    family: ClassVar[str] = "gla"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        state: int | None = None,
        expand: float = 1.0,
        rank: int = 16,
        temperature: float = 16.0,
        conv: int = 0,
        norm: bool = True,
        gate: bool = True,
    ) -> None:
        super().__init__(width)
        self.heads, self.temperature = heads, temperature
        self.state = max(1, divides(width, heads, "width", "heads") // 2) if state is None else state
        self.value = divides(round(width * expand), heads, "width of all values", "heads")
        at_least(1, state=self.state, expand=self.value, rank=rank)
        at_least(0, conv=conv)
        if temperature <= 0:
            raise InputError(teach("a temperature above 0", f"{temperature:g}", "the paper has 16"))
        keys, values = heads * self.state, heads * self.value
        self.q_proj = nn.Linear(width, keys, bias=False)
        self.k_proj = nn.Linear(width, keys, bias=False)
        self.v_proj = nn.Linear(width, values, bias=False)
        self.g_proj = nn.Linear(width, values, bias=False) if gate else None
        self.gk_proj = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, keys, bias=True))
        self.q_conv1d = CausalConvolution(keys, conv, bias=False) if conv else None
        self.k_conv1d = CausalConvolution(keys, conv, bias=False) if conv else None
        self.v_conv1d = CausalConvolution(values, conv, bias=False) if conv else None
        self.norm = head_norm("rms", heads, self.value) if norm else None
        self.o_proj = nn.Linear(values, width, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, gain=GAIN)

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Norm, gate, project."""
        out = split_heads(y.to(x.dtype), self.heads)
        if self.norm is not None:
            out = self.norm(out)
        out = out.flatten(2)
        if self.g_proj is not None:
            out = out * functional.silu(self.g_proj(x))
        return self.o_proj(out)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values and log decays (batch, token, head, dim)."""
        parts = [self.q_proj(x), self.k_proj(x), self.v_proj(x)]
        filters = (self.q_conv1d, self.k_conv1d, self.v_conv1d)
        parts = [
            part if conv is None else functional.silu(conv(part)) for part, conv in zip(parts, filters, strict=True)
        ]
        logits = self.gk_proj(x)
        log_decay = (
            functional.logsigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32))) / self.temperature
        )
        queries, keys, values, log_decay = (split_heads(part, self.heads) for part in (*parts, log_decay))
        return queries * self.state**-0.5, keys, values, log_decay


def gated_scan(queries: Tensor, keys: Tensor, values: Tensor, log_decay: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """Chunked form of S_t = S_{t−1} diag(exp log_decay_t) + v_t k_tᵀ, y_t = S_t q_t.

    Within a chunk every pair of tokens has its own decay exp(G_t − G_s), G the running sum of log decays: at most 1,
    where the usual q exp(G) times k exp(−G) overflows as soon as a gate closes. Sums are in float32 at least.

    Args:
        queries: (batch, token, head, key).
        keys: (batch, token, head, key).
        values: (batch, token, head, value).
        log_decay: (batch, token, head, key), at most 0.
        chunk: Tokens in a chunk.

    Returns:
        y (batch, token, head, value).

    >>> one = torch.ones(1, 3, 1, 1)
    >>> gated_scan(one, one, one, -torch.log(2 * one), chunk=2).flatten().tolist()
    [1.0, 1.5, 1.75]
    """
    at_least(1, chunk=chunk)
    with without_autocast(values.device):  # which would round the products
        return _gated_scan(queries, keys, values, log_decay, chunk)


def _gated_scan(queries: Tensor, keys: Tensor, values: Tensor, log_decay: Tensor, chunk: int) -> Tensor:
    tokens, dtype = queries.shape[1], values.dtype
    missing, wide = -tokens % chunk, torch.promote_types(dtype, torch.float32)
    q, k, v, g = (
        torch.unflatten(functional.pad(part.to(wide), (0, 0, 0, 0, 0, missing)), 1, (-1, chunk)).transpose(2, 3)
        for part in (queries, keys, values, log_decay)
    )  # (batch, chunk, head, token, dim)
    total = g.clamp_min(CLOSED).cumsum(3)
    past = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()[..., None]
    between = (total[..., :, None, :] - total[..., None, :, :]).masked_fill(~past, -torch.inf).exp()
    scores = torch.einsum("...tk,...sk,...tsk->...ts", q, k, between)
    last = total[..., -1:, :]
    added = (k * (last - total).exp()).mT @ v
    faded = last.exp().mT
    state = torch.zeros_like(added[:, 0])
    states = [state]
    for index in range(added.shape[1] - 1):
        state = faded[:, index] * state + added[:, index]
        states.append(state)
    y = scores @ v + (q * total.exp()) @ torch.stack(states, dim=1)
    return y.transpose(2, 3).flatten(1, 2)[:, :tokens].to(dtype)
