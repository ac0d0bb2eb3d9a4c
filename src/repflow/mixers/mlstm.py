"""mLSTM of xLSTM (Beck et al. 2024): a matrix memory with an exponential input gate and a normaliser.

Glossary: q, k, v query, key, value of a head; i logarithm of the input gate, f forget gate; C memory (value, key), n
normaliser (key); m logarithm of the scale that both are kept in.
Parameter names are those of transformers' xLSTM layer.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers.base import Mixer
from repflow.mixers.option import at_least, divides
from repflow.mixers.parts.matrix_state import matrix_transition, split_heads
from repflow.mixers.scan.carry import Carry
from repflow.mixers.scan.ssd import head_scan
from repflow.mixers.transition import Transition

EPSILON = 1e-6
"""Added to the normaliser, and to the variance under the norm."""


class HeadLayerNorm(nn.Module):
    """Layer norm of each head's output, with a weight of every channel and no bias.

    >>> HeadLayerNorm(1, 2)(torch.tensor([[[[3.0, 5.0]]]])).detach().round(decimals=3).flatten().tolist()
    [-1.0, 1.0]
    """

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads * size))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, token, head, dim) → (batch, token, head · dim), in float32 at least."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = functional.layer_norm(wide, x.shape[-1:], eps=EPSILON)
        return normed.to(x.dtype).flatten(2) * self.weight


class Parts(NamedTuple):
    """What a layer makes of its input.

    Attributes:
        q: Queries, scaled (batch, token, head, key), as k.
        k: Keys.
        v: Values, with a last one of 1 for the normaliser (batch, token, head, value + 1).
        i: Logarithm of the input gate (batch, token, head), in float64 as the next.
        log_f: Logarithm of the forget gate.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    i: Tensor
    log_f: Tensor

    def scale(self) -> Tensor:
        """M_t = max(m_{t−1} + log f_t, i_t), m_0 = 0, as one running maximum; outputs do not depend on it."""
        total = self.log_f.detach().cumsum(1)
        return total + (self.i.detach() - total).cummax(1).values.clamp_min(0.0)

    def scaled(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log decay (batch, token, head), entering values and scale: C and n divided by e^m."""
        m = self.scale()
        before = functional.pad(m[:, :-1], (0, 0, 1, 0))
        entry = self.v * torch.exp(self.i - m).to(self.v.dtype)[..., None]
        return (self.log_f + before - m).clamp_max(0.0), entry, m


class MLSTM(Mixer):
    """The matrix LSTM.

        C_t = f_t C_{t−1} + e^{i_t} v_t k_tᵀ        n_t = f_t n_{t−1} + e^{i_t} k_t        f = sigmoid(W_f x + b_f)
        h_t = C_t q_t / max(|n_t · q_t|, 1)        out_proj(norm(h) · sigmoid(W_o x))

    with q divided by √state. The normaliser is a channel of its own in each head, with value 1; `readout` divides by
    it.

    Args:
        width: Channels in and out.
        heads: Heads.
        state: Keys per head; half of its values if left out, as in xLSTM-7B.
        expand: Values of all heads together, as a multiple of the width.
        cap: Gates are bent to stay below this size, cap · tanh(gate / cap).
        norm: Whether the layer norm of each head's output stands before the output gate.

    >>> MLSTM(8, heads=2).state_size  # (8 values + 2 normalisers) × 2 keys
    20
    """

    family: ClassVar[str] = "mlstm"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        state: int | None = None,
        expand: float = 1.0,
        cap: float = 15.0,
        norm: bool = True,
    ) -> None:
        super().__init__(width)
        self.heads, self.cap = heads, cap
        self.value = divides(round(width * expand), heads, "width of all values", "heads")
        self.state = max(1, self.value // 2) if state is None else state
        at_least(1, state=self.state, expand=self.value)
        if cap <= 0:
            raise InputError(teach("a cap above 0", f"{cap:g}", "xLSTM-7B has 15"))
        keys, values = heads * self.state, heads * self.value
        self.q = nn.Linear(width, keys, bias=False)
        self.k = nn.Linear(width, keys, bias=False)
        self.v = nn.Linear(width, values, bias=False)
        self.ogate_preact = nn.Linear(width, values, bias=False)
        self.igate_preact = nn.Linear(width, heads)
        self.fgate_preact = nn.Linear(width, heads)
        self.multihead_norm = HeadLayerNorm(heads, self.value) if norm else None
        self.out_proj = nn.Linear(values, width, bias=False)
        # gates start as xLSTM-7B's: little enters, and forget gates are spread from .95 to .998
        nn.init.zeros_(self.igate_preact.weight)
        nn.init.constant_(self.igate_preact.bias, -10.0)
        nn.init.zeros_(self.fgate_preact.weight)
        self.fgate_preact.bias.data = torch.linspace(3.0, 6.0, heads)

    @property
    def state_size(self) -> int:
        """Values × keys of every head, and a key-sized normaliser each; the scale carries no information of its own."""
        return self.heads * (self.value + 1) * self.state

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, chunk by chunk."""
        self.check_input(x)
        if self.reference_wanted("chunked", "one decay per head and token"):
            return self.by_recurrence(x)
        parts = self.parts(x)
        log_decay, entry, _ = parts.scaled()
        return self.readout(head_scan(entry, log_decay, parts.k, parts.q).flatten(2), x)

    def transition(self, x: Tensor) -> Transition:
        """A = f e^{m_{t−1} − m_t}, b = k, c = q / √state, delta = e^{i − m} v, and e^{i − m} in the last channel."""
        parts = self.parts(x)
        log_decay, entry, _ = parts.scaled()
        return matrix_transition(parts.q, parts.k, entry, log_decay.exp().to(entry.dtype)[..., None])

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Divide by the normaliser, norm, gate, project."""
        return self._finish(y, x, self.parts(x).scale())

    def advance(self, x: Tensor, carry: Carry) -> Tensor:
        """Mix tokens that follow those of `carry`: memory and normaliser behind the last token, over their scale.

        Not by `transition`, whose scale is a running maximum over the whole sequence.
        """
        self.check_input(x)
        parts = self.parts(x)
        q, k, v, i, log_f = parts
        shape = (*v.shape[:1], *v.shape[2:], k.shape[-1])
        state = carry.state or {"C": v.new_zeros(shape), "m": i.new_zeros(i[:, 0].shape)}
        memory, m = state["C"], state["m"]
        outputs, scales = [], []
        for token in range(x.shape[1]):
            top = torch.maximum(log_f[:, token] + m, i[:, token])
            keep, take = (torch.exp(part - top).to(v.dtype)[..., None] for part in (log_f[:, token] + m, i[:, token]))
            memory = keep[..., None] * memory + (take * v[:, token])[..., None] * k[:, token, :, None]
            m = top
            outputs.append((memory * q[:, token, :, None]).sum(-1))
            scales.append(m)
        carry.state = {"C": memory, "m": m}
        carry.seen += x.shape[1]
        return self._finish(torch.stack(outputs, 1).flatten(2), x, torch.stack(scales, 1))

    def parts(self, x: Tensor) -> Parts:
        """Queries, keys, values and gates."""
        q, k, v = (split_heads(part(x), self.heads) for part in (self.q, self.k, self.v))
        enter, forget = (
            self.cap * torch.tanh(gate(x).double() / self.cap) for gate in (self.igate_preact, self.fgate_preact)
        )
        return Parts(
            q * self.state**-0.5, k, functional.pad(v, (0, 1), value=1.0), enter, functional.logsigmoid(forget)
        )

    def _finish(self, y: Tensor, x: Tensor, m: Tensor) -> Tensor:
        out = normalised(split_heads(y, self.heads), m).to(x.dtype)
        out = out.flatten(2) if self.multihead_norm is None else self.multihead_norm(out)
        return self.out_proj(out * torch.sigmoid(self.ogate_preact(x)))


def normalised(y: Tensor, m: Tensor) -> Tensor:
    """Divide what the memory gives by the size of the normaliser in the last channel, e^{−m} at least.

    >>> round(normalised(torch.tensor([[[[6.0, -3.0]]]]), torch.zeros(1, 1, 1)).item(), 4)
    2.0
    """
    return y[..., :-1] / (torch.maximum(y[..., -1:].abs(), torch.exp(-m).to(y.dtype)[..., None]) + EPSILON)
