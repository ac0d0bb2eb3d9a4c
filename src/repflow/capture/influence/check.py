"""Whether a model's gradients can be trusted: against finite differences, and zero at later tokens.

A quantised matrix product or a fused kernel without a backward pass leaves the residual stream's own gradient intact:
autograd says nothing and the influence is that of a model without the branch. One forward pass over the prompt moved to
both sides shows it, beside one forward and one backward pass over 64 tokens.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from repflow.capture.influence.jacobian import (
    gradient_graph,
    gradient_norms,
    no_gradient,
    rademacher,
    refusing_no_gradient,
)
from repflow.core.errors import InputError, teach
from repflow.core.seconds import timed
from repflow.models import Model

TOKENS = 64
"""Tokens of the check."""
PROBES = 8
STEPS = {torch.float64: (1e-3, 1e-5, 1e-6), torch.float32: (1e-3, 1e-4, 1e-5, 3e-6)}
"""Steps of the finite difference by the embeddings' size, the best of which counts: rounding spoils the small ones
(many models compute norms in float32 whatever their dtype), curvature the large ones. Half precision has none that
says anything."""
TOLERANCE = 0.1
"""Relative difference beyond which the gradient misses a part; rounding and curvature stay a hundred times below."""
UNSETTLED = 2.0
"""How far apart the differences of two steps may be before they say nothing about the gradient. A random Mamba-2.8B is
so curved that none is good: 1e-4 is 120 % off its right gradient in float64 too, 1e-5 23 %, 1e-6 40 % by rounding."""
FUTURE = 1e-6
"""Influence on later tokens, by the largest, that rounding may leave."""


@dataclass(frozen=True)
class GradientCheck:
    """What the check found.

    Attributes:
        difference: relative difference between gradient and finite difference, None in half precision.
        future: largest influence of a token after t, by the largest of all.
        at: token t of the check.
    """

    difference: float | None
    future: float
    at: int

    @property
    def causal(self) -> bool:
        """Whether no later token has influence."""
        return self.future <= FUTURE


@timed("checks")
def check_gradients(model: Model, ids: Tensor) -> GradientCheck:
    """Check the gradient of the final norm's output at a token in the middle of a prompt.

    Args:
        model: a loaded model.
        ids: token ids (token,) of a prompt; the first 64 are read.

    Raises:
        UnsupportedModelError: gradient and finite difference are not the same, or there is no gradient.
    """
    refuse_unfit(model)
    ids = ids[None, :TOKENS].to(model.device)
    at = (ids.shape[1] - 1) // 2
    signs = np.stack([rademacher(0, 0, probe, model.width) for probe in range(PROBES)])
    with refusing_no_gradient(model), gradient_graph(model) as caught:
        # The prompt once per probe in one batch: one backward pass gives all of them.
        model.reading.base(**model.reading.arguments(ids.expand(PROBES, -1), None))
        x, y = caught.embedding[0], caught.states[model.n_states]
        if not y.requires_grad:
            raise no_gradient(model, "an output without a gradient")
        probes = torch.from_numpy(signs).to(device=y.device, dtype=y.dtype)
        rows = torch.autograd.grad(y[:, at], x, probes)[0]
    norms = np.sqrt((gradient_norms(rows) ** 2).sum(axis=0))
    future = float(norms[at + 1 :].max(initial=0.0) / norms.max()) if norms.max() > 0 else 0.0
    off, apart = _difference(model, ids, at, x.detach()[:1], signs, rows)
    if off is not None and not off <= max(TOLERANCE, UNSETTLED * apart):
        got = f"gradients {100 * off:.0f} % off finite differences: a quantised or fused part hides its own"
        raise no_gradient(model, got)
    return GradientCheck(off, future, at)


def refuse_unfit(model: Model) -> None:
    """Refuse weights that are not floating-point numbers, or not finite."""
    if (packed := packed_weight(model.network)) is not None:
        raise no_gradient(model, f"quantised weights ({packed})")
    if model.first_bad_state is not None or model.reading.final_norm_bad:
        got = f"{model.name} with NaN or infinite weights in {model.nonfinite[0].parameter}"
        raise InputError(teach("finite weights, or every influence is NaN", got, "fix the checkpoint"))


def packed_weight(network: nn.Module) -> str | None:
    """Name of a tensor that holds quantised weights; None where there is none.

    transformers' `is_quantized` alone says little: it stays True for a GGUF checkpoint, which it unpacks to float32.
    """
    flagged = bool(getattr(network, "is_quantized", False))
    for name, parameter in network.named_parameters():
        narrow = not parameter.is_floating_point() or parameter.dtype.itemsize == 1  # integers, float8
        own_class = flagged and type(parameter.data) is not Tensor  # which keeps the packed form inside
        if narrow or own_class:
            return name
    for name, buffer in network.named_buffers():  # GPTQ and AWQ
        whole = not buffer.is_floating_point() and buffer.dtype != torch.bool
        if flagged and whole and buffer.ndim == 2:
            return name
    return None


def _difference(
    model: Model, ids: Tensor, at: int, x: Tensor, signs: np.ndarray, rows: Tensor
) -> tuple[float | None, float]:
    """Relative difference of analytic and numeric derivatives along one random shift, of the best step.

    Also returns how far apart the numeric derivatives of two neighbouring steps are, for the best pair.
    """
    steps = STEPS.get(x.dtype, ())
    if not steps:
        return None, 0.0
    size = float(x.double().square().mean().sqrt()) or 1.0
    noise = np.random.default_rng(0).standard_normal(tuple(x.shape))
    shift = torch.from_numpy(noise).to(device=x.device, dtype=x.dtype) * size
    analytic = (rows.double() * shift.double()).sum(dim=(1, 2)).cpu().numpy()
    moves = torch.tensor([sign * step for step in steps for sign in (1, -1)], device=x.device, dtype=x.dtype)
    outputs = _output(model, ids.expand(len(moves), -1), x + moves[:, None, None] * shift)
    ends = outputs[:, at].double().cpu().numpy()
    numeric = [signs @ (ends[2 * i] - ends[2 * i + 1]) / (2 * step) for i, step in enumerate(steps)]
    apart = min(_relative(one, other) for one, other in itertools.pairwise(numeric))
    return min(_relative(estimate, analytic) for estimate in numeric), apart


def _relative(one: np.ndarray, other: np.ndarray) -> float:
    scale = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
    return float(np.linalg.norm(one - other)) / scale if scale > 0 else 0.0


def _output(model: Model, ids: Tensor, x: Tensor) -> Tensor:
    """The final norm's output with other embeddings, by the same kernels as with gradients."""
    with gradient_graph(model, embedding=x) as caught:
        model.reading.base(**model.reading.arguments(ids, None))
    return caught.states[model.n_states].detach()
