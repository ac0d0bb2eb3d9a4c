"""Checks of tensors from users; every message names the axes it expected."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach


class Batch(NamedTuple):
    """Hidden states in the one shape the metrics work on.

    Attributes:
        hidden: (state, batch, token, width), float32 or wider, 1 at padding.
        mask: (batch, token) bool, True for real tokens.
        single: True when one sample came without a batch axis, so that results lose it again.
    """

    hidden: Tensor
    mask: Tensor
    single: bool


def as_batch(hidden: Tensor, mask: Tensor | None = None, *, min_states: int = 1) -> Batch:
    """Convert (state, token, width) to (state, batch, token, width) and check the mask.

    Half precision is widened to float32: sums over thousands of tokens in bfloat16 lose the number. Padding becomes 1:
    whatever it held (NaN, or zeros, which have no direction) would spoil gradients even where its value is dropped.
    """
    if not isinstance(hidden, Tensor):
        raise InputError(
            teach("a torch.Tensor (state, batch, token, width)", type(hidden).__name__, "use torch.as_tensor")
        )
    if hidden.ndim not in (3, 4):
        raise InputError(
            teach(
                "hidden of shape (state, token, width) or (state, batch, token, width)",
                f"shape {tuple(hidden.shape)}",
                "stack the states along a new first axis",
            )
        )
    if not hidden.is_floating_point():
        raise InputError(teach("floating-point hidden states", str(hidden.dtype), "convert with hidden.float()"))
    single = hidden.ndim == 3
    if single:
        hidden = hidden[:, None]
    if hidden.shape[0] < min_states:
        raise InputError(
            teach(f"at least {min_states} states", f"{hidden.shape[0]}", "include the embedding and every block output")
        )
    mask = as_mask(mask, hidden, single=single)
    hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    if not bool(mask.all()):
        hidden = torch.where(mask[..., None], hidden, 1)
    return Batch(hidden, mask, single)


def as_mask(mask: Tensor | None, hidden: Tensor, *, single: bool) -> Tensor:
    """Return a bool mask (batch, token) for hidden (state, batch, token, width), or say what is wrong with it."""
    batch, token = hidden.shape[1], hidden.shape[2]
    if mask is None:
        return torch.ones(batch, token, dtype=torch.bool, device=hidden.device)
    if single and mask.ndim == 1:
        mask = mask[None]
    if tuple(mask.shape) != (batch, token):
        raise InputError(
            teach(
                f"a mask of shape (batch, token) = ({batch}, {token})",
                f"shape {tuple(mask.shape)}",
                "pass one 1 per real token and 0 per padding token",
            )
        )
    mask = mask.to(device=hidden.device, dtype=torch.bool)
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise InputError(
            teach(
                "right-padded batches (all real tokens first)",
                "a mask with padding before a real token",
                "pad on the right: left padding corrupts the states of several architectures",
            )
        )
    return mask


def as_rows(x: Tensor, name: str) -> Tensor:
    """Check one (row, width) matrix for CKA and widen half precision."""
    if x.ndim != 2 or not x.is_floating_point():
        raise InputError(
            teach(
                f"{name} as a floating-point matrix (token, width)",
                f"{x.dtype} of shape {tuple(x.shape)}",
                "pass one row per token",
            )
        )
    return x.to(torch.promote_types(x.dtype, torch.float32))
