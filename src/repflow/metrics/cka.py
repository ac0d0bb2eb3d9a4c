r"""Linear centred kernel alignment between states: unbiased by default, exact, in bounded memory.

Glossary: X (token, width) with centred columns, K = X Xᵀ its Gram matrix, n tokens. The biased form uses K; the
unbiased one (Song et al. 2012) its U-centred version K̂, which has zero diagonal and zero row sums, so that
HSIC = ⟨K̂, L̂⟩ / (n (n - 3)). Independent data has an unbiased CKA of 0 on average, but a biased one near
d / (n + d): .556 at n = 2048, d = 2560.

Two equal ways to all pairs of S states: Gram tiles (S n² d / 2 multiplications, K being symmetric, and S² n² / 2 for
the pairs) or features (S² n d² / 2); the cheaper one is taken. Neither holds anything of size n².
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.metrics.checks import as_batch, as_rows
from repflow.metrics.similarity import Hidden, Mask

__all__ = ["cka_matrix", "linear_cka"]

TILE = 256
"""Side of a Gram tile. Its 65,536 entries are multiplied in float32, tiles add up in float64: CKA(X, X) = 1 to 1e-6."""
FEATURE_ROWS = 4096
"""Tokens whose products are added in float32 before going into a float64 sum, in the feature form."""
MIN_TOKENS = 4
"""The unbiased estimator divides by n - 3."""

Rows = Float[Tensor, "token _"]
"""Widths may differ from state to state."""


class Moments(NamedTuple):
    """Mean and standard deviation of a statistic under random row permutations of one side."""

    mean: Tensor
    sd: Tensor


def linear_cka(x: Tensor, y: Tensor, *, unbiased: bool = True) -> Tensor:
    """Linear CKA of two sets of token vectors in matching order.

    Args:
        x: (token, width of x).
        y: (token, width of y).
        unbiased: False gives the published (biased) form, and a warning when n < 4 d.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> y = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 3.0]])
    >>> round(float(linear_cka(x, y, unbiased=False).double()), 4)
    0.798
    """
    x, y = as_rows(x, "x"), as_rows(y, "y")
    if x.shape[0] != y.shape[0]:
        raise InputError(
            teach(
                "x and y with one row per shared token", f"{x.shape[0]} and {y.shape[0]} rows", "match the rows first"
            )
        )
    hsic = hsic_matrix([x, y], unbiased=unbiased)
    return normalise_hsic(hsic)[0, 1].to(x.dtype)


def cka_matrix(
    hidden: Hidden, *, unbiased: bool = True, mask: Mask | None = None
) -> Float[Tensor, "state state *batch"]:
    """Linear CKA of every state with every state, per sample.

    Shapes: (state, *batch, token, width) → (state, state, *batch).
    """
    batch = as_batch(hidden, mask)
    matrices = []
    for states, length in zip(batch.hidden.unbind(1), batch.mask.sum(-1).tolist(), strict=True):
        matrices.append(normalise_hsic(hsic_matrix(list(states[:, :length]), unbiased=unbiased)))
    stacked = torch.stack(matrices, -1).to(batch.hidden.dtype)
    return stacked[..., 0] if batch.single else stacked


def normalise_hsic(hsic: Float[Tensor, "state state *rest"]) -> Float[Tensor, "state state *rest"]:
    """Turn HSIC of all pairs into CKA; NaN where a state's own HSIC is not positive."""
    own = torch.diagonal(hsic, dim1=0, dim2=1).movedim(-1, 0)
    own = torch.where(own > 0, own, torch.nan)
    return hsic / (own[:, None] * own[None]).sqrt()


def hsic_matrix(states: Sequence[Rows], *, unbiased: bool = True) -> Float[Tensor, "state state"]:
    """⟨K, L⟩ (of the U-centred kernels if unbiased) of all pairs of states over the same tokens, in float64.

    Times `hsic_factor` this is HSIC; the factor is common to all pairs, so CKA does without.
    """
    _check_enough(states[0].shape[0], states, unbiased)
    return all_pairs([centre(rows) for rows in states], unbiased)


def hsic_factor(count: int, unbiased: bool) -> float:
    """What makes HSIC of `hsic_matrix`, so that samples of different lengths can be averaged."""
    return 1 / (count * (count - 3)) if unbiased else 1 / (count - 1) ** 2


def centre(rows: Rows) -> Rows:
    """Take the mean token off, twice: the first mean is rounded at the size of the data, not of its spread."""
    moved = rows - rows.mean(0)
    moved -= moved.mean(0)
    return moved


def all_pairs(centred: list[Rows], unbiased: bool) -> Float[Tensor, "state state"]:
    """`hsic_matrix` of centred states, by whichever form costs less."""
    count, size = centred[0].shape[0], len(centred)
    width = max(rows.shape[1] for rows in centred)
    by_gram = count * (width + size) < (size + 1) * width**2
    return (_hsic_by_gram if by_gram else _hsic_by_features)(centred, unbiased)


