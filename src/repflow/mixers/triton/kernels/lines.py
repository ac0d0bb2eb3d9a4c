"""Triton kernels behind `repflow.mixers.triton.lines`: h_t = a_t h_{t−1} + e_t along many lines, and its gradient.

A program takes BLOCK lines of a row and walks it in tiles of T tokens. Within a tile states come from a scan over pairs
(a, e), so that few steps wait for each other; the last state of a tile enters the next.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103

import triton
import triton.language as tl


@triton.jit
def _after(a1, e1, a2, e2):
    # one step after another
    return a1 * a2, e1 * a2 + e2


@triton.jit
def _row(values, wanted):
    # the row of a tile that is wanted; a sum of it and zeros
    return tl.sum(tl.where(wanted[:, None], values, 0.0), 0)


@triton.jit(do_not_specialize=["tokens", "lines"])
def line_kernel(decay, entry, states, tokens, lines, T: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    within = tl.arange(0, T)
    h = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, tokens, T):
        t = first + within
        place = (row * tokens + t)[:, None] * lines + at[None, :]
        seen = (t < tokens)[:, None] & (at < lines)[None, :]
        a = tl.load(decay + place, mask=seen, other=1.0).to(tl.float32)
        e = tl.load(entry + place, mask=seen, other=0.0).to(tl.float32)
        faded, added = tl.associative_scan((a, e), 0, _after)
        behind = faded * h[None, :] + added
        tl.store(states + place, behind, mask=seen)
        h = _row(behind, within == T - 1)


@triton.jit(do_not_specialize=["tokens", "lines"])
def line_gradient_kernel(decay, states, slope, d_decay, d_entry, tokens, lines, T: tl.constexpr, BLOCK: tl.constexpr):
    # g_t = slope_t + a_{t+1} g_{t+1}      de_t = g_t      da_t = g_t h_{t−1}
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    within = tl.arange(0, T)
    later = tl.zeros((BLOCK,), tl.float32)
    tiles = (tokens + T - 1) // T
    for tile in range(0, tiles):
        t = (tiles - 1 - tile) * T + within
        place = (row * tokens + t)[:, None] * lines + at[None, :]
        real = (at < lines)[None, :]
        seen = (t < tokens)[:, None] & real
        a = tl.load(decay + place + lines, mask=(t + 1 < tokens)[:, None] & real, other=0.0).to(tl.float32)
        s = tl.load(slope + place, mask=seen, other=0.0).to(tl.float32)
        before = tl.load(states + place - lines, mask=seen & (t > 0)[:, None], other=0.0)
        faded, added = tl.associative_scan((a, s), 0, _after, reverse=True)
        g = faded * later[None, :] + added
        tl.store(d_entry + place, g.to(d_entry.dtype.element_ty), mask=seen)
        tl.store(d_decay + place, (g * before).to(d_decay.dtype.element_ty), mask=seen)
        later = _row(g, within == 0)
