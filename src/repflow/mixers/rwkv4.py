"""RWKV-4 time mixing (Peng et al. 2023): a weighted mean of all past values, weights fading at a rate per channel.

Glossary: r receptance, k key, v value, w decay rate per channel, u bonus of the current token; m scale of the state.

The state is kept as numerator and denominator over e^m, m the largest exponent so far, so that large keys neither
overflow nor vanish; m cancels in the quotient. Appendix B of paper 2 prints another form, without u and with a
denominator that does not depend on the past: it is not RWKV-4.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from repflow.mixers.base import Mixer
from repflow.mixers.option import at_least
from repflow.mixers.parts.shift import blend, depth_share, initial_shares, shift
from repflow.mixers.scan.carry import Carry
from repflow.mixers.scan.preference import current
from repflow.mixers.transition import Transition
from repflow.mixers.triton.wkv import weighted_mean, wkv_obstacle


class RWKV4(Mixer):
    """The time mixing of RWKV-4.

        num_t = e^{−w} num_{t−1} + e^{k_{t−1}} v_{t−1}        den_t = e^{−w} den_{t−1} + e^{k_{t−1}}
        out_t = W_o ( σ(r_t) · (num_t + e^{u + k_t} v_t) / (den_t + e^{u + k_t}) )

    The state that token t reads ends with token t − 1; the current one enters by its bonus u, in `readout`. Transition
    channels are the E numerators, then the E denominators, one state each.

    Args:
        width: Channels in and out.
        inner: Channels E of key, value and receptance; the width if left out.
        layer: Place in the model, which RWKV's initialisation depends on.
        layers: Number of layers.

    >>> RWKV4(8).state_size  # 8 numerators and 8 denominators
    16
    """

    family: ClassVar[str] = "rwkv4"

    def __init__(self, width: int, *, inner: int | None = None, layer: int = 0, layers: int = 1) -> None:
        super().__init__(width)
        self.inner = width if inner is None else inner
        at_least(1, inner=self.inner, layers=layers)
        channel = torch.arange(self.inner)
        place = channel / max(self.inner - 1, 1)
        self.time_decay = nn.Parameter(-5 + 8 * place ** (0.7 + 1.3 * depth_share(layer, layers)))
        # transformers fills in 1 here, by an ones_like around the whole expression
        self.time_first = nn.Parameter(torch.log(torch.tensor(0.3)) + 0.5 * ((channel + 1) % 3 - 1))
        shares = initial_shares(width, layer, layers)
        self.time_mix_key = nn.Parameter(shares["key"])
        self.time_mix_value = nn.Parameter(shares["value"])
        self.time_mix_receptance = nn.Parameter(shares["receptance"])
        self.key = nn.Linear(width, self.inner, bias=False)
        self.value = nn.Linear(width, self.inner, bias=False)
        self.receptance = nn.Linear(width, self.inner, bias=False)
        self.output = nn.Linear(self.inner, width, bias=False)

    @property
    def state_size(self) -> int:
        """Numerators and denominators; their common scale m is not counted, it carries no information of its own."""
        return 2 * self.inner

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens: by a kernel on a GPU, in chunks elsewhere."""
        if current().path not in ("auto", "triton") or wkv_obstacle(x, self.time_first) is not None:
            return super().forward(x)
        self.check_input(x)
        self.reference_wanted("triton", "one mean per channel")
        before = shift(x)
        mean = weighted_mean(*self._key_value(x, before), self._rate(), self.time_first)
        return self._received(mean, x, before)

    def transition(self, x: Tensor) -> Transition:
        """Both groups over their common scale: A = e^{m_{t−1} − w − m_t}, b = e^{k_{t−1} − m_t} (v_{t−1}, 1)."""
        k, v = self._key_value(x, shift(x))
        rate, m = self._rate(), self._scale(k)
        decay = torch.exp(torch.cat([m[:, :1], m[:, :-1]], dim=1) - m - rate)
        weight = torch.exp(shift(k) - m)
        # nothing stands before the first token
        weight = torch.cat([torch.zeros_like(weight[:, :1]), weight[:, 1:]], dim=1)
        b = torch.cat([weight * shift(v), weight], dim=-1).unsqueeze(-1)
        one = torch.ones_like(b[:1, :1, :1])
        return Transition(torch.cat([decay, decay], dim=-1).unsqueeze(-1), b, one, one)

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Add the current token by its bonus, divide, gate by the receptance, project."""
        before = shift(x)
        k, v = self._key_value(x, before)
        m = self._scale(k)
        past = torch.cat([torch.full_like(m[:, :1], -torch.inf), m[:, 1:]], dim=1)
        now = k + self.time_first
        top = torch.maximum(past, now).detach()
        old, new = torch.exp(past - top), torch.exp(now - top)
        numerator, denominator = y.chunk(2, dim=-1)
        mean = (old * numerator + new * v) / (old * denominator + new)
        return self._received(mean, x, before)

    def _received(self, mean: Tensor, x: Tensor, before: Tensor) -> Tensor:
        """Gate by the receptance, project."""
        r = torch.sigmoid(self.receptance(blend(x, before, self.time_mix_receptance)))
        return self.output((r * mean).to(r.dtype))

    def advance(self, x: Tensor, carry: Carry) -> Tensor:
        """Mix tokens that follow those of `carry`: numerator and denominator behind the last token, over a scale.

        Not by `transition`, whose scale is a running maximum over the whole sequence.
        """
        self.check_input(x)
        whole = carry.lead(x, 1)
        front = whole.shape[1] - x.shape[1]
        before = shift(whole)
        k, v = (part[:, front:] for part in self._key_value(whole, before))
        v = v.to(k.dtype)
        rate, u = self._rate(), self.time_first.to(k.dtype)
        nothing = torch.full_like(k[:, 0], -torch.inf)
        state = carry.state or {"num": torch.zeros_like(v[:, 0]), "den": torch.zeros_like(k[:, 0]), "scale": nothing}
        num, den, scale = state["num"], state["den"], state["scale"]
        means = []
        for key, value in zip(k.unbind(1), v.unbind(1), strict=True):
            top = torch.maximum(scale, u + key)
            old, new = torch.exp(scale - top), torch.exp(u + key - top)
            means.append((old * num + new * value) / (old * den + new))
            top = torch.maximum(scale - rate, key)
            old, new = torch.exp(scale - rate - top), torch.exp(key - top)
            num, den, scale = old * num + new * value, old * den + new, top
        carry.state = {"num": num, "den": den, "scale": scale}
        carry.seen += x.shape[1]
        return self._received(torch.stack(means, 1), x, before[:, front:])

    def _key_value(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        k = self.key(blend(x, before, self.time_mix_key))
        return k.to(torch.promote_types(k.dtype, torch.float32)), self.value(blend(x, before, self.time_mix_value))

    def _rate(self) -> Tensor:
        return torch.exp(self.time_decay.to(torch.promote_types(self.time_decay.dtype, torch.float32)))

    @torch.no_grad()
    def _scale(self, k: Tensor) -> Tensor:
        """Scale m_t = max(m_{t−1} − w, k_{t−1}), m_1 = k_1, as one running maximum of k_s + s w."""
        tokens = torch.arange(k.shape[1], device=k.device, dtype=k.dtype)[None, :, None]
        fading = tokens * self._rate()
        highest = (k + fading).cummax(dim=1).values - fading
        return torch.cat([k[:, :1], highest[:, :-1]], dim=1)
