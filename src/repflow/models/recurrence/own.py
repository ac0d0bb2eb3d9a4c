"""Recurrences of repflow's own mixers, made from projections of the input for some tokens at a time.

| layer | A | b | Δ | unit |
|---|---|---|---|---|
| S6, SSD | as in Mamba and Mamba-2 (`ScanRecurrence`) | | | channel, head |
| RWKV-4, RG-LRU | as in RWKV and Griffin (`repflow.models.recurrence.readers`) | | | channel |
| linear attention, retention, GLA, HGRN2, RWKV-5 | decay of each key | key | value, of either sign | head |
| mLSTM | as in xLSTM (`repflow.models.recurrence.matrix`) | | | head |
| minGRU, minLSTM | 1 − Δ | candidate | gate | channel |
| S4D, H3 | e^{ΔA}, complex | (B̄ / Δ) x | Δ | channel |
| DeltaNet, Gated DeltaNet, KDA | not diagonal (`repflow.models.recurrence.delta`) | | | head |
| any other mixer | as its `transition` says | | | channel |
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from repflow.mixers.base import Mixer
from repflow.mixers.diagonal_ssm import diagonal_transition
from repflow.mixers.parts.shift import shift
from repflow.mixers.transition import DeltaTransition, Transition, four_axes, joint_shape
from repflow.models.fastpath.scan_call import ScanCall
from repflow.models.recurrence.delta import DeltaRecurrence
from repflow.models.recurrence.layer import WHOLE, Operator, Recurrence, ScanRecurrence
from repflow.models.recurrence.matrix import MatrixRecurrence, MlstmRecurrence, some
from repflow.models.recurrence.readers import RglruRecurrence, RwkvRecurrence

MATRIX = ("linear_attention", "retention", "gla", "rwkv5", "hgrn2", "mlstm")
"""Families with a matrix state per head: values on the channel axis, keys on the state axis."""


class DiagonalRecurrence(Recurrence):
    """A filter per channel, the same at every token: S4D, and H3 after its product of keys and values.

    Args:
        u: Inputs (batch, token, channel).
        kernel: The `DiagonalSsm`, whose channels each stand for equally many of u.
    """

    kind = "own"
    unit = "channel"
    dim = 1

    def __init__(self, u: Tensor, kernel: Any) -> None:
        self.u = u
        self.batch, self.tokens, self.units = u.shape
        log_decay, entry, step = kernel.discretise()
        each = self.units // len(step)
        parts = (log_decay, entry, kernel.readouts(), step[:, None])
        self._log, self._entry, self._c, self._delta = (part.repeat_interleave(each, dim=0) for part in parts)

    def transition(self, tokens: slice = WHOLE) -> Transition:
        """B = (B̄ / Δ) u."""
        return diagonal_transition(self.u[:, tokens], self._log.exp(), self._entry, self._c, self._delta)

    def log_decay(self, tokens: slice = WHOLE) -> Tensor:
        """Log |A|, for one token: it stands for all."""
        return self._log.real[None, None]

    def operator(self, units: Tensor) -> Operator:
        """E = B̄."""
        one = torch.ones_like(self.u[:1, :1])
        decay, entry, c, delta = diagonal_transition(one, self._log.exp(), self._entry, self._c, self._delta)
        return Operator(decay[:, :, units], (entry * delta)[:, :, units], c[:, :, units], self.u[:, :, units, None])


class MixerRecurrence(Recurrence):
    """A mixer that repflow does not know, from its `transition`, which is made whole.

    Its inputs cannot be distinguished from its b, so entry s of a map is what token s itself gives to t: y_t = Σ_s
    P_ts.

    Args:
        transition: As the mixer gives it.
        x: Its input (batch, token, width).
    """

    kind = "own"
    unit = "channel"
    dim = 1

    def __init__(self, transition: Transition, x: Tensor) -> None:
        self.parts = four_axes(transition)
        self.batch, self.tokens = x.shape[:2]
        self.units = joint_shape(*self.parts)[2]

    def transition(self, tokens: slice = WHOLE) -> Transition:
        """As the mixer gives it."""
        return Transition(*(some(part, tokens) for part in self.parts))

    def log_decay(self, tokens: slice = WHOLE) -> Tensor:
        """Log |A_t|."""
        return some(self.parts[0], tokens).expand(-1, -1, self.units, -1).abs().double().log()

    def operator(self, units: Tensor) -> Operator:
        """E = Δ b, the inputs 1."""
        decay, b, c, delta = (part.expand(-1, -1, self.units, -1)[:, :, units] for part in self.parts)
        one = torch.ones(self.batch, self.tokens, len(units), 1, device=decay.device, dtype=decay.abs().dtype)
        return Operator(decay, delta * b, c, one)


class GateRecurrence(MixerRecurrence):
    """minGRU's and minLSTM's, whose b is the input itself: candidates, of which gates take a share."""

    def operator(self, units: Tensor) -> Operator:
        """E = Δ, the inputs b."""
        decay, b, c, delta = (part.expand(-1, -1, self.units, -1)[:, :, units] for part in self.parts)
        return Operator(decay, delta, c, b)


def mixer_recurrence(mixer: Mixer, x: Tensor) -> Recurrence:
    """Recurrence of one of repflow's own mixers on its input x (batch, token, width)."""
    module: Any = mixer
    if mixer.family == "rwkv4":
        key, value = module._key_value(x, shift(x))
        return RwkvRecurrence(module._rate(), module.time_first, key, value, own=True)
    if mixer.family == "rg_lru":
        u = module.linear_x(x)
        u = u if module.conv_1d is None else module.conv_1d(u)
        log_a, gate = module.rg_lru(u)
        first = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        first[:, 0] = True
        return RglruRecurrence(u, log_a, gate, first, own=True)
    if mixer.family == "s6":
        u, _ = module._project(x)
        delta, B, C = module._select(u)
        return ScanRecurrence(_scan("s6", u, delta, B, C, _polarized(module)), mixer.family)
    if mixer.family == "ssd":
        u, _, delta, B, C = module._project(x)
        return ScanRecurrence(_scan("ssd", u, delta, B, C, _polarized(module)), mixer.family)
    if mixer.family in ("s4d", "h3"):
        u = x if mixer.family == "s4d" else module._product(x).flatten(2)
        return DiagonalRecurrence(u, module.kernel)
    if mixer.family in MATRIX:
        return _matrix_recurrence(module, x)
    if mixer.family in ("min_gru", "min_lstm"):
        return GateRecurrence(module.transition(x), x)
    transition = mixer.transition(x)
    if isinstance(transition, DeltaTransition):
        return DeltaRecurrence(transition, kind="own")
    return MixerRecurrence(transition, x)


