"""RWKV's token shift: each token blended with the one before it, channel by channel."""

from __future__ import annotations

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach


def shift(x: Tensor) -> Tensor:
    """Every token's predecessor, zeros for the first: (batch, token, ...) → same.

    >>> shift(torch.tensor([[[1.0], [2.0]]])).flatten().tolist()
    [0.0, 1.0]
    """
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)


def blend(x: Tensor, before: Tensor, share: Tensor) -> Tensor:
    """Blend share · x + (1 − share) · before.

    >>> blend(torch.tensor(1.0), torch.tensor(3.0), torch.tensor(0.25)).item()
    2.5
    """
    return torch.lerp(before, x, share.to(x.dtype))  # autocast may hand x over in half precision


def initial_shares(width: int, layer: int, layers: int) -> dict[str, Tensor]:
    """RWKV's shares at initialisation, each (1, 1, width).

    The first channels look at the past, the last at the present; more of them at the present in later layers:
    key (i/width)^p, value the same + .3 q, receptance and gate (i/width)^{p/2}, with p = 1 − layer/layers and
    q = layer/(layers − 1).

    >>> [round(float(share[0, 0, 1]), 3) for share in initial_shares(2, 0, 1).values()]
    [0.5, 0.5, 0.707, 0.707]
    """
    if not 0 <= layer < layers:
        raise InputError(teach(f"a layer from 0 to {layers - 1}", str(layer), "count from 0, and give layers too"))
    place = torch.arange(width)[None, None] / width
    early, late = 1 - layer / layers, depth_share(layer, layers)
    key, receptance = place**early, place ** (0.5 * early)
    return {"key": key, "value": key + 0.3 * late, "receptance": receptance, "gate": receptance.clone()}


def depth_share(layer: int, layers: int) -> float:
    """Place of a layer between the first, 0, and the last, 1."""
    return layer / (layers - 1) if layers > 1 else 0.0
