"""The delta rule in Triton, forward: products within chunks, inverses of their triangles, states with outputs.

Glossary: beta write strength; fades running sums of log decays.

Gradients are those of the chunked form (`repflow.mixers.scan.delta`), which is matrix products already. Products of
half-precision inputs are summed in float32. Right against the sequential reference in Triton's interpreter and, by
benchmarks/delta_pieces_gpu.py, on an H200: 3e-3 in bfloat16, 4e-7 in float32.

How the state kernel is cut decides more than its speed. Triton 3.6's ptxas (12.8) may build the descriptor of a matrix
in shared memory from a register that by then holds an address of global memory, where two products of one loop share a
buffer: wrong numbers, then an illegal access. Rows that are read whole, the order of the products and two stages keep
the buffers apart; the repair uses two warps, whose products have no descriptors. After any change here run
delta_pieces_gpu.py on a GPU: neither the interpreter nor a successful compilation shows it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.parts.length import unit_length
from repflow.mixers.triton.launch import ceil_div, head_strides, obstacle, on_device, power, rowwise

CHUNK = 64
MAX_KEY, MAX_KEY_WIDE = 256, 128
"""Keys of a head, whose tiles are held in shared memory: in bfloat16, and where products are in float32."""
FILL = 120
"""Programs that nearly fill a GPU of 132 multiprocessors."""


class Tiles(NamedTuple):
    """How states are cut: values of a program, its warps and the chunks it loads ahead."""

    values: int = 64
    warps: int = 4
    stages: int = 2


class Gates(NamedTuple):
    """Decays and strengths as a layer projects them, before softplus and sigmoid, of (batch, token, …) tensors.

        log_decay = −exp(rate) softplus(decay + shift)        beta = scale sigmoid(strength)

    Attributes:
        decay: Groups of heads side by side (batch, token, group, ≥ per).
        strength: Likewise.
        rate: (head,).
        shift: (head,).
        per: Heads of a group.
        scale: Largest strength.
    """

    decay: Tensor
    strength: Tensor
    rate: Tensor
    shift: Tensor
    per: int
    scale: float = 1.0


def supported(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, initial: Tensor | None = None
) -> str | None:
    """Why the kernels cannot run on these tensors; None if they can.

    >>> one = torch.ones(1, 3, 2, 16)
    >>> supported(one, one, one, one[..., 0], None)
    'tensors on the cpu'
    """
    most = MAX_KEY if v.dtype == torch.bfloat16 else MAX_KEY_WIDE
    if k.shape[-1] > most:
        return f"{k.shape[-1]} keys of a head are above {most}"
    parts = (q, k, v, beta, log_decay, initial)
    if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts):
        return "gradients are wanted, which are the chunked form's"
    return obstacle(*parts)


def delta_scan_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    initial: Tensor | None = None,
    unit: float | None = None,
    *,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """As `repflow.mixers.scan.forms.delta_scan`: outputs, and the state after the last token in float32."""
    why_not = supported(q, k, v, beta, log_decay, initial)
    if why_not is not None:
        raise InputError(teach("tensors that the Triton scan takes", why_not, 'use delta_scan with path="auto"'))
    if unit is not None:
        q, k = (unit_length(part, unit) for part in (q, k))
    with torch.no_grad(), on_device(v):
        q, k, v = (rowwise(part) for part in (q, k, v))
        if log_decay is not None and log_decay.ndim == 4:
            chunks = _key_chunks(q, k, v, beta, rowwise(log_decay))
        else:
            chunks = _head_chunks(q, k, v, _plain_gates(beta, log_decay), decay=log_decay is not None, layer=False)
        first = None if initial is None else initial.mT.contiguous()
        y, last = _states(q, k, v, chunks, first, tiles)
    return y, last.mT


def layer_scan(q: Tensor, k: Tensor, v: Tensor, gates: Gates, *, tiles: Tiles | None = None) -> Tensor:
    """Outputs (batch, token, head, value) of a layer's queries and keys, scaled, and its gates as it projects them."""
    with torch.no_grad(), on_device(v):
        return _states(q, k, v, _head_chunks(q, k, v, gates, decay=True, layer=True), None, tiles)[0]


class Chunks(NamedTuple):
    """What the first kernels make of the chunks, as the kernels' glossary has it; tensors not made stand for others."""

    inverse: Tensor
    seen: Tensor
    hi: Tensor
    lo: Tensor
    fades: Tensor
    spoiled: Tensor
    decay: int


@functools.cache
def _flags(x: torch.dtype, key: int) -> dict[str, Any]:
    import triton.language as tl

    kind = tl.bfloat16 if x == torch.bfloat16 else tl.float32
    # three tf32 products carry a float32 one; float16 has no more digits than tf32
    return {
        "KEY": key, "K": power(key, 16), "Q": CHUNK, "KIND": kind,
        "PRECISION": "tf32x3" if x == torch.float32 else "tf32",
    }  # fmt: skip


def _without(flags: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if name not in names}


def _plain_gates(beta: Tensor, log_decay: Tensor | None) -> Gates:
    """A group for each head."""
    decay = beta if log_decay is None else log_decay
    return Gates(decay[..., None], beta[..., None], beta, beta, 1)