def _matrix_recurrence(module: Any, x: Tensor) -> Recurrence:
    if module.family == "rwkv5":
        r, k, v = module._project(x, shift(x))
        own = v, (r * module.time_faaaa * k).sum(-1)
        return MatrixRecurrence(r, shift(k), shift(v), module._decay()[None, None], own=own)
    if module.family == "mlstm":
        return MlstmRecurrence(module.parts(x))
    if module.family in ("gla", "hgrn2"):
        q, k, v, log_decay = module.project(x)
        return MatrixRecurrence(q, k, v, log_decay.exp())
    q, k, v = module._project(x)
    return MatrixRecurrence(q, k, v, module._decay(x)[None, None, :, None] if module.family == "retention" else None)


def _polarized(module: Any) -> Tensor:
    """Rates A with those of the fixed states: 0 for a decay of 1, −inf for a decay of 0."""
    rates: Tensor = module._rates()
    if module.family == "ssd":
        if not module.poles.fixed:
            return rates
        rates = rates[:, None].expand(-1, module.state - module.poles.fixed)
        rates = pad(rates, (1, 0)) if module.poles.one else rates
    return pad(rates, (0, 1), value=-torch.inf) if module.poles.unscanned else rates


def _scan(kind: Any, u: Tensor, delta: Tensor, B: Tensor, C: Tensor, A: Tensor) -> ScanCall:
    return ScanCall(kind, u, delta, A, B, C, None, None, None, None, False, (0.0, float("inf")), False)
