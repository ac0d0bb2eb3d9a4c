"""Digest of a model's weights: sums over blocks, computed where the weights are, and SHA-256 over the sums.

A tensor's bytes are cut into blocks of 64 KiB, a block into 8,192 words w of 64 bits, little-endian, the last one
filled up with zeros. With fixed odd keys a, b, c per place j in a block, all modulo 2⁶⁴:

    x_j = a_j w_j,    m_j = x_j ⊕ (x_j >> 32),    sums = (Σ_j b_j m_j, Σ_j c_j m_j)

The digest is SHA-256 over every tensor's name, dtype, shape and sums, in the order of the names. Sums modulo 2⁶⁴ do not
depend on the order of addition, so threads, a GPU and a plain loop give the same value.

What it sees: a ↦ a·odd and x ↦ x ⊕ (x >> 32) are bijections, so a change within one word, a flipped bit above all,
changes both sums of its block, always. Changes in several words of one block cancel in both sums with a chance of about
2⁻⁶⁴ at most (two flipped sign bits, the worst case; 2⁻¹²⁸ for most others), since the keys are fixed before the
weights. Between blocks, tensors, names, dtypes and shapes SHA-256 decides. The keys are public: this finds accidents
and mix-ups, it is not a defence against someone who chooses weights to collide.

The sums are in `repflow.models.weights.blocks`, their GPU form in `block_sums` beside it. The scheme of earlier
versions, SHA-256 over all bytes, is `sha256`.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repflow.models.weights.blocks import on_cpu

SCHEME = "blocks-2"
"""Follows every digest of this scheme; the earlier scheme had no name."""
SHA256_CHUNK = 1 << 24

Named = tuple[str, Tensor]


def weights_digest(tensors: Iterable[Named], also: str = "") -> str:
    """Digest of named tensors, whatever devices they are on.

    Args:
        tensors: Names and tensors; a tensor that several names share is given once.
        also: What else belongs to it.

    >>> weights_digest([("a", torch.zeros(3))])[-15:]
    'e1919c:blocks-2'
    """
    named = sorted(tensors, key=lambda item: item[0])
    sums: dict[int, np.ndarray] = {}
    for device in sorted({str(tensor.device) for _, tensor in named}):
        members = [(place, tensor) for place, (_, tensor) in enumerate(named) if str(tensor.device) == device]
        blocks = block_sums([tensor for _, tensor in members])
        sums |= {place: blocks[number] for number, (place, _) in enumerate(members)}
    state = hashlib.sha256(f"{SCHEME}|{also}|".encode())
    for place, (name, tensor) in enumerate(named):
        state.update(f"{len(name)}|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        state.update(sums[place].astype("<u8").tobytes())
    return f"{state.hexdigest()}:{SCHEME}"


def block_sums(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Sums (block, 2) of tensors on one device."""
    flat = [tensor.detach().reshape(-1).contiguous() for tensor in tensors]
    full = [part.view(torch.uint8) for part in flat if part.numel()]
    if full and full[0].is_cuda and importlib.util.find_spec("triton") is not None:
        from repflow.models.weights.block_sums import on_gpu

        tables = iter(on_gpu(full))
    else:
        tables = iter(on_cpu([part.cpu().numpy() for part in full]))
    return [next(tables) if part.numel() else np.zeros((0, 2), np.uint64) for part in flat]


def kernels_of_digest() -> list[Any]:
    """What a digest on a GPU launches, for compiling it ahead; needs Triton."""
    from repflow.models.weights.block_sums import first_launch

    return [first_launch()]


def sha256(tensors: Iterable[Named], also: str = "") -> str:
    """Digest by the scheme of versions before `blocks-2`, to compare runs that they stored."""
    state = hashlib.sha256(f"ablations|{also}|".encode() if also else b"")
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        state.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        for part in torch.split(tensor.reshape(-1), SHA256_CHUNK):
            state.update(part.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()
