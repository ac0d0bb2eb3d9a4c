r"""Streaming CKA over many samples, opt-in: `CkaMeter` per sample and pooled as a mean, `RowPooledCka` over all rows.

Glossary: S states, d width, n tokens of a sample; x_r row r of a state (one token of one sample), a_r = ‖x_r‖²; i and j
number states.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.metrics.cka import (
    MIN_TOKENS,
    Moments,
    all_pairs,
    centre,
    hsic_factor,
    normalise_hsic,
    null_moments,
    u_centre,
)
from repflow.metrics.meter import BatchInfo, Meter, MeterSetting, Record, Table

BUDGET_BYTES = 2 * 1024**3
CHUNK_ROWS = 1024
"""Rows multiplied in the states' precision before going into the float64 sums."""


@dataclass
class _HeldStates(Meter):
    """Holds the states of a batch and hands each sample's real rows to `_take`."""

    def begin(self, batch: BatchInfo) -> None:
        """Start a batch."""
        self._batch, self._states = batch, list[Tensor]()

    def update(self, state: int, hidden: Tensor) -> None:
        """Keep a reference to the state."""
        self._states.append(hidden.detach())

    def end(self) -> None:
        """Work through the batch sample by sample."""
        for row, (sample, length) in enumerate(zip(self._batch.samples, self._batch.lengths, strict=True)):
            rows = [state[row, :length] for state in self._states]
            self.records[sample] = self._take([x.to(torch.promote_types(x.dtype, torch.float32)) for x in rows])
        self._states = []

    def _take(self, states: list[Tensor]) -> Record:
        """Measure one sample, a list of (token, width)."""
        raise NotImplementedError


@dataclass
class CkaMeter(_HeldStates):
    """Linear CKA of every pair of states, per sample and pooled.

    A sample with too few tokens for the estimator (4 unbiased, 2 biased) is NaN and left out of the pooled value.
    A state with non-finite entries is NaN in the pairs it touches, in the pooled value too.

    Attributes:
        unbiased: False gives the published (biased) form, with a warning when n < 4 d.
    """

    unbiased: bool = True
    _warned: bool = field(default=False, init=False, repr=False)

    @classmethod
    def for_run(cls, setting: MeterSetting) -> CkaMeter:
        """With the requested estimator."""
        return cls(unbiased=setting.unbiased)

    def _take(self, states: list[Tensor]) -> Record:
        count, size = states[0].shape[0], len(states)
        width = max(rows.shape[1] for rows in states)
        self._warn(count, width)
        nan = np.full((size, size), np.nan)
        record: Record = {"hsic": nan, "null_mean": nan, "null_sd": nan}
        record |= {"rows": np.asarray(count), "rows_per_width": np.asarray(count / width)}
        if count < _fewest(self.unbiased):
            return record
        centred = [centre(rows) for rows in states]
        raw = all_pairs(centred, self.unbiased)
        record["hsic"] = (raw * hsic_factor(count, self.unbiased)).cpu().numpy()
        if count >= MIN_TOKENS:
            norms = torch.stack([x.double().square().sum(1) for x in centred])
            # raw is of the U-centred kernels if unbiased, but then the null does not depend on it
            null = null_moments(norms.sum(1), raw.diagonal(), norms.square().sum(1), count, self.unbiased)
            record["null_mean"], record["null_sd"] = null.mean.cpu().numpy(), null.sd.cpu().numpy()
        return record

    def _warn(self, count: int, width: int) -> None:
        if not self.unbiased and count < 4 * width and not self._warned:
            self._warned = True
            warnings.warn(
                f"biased CKA with n = {count} tokens and width d = {width}: with n < 4 d even unrelated states score"
                " high; use unbiased=True",
                stacklevel=5,
            )

    def compute(self) -> Table:
        """Per-sample and pooled CKA with their row-permutation nulls, and n / d.

        `cka_pooled` is `pool="mean"`: HSIC averaged over samples before the ratio. Its null permutes the rows of each
        sample independently.
        """
        records = self.ordered()
        hsic, null_mean, null_sd = (
            torch.from_numpy(np.stack([r[name] for r in records], -1)) for name in ("hsic", "null_mean", "null_sd")
        )
        cka = normalise_hsic(hsic)
        undefined = cka.isnan()
        enough = torch.tensor([int(r["rows"]) >= _fewest(self.unbiased) for r in records])
        pooled, null = _pool_mean(*(values[..., enough] for values in (hsic, null_mean, null_sd)))
        per_sample, per_pair = ("state", "state", "sample"), ("state", "state")
        return {
            "cka_matrix": (per_sample, cka.numpy()),
            "cka_null_mean": (per_sample, null_mean.masked_fill(undefined, torch.nan).numpy()),
            "cka_null_sd": (per_sample, null_sd.masked_fill(undefined, torch.nan).numpy()),
            "cka_pooled": (per_pair, pooled.numpy()),
            "cka_pooled_null_mean": (per_pair, null.mean.numpy()),
            "cka_pooled_null_sd": (per_pair, null.sd.numpy()),
            "cka_rows_per_width": (("sample",), np.stack([r["rows_per_width"] for r in records])),
        }


