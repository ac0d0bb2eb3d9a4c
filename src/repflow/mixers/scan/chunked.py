"""Chunked form of any linear recurrence: few long steps instead of one per token, plain torch operations."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.scan.delta import delta_scan_chunked
from repflow.mixers.scan.nonfinite import cleaned, from_here_on, is_finite
from repflow.mixers.scan.precision import without_autocast
from repflow.mixers.scan.preference import current
from repflow.mixers.scan.reference import recurrence
from repflow.mixers.transition import AnyTransition, DeltaTransition, Transition, four_axes, joint_shape
from repflow.mixers.triton.launch import obstacle
from repflow.mixers.triton.lines import line_scan
from repflow.mixers.triton.transforms import whole_tensors

CHUNK = 64


def fast_recurrence(transition: AnyTransition, *, chunk: int = CHUNK) -> Tensor:
    """Chunked form of `recurrence`, differentiable, for any real or complex decay (0 and 1 included).

    Products of decays are built up and never divided out, so a decay of 0 or a long chunk of small ones loses nothing.
    Where decay, b and c are shared by all channels and delta by all states (linear attention, retention, Mamba-2) a
    chunk is one matrix product and no state is kept per token; otherwise the tokens of all chunks advance together. On
    a GPU a kernel then walks every entry of the state by itself, for real numbers of at most 32 bits.
    Inside `prefer("reference")` the sequential form runs.

    Args:
        transition: The recurrence.
        chunk: Tokens in a chunk.

    Returns:
        y (batch, token, channel).

    >>> from repflow.mixers.transition import Transition
    >>> half, one = torch.tensor([[[[0.5]]]]), torch.ones(1, 3, 1, 1)
    >>> fast_recurrence(Transition(half, one, one, one), chunk=2).flatten().tolist()
    [1.0, 1.5, 1.75]
    """
    if chunk < 1:
        raise InputError(teach("a chunk of at least 1 token", str(chunk), "leave it out for the default"))
    if current().path == "reference":
        y = recurrence(transition)
        assert isinstance(y, Tensor)
        return y
    if isinstance(transition, DeltaTransition):
        _, k, v, q, beta = transition
        return delta_scan_chunked(q, k, v, beta, transition.log_decay(), chunk=chunk)[0].flatten(2)
    decay, b, c, delta = four_axes(transition)
    tokens = joint_shape(decay, b, c, delta)[1]
    chunk = min(chunk, tokens)
    shared = decay.shape[2] == decay.shape[3] == b.shape[2] == c.shape[2] == delta.shape[3] == 1
    products = shared and b.shape[3] > 1
    if not products and lines_obstacle(transition) is None:
        return _by_lines(decay, b, c, delta, tokens)
    cut = [_in_chunks(part, tokens, chunk) for part in (decay, b, c, delta)]
    with without_autocast(decay.device):  # which would round the products
        y = (_matrix_form if products else _state_form)(*cut)
    y = y.flatten(1, 2)[:, :tokens]
    return y.real if y.is_complex() else y


def lines_obstacle(transition: Transition) -> str | None:
    """Why the kernel for diagonal recurrences does not take this one; None if it does."""
    if current().path not in ("auto", "triton"):
        return "another form is asked for"
    return obstacle(*transition) if whole_tensors() else "a torch.func transform or forward-mode differentiation"


def _by_lines(decay: Tensor, b: Tensor, c: Tensor, delta: Tensor, tokens: int) -> Tensor:
    """Every entry of the state is a line, which the kernel walks by itself."""
    entry = delta * b
    batch, _, *state = joint_shape(decay, entry)
    shape = (batch, tokens, *state)
    states = line_scan(decay.expand(shape).flatten(2), entry.expand(shape).flatten(2))
    return (c * torch.unflatten(states, 2, state)).sum(-1)


def _in_chunks(part: Tensor, tokens: int, chunk: int) -> Tensor:
    """(batch, token, channel, state) → (batch, chunk, token, channel, state), the last chunk filled with zeros."""
    part = part.expand(-1, tokens, -1, -1)
    missing = -tokens % chunk
    if missing:
        part = torch.nn.functional.pad(part, (0, 0, 0, 0, 0, missing))
    return torch.unflatten(part, 1, (-1, chunk))


def _state_form(decay: Tensor, b: Tensor, c: Tensor, delta: Tensor) -> Tensor:
    """Every chunk from a zero state, all at once; then the states at the chunks' starts; then their share of y."""
    entry = delta * b
    entry = entry.expand(joint_shape(entry, decay)).to(torch.result_type(decay, entry))
    local, product = [entry[:, :, 0]], [decay[:, :, 0]]
    for token in range(1, entry.shape[2]):
        local.append(decay[:, :, token] * local[-1] + entry[:, :, token])
        product.append(decay[:, :, token] * product[-1])
    inside, faded = torch.stack(local, dim=2), torch.stack(product, dim=2)
    start = torch.zeros_like(local[-1][:, 0])
    starts = [start]
    for index in range(entry.shape[1] - 1):
        start = product[-1][:, index] * start + local[-1][:, index]
        starts.append(start)
    return (c * (inside + faded * torch.stack(starts, dim=1)[:, :, None])).sum(-1)


def _matrix_form(decay: Tensor, b: Tensor, c: Tensor, delta: Tensor) -> Tensor:
    """One matrix product per chunk, whose tokens that are not finite leave earlier ones alone."""
    y = _products(decay, b, c, delta)
    if is_finite(y):
        return y
    bad = ~(decay.isfinite() & b.isfinite().all(-1, keepdim=True) & delta.isfinite())[..., 0]
    chunks = bad.shape[1:3]
    spoiled = torch.unflatten(from_here_on(bad.flatten(1, 2)), 1, chunks)
    return torch.where(spoiled, y, _products(cleaned(decay), cleaned(b), c, cleaned(delta)))


def _products(decay: Tensor, b: Tensor, c: Tensor, delta: Tensor) -> Tensor:
    """One matrix product per chunk: y = (C Bᵀ ∘ Γ) Δ + (γ C) h_start, Γ_ts = Π_{s<r≤t} A_r."""
    gamma = decay[..., 0, 0]
    size = gamma.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=gamma.device).tril(-1)
    between = torch.where(later, gamma[..., :, None], torch.ones_like(gamma[..., :1, None])).cumprod(-2).tril()
    from_start = gamma.cumprod(-1)
    keys, queries, values = b[..., 0, :], c[..., 0, :], delta[..., 0]
    kind = functools.reduce(torch.promote_types, (part.dtype for part in (gamma, keys, queries, values)))
    keys, queries, values = keys.to(kind), queries.to(kind), values.to(kind)
    inside = (queries @ keys.mT * between) @ values
    added = (values * between[..., -1, :, None]).mT @ keys
    start = torch.zeros_like(added[:, 0])
    starts = [start]
    for index in range(added.shape[1] - 1):
        start = from_start[:, index, -1, None, None] * start + added[:, index]
        starts.append(start)
    return inside + from_start[..., None] * (queries @ torch.stack(starts, dim=1).mT)
