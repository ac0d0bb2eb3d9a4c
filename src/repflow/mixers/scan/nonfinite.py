"""Tokens that are not finite in chunked scans: a matrix product over a chunk must not carry them to earlier tokens.

Within a chunk the weight of a later token is 0, but 0 · NaN is NaN. Where an output is not finite the chunked forms run
once more with such tokens at 0, and only outputs that no such token precedes are taken from there. Finite inputs pay
for one sum.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_finite(y: Tensor) -> bool:
    """Whether all of y is finite; taken to be where no value can be looked at (compiling, torch.func transforms).

    >>> is_finite(torch.ones(2)), is_finite(torch.tensor([1.0, torch.nan]))
    (True, False)
    """
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return bool(y.detach().sum().isfinite())


def cleaned(part: Tensor) -> Tensor:
    """Entries that are not finite at 0.

    >>> cleaned(torch.tensor([1.0, torch.nan, torch.inf])).tolist()
    [1.0, 0.0, 0.0]
    """
    return torch.where(part.isfinite(), part, 0)


def from_here_on(bad: Tensor) -> Tensor:
    """True at and behind the first True, along the tokens of (batch, token, ...).

    >>> from_here_on(torch.tensor([[False, True, False]])).tolist()
    [[False, True, True]]
    """
    return bad.cumsum(1) > 0
