r"""Similarity of tokens, within a state and from one state to the next.

Glossary: h_t token vector of width d, u_t = h_t / ‖h_t‖, n number of tokens that count (real and not dropped).
Paper 1 is arXiv 2510.06640, paper 2 is arXiv 2501.00658; docs/theory.md has their titles.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.metrics.checks import Batch, as_batch
from repflow.metrics.drop import kept_tokens

__all__ = [
    "common_share",
    "layer_cosine",
    "sharpness",
    "token_norm",
    "token_similarity",
    "token_similarity_by_token",
    "token_similarity_excess",
]

# What users hand in is checked by `as_batch`, whose messages teach; jaxtyping would answer first under pytest.
Hidden = Tensor
"""(state, *batch, token, width)."""
Mask = Tensor
"""(*batch, token), non-zero at real tokens."""


def layer_cosine(hidden: Hidden, *, mask: Mask | None = None) -> Float[Tensor, "layer *batch token"]:
    """Cosine of each token between one state and the next (paper 1, section 3.2).

    Shapes: (state, *batch, token, width) → (state - 1, *batch, token). NaN at padding and where a vector is zero.

    >>> layer_cosine(torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]]]))
    tensor([[0.7071]])
    """
    batch = as_batch(hidden, mask, min_states=2)
    unit = _unit(batch.hidden, batch.mask)
    cosine = (unit[1:] * unit[:-1]).sum(-1).masked_fill(~batch.mask, torch.nan)
    return _single(cosine, batch)


def token_norm(hidden: Hidden, *, mask: Mask | None = None) -> Float[Tensor, "state *batch token"]:
    """Euclidean norm of each token vector. Shapes: (state, *batch, token, width) → (state, *batch, token).

    >>> token_norm(torch.tensor([[[3.0, 4.0]]]))
    tensor([[5.]])
    """
    batch = as_batch(hidden, mask)
    return _single(batch.hidden.norm(dim=-1).masked_fill(~batch.mask, torch.nan), batch)


def token_similarity(
    hidden: Hidden,
    *,
    center: Tensor | None = None,
    mask: Mask | None = None,
    drop: str = "none",
    bos: Mask | None = None,
) -> Float[Tensor, "state *batch"]:
    """Mean cosine between different tokens of a prompt (paper 1, Eq. 2): (‖Σu‖² - n) / (n (n - 1)).

    Shapes: (state, *batch, token, width) → (state, *batch). NaN with fewer than two tokens or a zero vector.

    Args:
        hidden: states.
        center: mean per state (state, width) from *other* prompts, subtracted first. The sample's own mean would force
            the value to about -1/(n - 1), so it is not offered.
        mask: real tokens.
        drop: tokens to leave out, see `repflow.metrics.drop`.
        bos: beginning-of-sequence positions, for `drop="bos"`.

    >>> token_similarity(torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]))
    tensor([0.4714])
    """
    batch = as_batch(hidden, mask)
    keep = kept_tokens(batch.hidden.norm(dim=-1), batch.mask, drop, bos=bos)
    states = batch.hidden if center is None else batch.hidden - _check_center(center, batch.hidden)[:, None, None]
    total = _unit(states, keep).sum(2)
    return _single(_pair_mean(total, keep.sum(-1)), batch)


def token_similarity_by_token(
    hidden: Hidden, *, mask: Mask | None = None, drop: str = "none", bos: Mask | None = None
) -> Float[Tensor, "state *batch token"]:
    """Mean cosine of each token with the others: (u_t · Σu - 1) / (n - 1). Its mean over tokens is `token_similarity`.

    Shapes: (state, *batch, token, width) → (state, *batch, token). NaN at padding and dropped tokens.

    >>> token_similarity_by_token(torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]))
    tensor([[0.3536, 0.3536, 0.7071]])
    """
    batch = as_batch(hidden, mask)
    keep = kept_tokens(batch.hidden.norm(dim=-1), batch.mask, drop, bos=bos)
    unit = _unit(batch.hidden, keep)
    count = keep.sum(-1, keepdim=True)
    value = ((unit @ unit.sum(2)[..., None])[..., 0] - 1) / (count - 1)
    return _single(value.masked_fill(~keep | (count < 2), torch.nan), batch)


def token_similarity_excess(
    hidden: Hidden, *, mask: Mask | None = None, drop: str = "none", bos: Mask | None = None
) -> Float[Tensor, "state batch"]:
    """`token_similarity` minus the mean cosine between tokens of different prompts at the same state.

    One direction common to all tokens of all prompts (a bias, an anisotropic embedding) raises both terms alike, so
    only homogenisation within the prompt remains. The second term is (‖Σ_b s_b‖² - Σ_b ‖s_b‖²) / (N² - Σ_b n_b²) with
    s_b = Σ_t u_t of prompt b and N = Σ n_b.

    Shapes: (state, batch, token, width) with batch ≥ 2 → (state, batch).
    """
    batch = as_batch(hidden, mask)
    if batch.hidden.shape[1] < 2:
        raise InputError(
            teach(
                "at least 2 samples (state, batch, token, width)",
                f"{batch.hidden.shape[1]}",
                "pass several prompts: the excess compares tokens across prompts",
            )
        )
    keep = kept_tokens(batch.hidden.norm(dim=-1), batch.mask, drop, bos=bos)
    total = _unit(batch.hidden, keep).sum(2)
    count = keep.sum(-1)
    return _pair_mean(total, count) - cross_prompt_cosine(total, count)[:, None]


def cross_prompt_cosine(unit_sum: Float[Tensor, "state batch width"], count: Tensor) -> Float[Tensor, "state"]:
    """Mean cosine between tokens of different prompts, from per-prompt sums of unit vectors and token counts."""
    count = count.to(unit_sum.dtype)
    joint = unit_sum.sum(1).square().sum(-1) - unit_sum.square().sum((1, 2))
    pairs = count.sum(-1).square() - count.square().sum(-1)
    return joint / pairs.masked_fill(pairs == 0, torch.nan)


def common_share(
    hidden: Hidden, *, mask: Mask | None = None, drop: str = "none", bos: Mask | None = None
) -> Float[Tensor, "state *batch"]:
    """Share of the tokens' energy that is in their mean: ‖mean_t h‖² / mean_t ‖h‖².

    Shapes: (state, *batch, token, width) → (state, *batch). 1 when all tokens are equal, 1/n if independent.

    >>> common_share(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    tensor([0.5000])
    """
    batch = as_batch(hidden, mask)
    keep = kept_tokens(batch.hidden.norm(dim=-1), batch.mask, drop, bos=bos)
    return _single(_common_share(batch.hidden, keep), batch)


def sharpness(
    hidden: Hidden, *, mask: Mask | None = None, drop: str = "none", bos: Mask | None = None
) -> Float[Tensor, "state *batch"]:
    """Pairwise spread relative to energy (paper 2): (n Σ‖h‖² - ‖Σh‖²) / ((n - 1) Σ‖h‖²), over ordered pairs.

    Shapes: (state, *batch, token, width) → (state, *batch). 0 when all tokens are equal, about 1 for independent
    zero-mean tokens, at most n / (n - 1). NaN with fewer than two tokens.

    >>> sharpness(torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]))
    tensor([0.5000])
    """
    batch = as_batch(hidden, mask)
    keep = kept_tokens(batch.hidden.norm(dim=-1), batch.mask, drop, bos=bos)
    count = keep.sum(-1)
    spread = (1 - _common_share(batch.hidden, keep)) * count / (count - 1)
    return _single(spread.masked_fill(count < 2, torch.nan), batch)


def _common_share(hidden: Tensor, keep: Tensor) -> Tensor:
    masked = torch.where(keep[..., None], hidden, 0)
    return masked.sum(2).square().sum(-1) / (keep.sum(-1) * masked.square().sum((2, 3)))


def _unit(hidden: Tensor, keep: Tensor) -> Tensor:
    """Token directions, 0 where not kept. A dropped token's norm is replaced first so that gradients stay finite."""
    keep = keep[..., None]
    inside = torch.where(keep, hidden, 1)
    return torch.where(keep, inside / inside.norm(dim=-1, keepdim=True), 0)


def _pair_mean(unit_sum: Tensor, count: Tensor) -> Tensor:
    value = (unit_sum.square().sum(-1) - count) / (count * (count - 1))
    return value.masked_fill(count < 2, torch.nan)


def _single(value: Tensor, batch: Batch) -> Tensor:
    return value[:, 0] if batch.single else value


def _check_center(center: Tensor, hidden: Tensor) -> Tensor:
    expected = (hidden.shape[0], hidden.shape[-1])
    if tuple(center.shape) != expected:
        raise InputError(
            teach(f"center of shape (state, width) = {expected}", f"{tuple(center.shape)}", "pass one mean per state")
        )
    return center.to(hidden)
