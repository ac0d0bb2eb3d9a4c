"""Backward pass of the SSD scan in Triton: which kernels run, and where their results go.

Glossary: as in `triton_ssd`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from repflow.mixers.triton.launch import ceil_div, head_strides
from repflow.mixers.triton.ssd import FILL, Kept, Parts, state_pass, without


class Sums(NamedTuple):
    """Each chunk's part of the parameters' gradients: A and bias (batch · chunk, head), D likewise or · (head · dim).

    All are columns of one float32 tensor, so that one sum over its rows gives them all.
    """

    A: Tensor
    D: Tensor | None
    bias: Tensor | None

    @staticmethod
    def columns(parts: Parts) -> list[int]:
        """Widths of the parts of A, D and bias."""
        return [
            parts.A.numel(),
            0 if parts.D is None else parts.D.numel(),
            0 if parts.bias is None else parts.A.numel(),
        ]

    @classmethod
    def of(cls, parts: Parts, columns: Tensor) -> Sums:
        """The three parts of a (batch · chunk, column) tensor."""
        a, d, bias = columns.split(cls.columns(parts), 1)  # type: ignore[no-untyped-call]
        return cls(a, None if parts.D is None else d, None if parts.bias is None else bias)


class Targets(NamedTuple):
    """Where the tokens' gradients are written: dx (batch, token, head, dim), ddt, dB, dC; dense last axes."""

    x: Tensor
    dt: Tensor
    B: Tensor
    C: Tensor


def backward(parts: Parts, kept: Kept, dy: Tensor, last: Tensor | None, out: Targets, sums: Sums) -> Tensor:
    """Write all gradients from dy (batch, token, head, dim) and the last state's adjoint (batch, head, state, dim).

    Returns the adjoint of the first state, in the same axes.
    """
    from repflow.mixers.triton.kernels import ssd_gradient as kernels

    batch, tokens, heads, _ = parts.x.shape
    groups, chunks = parts.B.shape[2], parts.chunks
    flags, step = parts.flags(), parts.step_flags()
    q = parts.setting.tiles.chunk
    new: dict[str, Any] = {"dtype": torch.float32, "device": dy.device}
    warps = 8 if q > 64 else 4
    R = torch.empty_like(kept.states)
    first, through, splits = state_pass(parts, kept, R, last, dy)
    direct = torch.empty(batch, chunks, heads, q, **new)
    skip = direct if parts.D is None else parts.D
    dD = direct if sums.D is None else sums.D
    wide = parts.D is not None and parts.D.dim() == 2
    kernels.input_kernel[(heads * batch * chunks,)](
        parts.x, parts.B, skip, dy, kept.scores, kept.dt, kept.hi, kept.lo, R, out.x, direct, dD, tokens, heads,
        parts.share, chunks, groups, *head_strides(parts.x), *head_strides(parts.B), skip.stride(0), 1 if wide else 0,
        dD.stride(0), *head_strides(dy), *head_strides(out.x), **flags, SKIP=parts.D is not None, WIDE=wide,
        num_warps=warps,
    )  # fmt: skip
    pairs, leaving, entering = _map_gradients(parts, kept, dy, R, out)
    kernels.step_gradient_kernel[(batch * chunks, ceil_div(heads, step["BLOCK"]))](
        parts.dt, parts.A if parts.bias is None else parts.bias, parts.A, kept.dt, pairs, leaving, entering, through,
        direct, out.dt, sums.A, sums.A if sums.bias is None else sums.bias, tokens, heads, chunks, splits,
        sums.A.stride(0), parts.dt.stride(0), parts.dt.stride(1), out.dt.stride(0), out.dt.stride(1),
        *parts.setting.limit, **step, num_warps=4,
    )  # fmt: skip
    return first


def _map_gradients(parts: Parts, kept: Kept, dy: Tensor, R: Tensor, out: Targets) -> tuple[Tensor, ...]:
    """Write dB and dC; return the sums that the decays' gradient is made of (batch, chunk, head, Q)."""
    from repflow.mixers.triton.kernels import ssd_gradient as kernels

    batch, tokens, heads, _ = parts.x.shape
    groups, state = parts.B.shape[2:]
    chunks, share, flags = parts.chunks, parts.share, parts.flags()
    q = parts.setting.tiles.chunk
    new: dict[str, Any] = {"dtype": torch.float32, "device": dy.device}
    pieces = max(1, min(share, FILL // (batch * chunks * groups)))
    warps = 8 if q > 64 else 4
    pairs, leaving, entering = torch.empty(3, batch, chunks, heads, q, **new)
    dscores = torch.empty(pieces, *kept.scores.shape, **new)
    kernels.pair_kernel[(batch * chunks, groups, pieces)](
        parts.x, dy, kept.scores, kept.dt, kept.hi, kept.lo, dscores, pairs, tokens, heads, share, chunks, groups,
        pieces, *head_strides(parts.x), *head_strides(dy), **without(flags, "STATE", "N"), num_warps=warps,
        num_stages=parts.stages,
    )  # fmt: skip
    whole = dscores[0] if pieces == 1 else dscores.sum(0)
    for v, w, o, s, term, target in (
        (dy, parts.C, parts.B, kept.states, leaving, out.C),
        (parts.x, parts.B, parts.C, R, entering, out.B),
    ):
        made = target[None] if pieces == 1 else torch.empty(pieces, batch, tokens, groups, state, **new)
        kernels.map_kernel[(batch * chunks, groups, pieces)](
            v, w, o, s, whole, kept.dt, kept.hi, kept.lo, made, term, tokens, heads, share, chunks, groups, pieces,
            *head_strides(v), *head_strides(w), *head_strides(o), made.stride(0), *head_strides(made[0]),
            **flags, INPUT=target is out.B, num_warps=warps, num_stages=parts.stages,
        )  # fmt: skip
        if pieces > 1:
            target.copy_(made.sum(0))
    return pairs, leaving, entering
