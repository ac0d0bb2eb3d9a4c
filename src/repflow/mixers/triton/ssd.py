"""Scan of Mamba-2 (SSD) in Triton, forward and backward, on the matrix units.

Glossary: A decay rate of a head, B input map, C read-out, D skip, delta step size, R adjoint of the state that leaves
a chunk.

Chunked form: the scores C Bᵀ of a chunk once per group, decays applied to them in registers, states handed from chunk
to chunk within one program. Products of half-precision inputs are summed in float32. Tested against the sequential
reference in Triton's interpreter, and on a GPU by benchmarks/scan_gpu.py.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.triton.launch import ceil_div, head_strides, obstacle, on_device, power, rowwise

MAX_STATE, MAX_DIM = 256, 128
"""A chunk's maps and a head's state are held in shared memory."""
MAX_CELLS = 16_384
"""Numbers of a head's state where products are in float32, which takes twice the room."""
FILL = 264
"""Programs that fill a GPU of 132 multiprocessors."""


class Tiles(NamedTuple):
    """How the scan is cut: tokens of a chunk, rows of an output tile; warps and loads ahead of each kind of program."""

    chunk: int = 128
    rows: int = 64
    warps: int = 4
    stages: int = 1
    state_warps: int = 4
    state_stages: int = 2


TILES = Tiles()
"""Fastest of four on an H200 for 8 samples of 2,048 tokens, 80 heads of 64, 64 layers in bfloat16: 0.186 s."""
TRAINING = Tiles(chunk=64)
"""Tiles where gradients are wanted: the backward kernels hold a chunk's whole score matrix, and spill at 128 tokens."""
REPAIRERS = 4
"""Programs that look whether a head is to be repaired: so few that they cost nothing where it is not."""


def supported(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, initial: Tensor | None = None
) -> str | None:
    """Why the kernel cannot run on these tensors; None if it can.

    >>> x, maps = torch.ones(1, 3, 2, 4), torch.ones(1, 3, 1, 8)
    >>> supported(x, x[..., 0], -torch.ones(2), maps, maps)
    'tensors on the cpu'
    """
    if B.shape[-1] > MAX_STATE:
        return f"state size {B.shape[-1]} is above {MAX_STATE}"
    if x.shape[-1] > MAX_DIM:
        return f"head dimension {x.shape[-1]} is above {MAX_DIM}"
    if x.dtype != torch.bfloat16 and power(x.shape[-1], 16) * power(B.shape[-1], 16) > MAX_CELLS:
        return f"a head of {x.shape[-1]} by {B.shape[-1]} numbers in {str(x.dtype).removeprefix('torch.')}"
    return obstacle(x, delta, A, B, C, D, initial)


def ssd_scan_triton(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    initial: Tensor | None = None,
    return_final: bool = False,
    *,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    limit: tuple[float, float] = (0.0, math.inf),
    tiles: Tiles | None = None,
    kind: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """As `repflow.mixers.scan.forms.ssd_scan`, with bias, softplus and limits of the steps taken in if given.

        delta = clamp(softplus(delta + delta_bias), *limit)

    Args:
        x: Inputs (batch, token, head, dim), in any strides; dense last axes are read without a copy.
        delta: Step sizes (batch, token, head).
        A: Decay rates (head,), negative.
        B: Input map (batch, token, group, state).
        C: Read-out (batch, token, group, state).
        D: Skip (head,) or (head, dim).
        initial: State before the first token (batch, head, dim, state); zero if left out.
        return_final: Also return the state after the last token (batch, head, dim, state), float32.
        delta_bias: Added to delta (head,).
        delta_softplus: Whether delta comes before its softplus.
        limit: Least and greatest step size, applied where delta_softplus is.
        tiles: How the work is cut.
        kind: Dtype of the products: that of x, but float32 (in tf32) for float16, whose range states can leave.
    """
    why_not = supported(x, delta, A, B, C, D, initial)
    if why_not is not None:
        raise InputError(teach("tensors that the Triton scan takes", why_not, 'use ssd_scan with path="auto"'))
    wanted = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, delta, A, B, C, D, initial, delta_bias)
    )
    setting = Setting(tiles or (TRAINING if wanted else TILES), kind, delta_softplus, limit)
    y, final = _Scan.apply(x, delta, A, B, C, D, delta_bias, initial, setting)  # type: ignore[no-untyped-call]
    return (y, final) if return_final else y


class Setting(NamedTuple):
    """Choices of a scan that are not tensors; with log_rate, A comes as log(−A), and so does its gradient."""

    tiles: Tiles = TILES
    kind: torch.dtype | None = None
    softplus: bool = False
    limit: tuple[float, float] = (0.0, math.inf)
    log_rate: bool = False


