"""Recurrences of RWKV, Griffin and lightning attention, read from the module and its input.

| layer | A | b | Δ | unit |
|---|---|---|---|---|
| RWKV-4 | e^{−w} den_{t−1} / den_t | v_t | 1 − A_t | channel |
| RG-LRU (Griffin, RecurrentGemma) | a_t, 0 at the first token | i_t u_t | √(1 − a_t²), 1 at the first token | channel |
| mLSTM (xLSTM) | f_t | key | value · input gate, of either sign | head |
| lightning attention (MiniMax) | e^{−slope}, fixed for each head and layer | key | value, of either sign | head |

RWKV-4's numerator and denominator grow with e^k and have no scale of their own; their quotient, the weighted mean of
the values so far, has one, and A + Δ = 1. Its output also weighs the current token by a bonus: see `output`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, softplus

from repflow.core.errors import InputError, teach
from repflow.mixers.mlstm import Parts
from repflow.mixers.parts.shift import shift
from repflow.mixers.transition import Transition, four_axes
from repflow.models.recurrence.layer import WHOLE, Operator, Recurrence
from repflow.models.recurrence.matrix import MatrixRecurrence, MlstmRecurrence

READ = {
    "RwkvSelfAttention": "rwkv",
    "RecurrentGemmaRglru": "rg_lru",
    "MiniMaxLightningAttention": "lightning",
    "xLSTMLayer": "mlstm",
}
"""Classes of transformers that are read from their input, and their kind."""


class RwkvRecurrence(Recurrence):
    """RWKV-4 as a weighted mean: h_t = A_t h_{t−1} + (1 − A_t) v_t, A_t = e^{−w} den_{t−1} / den_t.

        y_t = (den_{t−1} h_{t−1} + e^{u + k_t} v_t) / (den_{t−1} + e^{u + k_t})

    Args:
        rate: w (channel,), positive.
        bonus: u (channel,).
        key: k (batch, token, channel).
        value: v (batch, token, channel).
        own: Whether it is a mixer of repflow.
    """

    unit = "channel"
    dim = 1

    def __init__(self, rate: Tensor, bonus: Tensor, key: Tensor, value: Tensor, *, own: bool = False) -> None:
        self.kind = "own" if own else "rwkv"
        self.rate, self.bonus, self.key = rate.double(), bonus.double(), key.double()
        self.value = value.to(torch.promote_types(value.dtype, torch.float32))
        self.batch, self.tokens, self.units = key.shape

    @functools.cached_property
    def log_den(self) -> Tensor:
        """Log den_t (batch, token, channel), token t included."""
        place = torch.arange(self.tokens, device=self.key.device)[:, None] * self.rate
        return (self.key + place).logcumsumexp(1) - place

    @functools.cached_property
    def _log_decay(self) -> Tensor:
        logs = self.log_den[:, :-1] - self.rate - self.log_den[:, 1:]
        return pad(logs, (0, 0, 1, 0), value=-torch.inf)  # before the first token there is nothing

    def log_decay(self, tokens: slice = WHOLE) -> Tensor:
        """Log A_t."""
        return self._log_decay[:, tokens, :, None]

    def transition(self, tokens: slice = WHOLE) -> Transition:
        """Of the weighted mean, with c = 1."""
        log, value = self.log_decay(tokens), self.value[:, tokens, :, None]
        decay, delta = log.exp().to(value.dtype), (-torch.expm1(log)).to(value.dtype)
        return Transition(decay, value, torch.ones_like(value[:1, :1, :1]), delta)

    def met(self, tokens: slice = WHOLE) -> Tensor:
        """All: A + Δ = 1 at every step, the hypothesis of Theorem 4.2 with equality."""
        return self._per_token(torch.ones(1, 1, dtype=torch.float64, device=self.key.device), tokens)

    def output(self, initial: Tensor | None = None) -> Tensor:
        """What the layer gates and projects: the mean before the current token, and the token by its bonus."""
        past = pad(self.log_den[:, :-1], (0, 0, 1, 0), value=-torch.inf)
        share = torch.sigmoid(past - self.bonus - self.key).to(self.value.dtype)
        mean = torch.cat([h[..., 0] for _, h in self.states(initial=initial)], dim=1)
        before = pad(mean[:, :-1], (0, 0, 1, 0))
        return share * before + (1 - share) * self.value

    def operator(self, units: Tensor) -> Operator:
        """Of the weighted mean; the matrix of the output is `matrix`, which is a softmax."""
        decay, b, c, delta = four_axes(self.transition())
        return Operator(decay[:, :, units], delta[:, :, units], c, b[:, :, units])

    def matrix(self, units: Tensor, sample: int) -> Tensor:
        """Weights over tokens (unit, token, token): a softmax of k_s − (t − 1 − s) w, of u + k_t at s = t."""
        key, rate = self.key[sample, :, units].mT, self.rate[units]
        place = torch.arange(self.tokens, device=key.device)
        gap = (place[:, None] - 1 - place).clamp(min=0)
        score = key[:, None] - gap * rate[:, None, None]
        score = torch.where(place[:, None] == place, (key + self.bonus[units, None])[:, None], score)
        return score.masked_fill(place > place[:, None], -torch.inf).softmax(-1)

    def inputs(self, units: Tensor) -> Tensor:
        """The values."""
        return self.value[:, :, units, None]


class RglruRecurrence(Recurrence):
    """RG-LRU: h_t = a_t h_{t−1} + √(1 − a_t²) i_t u_t, log a_t = −8 r_t softplus(Λ); from zero where `reset`.

    Args:
        u: Inputs (batch, token, channel) after the short convolution.
        log_a: Log a_t (batch, token, channel).
        gate: Input gate i_t (batch, token, channel).
        reset: First tokens (batch, token).
        own: Whether it is a mixer of repflow.
    """

    unit = "channel"
    dim = 1

    def __init__(self, u: Tensor, log_a: Tensor, gate: Tensor, reset: Tensor, *, own: bool = False) -> None:
        self.kind = "own" if own else "rg_lru"
        wide = torch.promote_types(u.dtype, torch.float32)
        self.u, self.gate, self.reset = u.to(wide), gate.to(wide), reset[..., None]
        self.log_a = log_a.to(wide)
        self.batch, self.tokens, self.units = u.shape

    def log_decay(self, tokens: slice = WHOLE) -> Tensor:
        """Log a_t, −inf where the state is reset."""
        return self.log_a[:, tokens].masked_fill(self.reset[:, tokens], -torch.inf)[..., None]

    def _step(self, tokens: slice = WHOLE) -> Tensor:
        root = (-torch.expm1(2 * self.log_a[:, tokens])).sqrt()
        return torch.where(self.reset[:, tokens], torch.ones_like(root), root)[..., None]

    def transition(self, tokens: slice = WHOLE) -> Transition:
        """B = i u, c = 1."""
        b = (self.gate[:, tokens] * self.u[:, tokens])[..., None]
        return Transition(self.log_decay(tokens).exp(), b, torch.ones_like(b[:1, :1, :1]), self._step(tokens))

    def operator(self, units: Tensor) -> Operator:
        """E = Δ i."""
        decay, _, c, delta = self.transition()
        entry = (delta * self.gate[..., None])[:, :, units]
        return Operator(decay[:, :, units], entry, c, self.u[:, :, units, None])


def module_recurrence(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Recurrence:
    """Recurrence of transformers' RWKV, RG-LRU, lightning-attention or xLSTM layer in one call."""
    kind = READ[type(module).__name__]
    if kind == "rwkv":
        return _read_rwkv(module, *args, **kwargs)
    if kind == "lightning":
        return _read_lightning(module, args, kwargs)
    if kind == "mlstm":
        return _read_mlstm(module, *args, **kwargs)
    return _read_rglru(module, *args, **kwargs)


