"""The delta rule's recurrence: a state whose keys are mixed by every step, and what can still be said of its memory.

    h_t = h_{t−1} diag(A_t) (I − β_t k_t k_tᵀ) + β_t v_t k_tᵀ        y_t = h_t q_t

Glossary: h state of a head (value, key); A decay, of the head or of each key; β write strength; M_t operator of a
step, (I − β_t k_t k_tᵀ) diag(A_t), so that hᵀ_t = M_t hᵀ_{t−1} + β_t k_t v_tᵀ; trace of an entry, what later steps
leave of it.

| of diagonal transitions | here |
|---|---|
| states, maps over tokens | P_ts = q_t · (Π_{s<r≤t} M_r) β_s k_s, exact |
| a decay of every entry | `log_decay` is that of diag(A) alone: where |1 − β |k|²| ≤ 1, entries fade at least as fast |
| the recency bound | with ‖M_t‖ in place of the largest decay (`log_norm`) |
| A + Δ ≤ 1 (Theorem 4.2) | does not carry over: it is about entries that do not mix, and `met` is NaN |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.scan.delta import delta_scan_chunked
from repflow.mixers.scan.reference import delta_states
from repflow.mixers.transition import DeltaTransition
from repflow.models.recurrence.layer import BUFFER, WHOLE, Operator, Recurrence, Step


class DeltaRecurrence(Recurrence):
    """The delta rule of one layer on one batch.

    Args:
        parts: Its transition, queries scaled as the layer scales them.
        kind: delta, or own for a mixer of repflow.
        layer: Runs the layer's own code for what `mixed` gives (batch, token, head · value).
    """

    unit = "head"
    diagonal = False

    def __init__(
        self, parts: DeltaTransition, *, kind: str = "delta", layer: Callable[[], Tensor] | None = None
    ) -> None:
        self.kind, self.layer = kind, layer
        wide = torch.promote_types(parts.v.dtype, torch.float32)
        self.parts = DeltaTransition(*(part.to(wide) for part in parts)).per_head()
        self.batch, self.tokens, self.units, self.dim = parts.v.shape

    def transition(self, tokens: slice = WHOLE) -> DeltaTransition:
        """Decay, keys, values, queries and write strengths of some tokens, of every head."""
        return DeltaTransition(*(part[:, tokens] for part in self.parts))

    def log_decay(self, tokens: slice = WHOLE) -> Tensor:
        """Log of diag(A_t) (batch, token, head, key), the diagonal factor alone; one entry stands for all keys."""
        return self.parts.A[:, tokens].double().log()

    def log_norm(self, tokens: slice = WHOLE) -> Tensor:
        """Log of max A_t · max(1, |1 − β_t |k_t|²|) ≥ log ‖M_t‖ (batch, token, head); equal for one decay per head.

        A head with a single key has no direction beside it: there M_t is A_t (1 − β_t |k_t|²).
        """
        along = (1 - self.parts.beta[:, tokens].double() * self.parts.k[:, tokens].double().square().sum(-1)).abs()
        if self.parts.k.shape[-1] > 1:
            along = along.clamp_min(1.0)
        return self.log_decay(tokens).amax(-1) + along.log()

    def strength(self, tokens: slice = WHOLE) -> Tensor:
        """Write strengths β_t (batch, token, head)."""
        return self.parts.beta[:, tokens]

    def met(self, tokens: slice = WHOLE) -> Tensor:
        """NaN: the hypothesis A + Δ ≤ 1 is about entries of the state that do not mix."""
        return self._per_token(self.parts.beta.new_full((1, 1), torch.nan, dtype=torch.float64), tokens)

    def operator(self, units: Tensor) -> Operator:
        """None: the map is not made of decays alone; `matrix` and `operators` are exact."""
        expected = "a recurrence whose transition is diagonal"
        raise InputError(teach(expected, "the delta rule", "use matrix(units, sample) or operators(first, last, ...)"))

    def operators(self, first: int, last: int, units: Tensor, sample: int) -> Tensor:
        """Product M_last … M_{first + 1} (unit, key, key) in float64: what the steps after `first` make of a state."""
        some = (part[sample : sample + 1, first + 1 : last + 1, units].double() for part in self.parts)
        keys = self.parts.k.shape[-1]
        product = torch.eye(keys, dtype=torch.float64, device=units.device).expand(len(units), -1, -1)
        for step in DeltaTransition(*some).operators()[0]:
            product = step @ product
        return product

    def matrix(self, units: Tensor, sample: int) -> Tensor:
        """Maps over tokens P (unit, token, token) of one sample in float64: the outputs of unit values, all at once."""
        decay, k, _, q, beta = (part[sample : sample + 1, :, units].double() for part in self.parts)
        eye = torch.eye(self.tokens, dtype=torch.float64, device=k.device)
        values = eye[None, :, None].expand(1, -1, len(units), -1)
        logs = DeltaTransition(decay, k, values, q, beta).log_decay()
        y, _ = delta_scan_chunked(q, k, values, beta, logs)
        return y[0].transpose(0, 1)

    def inputs(self, units: Tensor) -> Tensor:
        """The values (batch, token, unit, dim)."""
        return self.parts.v[:, :, units]

    def walk(self, chunk: int | None = None, initial: Tensor | None = None) -> Iterator[Step]:
        """Run over the tokens with the states; keys are b, and β v kᵀ enters."""
        _, k, v, q, beta = self.parts
        h = None if initial is None else torch.unflatten(initial, 1, (self.units, self.dim))
        size = self.batch * self.units * self.dim * k.shape[-1]
        chunk = max(1, BUFFER // size) if chunk is None else chunk
        for first in range(0, self.tokens, chunk):
            here = slice(first, min(first + chunk, self.tokens))
            states = delta_states(self.transition(here), h)
            h = states[:, -1]
            b, c = (part[:, here, :, None].expand(-1, -1, -1, self.dim, -1).flatten(2, 3) for part in (k, q))
            entry = (beta[:, here, :, None] * v[:, here]).flatten(2)[..., None] * b
            yield Step(here, b, entry, c, states.flatten(2, 3))

    def traces(self, sources: list[int], sample: int) -> Tensor:
        """Length of what is left of each source's entry, by its length on entering (source, token, head), in float64.

        NaN before the source, 1 at it; a product of exact operators, applied to the key that the source wrote at.
        """
        decay, k, _, _, beta = (part[sample].double() for part in self.parts)
        left = torch.zeros(len(sources), *k.shape[1:], dtype=torch.float64, device=k.device)
        lengths = torch.full((len(sources), self.tokens, self.units), torch.nan, dtype=torch.float64, device=k.device)
        begun = torch.tensor(sources, device=k.device)
        for token in range(min(sources), self.tokens):
            left = left * decay[token]
            left = left - (beta[token, :, None] * k[token]) * (left * k[token]).sum(-1, keepdim=True)
            new = begun == token
            if bool(new.any()):
                left[new] = k[token] / k[token].norm(dim=-1, keepdim=True)
            lengths[:, token] = torch.where((begun <= token)[:, None], left.norm(dim=-1), torch.nan)
        return lengths