def _head_chunks(q: Tensor, k: Tensor, v: Tensor, gates: Gates, *, decay: bool, layer: bool) -> Chunks:
    """Without decay, or with one of each head."""
    from repflow.mixers.triton.kernels import delta as kernels

    batch, tokens, heads = v.shape[:3]
    chunks, flags = ceil_div(tokens, CHUNK), _flags(v.dtype, k.shape[3])
    hi, lo, kept = _per_token(3, v)
    lower, seen, spoiled = _matrices(v, flags)
    kernels.head_pair_kernel[(batch * chunks, heads)](
        q, k, gates.decay, gates.strength, gates.rate, gates.shift, hi, lo, kept, lower, seen, spoiled, tokens, heads,
        heads // k.shape[2], gates.per, chunks, *head_strides(q), *head_strides(k), *head_strides(gates.decay),
        *head_strides(gates.strength), gates.scale,
        **flags, DECAY=int(decay), LAYER=layer, num_warps=4 if v.dtype == torch.bfloat16 else 8,
    )  # fmt: skip
    return Chunks(_inverse(lower, kept, seen, v.dtype), seen, hi, lo, hi, spoiled, int(decay))


def _key_chunks(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor) -> Chunks:
    """With a decay of each key."""
    from repflow.mixers.triton.kernels import delta as kernels

    batch, tokens, heads = v.shape[:3]
    chunks, flags, share = ceil_div(tokens, CHUNK), _flags(v.dtype, k.shape[3]), v.shape[2] // k.shape[2]
    (kept,) = _per_token(1, v)
    lower, seen, spoiled = _matrices(v, flags)
    fades = torch.empty(batch, chunks, heads, CHUNK, k.shape[3], dtype=torch.float32, device=v.device)
    kernels.key_sum_kernel[(batch * chunks, heads)](
        k, log_decay, beta, kept, fades, spoiled, tokens, heads, share, chunks, *head_strides(k),
        *head_strides(log_decay), *head_strides(beta[..., None]),
        **_without(flags, "KIND", "PRECISION"), num_warps=4,
    )  # fmt: skip
    kernels.key_pair_kernel[(batch * chunks, heads, 16)](
        q, k, kept, fades, lower, seen, tokens, heads, share, chunks, *head_strides(q), *head_strides(k),
        **flags, num_warps=2,
    )  # fmt: skip
    return Chunks(_inverse(lower, kept, seen, v.dtype), seen, kept, kept, fades, spoiled, 2)


def _per_token(count: int, v: Tensor) -> Tensor:
    batch, tokens, heads = v.shape[:3]
    shape = (count, batch, ceil_div(tokens, CHUNK), heads, CHUNK)
    return torch.empty(shape, dtype=torch.float32, device=v.device)


def _matrices(v: Tensor, flags: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the triangle, the products of queries and keys, and the mark of heads to be repaired."""
    batch, tokens, heads = v.shape[:3]
    shape = (batch, ceil_div(tokens, CHUNK), heads, CHUNK, CHUNK)
    kind = torch.bfloat16 if v.dtype == torch.bfloat16 else torch.float32
    lower = torch.empty(shape, dtype=torch.float32, device=v.device)
    seen = torch.empty(shape, dtype=kind, device=v.device)
    return lower, seen, torch.empty(batch, heads, dtype=torch.int32, device=v.device)


def _inverse(lower: Tensor, kept: Tensor, seen: Tensor, dtype: torch.dtype) -> Tensor:
    from repflow.mixers.triton.kernels import delta as kernels

    inverse = torch.empty_like(seen)
    precision = "tf32x3" if dtype == torch.float32 else "tf32"
    kernels.inverse_kernel[(lower.numel() // CHUNK**2,)](
        lower, kept, inverse, Q=CHUNK, PRECISION=precision, num_warps=1
    )
    return inverse


def _tiles(v: Tensor, tiles: Tiles | None) -> Tiles:
    """Fewer values to a program where there are few programs, and where float32 tiles fill shared memory."""
    batch, _, heads, size = v.shape
    tiles = tiles or Tiles()
    if v.dtype != torch.bfloat16:
        tiles = Tiles(values=32, warps=8, stages=1)  # wider heads cut into 16 values came out wrong on a GPU
    values = min(tiles.values, power(size, 16))
    while values > 32 and batch * heads * ceil_div(size, values) < FILL:
        values //= 2
    return tiles._replace(values=values)


def _states(
    q: Tensor, k: Tensor, v: Tensor, chunks: Chunks, first: Tensor | None, tiles: Tiles | None
) -> tuple[Tensor, Tensor]:
    """Outputs (batch, token, head, value), and the last state (batch, head, key, value)."""
    from repflow.mixers.triton.kernels import delta as kernels

    batch, tokens, heads, size = v.shape
    tiles = _tiles(v, tiles)
    y = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    last = torch.empty(batch, heads, k.shape[3], size, dtype=torch.float32, device=v.device)
    grid = (batch * heads, ceil_div(size, tiles.values))
    shared = (
        q,
        k,
        v,
        chunks.inverse,
        chunks.seen,
        chunks.hi,
        chunks.lo,
        chunks.fades,
        last if first is None else first,
    )
    sizes = (tokens, heads, heads // k.shape[2], ceil_div(tokens, CHUNK))
    strides = (*head_strides(q), *head_strides(k), *head_strides(v))
    flags = {
        **_flags(v.dtype, k.shape[3]), "VALUE": size, "BLOCK": tiles.values, "DECAY": chunks.decay,
        "FIRST": first is not None, "num_warps": 8 if chunks.decay == 2 else tiles.warps, "num_stages": tiles.stages,
    }  # fmt: skip
    kernels.state_kernel[grid](*shared, last, y, chunks.spoiled, *sizes, *strides, **flags)
    # two warps multiply without the descriptors that ptxas gets wrong here (see above); it seldom does anything
    flags |= {"BLOCK": 16, "num_warps": 2, "num_stages": 1}
    kernels.repair_kernel[grid[0], ceil_div(size, 16)](*shared, y, chunks.spoiled, *sizes, *strides, **flags)
    return y, last
