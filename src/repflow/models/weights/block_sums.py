"""Sums over blocks of weights on a GPU, for `repflow.models.weights.digest`. Imported only where Triton is installed.

All tensors of a device in one launch, a program per block: with one launch per tensor a model of 600 tensors would
spend longer in the host's calls than in reading five gigabytes.
"""

# Triton reads this function's source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from repflow.mixers.triton.launch import on_device
from repflow.models.weights.blocks import BLOCK, KEYS, WORDS

STEP = 1024
OPTIONS = {"WORDS": WORDS, "STEP": STEP, "num_warps": 8}


@triton.jit
def _mix(word, keys, place, WORDS: tl.constexpr):
    x = word * tl.load(keys + place)
    x = x ^ (x >> 32)
    return x * tl.load(keys + WORDS + place), x * tl.load(keys + 2 * WORDS + place)


@triton.jit
def block_kernel(starts, sizes, keys, sums, WORDS: tl.constexpr, STEP: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    start = tl.load(starts + block)
    size = tl.load(sizes + block)
    whole = size // 8
    keys = keys.to(tl.pointer_type(tl.uint64))
    words = start.to(tl.pointer_type(tl.uint64))
    first = tl.zeros((STEP,), tl.uint64)
    second = tl.zeros((STEP,), tl.uint64)
    for base in range(0, WORDS, STEP):
        place = base + tl.arange(0, STEP)
        word = tl.load(words + place, mask=place < whole, other=0)
        b, c = _mix(word, keys, place, WORDS)
        first += b
        second += c
    # The last word of an odd number of bytes, zero where there is none; zero words add nothing.
    byte = tl.arange(0, 8)
    tail = tl.load(start.to(tl.pointer_type(tl.uint8)) + whole * 8 + byte, mask=byte < size - whole * 8, other=0)
    last = tl.sum(tail.to(tl.uint64) << (8 * byte).to(tl.uint64), 0)
    b, c = _mix(last, keys, tl.minimum(whole, WORDS - 1), WORDS)
    sums = sums.to(tl.pointer_type(tl.uint64))
    tl.store(sums + 2 * block, tl.sum(first, 0) + b)
    tl.store(sums + 2 * block + 1, tl.sum(second, 0) + c)


def on_gpu(parts: Sequence[Tensor]) -> list[np.ndarray]:
    """Sums (block, 2) of tensors of bytes on one device; waits for the device once."""
    aligned = [part if part.data_ptr() % 8 == 0 else part.clone() for part in parts]  # whole words are read
    counts = [-(-part.numel() // BLOCK) for part in aligned]
    inside = np.concatenate([np.arange(count, dtype=np.int64) * BLOCK for count in counts])
    starts = np.repeat([part.data_ptr() for part in aligned], counts).astype(np.int64) + inside
    sizes = np.minimum(np.repeat([part.numel() for part in aligned], counts).astype(np.int64) - inside, BLOCK)
    device = aligned[0].device
    # an even number of columns: the second row then begins at a multiple of 16 bytes, for one kernel whatever the model
    lines = np.zeros((2, len(starts) + len(starts) % 2), np.int64)
    lines[:, : len(starts)] = starts, sizes
    table = torch.from_numpy(lines).to(device)
    sums = torch.empty(len(starts), 2, dtype=torch.int64, device=device)
    with on_device(sums):
        block_kernel[(len(starts),)](table[0], table[1], _keys(device), sums, **OPTIONS)
    blocks = sums.cpu().numpy().view(np.uint64)
    return np.split(blocks, np.cumsum(counts)[:-1])


def first_launch() -> tuple[Any, tuple[int], tuple[Tensor, ...], dict[str, int]]:
    """The kernel with its grid, arguments without data and options, for compiling it ahead."""
    numbers = torch.empty(2, 2, dtype=torch.int64, device="meta")
    return block_kernel, (1,), (numbers,) * 4, OPTIONS


@functools.cache
def _keys(device: torch.device) -> Tensor:
    return torch.from_numpy(KEYS.view(np.int64)).to(device)
