"""The recurrence of one layer on one batch, in the same words whatever the layer is: Mamba, Mamba-2, RWKV, Griffin ...

    h_t = A_t h_{t−1} + Δ_t b_t        y_t = Σ_state c_t h_t

Glossary: unit, the smallest part with a decay and a map over tokens of its own: a channel in Mamba, RWKV-4 and Griffin,
a head in Mamba-2 and in linear attention; dim, channels of a unit; a = −A, the rate in A_t = exp(−a Δ_t).
Parts are made when they are needed, for some tokens at a time.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import lambertw
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.transition import AnyTransition, Transition, four_axes, joint_shape
from repflow.models.fastpath.scan_call import ScanCall

WHOLE = slice(None)
# Elements of the states that exist at once.
BUFFER = 2**22
ROUNDING = 1e-6
"""Relative slack in A + Δ ≤ 1 where both come from float32; RWKV meets it with equality."""


class Operator(NamedTuple):
    """Map over tokens of some units: y_t = Σ_{s ≤ t} c_t · (Π_{s<r≤t} A_r) e_s x_s.

    Attributes:
        A: Decay, broadcastable to (batch, token, unit, state), as are e and c.
        e: What the unit's input is multiplied with on entering the state, Δ included.
        c: Read-out.
        x: Inputs (batch, token, unit, dim).
        own: Weight (batch, token, unit) of the current token where the state that t reads ends with t − 1 (RWKV-5);
            None elsewhere.
    """

    A: Tensor
    e: Tensor
    c: Tensor
    x: Tensor
    own: Tensor | None = None


class Step(NamedTuple):
    """Some tokens of a recurrence, each part broadcastable to (batch, token, unit · dim, state).

    Attributes:
        tokens: Which tokens.
        b: Inputs.
        entry: What enters the state, Δ b.
        c: Read-out.
        h: States, with all axes.
    """

    tokens: slice
    b: Tensor
    entry: Tensor
    c: Tensor
    h: Tensor


class Recurrence(ABC):
    """One layer's recurrence on one batch.

    Attributes:
        kind: s6, ssd, rwkv, rg_lru, lightning, delta, or own for a mixer of repflow.
        diagonal: Whether every entry of the state decays by itself (`repflow.models.recurrence.delta` is not).
        unit: channel or head.
        units: Number of units.
        dim: Channels of a unit.
        batch: Samples.
        tokens: Tokens, padding included.
        layer: Runs the layer's own code for what `mixed` gives; None where that has no form apart from this one.
    """

    kind: str
    diagonal: bool = True
    unit: str
    units: int
    dim: int
    batch: int
    tokens: int
    layer: Callable[[], Tensor] | None = None

    @abstractmethod
    def transition(self, tokens: slice = WHOLE) -> AnyTransition:
        """A_t, b_t, c_t and Δ_t of some tokens, each broadcastable to (batch, token, unit · dim, state)."""

    @abstractmethod
    def log_decay(self, tokens: slice = WHOLE) -> Tensor:
        """Log |A_t| of some tokens (batch, token, unit, state); axes of one entry stand for all."""

    @abstractmethod
    def operator(self, units: Tensor) -> Operator:
        """Map over tokens of the units with these indices."""

    def log_norm(self, tokens: slice = WHOLE) -> Tensor:
        """Log of the largest factor by which a step can lengthen a unit's state (batch, token, unit): max |A_t|."""
        return self.log_decay(tokens).amax(-1)

    def rates(self) -> Tensor | None:
        """Rates a (unit, state) where A_t = exp(−a Δ_t); None where the decay is made in another way."""
        return None

    def met(self, tokens: slice = WHOLE) -> Tensor:
        """Share of channels and states with A_t + Δ_t ≤ 1 and Δ_t ≥ 0 (batch, token): hypothesis of Theorem 4.2."""
        decay, _, _, delta = self._diagonal(tokens)
        room = -torch.expm1(decay.abs().double().log())
        delta = delta.double()
        met = (delta >= 0) & (delta <= room * (1 + ROUNDING))
        return self._per_token(met.double().mean((2, 3)), tokens)

    def walk(self, chunk: int | None = None, initial: Tensor | None = None) -> Iterator[Step]:
        """Run over the tokens, a few at a time, with the states; by default as many as 16 MiB of float32 hold."""
        h, first = initial, 0
        while first < self.tokens:
            if chunk is None:
                decay, b, _, delta = self._diagonal(slice(first, first + 1))
                chunk = max(1, BUFFER // joint_shape(decay, b, delta).numel())
            here = slice(first, min(first + chunk, self.tokens))
            decay, b, c, delta = self._diagonal(here)
            entry = delta * b
            shape = joint_shape(decay, entry)
            decay, entry = decay.expand(shape), entry.expand(shape)
            states = []
            for token in range(here.stop - here.start):
                step = min(token, shape[1] - 1)
                h = entry[:, step] if h is None else decay[:, step] * h + entry[:, step]
                states.append(h)
            yield Step(here, b, entry, c, torch.stack(states, dim=1))
            first = here.stop

    def states(self, chunk: int | None = None, initial: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Run over the tokens and give h (batch, token, unit · dim, state), a few tokens at a time."""
        for step in self.walk(chunk, initial):
            yield step.tokens, step.h

    def output(self, initial: Tensor | None = None) -> Tensor:
        """Y (batch, token, unit · dim): what the states alone give."""
        pieces = []
        for step in self.walk(initial=initial):
            y = (step.c * step.h).sum(-1)
            pieces.append(y.real if y.is_complex() else y)
        return torch.cat(pieces, dim=1)

    def mixed(self) -> Tensor:
        """What a unit's matrix makes of its inputs (batch, token, unit · dim), by the layer's own way of computing."""
        return self.output() if self.layer is None else self.layer()

    def matrix(self, units: Tensor, sample: int) -> Tensor:
        """Data-controlled matrices P (unit, token, token) of one sample in float64: y = P x, P_ts = 0 for s > t."""
        return operator_matrix(self.operator(units), sample, self.tokens)

    def inputs(self, units: Tensor) -> Tensor:
        """Inputs x (batch, token, unit, dim) that the matrices are applied to."""
        return self.operator(units).x

    def _diagonal(self, tokens: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        transition = self.transition(tokens)
        assert isinstance(transition, Transition)
        return four_axes(transition)

    def _per_token(self, value: Tensor, tokens: slice) -> Tensor:
        """(batch, token) of what may be the same for all samples or tokens."""
        count = len(range(*tokens.indices(self.tokens)))
        return value.expand(self.batch, count)


class ScanRecurrence(Recurrence):
    """Mamba's and Mamba-2's, from the arguments of a scan; `family` is that of a mixer of repflow."""

    def __init__(self, call: ScanCall, family: str | None = None) -> None:
        self.call = call
        self.kind = "own" if family else call.kind
        self.unit = "channel" if call.kind == "s6" else "head"
        self.batch, self.tokens, self.units = call.x.shape[:3]
        self.dim = 1 if call.kind == "s6" else call.x.shape[3]

    def rates(self) -> Tensor:
        """Rates a of the free states; 0 for a decay of 1, inf for a decay of 0."""
        A = self.call.A
        return -(A if A.ndim == 2 else A[:, None])

    def log_decay(self, tokens: slice = WHOLE) -> Tensor:
        """Log A_t = −a Δ_t."""
        delta = self.call.delta[:, tokens]
        wide = torch.promote_types(delta.dtype, self.call.A.dtype)
        rates = self.rates().to(wide)
        logs = delta.to(wide)[..., None] * -rates
        return logs.nan_to_num(nan=-torch.inf, neginf=-torch.inf) if bool(rates.isinf().any()) else logs

    def decay(self, tokens: slice = WHOLE) -> Tensor:
        """A_t = exp(−a Δ_t)."""
        return self.log_decay(tokens).exp()

    def met(self, tokens: slice = WHOLE) -> Tensor:
        """Share of units and states whose Δ_t is at most the largest that meets exp(−a Δ) + Δ ≤ 1."""
        return contractive_share(self._limits, self.call.delta[:, tokens])

    def transition(self, tokens: slice = WHOLE) -> Transition:
        """Parts in one dtype, float32 at least: half-precision products would not be what the scan computes."""
        call, decay = self.call, self.decay(tokens)
        delta = call.delta[:, tokens]
        x, B, C = (part[:, tokens].to(decay.dtype) for part in (call.x, call.B, call.C))
        if call.kind == "s6":
            return Transition(decay, x[..., None] * B[:, :, None], C[:, :, None], delta[..., None])
        heads, dim = x.shape[2:]
        B, C = (part.repeat_interleave(heads // part.shape[2], dim=2) for part in (B, C))
        b = (x[..., None] * B[..., None, :]).flatten(2, 3)
        decay, delta, c = (part.repeat_interleave(dim, dim=2) for part in (decay, delta[..., None], C))
        return Transition(decay, b, c, delta)

    def operator(self, units: Tensor) -> Operator:
        """E = Δ B, the inputs those of the scan."""
        call = self.call
        if call.initial is not None:
            got = "a scan that goes on from a cached state"
            raise InputError(teach("a prompt from its first token on", got, "run the whole prompt at once"))
        decay = self._decay_of(units)
        delta = call.delta[:, :, units, None].to(decay.dtype)
        B, C = (part.to(decay.dtype) for part in (call.B, call.C))
        if call.kind == "s6":
            return Operator(decay, delta * B[:, :, None], C[:, :, None], call.x[:, :, units, None].to(decay.dtype))
        group = units // (self.units // B.shape[2])
        return Operator(decay, delta * B[:, :, group], C[:, :, group], call.x[:, :, units].to(decay.dtype))

    def mixed(self) -> Tensor:
        """The scan as the layer runs it, without skip and gate."""
        if self.call.A.ndim == 2 and (self.call.kind == "ssd" or bool(self.call.A.isinf().any())):
            return self.output()  # polarized states, which the layer's scan takes apart
        y = self.call.alone().run()[0]
        return y.mT if self.call.kind == "s6" else y.flatten(2)

    @functools.cached_property
    def _limits(self) -> Tensor:
        return largest_step(self.rates())

    def _decay_of(self, units: Tensor) -> Tensor:
        delta = self.call.delta[:, :, units]
        wide = torch.promote_types(delta.dtype, self.call.A.dtype)
        decay = torch.exp(delta.to(wide)[..., None] * -self.rates()[units].to(wide))
        return decay.nan_to_num(nan=0.0)


def largest_step(rates: Tensor) -> Tensor:
    """Largest Δ with exp(−a Δ) + Δ ≤ 1: 1 + W(−a e^{−a}) / a, W Lambert's; 0 for a ≤ 1, which no Δ > 0 meets.

    >>> [round(step, 6) for step in largest_step(torch.tensor([1.0, 2.0, 3.0, torch.inf])).tolist()]
    [0.0, 0.796812, 0.94048, 1.0]
    """
    a: np.ndarray = rates.double().cpu().numpy()
    free: np.ndarray = np.where((a > 1) & np.isfinite(a), a, 2.0)
    root = 1 + lambertw(-free * np.exp(-free), 0).real / free
    return torch.from_numpy(np.where(a > 1, np.where(np.isfinite(a), root, 1.0), 0.0)).to(rates.device)


def contractive_share(limits: Tensor, delta: Tensor) -> Tensor:
    """Share of units and states that meet A + Δ ≤ 1 at each token, without a sum that rounding could decide.

    Args:
        limits: Largest step that meets it (unit, state), see `largest_step`.
        delta: Step sizes (batch, token, unit).

    Returns:
        (batch, token).
    """
    steps = delta.double().movedim(-1, 0)
    below = torch.searchsorted(limits.sort(-1).values, steps.flatten(1).contiguous())  # limits that are passed
    return 1 - torch.unflatten(below.double().mean(0), 0, tuple(steps.shape[1:])) / limits.shape[-1]


def operator_matrix(operator: Operator, sample: int, tokens: int) -> Tensor:
    """P (unit, token, token) of one sample, in float64; products of decays are built up, never divided out.

    >>> half, one = torch.full((1, 3, 1, 1), 0.5), torch.ones(1, 3, 1, 1)
    >>> operator_matrix(Operator(half, one, one, one), 0, 3)[0].tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]
    """
    A, e, c = (_of_sample(part, sample, tokens) for part in operator[:3])
    matrix = _shared_decay(A[..., 0], e, c) if A.shape[-1] == 1 else _own_decays(A, e, c)
    matrix = matrix.real if matrix.is_complex() else matrix
    if operator.own is not None:  # the input that entered last is the one before
        matrix = torch.nn.functional.pad(matrix[..., 1:], (0, 1))
        matrix = matrix + torch.diag_embed(operator.own[sample].double().mT)
    return matrix


def _of_sample(part: Tensor, sample: int, tokens: int) -> Tensor:
    """(unit, token, state) in float64 or its complex form."""
    kind = torch.complex128 if part.is_complex() else torch.float64
    here = part[sample if part.shape[0] > 1 else 0].to(kind)
    return here.expand(tokens, -1, -1).transpose(0, 1)


def _shared_decay(A: Tensor, e: Tensor, c: Tensor) -> Tensor:
    """One decay for all states of a unit: (C Eᵀ) ∘ Γ, Γ_ts = Π_{s<r≤t} A_r."""
    size = A.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=A.device).tril(-1)
    between = torch.where(later, A[..., :, None], torch.ones_like(A[..., :1, None])).cumprod(-2).tril()
    return (c @ e.mT) * between


def _own_decays(A: Tensor, e: Tensor, c: Tensor) -> Tensor:
    """A decay for every state: the part of each input that is left is carried from token to token."""
    kind = torch.promote_types(torch.promote_types(A.dtype, e.dtype), c.dtype)
    units, size, states = len(A), max(A.shape[1], e.shape[1]), max(A.shape[2], e.shape[2])
    left = torch.zeros(units, size, states, dtype=kind, device=A.device)
    matrix = torch.zeros(units, size, size, dtype=kind, device=A.device)
    for token in range(size):
        left[:, :token] *= A[:, token, None]
        left[:, token] = e[:, token]
        matrix[:, token, : token + 1] = (left[:, : token + 1] * c[:, token, None]).sum(-1)
    return matrix