def _read_rwkv(module: Any, hidden: Tensor, state: Any = None, use_cache: bool = False) -> Recurrence:
    if state is not None:
        got = "a call that goes on from a cached state"
        raise InputError(teach("a prompt from its first token on", got, "run the whole prompt without a cache"))
    before = shift(hidden)

    def projected(name: str) -> Tensor:  # not by calling the matrices: that would run their hooks a second time
        share = getattr(module, f"time_mix_{name}")
        return linear(hidden * share + before * (1 - share), getattr(module, name).weight)

    key, value = projected("key"), projected("value")
    recurrence = RwkvRecurrence(module.time_decay.double().exp(), module.time_first, key, value)
    own = sys.modules[type(module).__module__].rwkv_linear_attention
    recurrence.layer = lambda: own(module.time_decay, module.time_first, key, value)[0]
    return recurrence


def _read_rglru(module: Any, activations: Tensor, position_ids: Tensor) -> Recurrence:
    shape = activations.shape
    heads = activations.reshape(-1, module.num_attention_heads, module.block_width)

    def gate(name: str) -> Tensor:
        weight, bias = getattr(module, f"{name}_gate_weight"), getattr(module, f"{name}_gate_bias")
        return torch.sigmoid(torch.einsum("nhi,hij->nhj", heads, weight) + bias).reshape(shape)

    log_a = -8.0 * gate("recurrent") * softplus(module.recurrent_param)
    reset = (position_ids == 0).expand(shape[:2])
    recurrence = RglruRecurrence(activations, log_a, gate("input"), reset)
    recurrence.layer = lambda: _run_rglru(module, activations, position_ids)
    return recurrence


