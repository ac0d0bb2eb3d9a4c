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
and mix-ups, it is no defence against someone who chooses weights to collide.

The GPU form is in `repflow.models.identity.block_sums`; the scheme of earlier versions, SHA-256 over all bytes, is
`sha256`.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

SCHEME = "blocks-2"
"""Stands behind every digest of this scheme; the one before it had no name."""
WORDS = 1 << 13
BLOCK = 8 * WORDS
TASK = 256
"""Blocks that a thread takes at once, 16 MiB."""
SHA256_CHUNK = 1 << 24

Named = tuple[str, Tensor]


def splitmix(count: int) -> np.ndarray:
    """Odd keys (count,): the SplitMix64 sequence from 0, its lowest bits set.

    >>> [hex(key) for key in splitmix(2).tolist()]
    ['0xe220a8397b1dcdaf', '0x6e789e6aa1b965f5']
    """
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)


KEYS = splitmix(3 * WORDS).reshape(3, WORDS)
"""The keys a, b, c (key, place)."""


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
        held = [(place, tensor) for place, (_, tensor) in enumerate(named) if str(tensor.device) == device]
        found = block_sums([tensor for _, tensor in held])
        sums |= {place: found[number] for number, (place, _) in enumerate(held)}
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
        from repflow.models.identity.block_sums import on_gpu

        found = iter(on_gpu(full))
    else:
        found = iter(on_cpu([part.cpu().numpy() for part in full]))
    return [next(found) if part.numel() else np.zeros((0, 2), np.uint64) for part in flat]


def on_cpu(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Sums (block, 2) of arrays of bytes, by as many threads as torch uses."""
    found = [np.empty((-(-len(part) // BLOCK), 2), np.uint64) for part in parts]
    tasks = [
        (part[start * BLOCK : (start + TASK) * BLOCK], sums[start : start + TASK])
        for part, sums in zip(parts, found, strict=True)
        for start in range(0, len(sums), TASK)
    ]
    workers = min(torch.get_num_threads(), len(tasks))
    if workers > 1:  # numpy's loops run outside of the interpreter's lock
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(_sum_blocks, tasks))
    else:
        for task in tasks:
            _sum_blocks(task)
    return found


def _sum_blocks(task: tuple[np.ndarray, np.ndarray]) -> None:
    """Fill in the sums of some blocks, one after the other: what a block needs stays in the core's own cache."""
    data, sums = task
    mixed, scratch = np.empty(WORDS, np.uint64), np.empty(WORDS, np.uint64)
    half = np.uint64(32)
    for number in range(len(sums)):
        words = _words(data[number * BLOCK : (number + 1) * BLOCK])
        x, y, (a, b, c) = mixed[: len(words)], scratch[: len(words)], KEYS[:, : len(words)]
        np.multiply(words, a, out=x)
        np.right_shift(x, half, out=y)
        np.bitwise_xor(x, y, out=x)
        sums[number, 0] = np.multiply(x, b, out=y).sum()
        sums[number, 1] = np.multiply(x, c, out=y).sum()


def _words(data: np.ndarray) -> np.ndarray:
    """Bytes as little-endian words, the last one filled up with zeros."""
    rest = len(data) % 8
    whole = np.concatenate([data, np.zeros(8 - rest, np.uint8)]) if rest else data
    return whole.view("<u8")


def sha256(tensors: Iterable[Named], also: str = "") -> str:
    """Digest by the scheme of versions before `blocks-2`, to compare runs that they stored."""
    state = hashlib.sha256(f"ablations|{also}|".encode() if also else b"")
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        state.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        for part in torch.split(tensor.reshape(-1), SHA256_CHUNK):
            state.update(part.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()