def _fewest(unbiased: bool) -> int:
    """Rows that the estimator needs."""
    return MIN_TOKENS if unbiased else 2


def _pool_mean(hsic: Tensor, null_mean: Tensor, null_sd: Tensor) -> tuple[Tensor, Moments]:
    """Pool (state, state, sample): mean HSIC before the ratio, and the null of that."""
    own = torch.diagonal(hsic, dim1=0, dim2=1).T
    scale = (own[:, None] * own[None]).sqrt()  # turns a sample's null from CKA into HSIC
    mean = hsic.mean(-1)
    whole = (mean.diagonal()[:, None] * mean.diagonal()).sqrt()
    shift = (null_mean * scale).mean(-1) / whole
    variance = (null_sd * scale).square().sum(-1) / hsic.shape[-1] ** 2
    return normalise_hsic(mean), Moments(shift, variance.sqrt() / whole)


def row_pool_bytes(n_states: int, width: int) -> int:
    """Memory of the float64 sums of `RowPooledCka`: one (width, width) matrix per pair of states.

    >>> row_pool_bytes(24, 768)
    1415577600
    """
    return n_states * (n_states + 1) // 2 * width**2 * 8


@dataclass
class RowPooledCka(_HeldStates):
    """Exact CKA over the rows of all samples together (`pool="rows"`), from sums that never hold the rows.

    Attributes:
        n_states: states that will come, per batch.
        unbiased: False gives the published (biased) form.
        budget_bytes: memory the sums may take; a larger request is refused.
    """

    restartable: ClassVar[bool] = False  # its sums may hold part of a batch that failed
    free: ClassVar[tuple[str, ...]] = ("budget_bytes",)
    n_states: int
    unbiased: bool = True
    budget_bytes: int = BUDGET_BYTES
    _sums: _RowSums | None = field(default=None, init=False, repr=False)

    def update(self, state: int, hidden: Tensor) -> None:
        """Keep a reference to the state; the first one shows whether the sums fit the budget."""
        need = row_pool_bytes(self.n_states, hidden.shape[-1])
        if need > self.budget_bytes:
            raise InputError(
                teach(
                    f"row-pooled CKA within {self.budget_bytes / 1e9:.2f} GB",
                    f"{self.n_states} states of width {hidden.shape[-1]}, which need {need / 1e9:.2f} GB",
                    "use pool='mean' or raise budget_bytes",
                )
            )
        super().update(state, hidden)

    def _take(self, states: list[Tensor]) -> Record:
        if self._sums is None:
            self._sums = _RowSums.about(states)
        for chunk in zip(*(torch.split(rows, CHUNK_ROWS) for rows in states), strict=True):
            self._sums.add(list(chunk))
        return {"rows": np.asarray(states[0].shape[0])}

    def merge(self, other: Meter) -> None:
        """Take over the samples of another meter; the two must have seen different ones."""
        mine, theirs = self._sums, getattr(other, "_sums", None)
        if mine is not None and theirs is not None and mine.shift.shape != theirs.shift.shape:
            raise InputError(
                teach(
                    f"sums of (state, width) = {tuple(mine.shift.shape)}",
                    f"{tuple(theirs.shift.shape)}",
                    "merge meters of the same model",
                )
            )
        super().merge(other)
        if mine is None:
            self._sums = copy.deepcopy(theirs)
        elif theirs is not None:
            mine.absorb(theirs)

    def compute(self) -> Table:
        """CKA of all rows (state, state) with its row-permutation null, and rows per width."""
        rows = int(sum(int(record["rows"]) for record in self.ordered()))
        assert self._sums is not None
        sums = self._sums
        sums.centre()
        size = self.n_states
        cka = null_mean = null_sd = torch.full((size, size), torch.nan, dtype=torch.float64)
        if rows >= _fewest(self.unbiased):
            raw = sums.squared_cross()
            hsic = u_centre(raw, sums.energy_products, sums.energy, rows) if self.unbiased else raw
            cka = normalise_hsic(hsic)
            if rows >= MIN_TOKENS:
                diagonal = sums.energy_products.diagonal()
                null_mean, null_sd = null_moments(sums.energy, raw.diagonal(), diagonal, rows, self.unbiased)
        per_pair = ("state", "state")
        return {
            "cka_row_pooled": (per_pair, cka.cpu().numpy()),
            "cka_row_pooled_null_mean": (per_pair, null_mean.cpu().numpy()),
            "cka_row_pooled_null_sd": (per_pair, null_sd.cpu().numpy()),
            "cka_row_pooled_rows_per_width": ((), np.asarray(rows / sums.shift.shape[1])),
        }


