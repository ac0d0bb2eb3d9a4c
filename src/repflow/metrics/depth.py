r"""How a token's vector moves from state to state: smoothness, stability and related metrics.

Glossary: H[s, t, k] state s = 0..L (S = L + 1 states), token t of n, channel k of d; Sm and St are paper 1's Eq. 3 and
4, St_L² its appendix A.3. The printed Eq. 3 divides L - 1 terms by L - 2 (`mode="paper"`), Eq. 4 leaves the embedding
out (`include_embedding=False`); the defaults are the plain mean and all states. `paper_smoothness` and
`paper_stability` are the printed forms under names of their own, to be measured beside the defaults.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.metrics.checks import Batch, as_batch
from repflow.metrics.drop import kept_tokens, token_median
from repflow.metrics.similarity import Hidden, Mask

__all__ = [
    "depth_stability",
    "direction_smoothness",
    "direction_stability",
    "paper_smoothness",
    "paper_stability",
    "path_energy",
    "relative_smoothness",
    "relative_stability",
    "resample_depth",
    "smoothness",
    "stability",
]

PerSample = Float[Tensor, "*batch"]


def smoothness(
    hidden: Hidden,
    *,
    mode: Literal["mean", "paper"] = "mean",
    mask: Mask | None = None,
    drop: str = "none",
    bos: Mask | None = None,
) -> PerSample:
    """Mean absolute second difference over depth, |H[s] - (H[s-1] + H[s+1]) / 2| (Sm, paper 1, Eq. 3).

    Shapes: (state, *batch, token, width) with at least 3 states → (*batch). `mode="paper"` needs at least 3 blocks.

    >>> smoothness(torch.tensor([[[0.0]], [[2.0]], [[0.0]]]))
    tensor(2.)
    """
    batch = as_batch(hidden, mask, min_states=3)
    return _over_tokens(_bend(batch.hidden, mode), batch, drop, bos)


def smoothness_factor(mode: str, n_layers: int) -> float:
    """Ratio of the chosen form to the plain mean over the L - 1 second differences."""
    if mode == "mean":
        return 1.0
    if mode != "paper":
        raise InputError(teach("mode 'mean' or 'paper'", repr(mode), "see repflow.metrics.smoothness"))
    check_printed(n_layers)
    return (n_layers - 1) / (n_layers - 2)


def stability(
    hidden: Hidden,
    *,
    include_embedding: bool = True,
    mask: Mask | None = None,
    drop: str = "none",
    bos: Mask | None = None,
) -> PerSample:
    """Mean over tokens and channels of the standard deviation over depth (St, paper 1, Eq. 4); lower is more stable.

    Population standard deviation (ddof = 0). Shapes: (state, *batch, token, width) → (*batch).

    >>> stability(torch.tensor([[[0.0]], [[2.0]]]))
    tensor(1.)
    """
    batch = as_batch(hidden, mask, min_states=2 if include_embedding else 3)
    return _over_tokens(_spread(batch.hidden, include_embedding), batch, drop, bos)


def paper_smoothness(
    hidden: Hidden, *, embedding: bool = True, mask: Mask | None = None, drop: str = "none", bos: Mask | None = None
) -> PerSample:
    """Sm as paper 1 prints it: Eq. 3 divides the sum over depth by L - 2, L the number of blocks.

    With the embedding there are L - 1 second differences, so that it is (L - 1) / (L - 2) of `smoothness`; without
    it (branch outputs) there are L - 2 and the two are the same. Needs at least 3 blocks.

    Shapes: (state, *batch, token, width) → (*batch). `embedding` says whether the first state is the embedding.

    >>> paper_smoothness(torch.tensor([[[0.0]], [[2.0]], [[0.0]], [[2.0]]]))
    tensor(4.)
    """
    mode: Literal["mean", "paper"] = "paper" if embedding else "mean"
    return smoothness(hidden, mode=mode, mask=mask, drop=drop, bos=bos)


def paper_stability(
    hidden: Hidden, *, embedding: bool = True, mask: Mask | None = None, drop: str = "none", bos: Mask | None = None
) -> PerSample:
    """St as paper 1 prints it: Eq. 4 sums over l = 1 .. L and leaves the embedding out.

    Shapes: (state, *batch, token, width) → (*batch). `embedding` says whether the first state is the embedding.

    >>> paper_stability(torch.tensor([[[9.0]], [[0.0]], [[2.0]]]))
    tensor(1.)
    """
    return stability(hidden, include_embedding=not embedding, mask=mask, drop=drop, bos=bos)


def check_printed(n_layers: int) -> None:
    """Refuse Eq. 3 for a model too shallow for it."""
    if n_layers < 3:
        expected = "at least 3 blocks for mode='paper' and paper_smoothness (Eq. 3 divides by L - 2)"
        raise InputError(teach(expected, f"{n_layers}", "use mode='mean' (smoothness) instead"))


def relative_smoothness(
    hidden: Hidden,
    *,
    mode: Literal["mean", "paper"] = "mean",
    mask: Mask | None = None,
    drop: str = "none",
    bos: Mask | None = None,
) -> PerSample:
    """Smoothness over the states' scale, the median over tokens of mean |hidden|, so that models can be compared."""
    batch = as_batch(hidden, mask, min_states=3)
    value = smoothness(hidden, mode=mode, mask=mask, drop=drop, bos=bos)
    return value / _like(hidden_scale(batch.hidden, _kept(batch, drop, bos)), batch)