def _check_enough(count: int, states: Sequence[Rows], unbiased: bool) -> None:
    if unbiased and count < MIN_TOKENS:
        raise InputError(
            teach(f"at least {MIN_TOKENS} tokens for unbiased CKA", f"{count}", "use longer prompts or unbiased=False")
        )
    if count < 2:
        raise InputError(teach("at least 2 tokens for CKA", f"{count}", "use longer prompts"))
    width = max(rows.shape[1] for rows in states)
    if not unbiased and count < 4 * width:
        warnings.warn(
            f"biased CKA with n = {count} tokens and width d = {width}: with n < 4 d even unrelated states score high;"
            " use unbiased=True",
            stacklevel=4,
        )


def _hsic_by_gram(centred: list[Rows], unbiased: bool) -> Tensor:
    count = centred[0].shape[0]
    total = torch.zeros(len(centred), len(centred), dtype=torch.float64, device=centred[0].device)
    shifts = torch.stack([_row_shift(rows) for rows in centred]) if unbiased else None
    for top in range(0, count, TILE):
        rows = slice(top, top + TILE)
        for left in range(top, count, TILE):
            columns = slice(left, left + TILE)
            tiles = torch.stack([x[rows] @ x[columns].T for x in centred])
            if shifts is not None:
                tiles.add_(shifts[:, rows, None]).add_(shifts[:, None, columns])
                if left == top:
                    tiles.diagonal(dim1=1, dim2=2).zero_()
            flat = tiles.flatten(1)
            # a tile off the diagonal stands for its mirror image as well
            total = total + (flat @ flat.T).double() * (1 if left == top else 2)
    return total


def _row_shift(centred: Rows) -> Float[Tensor, "token"]:
    """What U-centring adds to row i and column i: K̂_ij = K_ij + c_i + c_j off the diagonal.

    With centred columns the off-diagonal row sums of K are -‖x_i‖², so nothing of size n² is needed.
    """
    count = centred.shape[0]
    norms = torch.linalg.vector_norm(centred, dim=1, dtype=torch.float64).square()
    return (norms / (count - 2) - norms.sum() / (2 * (count - 1) * (count - 2))).to(centred.dtype)


def _hsic_by_features(centred: list[Rows], unbiased: bool) -> Tensor:
    size = len(centred)
    total = torch.zeros(size, size, dtype=torch.float64, device=centred[0].device)
    for i in range(size):
        for j in range(i, size):
            total[i, j] = total[j, i] = _feature_product(centred[i], centred[j]).square().sum()
    if not unbiased:
        return total
    norms = torch.stack([rows.double().square().sum(1) for rows in centred])
    return u_centre(total, norms @ norms.T, norms.sum(1), centred[0].shape[0])


def _feature_product(x: Rows, y: Rows) -> Float[Tensor, "width_x width_y"]:
    parts = zip(torch.split(x, FEATURE_ROWS), torch.split(y, FEATURE_ROWS), strict=True)
    first, *rest = ((a.T @ b).double() for a, b in parts)
    return sum(rest, start=first)


def u_centre(raw: Tensor, norm_products: Tensor, traces: Tensor, count: int) -> Tensor:
    """⟨K̂, L̂⟩ from ‖XᵀY‖², Σ_i ‖x_i‖² ‖y_i‖² and tr K, for centred columns.

    The zeroed diagonal takes Σ ‖x‖²‖y‖² off; its row sums, -‖x_i‖², bring in the other two terms.
    """
    return raw - norm_products * (1 + 2 / (count - 2)) + traces[:, None] * traces / ((count - 1) * (count - 2))


def permutation_null(states: Sequence[Rows], *, unbiased: bool = True) -> Moments:
    """Mean and sd of CKA when the tokens of one side are permuted at random, exact for every pair of states.

    The first two permutation moments of ⟨K, P L Pᵀ⟩ have closed forms (Kazi-Aoual et al. 1995, for the RV
    coefficient). For the U-centred kernels they reduce to mean 0 and variance 2 / (n (n - 3)), whatever the data.
    """
    count = states[0].shape[0]
    _check_enough(count, states, True)
    centred = [centre(rows).double() for rows in states]
    norms = torch.stack([x.square().sum(1) for x in centred])
    square = torch.stack([(x.T @ x if x.shape[0] > x.shape[1] else x @ x.T).square().sum() for x in centred])
    return null_moments(norms.sum(1), square, norms.square().sum(1), count, unbiased)


def null_moments(
    trace: Float[Tensor, "state"],
    square: Float[Tensor, "state"],
    diagonal: Float[Tensor, "state"],
    count: int,
    unbiased: bool,
) -> Moments:
    """`permutation_null` from tr K, ‖K‖_F² and Σ_i K_ii² of the centred (not U-centred) states, in float64."""
    n = count
    if unbiased:
        # 0 * trace keeps a state with NaN out of the null as out of the CKA
        mean = 0 * (trace[:, None] + trace)
        return Moments(mean, mean + (2 / (n * (n - 3))) ** 0.5)
    spread = (n - 1) * square - trace.square()
    corner = n * (n + 1) * diagonal - (n - 1) * (trace.square() + 2 * square)
    variance = 2 * spread[:, None] * spread / ((n - 1) ** 2 * (n + 1) * (n - 2))
    variance += corner[:, None] * corner / ((n + 1) * n * (n - 1) * (n - 2) * (n - 3))
    scale = (square[:, None] * square).sqrt()
    # rounding can take the variance of a state of rank one below zero
    return Moments(trace[:, None] * trace / (n - 1) / scale, variance.clamp(min=0).sqrt() / scale)