def _run_rglru(module: Any, activations: Tensor, position_ids: Tensor) -> Tensor:
    """The layer's own output; it keeps its state in itself, which is put back."""
    states = module.recurrent_states
    try:
        output: Tensor = module.forward(activations, position_ids)
    finally:
        module.recurrent_states = states
    return output


def _read_mlstm(module: Any, x: Tensor, state: Any = None) -> Recurrence:
    config = module.config
    if state is not None and any(part is not None and bool(part.any()) for part in state):
        got = "a call that goes on from a cached state"
        raise InputError(teach("a prompt from its first token on", got, "run the whole prompt without a cache"))

    def projected(name: str) -> Tensor:  # not by calling the matrices: that would run their hooks a second time
        matrix = getattr(module, name)
        return linear(x, matrix.weight, matrix.bias)

    if config.weight_mode == "fused":
        sizes = [module.qk_dim, module.qk_dim, module.v_dim, module.v_dim]
        query, key, value, _ = torch.split(projected("qkv_opreact"), sizes, dim=-1)
        gates = projected("ifgate_preact").chunk(2, dim=-1)
    else:
        query, key, value = (projected(name) for name in "qkv")
        gates = projected("igate_preact"), projected("fgate_preact")
    cap = config.gate_soft_cap
    enter, forget = (gate if cap is None else cap * torch.tanh(gate / cap) for gate in gates)
    heads = [part.reshape(*part.shape[:-1], config.num_heads, -1) for part in (query, key, value)]

    def own() -> Tensor:
        parts = (part.transpose(1, 2) for part in (*heads, enter, forget))
        names = ("query", "key", "value", "igate", "fgate")
        output: Tensor = module.mlstm_backend(**dict(zip(names, parts, strict=True)))[0]
        return output.transpose(1, 2).flatten(2)

    q, k, v = heads
    log_forget = torch.nn.functional.logsigmoid(forget.double())
    parts = Parts(q * q.shape[-1] ** -0.5, k, pad(v, (0, 1), value=1.0), enter.double(), log_forget)
    return MlstmRecurrence(parts, kind="mlstm", layer=own)


def _read_lightning(module: Any, args: tuple, kwargs: dict[str, Any]) -> Recurrence:
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    hidden, cache = bound["hidden_states"], bound.get("past_key_values")
    if cache is not None and cache.get_linear_cache(module.layer_idx) is not None:
        got = "a call that goes on from a cached state"
        raise InputError(teach("a prompt from its first token on", got, "run the whole prompt without a cache"))
    mixed = module.act_fn(linear(hidden, module.qkv_proj.weight))  # not by calling it: that would run its hooks again
    mask = bound.get("attention_mask")
    mixed = mixed if mask is None else mixed * mask[:, :, None].to(mixed.dtype)
    heads = mixed.unflatten(-1, (module.num_attention_heads, 3 * module.head_dim))
    wide = torch.promote_types(heads.dtype, torch.float32)
    queries, keys, values = heads.to(wide).split(module.head_dim, dim=-1)
    decay = torch.exp(-module.slope_rate.to(wide)).flatten()[None, None, :, None]
    own = functools.partial(_run_lightning, module, {**bound, "past_key_values": None})
    return MatrixRecurrence(queries, keys, values, decay, kind="lightning", layer=own)


def _run_lightning(module: Any, arguments: dict[str, Any]) -> Tensor:
    """The layer's own term (batch, token, head · dim): what its norm is called with when its forward runs once more."""
    seen: list[Tensor] = []
    handle = module.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]), prepend=True)
    more = arguments.pop("kwargs", {})
    try:
        module.forward(**arguments, **more)
    finally:
        handle.remove()
    return seen[0]