@functools.cache
def _flags(x: torch.dtype, kind: torch.dtype | None, dim: int, state: int, chunk: int) -> dict[str, Any]:
    import triton.language as tl

    kind = kind or (torch.bfloat16 if x == torch.bfloat16 else torch.float32)
    names = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
    # three tf32 products carry a float32 one; float16 has no more digits than tf32
    precision = "tf32x3" if x == torch.float32 else "tf32"
    return {
        "DIM": dim, "P": power(dim, 16), "STATE": state, "N": power(state, 16), "Q": chunk, "KIND": names[kind],
        "PRECISION": precision,
    }  # fmt: skip


class Parts(NamedTuple):
    """Tensors of one scan as the kernels read them: x (batch, token, head, dim), maps (batch, token, group, state)."""

    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    bias: Tensor | None
    setting: Setting

    @classmethod
    def of(
        cls,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        bias: Tensor | None,
        setting: Setting,
    ) -> Parts:
        """The tensors with dense last axes."""
        skip = None if D is None else D.contiguous()
        shift = None if bias is None else bias.contiguous()
        if x.dtype != torch.bfloat16 and setting.tiles.chunk > 64:
            setting = setting._replace(tiles=setting.tiles._replace(chunk=64, rows=min(64, setting.tiles.rows)))
        return cls(rowwise(x), rowwise(dt), A.contiguous(), rowwise(B), rowwise(C), skip, shift, setting)

    @property
    def chunks(self) -> int:
        """Chunks of a sequence."""
        return ceil_div(self.x.shape[1], self.setting.tiles.chunk)

    @property
    def share(self) -> int:
        """Heads that share a group's maps."""
        return self.x.shape[2] // self.B.shape[2]

    def flags(self) -> dict[str, Any]:
        """Sizes and dtype of the products, as the kernels' constants."""
        return _flags(
            self.x.dtype, self.setting.kind, self.x.shape[3], self.B.shape[3], self.setting.tiles.chunk
        )  # fmt: skip

    @property
    def stages(self) -> int:
        """Loads ahead in the backward kernels' loops over heads, as far as shared memory goes."""
        cells = power(self.x.shape[3], 16) * power(self.B.shape[3], 16)
        return 2 if cells * (2 if self.x.dtype == torch.bfloat16 else 4) <= 32_768 else 1

    def step_flags(self) -> dict[str, Any]:
        """Constants of the kernels that make step sizes, forward and backward."""
        low, high = self.setting.limit
        return {
            "Q": self.setting.tiles.chunk, "BLOCK": min(16, power(self.x.shape[2])), "BIAS": self.bias is not None,
            "SOFTPLUS": self.setting.softplus, "LIMIT": self.setting.softplus and (low > 0 or high < math.inf),
            "LOG": self.setting.log_rate,
        }  # fmt: skip


class Kept(NamedTuple):
    """What the forward pass computed and the backward pass reads."""

    dt: Tensor
    hi: Tensor
    lo: Tensor
    scores: Tensor
    states: Tensor
    spoiled: Tensor


def without(flags: dict[str, Any], *names: str) -> dict[str, Any]:
    """Flags less those that a kernel does not have."""
    return {name: value for name, value in flags.items() if name not in names}


