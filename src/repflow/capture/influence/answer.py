"""Influence of every token of an image on a classifier's answer.

    I_t = ‖∂ log(p / (1 − p)) / ∂x_t‖,  p the probability of the class that is named, x_t the token's pixels from 0 to 1

One backward pass for any classifier, causal or not, wherever it reads the class from. `repflow recency` has the
influence on one token's state instead, for models that read from left to right.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from repflow.models.classifier import Classifier
from repflow.tasks.pixels import PixelLayout


def log_odds(logits: Tensor) -> Tensor:
    """Log-odds of the class that each image is named (image,), from logits (image, class)."""
    named = logits.argmax(-1, keepdim=True)
    others = logits.scatter(1, named, -torch.inf).logsumexp(-1)
    return logits.gather(1, named)[:, 0] - others


@torch.enable_grad()
def answer_influence(
    classifier: Classifier, pixels: Tensor, layout: PixelLayout, shape: tuple[int, int, int]
) -> np.ndarray:
    """Influence (image, token) of pixels from 0 to 1 as sequences (image, token, channel), in float64."""
    leaf = pixels.detach().clone().requires_grad_()
    odds = log_odds(classifier.logits(leaf, layout, shape).double())
    (slope,) = torch.autograd.grad(odds.sum(), leaf)  # images do not see each other
    return np.asarray(slope.double().norm(dim=-1).cpu().numpy())