def relative_stability(
    hidden: Hidden,
    *,
    include_embedding: bool = True,
    mask: Mask | None = None,
    drop: str = "none",
    bos: Mask | None = None,
) -> PerSample:
    """Stability over the states' scale, the median over tokens of mean |hidden|."""
    batch = as_batch(hidden, mask, min_states=2)
    value = stability(hidden, include_embedding=include_embedding, mask=mask, drop=drop, bos=bos)
    return value / _like(hidden_scale(batch.hidden, _kept(batch, drop, bos)), batch)


def direction_smoothness(
    hidden: Hidden,
    *,
    mode: Literal["mean", "paper"] = "mean",
    mask: Mask | None = None,
    drop: str = "none",
    bos: Mask | None = None,
) -> PerSample:
    """Smoothness after every token vector is set to root mean square 1: how its direction bends."""
    batch = as_batch(hidden, mask, min_states=3)
    return _over_tokens(_bend(directions(batch.hidden), mode), batch, drop, bos)


def direction_stability(
    hidden: Hidden,
    *,
    include_embedding: bool = True,
    mask: Mask | None = None,
    drop: str = "none",
    bos: Mask | None = None,
) -> PerSample:
    """Stability after every token vector is set to root mean square 1: how far its direction roams over depth."""
    batch = as_batch(hidden, mask, min_states=2 if include_embedding else 3)
    return _over_tokens(_spread(directions(batch.hidden), include_embedding), batch, drop, bos)


def depth_stability(
    hidden: Hidden, *, mask: Mask | None = None, drop: str = "none", bos: Mask | None = None
) -> PerSample:
    """Variance over depth, St_L² of paper 1's appendix A.3: Σ_s ‖H[s] - mean‖² / (n d S).

    The theory of paper 1 is about this, not about St: St² ≤ St_L², with equality only when all channels vary alike.

    >>> depth_stability(torch.tensor([[[0.0]], [[2.0]]]))
    tensor(1.)
    """
    batch = as_batch(hidden, mask, min_states=2)
    return _over_tokens(batch.hidden.var(0, correction=0).mean(-1), batch, drop, bos)


def path_energy(
    hidden: Hidden,
    *,
    per_entry: bool = False,
    mask: Mask | None = None,
    drop: str = "none",
    bos: Mask | None = None,
) -> PerSample:
    """Sum over depth of squared steps, Σ_s ‖H[s+1] - H[s]‖_F² (paper 1, A.3); `per_entry` divides by n d.

    >>> path_energy(torch.tensor([[[0.0, 1.0]], [[2.0, 1.0]]]))
    tensor(4.)
    """
    batch = as_batch(hidden, mask, min_states=2)
    energy = (batch.hidden[1:] - batch.hidden[:-1]).square().sum((0, -1))
    mean = _over_tokens(energy, batch, drop, bos)
    if per_entry:
        return mean / hidden.shape[-1]
    return mean * _like(_kept(batch, drop, bos).sum(-1), batch)


def resample_depth(hidden: Hidden, points: int) -> Float[Tensor, "grid *batch token width"]:
    """Interpolate states linearly onto `points` + 1 equally spaced relative depths (`granularity="matched"`).

    A Transformer block makes two residual updates and a Mamba block one, so a 32-block Transformer and a 64-block
    Mamba are compared on a common grid: with `points=32` each takes 32 steps from embedding to last block.

    >>> resample_depth(torch.tensor([0.0, 1.0, 4.0])[:, None, None], 1)[:, 0, 0]
    tensor([0., 4.])
    """
    steps = hidden.shape[0] - 1
    if not 1 <= points <= steps:
        raise InputError(
            teach(f"1 to {steps} grid steps for {steps} blocks", f"{points}", "use the shallowest model's block count")
        )
    at = torch.arange(points + 1, dtype=torch.float64) * steps / points
    low = at.floor().long().clamp(max=steps - 1)
    weight = (at - low).to(hidden)[(...,) + (None,) * (hidden.ndim - 1)]
    low = low.to(hidden.device)
    return torch.lerp(hidden[low], hidden[low + 1], weight)


def directions(hidden: Float[Tensor, "state batch token width"]) -> Float[Tensor, "state batch token width"]:
    """Token vectors scaled to root mean square 1; a zero vector becomes NaN, having no direction."""
    return hidden / hidden.square().mean(-1, keepdim=True).sqrt()


def hidden_scale(hidden: Float[Tensor, "state batch token width"], keep: Tensor) -> Float[Tensor, "batch"]:
    """Median over kept tokens of mean |hidden| over states and channels: the scale the relative metrics divide by."""
    return token_median(hidden.abs().mean((0, -1)), keep)


def _kept(batch: Batch, drop: str, bos: Tensor | None) -> Tensor:
    """Tokens (batch, token) that count over the whole depth: a token dropped at any state is dropped here."""
    return kept_tokens(batch.hidden.norm(dim=-1), batch.mask, drop, bos=bos).all(0)


def _bend(hidden: Tensor, mode: str) -> Tensor:
    """Mean absolute second difference of each token (batch, token)."""
    factor = smoothness_factor(mode, hidden.shape[0] - 1)
    return factor * (hidden[1:-1] - 0.5 * (hidden[:-2] + hidden[2:])).abs().mean((0, -1))


def _spread(hidden: Tensor, include_embedding: bool) -> Tensor:
    """Standard deviation over states of each token, averaged over channels (batch, token)."""
    return (hidden if include_embedding else hidden[1:]).std(0, correction=0).mean(-1)


def _over_tokens(value: Tensor, batch: Batch, drop: str, bos: Tensor | None) -> Tensor:
    """Mean over the tokens that count; the batch axis goes again if the caller passed a single sample."""
    keep = _kept(batch, drop, bos)
    return _like(torch.where(keep, value, 0).sum(-1) / keep.sum(-1), batch)


def _like(value: Tensor, batch: Batch) -> Tensor:
    return value[0] if batch.single else value