def state_pass(
    parts: Parts, saved: Kept, states: Tensor, first: Tensor | None, slope: Tensor | None = None
) -> tuple[Tensor, Tensor, int]:
    """Write the states that enter each chunk (with `slope` the adjoints R of those that leave it, backward).

    States are (batch, chunk, head, state, dim). Returns the last one, the products of R with what is left of the
    entering states (batch, chunk, head, piece), and the number of their pieces.
    """
    from repflow.mixers.triton.kernels import ssd as kernels

    batch, tokens, heads, dim = parts.x.shape
    state, tiles, flags = parts.B.shape[3], parts.setting.tiles, parts.flags()
    block = flags["N"]
    while (batch * heads * (flags["N"] // block) < FILL and block > 32) or block * flags["P"] > 8192:
        block //= 2
    splits = ceil_div(state, block)
    device = parts.x.device
    last = torch.empty(batch, heads, state, dim, dtype=torch.float32, device=device)
    through = torch.empty(
        (batch, parts.chunks, heads, splits) if slope is not None else (1,), dtype=torch.float32, device=device
    )
    v, w = (parts.x, parts.B) if slope is None else (slope, parts.C)
    kernels.state_kernel[(batch * heads, splits)](
        v, w, saved.dt, saved.hi, saved.lo, last if first is None else first, saved.states, states, last, through,
        saved.spoiled, tokens, heads, parts.share, parts.chunks, *head_strides(v), *head_strides(w),
        **without(flags, "N"), BLOCK=block, FIRST=first is not None, REVERSE=slope is not None,
        num_warps=tiles.state_warps, num_stages=tiles.state_stages,
    )  # fmt: skip
    return last, through, splits


def forward(parts: Parts, first: Tensor | None) -> tuple[Tensor, Tensor, Kept]:
    """Outputs (batch, token, head, dim), last state (batch, head, state, dim), and what the backward pass needs."""
    from repflow.mixers.triton.kernels import ssd as kernels

    batch, tokens, heads, dim = parts.x.shape
    groups, state = parts.B.shape[2:]
    tiles, chunks, flags, step = parts.setting.tiles, parts.chunks, parts.flags(), parts.step_flags()
    q, device = tiles.chunk, parts.x.device
    dt, hi, lo = torch.empty(3, batch, chunks, heads, q, dtype=torch.float32, device=device)
    spoiled = torch.empty(batch, heads, dtype=torch.int32, device=device)
    scores = torch.empty(batch, chunks, groups, q, q, dtype=torch.float32, device=device)
    kernels.step_kernel[(batch * chunks, ceil_div(heads, step["BLOCK"]))](
        parts.dt, parts.A if parts.bias is None else parts.bias, parts.A, dt, hi, lo, spoiled, tokens, heads, chunks,
        parts.dt.stride(0), parts.dt.stride(1), *parts.setting.limit, **step, num_warps=4,
    )  # fmt: skip
    kernels.score_kernel[(batch * chunks, groups)](
        parts.B, parts.C, scores, tokens, groups, chunks, *head_strides(parts.B), *head_strides(parts.C),
        **without(flags, "DIM", "P"), num_warps=8 if q > 64 else 4,
    )  # fmt: skip
    kind = parts.x.dtype if parts.x.dtype == torch.bfloat16 else torch.float32
    states = torch.empty(batch, chunks, heads, state, dim, dtype=kind, device=device)
    saved = Kept(dt, hi, lo, scores, states, spoiled)
    last, _, _ = state_pass(parts, saved, states, first)
    y = torch.empty(batch, tokens, heads, dim, dtype=parts.x.dtype, device=device)
    rows = min(tiles.rows, q)
    skip = dt if parts.D is None else parts.D
    sizes = (
        y, tokens, heads, parts.share, chunks, groups, *head_strides(parts.x), *head_strides(parts.C), skip.stride(0),
        0 if skip.dim() == 1 else 1,
    )  # fmt: skip
    more = {"M": rows, "SKIP": parts.D is not None, "num_warps": tiles.warps, "num_stages": tiles.stages}
    inputs = (parts.x, parts.C, skip, scores, dt, hi, lo, states)
    kernels.output_kernel[(heads * batch * chunks, q // rows)](*inputs, *sizes, **flags, **more)
    kernels.repair_kernel[(batch * heads, min(chunks, REPAIRERS))](*inputs, spoiled, *sizes, **flags, **more)
    return y, last, saved


def dense_like(tensor: Tensor) -> Tensor:
    """An empty tensor of the same shape and dtype, contiguous."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


class _Scan(torch.autograd.Function):
    """The scan with its gradient; final is (batch, head, dim, state) in float32."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, bias: Tensor | None,
        initial: Tensor | None, setting: Setting,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        with on_device(x):
            parts = Parts.of(x, dt, A, B, C, D, bias, setting)
            first = None if initial is None else initial.transpose(2, 3).contiguous()
            y, last, saved = forward(parts, first)
        ctx.save_for_backward(x, dt, A, B, C, D, bias, initial, *saved)
        ctx.setting = setting
        ctx.set_materialize_grads(False)
        return y, last.transpose(2, 3)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor | None, d_final: Tensor | None) -> tuple[Tensor | None, ...]:

        x, dt, A, B, C, D, bias, initial, *saved = ctx.saved_tensors
        if dy is None:
            dy = torch.zeros_like(x)
        last = None if d_final is None else d_final.float().transpose(2, 3).contiguous()
        with on_device(x):
            parts = Parts.of(x, dt, A, B, C, D, bias, ctx.setting)
            out = Targets(dense_like(x), dense_like(dt), dense_like(B), dense_like(C))
            widths = Sums.columns(parts)
            columns = torch.empty(x.shape[0] * parts.chunks, sum(widths), dtype=torch.float32, device=x.device)
            d_first = backward(parts, Kept(*saved), rowwise(dy), last, out, Sums.of(parts, columns))
            dA, dD, dbias = columns.sum(0).split(widths)  # type: ignore[no-untyped-call]
        return (
            out.x,
            out.dt,
            dA.to(A.dtype),
            out.B,
            out.C,
            None if D is None else dD.view(D.shape).to(D.dtype),
            None if bias is None else dbias.to(bias.dtype),
            None if initial is None else d_first.transpose(2, 3).to(initial.dtype),
            None,
        )


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


def backward(parts: Parts, saved: Kept, dy: Tensor, last: Tensor | None, out: Targets, sums: Sums) -> Tensor:
    """Write all gradients from dy (batch, token, head, dim) and the last state's adjoint (batch, head, state, dim).

    Returns the adjoint of the first state, in the same axes.
    """
    from repflow.mixers.triton.kernels import ssd as kernels

    batch, tokens, heads, _ = parts.x.shape
    groups, chunks = parts.B.shape[2], parts.chunks
    flags, step = parts.flags(), parts.step_flags()
    q = parts.setting.tiles.chunk
    new: dict[str, Any] = {"dtype": torch.float32, "device": dy.device}
    warps = 8 if q > 64 else 4
    R = torch.empty_like(saved.states)
    first, through, splits = state_pass(parts, saved, R, last, dy)
    direct = torch.empty(batch, chunks, heads, q, **new)
    skip = direct if parts.D is None else parts.D
    dD = direct if sums.D is None else sums.D
    wide = parts.D is not None and parts.D.dim() == 2
    kernels.input_kernel[(heads * batch * chunks,)](
        parts.x, parts.B, skip, dy, saved.scores, saved.dt, saved.hi, saved.lo, R, out.x, direct, dD, tokens, heads,
        parts.share, chunks, groups, *head_strides(parts.x), *head_strides(parts.B), skip.stride(0), 1 if wide else 0,
        dD.stride(0), *head_strides(dy), *head_strides(out.x), **flags, SKIP=parts.D is not None, WIDE=wide,
        num_warps=warps,
    )  # fmt: skip
    pairs, leaving, entering = _map_gradients(parts, saved, dy, R, out)
    kernels.step_gradient_kernel[(batch * chunks, ceil_div(heads, step["BLOCK"]))](
        parts.dt, parts.A if parts.bias is None else parts.bias, parts.A, saved.dt, pairs, leaving, entering, through,
        direct, out.dt, sums.A, sums.A if sums.bias is None else sums.bias, tokens, heads, chunks, splits,
        sums.A.stride(0), parts.dt.stride(0), parts.dt.stride(1), out.dt.stride(0), out.dt.stride(1),
        *parts.setting.limit, **step, num_warps=4,
    )  # fmt: skip
    return first


def _map_gradients(parts: Parts, saved: Kept, dy: Tensor, R: Tensor, out: Targets) -> tuple[Tensor, ...]:
    """Write dB and dC; return the sums that the decays' gradient is made of (batch, chunk, head, Q)."""
    from repflow.mixers.triton.kernels import ssd as kernels

    batch, tokens, heads, _ = parts.x.shape
    groups, state = parts.B.shape[2:]
    chunks, share, flags = parts.chunks, parts.share, parts.flags()
    q = parts.setting.tiles.chunk
    new: dict[str, Any] = {"dtype": torch.float32, "device": dy.device}
    pieces = max(1, min(share, FILL // (batch * chunks * groups)))
    warps = 8 if q > 64 else 4
    pairs, leaving, entering = torch.empty(3, batch, chunks, heads, q, **new)
    dscores = torch.empty(pieces, *saved.scores.shape, **new)
    kernels.pair_kernel[(batch * chunks, groups, pieces)](
        parts.x, dy, saved.scores, saved.dt, saved.hi, saved.lo, dscores, pairs, tokens, heads, share, chunks, groups,
        pieces, *head_strides(parts.x), *head_strides(dy), **without(flags, "STATE", "N"), num_warps=warps,
        num_stages=parts.stages,
    )  # fmt: skip
    whole = dscores[0] if pieces == 1 else dscores.sum(0)
    for v, w, o, s, term, target in (
        (dy, parts.C, parts.B, saved.states, leaving, out.C),
        (parts.x, parts.B, parts.C, R, entering, out.B),
    ):
        room = target[None] if pieces == 1 else torch.empty(pieces, batch, tokens, groups, state, **new)
        kernels.map_kernel[(batch * chunks, groups, pieces)](
            v, w, o, s, whole, saved.dt, saved.hi, saved.lo, room, term, tokens, heads, share, chunks, groups, pieces,
            *head_strides(v), *head_strides(w), *head_strides(o), room.stride(0), *head_strides(room[0]),
            **flags, INPUT=target is out.B, num_warps=warps, num_stages=parts.stages,
        )  # fmt: skip
        if pieces > 1:
            target.copy_(room.sum(0))
    return pairs, leaving, entering
