"""Scans: recurrences token by token (the reference) and in chunks, and the place that chooses between them.

Glossary: h state, A decay rate (decay in a Transition), B input map, C read-out, D skip, delta step size.

Every fast form computes what the sequential one computes and is tested against it in float64. Where a fast form cannot
run, a slower one does, and `choose` says why.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from repflow.core.errors import InputError, nearest, teach
from repflow.mixers.scan.chunked import fast_recurrence
from repflow.mixers.scan.preference import current
from repflow.mixers.scan.reference import (
    delta_scan_reference,
    recurrence,
    selective_scan_reference,
    ssd_scan_reference,
)

Path = str
"""One of `PATHS`; a plain string, so that a wrong one gets a message that says what is meant."""
PATHS = ("auto", "reference", "chunked", "triton")

__all__ = [
    "Choice",
    "Path",
    "choose",
    "choose_delta",
    "delta_scan",
    "fast_recurrence",
    "recurrence",
    "selective_scan",
    "ssd_scan",
]


class Choice(NamedTuple):
    """The form of a scan that runs, and why."""

    path: Path
    reason: str


def selective_scan(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    initial: Tensor | None = None,
    return_final: bool = False,
    path: Path = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Selective scan of Mamba (S6).

        h_t = exp(delta_t A) h_{t−1} + delta_t x_t B_t        y_t = C_t · h_t + D x_t

    Sums and states are kept in float32 at least, y comes back in the dtype of x.

    Args:
        x: Inputs (batch, token, channel).
        delta: Step sizes after softplus (batch, token, channel).
        A: Decay rates (channel, state), negative.
        B: Input map (batch, token, state).
        C: Read-out (batch, token, state).
        D: Skip (channel,).
        initial: State before the first token (batch, channel, state); zero if left out.
        return_final: Also return the state after the last token (batch, channel, state).
        path: Form of the scan: auto, reference, chunked or triton.

    >>> x = torch.ones(1, 3, 1, dtype=torch.float64)
    >>> rate = -torch.tensor([[2.0]], dtype=torch.float64).log()
    >>> selective_scan(x, x, rate, x, x).flatten().tolist()
    [1.0, 1.5, 1.75]
    """
    _check_s6(x, delta, A, B, C, D, initial)
    chosen, reason = choose("s6", x, delta, A, B, C, path=path)
    _note(chosen, reason)
    if chosen == "triton":
        from repflow.mixers.triton.s6 import selective_scan_triton

        y, final = selective_scan_triton(x, delta, A, B, C, D, initial, True)
    elif chosen == "chunked":
        from repflow.mixers.scan.s6 import selective_scan_chunked

        y, final = selective_scan_chunked(x, delta, A, B, C, D, initial)
    else:
        y, final = selective_scan_reference(x, delta, A, B, C, D, initial)
    return (y, final) if return_final else y


