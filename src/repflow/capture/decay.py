"""Largest decay of each layer with a transition: Theorem 3.1's A_max and its κ = ln(1/A_max) (paper 2).

The theorem carries over to transitions that are not diagonal with the norm of a step's operator in place of A: of the
delta rule max A · max(1, |1 − β |k|²|), which is 1, and promises nothing, where the state has no decay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from repflow.core.errors import InputError
from repflow.models import Model
from repflow.models.recurrence.quantities import SsmQuantities, ssm_quantities

CHUNK = 64
"""Tokens of a decay that exist at once."""


@dataclass(frozen=True)
class LayerDecays:
    """What a layer's transition bounds.

    Attributes:
        largest: A_max over the prompt's tokens, channels and states (layer, batch), the largest norm of a step's
            operator where it is not diagonal; NaN for layers without one. The
            first token's decay multiplies nothing and does not count.
        kappa: ln(1/A_max) (layer, batch), from logarithms of the decays where the layer has them, since A_max is
            rounded to 1 in float32 once κ is below 3e-8.
    """

    largest: np.ndarray
    kappa: np.ndarray


def largest_decays(model: Model, ids: Tensor, mask: Tensor | None, ends: Sequence[int]) -> LayerDecays:
    """Read A_max of each layer in one forward pass without gradients.

    Args:
        model: a loaded model.
        ids: token ids (batch, token), right-padded.
        mask: (batch, token); None without padding.
        ends: number of tokens of each prompt that count.

    Raises:
        InputError: no layer has a transition, or a fused kernel hides it.
    """
    rate = np.full((model.n_layers, len(ids)), np.inf)

    def on_layer(layer: int, quantities: SsmQuantities) -> None:
        least = [_least_rate(quantities, row, end) for row, end in enumerate(ends)]
        rate[layer] = np.minimum(rate[layer], least)  # zamba has one scan per head

    with ssm_quantities(model, on_layer):
        model.stream(ids, mask, on_state=lambda *_: None)
    kappa = np.where(np.isfinite(rate), rate, np.nan) + 0.0  # ln(1/1) is −0, which prints as such
    return LayerDecays(np.exp(-kappa), kappa)


def _least_rate(quantities: SsmQuantities, row: int, end: int) -> float:
    """Smallest −ln ‖A_t‖ of one prompt, from its second token on; inf where there is none."""
    call = quantities.call
    if call is not None and end > 1:
        delta = call.delta[row, 1:end].double().amin(0)
        slowest = -call.A.double()
        slowest = slowest.amin(-1) if slowest.ndim == 2 else slowest
        return float((delta * slowest).min())
    least = float("inf")
    for first in range(1, end, CHUNK):
        here = slice(first, min(first + CHUNK, end))
        log = quantities.recurrence.log_norm(here)
        least = min(least, -float((log[row] if log.shape[0] > 1 else log[0]).amax()))
        if log.shape[1] < here.stop - first:  # the same at every token
            break
    return least


def readable(model: Model, ids: Tensor) -> str | None:
    """Why the transitions of a model cannot be read, None if they can; "" for one that has none.

    Args:
        model: a loaded model.
        ids: token ids (token,) of a prompt; a few of them are read.
    """
    try:
        largest_decays(model, ids[None, :2], None, [min(2, len(ids))])
    except InputError as error:
        return str(error) if any(kind not in ("attention", "mlp", "moe") for kind in model.layer_kinds) else ""
    return None
