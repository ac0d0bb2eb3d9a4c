"""Tests that several laboratories need: loss by position of a language model, accuracy of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from repflow.training import Batch
from repflow.training.losses import read_logits


@torch.no_grad()
def loss_by_position(network: Any, ids: Tensor, *, rows: int = 16) -> np.ndarray:
    """Mean cross entropy (token − 1,) of each next token in nats, in float32 at least.

    Args:
        network: a causal language model in eval mode.
        ids: held-out rows (row, token), none of which was trained on.
        rows: of a pass.
    """
    device = next(network.parameters()).device
    total = torch.zeros(ids.shape[1] - 1, dtype=torch.float64)
    for start in range(0, len(ids), rows):
        part = ids[start : start + rows].to(device)
        logits = read_logits(network, Batch(part))[:, :-1]
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
        losses = functional.cross_entropy(wide, part[:, 1:].flatten().long(), reduction="none")
        total += losses.view(len(part), -1).double().sum(0).cpu()
    return (total / len(ids)).numpy()


@torch.no_grad()
def right_answers(
    network: Any, inputs: Tensor, labels: Tensor, *, mask: Tensor | None = None, rows: int = 64
) -> np.ndarray:
    """1 where a classifier's first class is the label, NaN where a logit is not finite (row,).

    Args:
        network: in eval mode.
        inputs: rows (row, token) or (row, token, channel).
        labels: (row,).
        mask: 1 at tokens, 0 at padding on the right (row, token).
        rows: of a pass.
    """
    device = next(network.parameters()).device
    right = []
    for start in range(0, len(inputs), rows):
        at = slice(start, start + rows)
        batch = Batch(inputs[at], mask=None if mask is None else mask[at]).to(device)
        logits = read_logits(network, batch).cpu()
        right.append((logits.argmax(-1) == labels[at].cpu()).double())
        right[-1][~logits.isfinite().all(-1)] = torch.nan
    return torch.cat(right).numpy()