@dataclass
class _RowSums:
    """Sums over rows of x - shift, in float64, from which any other shift follows (see `move`).

    The shift is near the mean, so that float32 states with a large common offset lose nothing to cancellation.

    Attributes:
        shift: (state, width).
        count: rows seen.
        total: Σ x (state, width).
        energy: Σ a (state,).
        energy_products: Σ a_i a_j (state, state).
        weighted: Σ a_i x_j (state i, state j, width).
        cross: Σ x_i x_jᵀ (width, width) for i ≤ j.
    """

    shift: Tensor
    count: int
    total: Tensor
    energy: Tensor
    energy_products: Tensor
    weighted: Tensor
    cross: dict[tuple[int, int], Float[Tensor, "width width"]]

    @classmethod
    def about(cls, states: list[Tensor]) -> _RowSums:
        """No rows yet, about the mean of these."""
        shift = torch.stack([rows.double().mean(0) for rows in states])
        size, width = shift.shape
        pairs = [(i, j) for i in range(size) for j in range(i, size)]
        return cls(
            shift=shift,
            count=0,
            total=torch.zeros_like(shift),
            energy=shift.new_zeros(size),
            energy_products=shift.new_zeros(size, size),
            weighted=shift.new_zeros(size, size, width),
            cross={pair: shift.new_zeros(width, width) for pair in pairs},
        )

    def add(self, states: list[Tensor]) -> None:
        """Add one chunk of rows."""
        moved = [rows.double() - shift for rows, shift in zip(states, self.shift, strict=True)]
        energy = torch.stack([rows.square().sum(1) for rows in moved])
        self.count += moved[0].shape[0]
        self.total += torch.stack([rows.sum(0) for rows in moved])
        self.energy += energy.sum(1)
        self.energy_products += energy @ energy.T
        self.weighted += torch.stack([energy @ rows for rows in moved], 1)
        narrow = [rows.to(state.dtype) for rows, state in zip(moved, states, strict=True)]
        for (i, j), cross in self.cross.items():
            cross += narrow[i].T @ narrow[j]

    def move(self, delta: Tensor) -> None:
        """Make these the sums of x + delta (state, width): expand each product, reading only sums kept here."""
        n, square = self.count, delta.square().sum(1)
        along = (self.total * delta).sum(1)  # Σ x·δ
        states = range(len(delta))
        onto = torch.stack([torch.stack([self._onto(i, j, delta[i]) for j in states]) for i in states])
        # Σ (a_i + 2 x_i·δ_i + |δ_i|²)(a_j + 2 x_j·δ_j + |δ_j|²)
        half = 2 * (self.weighted * delta).sum(-1) + self.energy[:, None] * square + 2 * along[:, None] * square
        products = half + half.T + 4 * (onto * delta).sum(-1) + n * square[:, None] * square
        self.energy_products += products
        # Σ (a_i + 2 x_i·δ_i + |δ_i|²)(x_j + δ_j)
        factor = self.energy + 2 * along + n * square
        self.weighted += factor[:, None, None] * delta + 2 * onto + square[:, None, None] * self.total
        self.energy += 2 * along + n * square
        for (i, j), cross in self.cross.items():
            cross.addr_(self.total[i], delta[j]).addr_(delta[i], self.total[j] + n * delta[j])
        self.total += n * delta
        self.shift = self.shift - delta

    def _onto(self, i: int, j: int, vector: Tensor) -> Tensor:
        """Σ (x_i · vector) x_j (width,)."""
        return vector @ self.cross[i, j] if i <= j else self.cross[j, i] @ vector

    def centre(self) -> None:
        """Move to the mean of all rows."""
        self.move(-self.total / self.count)

    def absorb(self, other: _RowSums) -> None:
        """Add the sums over other rows."""
        other.move(other.shift - self.shift)
        self.count += other.count
        for name in ("total", "energy", "energy_products", "weighted"):
            getattr(self, name).add_(getattr(other, name))
        for pair, cross in self.cross.items():
            cross += other.cross[pair]

    def squared_cross(self) -> Float[Tensor, "state state"]:
        """‖Σ x_i x_jᵀ‖_F² of every pair."""
        out = self.energy_products.new_zeros(self.energy_products.shape)
        for (i, j), cross in self.cross.items():
            out[i, j] = out[j, i] = cross.square().sum()
        return out
