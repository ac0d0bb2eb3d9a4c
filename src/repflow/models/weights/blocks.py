"""Sums over blocks of weights by numpy, and the keys of the scheme that `repflow.models.weights.digest` explains."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

WORDS = 1 << 13
BLOCK = 8 * WORDS
TASK = 256
"""Blocks that a thread takes at once, 16 MiB."""


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


def on_cpu(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Sums (block, 2) of arrays of bytes, by as many threads as torch uses."""
    tables = [np.empty((-(-len(part) // BLOCK), 2), np.uint64) for part in parts]
    tasks = [
        (part[start * BLOCK : (start + TASK) * BLOCK], sums[start : start + TASK])
        for part, sums in zip(parts, tables, strict=True)
        for start in range(0, len(sums), TASK)
    ]
    workers = min(torch.get_num_threads(), len(tasks))
    if workers > 1:  # numpy's loops run outside of the interpreter's lock
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(_sum_blocks, tasks))
    else:
        for task in tasks:
            _sum_blocks(task)
    return tables


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