def ssd_scan(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    initial: Tensor | None = None,
    return_final: bool = False,
    chunk: int | None = None,
    path: Path = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Scan of Mamba-2 (SSD): one decay per head, a matrix state (dim, state).

        h_t = exp(delta_t A) h_{t−1} + delta_t x_t ⊗ B_t        y_t = h_t C_t + D x_t

    Args:
        x: Inputs (batch, token, head, dim).
        delta: Step sizes after softplus (batch, token, head).
        A: Decay rates (head,), negative.
        B: Input map (batch, token, group, state); a group serves head/group consecutive heads.
        C: Read-out (batch, token, group, state).
        D: Skip (head,) or (head, dim).
        initial: State before the first token (batch, head, dim, state); zero if left out.
        return_final: Also return the state after the last token (batch, head, dim, state).
        chunk: Tokens in a chunk; the form's own choice if left out.
        path: Form of the scan: auto, reference, chunked or triton.

    >>> x = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    >>> rate = -torch.tensor([2.0], dtype=torch.float64).log()
    >>> ssd_scan(x, x[..., 0], rate, x, x).flatten().round(decimals=6).tolist()
    [1.0, 1.5, 1.75]
    """
    _check_ssd(x, delta, A, B, C, D, initial, chunk)
    chosen, reason = choose("ssd", x, delta, A, B, C, path=path)
    _note(chosen, reason)
    if chosen == "triton":
        from repflow.mixers.triton.ssd import ssd_scan_triton

        y, final = ssd_scan_triton(x, delta, A, B, C, D, initial, True)
    elif chosen == "chunked":
        from repflow.mixers.scan.ssd import ssd_scan_chunked

        y, final = ssd_scan_chunked(x, delta, A, B, C, D, initial, chunk)
    else:
        y, final = ssd_scan_reference(x, delta, A, B, C, D, initial)
    return (y, final) if return_final else y


def delta_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    log_decay: Tensor | None = None,
    initial: Tensor | None = None,
    return_final: bool = False,
    unit: float | None = None,
    chunk: int | None = None,
    path: Path = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """The delta rule: DeltaNet without decay, Gated DeltaNet with one per head, KDA with one per key.

        h_t = h_{t−1} diag(exp log_decay_t) (I − beta_t k_t k_tᵀ) + beta_t v_t k_tᵀ        y_t = h_t q_t

    Args:
        q: Queries (batch, token, key head, key); a key head serves head / key head consecutive heads.
        k: Keys, likewise.
        v: Values (batch, token, head, value).
        beta: Write strengths (batch, token, head).
        log_decay: At most 0, (batch, token, head) or (batch, token, head, key); none if left out.
        initial: State before the first token (batch, head, value, key); zero if left out.
        return_final: Also return the state after the last token (batch, head, value, key).
        unit: Divide queries and keys by √(‖·‖² + unit) first; they stay as they are if left out.
        chunk: Tokens in a chunk, rounded up to a power of two; the form's own choice if left out.
        path: Form of the scan: auto, reference, chunked or triton.

    >>> one = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    >>> delta_scan(one, one, 2 * one, one[..., 0] / 2).flatten().tolist()
    [1.0, 1.5, 1.75]
    """
    _check_delta(q, k, v, beta, log_decay, initial, chunk)
    chosen, reason = choose_delta(q, k, v, beta, log_decay, path=path)
    _note(chosen, reason)
    if chosen == "triton":
        from repflow.mixers.triton.delta import delta_scan_triton

        y, final = delta_scan_triton(q, k, v, beta, log_decay, initial, unit)
    elif chosen == "chunked":
        from repflow.mixers.scan.delta import delta_scan_chunked

        y, final = delta_scan_chunked(q, k, v, beta, log_decay, initial, chunk, unit)
    else:
        y, final = delta_scan_reference(q, k, v, beta, log_decay, initial, unit)
    return (y, final) if return_final else y


def choose(
    kind: Literal["s6", "ssd"], x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *, path: Path = "auto"
) -> Choice:
    """Form of the scan for these tensors, with the reason.

    `auto` follows the preference around it (`repflow.mixers.scan.preference`), else takes the fastest form. `triton`
    that cannot run (no GPU, no Triton, a dtype or size its kernel lacks) becomes `chunked`; inside torch.func and
    forward-mode differentiation the reference runs, whose plain operations all of them can take apart.

    >>> x, rate = torch.ones(1, 3, 2), -torch.ones(2, 4)
    >>> choose("s6", x, x, rate, torch.ones(1, 3, 4), torch.ones(1, 3, 4))
    Choice(path='chunked', reason='tensors on the cpu')
    """
    return _choose(path, x, lambda: _triton_obstacle(kind, x, delta, A, B, C))


def choose_delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, *, path: Path = "auto"
) -> Choice:
    """Form of `delta_scan` for these tensors, with the reason, as `choose` gives it.

    >>> one = torch.ones(1, 3, 2, 4)
    >>> choose_delta(one, one, one, one[..., 0], None)
    Choice(path='chunked', reason='tensors on the cpu')
    """
    return _choose(path, v, lambda: _delta_obstacle(q, k, v, beta, log_decay))


def in_one_step(projected: Tensor, obstacle: Callable[[], str | None], *, path: Path = "auto") -> bool:
    """Whether a kernel takes all that a layer does between its projections; what cannot goes by parts.

    Args:
        projected: What enters.
        obstacle: Says why the kernel cannot take the layer; None if it can.
        path: As a scan's.
    """
    choice = _choose(path, projected, obstacle)
    if choice.path == "triton":
        _note(*choice)
    return choice.path == "triton"


def _choose(path: Path, x: Tensor, triton_obstacle: Callable[[], str | None]) -> Choice:
    if path not in PATHS:
        raise InputError(teach(f"a path among {', '.join(PATHS)}", repr(path), nearest(str(path), PATHS)))
    if path == "auto" and current().path in PATHS:
        path = current().path
    if path == "reference":
        return Choice("reference", "asked for")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return Choice("reference", "inside a torch.func transform")
    if torch.autograd.forward_ad._current_level >= 0:
        return Choice("reference", "inside forward-mode differentiation")
    if path == "chunked":
        return Choice("chunked", "asked for")
    if path == "auto" and x.device.type == "cpu":
        return Choice("chunked", "tensors on the cpu")
    why_not = triton_obstacle()
    if why_not is None:
        return Choice("triton", "asked for" if path == "triton" else "tensors on a GPU that Triton serves")
    return Choice("chunked", f"no Triton kernel: {why_not}")


def _note(path: str, reason: str) -> None:
    note = current().note
    if note is not None:
        note(path, reason)


def _triton_obstacle(kind: str, x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> str | None:
    """Why the Triton kernel cannot run on these tensors; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if kind == "s6":
        from repflow.mixers.triton.s6 import supported as supported_s6

        return supported_s6(x, delta, A, B, C)
    from repflow.mixers.triton.ssd import supported as supported_ssd

    return supported_ssd(x, delta, A, B, C)


def _delta_obstacle(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None) -> str | None:
    """Why the Triton kernels of the delta rule should not run on these tensors; None if they may."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    from repflow.mixers.triton.delta import supported

    return supported(q, k, v, beta, log_decay)


def _check_s6(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, initial: Tensor | None
) -> None:
    if x.ndim != 3 or x.shape[1] == 0 or A.ndim != 2:
        raise InputError(
            teach(
                "x (batch, token, channel) with at least one token and A (channel, state)",
                f"x {tuple(x.shape)}, A {tuple(A.shape)}",
                "for heads with one decay each use ssd_scan",
            )
        )
    batch, tokens, channels = x.shape
    states = A.shape[1]
    wanted = {
        "x": (x, (batch, tokens, channels)),
        "delta": (delta, (batch, tokens, channels)),
        "A": (A, (channels, states)),
        "B": (B, (batch, tokens, states)),
        "C": (C, (batch, tokens, states)),
        "D": (D, (channels,)),
        "initial": (initial, (batch, channels, states)),
    }
    _check_shapes(wanted)


def _check_ssd(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial: Tensor | None,
    chunk: int | None,
) -> None:
    if x.ndim != 4 or x.shape[1] == 0 or B.ndim != 4:
        raise InputError(
            teach(
                "x (batch, token, head, dim) with at least one token and B (batch, token, group, state)",
                f"x {tuple(x.shape)}, B {tuple(B.shape)}",
                "split channels into heads, or use selective_scan",
            )
        )
    batch, tokens, heads, dim = x.shape
    groups, states = B.shape[2:]
    if groups == 0 or heads % groups:
        raise InputError(teach("heads that divide into the groups", f"{heads} heads, {groups} groups", "check B and C"))
    if chunk is not None and chunk < 1:
        raise InputError(teach("a chunk of at least 1 token", str(chunk), "leave it out for the default"))
    wanted = {
        "x": (x, (batch, tokens, heads, dim)),
        "delta": (delta, (batch, tokens, heads)),
        "A": (A, (heads,)),
        "B": (B, (batch, tokens, groups, states)),
        "C": (C, (batch, tokens, groups, states)),
        "D": (D, (heads,) if D is None or D.ndim == 1 else (heads, dim)),
        "initial": (initial, (batch, heads, dim, states)),
    }
    _check_shapes(wanted)


def _check_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    initial: Tensor | None,
    chunk: int | None,
) -> None:
    if v.ndim != 4 or v.shape[1] == 0 or k.ndim != 4:
        raise InputError(
            teach(
                "values (batch, token, head, value) with at least one token and keys (batch, token, key head, key)",
                f"v {tuple(v.shape)}, k {tuple(k.shape)}",
                "split channels into heads",
            )
        )
    batch, tokens, heads, values = v.shape
    key_heads, keys = k.shape[2:]
    if key_heads == 0 or heads % key_heads:
        got = f"{heads} heads, {key_heads} key heads"
        raise InputError(teach("heads that divide into the key heads", got, "check v and k"))
    if chunk is not None and chunk < 1:
        raise InputError(teach("a chunk of at least 1 token", str(chunk), "leave it out for the default"))
    fades = (batch, tokens, heads) if log_decay is None or log_decay.ndim == 3 else (batch, tokens, heads, keys)
    _check_shapes(
        {
            "q": (q, (batch, tokens, key_heads, keys)),
            "k": (k, (batch, tokens, key_heads, keys)),
            "v": (v, (batch, tokens, heads, values)),
            "beta": (beta, (batch, tokens, heads)),
            "log_decay": (log_decay, fades),
            "initial": (initial, (batch, heads, values, keys)),
        }
    )


def _check_shapes(wanted: dict[str, tuple[Tensor | None, tuple[int, ...]]]) -> None:
    for name, (part, shape) in wanted.items():
        if part is not None and not part.is_floating_point():
            remedy = "convert it first; fast_recurrence takes complex transitions"
            raise InputError(teach(f"{name} of real floating-point numbers", str(part.dtype), remedy))
        if part is not None and tuple(part.shape) != shape:
            raise InputError(
                teach(f"{name} of shape {shape}", f"shape {tuple(part.shape)}", "see the docstring for the axes")
            )
