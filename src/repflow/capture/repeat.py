"""Whether a forward pass gives the same states twice: dropout left on, noisy routers and sums in changing order do not.

The beginning of one prompt is read twice more: at most one in a hundred of the run's tokens each time, since a model
that is not deterministic usually shows it at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repflow.models import Model
from repflow.results import Finding
from repflow.tasks import Prompts

SHARE = 100
LEAST_TOKENS = 8
MOST_TOKENS = {"cpu": 64, "cuda": 256}
"""Sums in changing order are a matter of GPUs, where more tokens cost little and show more."""

ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Differences below this are a last bit or two and what later blocks make of them: sums on a GPU may change so much."""


def repeat_findings(model: Model, prompts: Prompts, kind: str = "residual") -> list[Finding]:
    """Read the beginning of the first prompt twice; a finding where its states differ by more than rounding."""
    most = MOST_TOKENS.get(model.device.type, MOST_TOKENS["cpu"])
    tokens = min(most, max(LEAST_TOKENS, sum(prompts.lengths) // SHARE), prompts.lengths[0])
    apart = differences(model, torch.tensor([prompts[0].ids[:tokens]]), kind)
    differing = [state for state, (gap, dtype) in enumerate(apart) if gap > ROUNDING[dtype]]
    if not differing:
        return []
    first, most_apart = differing[0], max(gap for gap, _ in apart)
    text = (
        f"two passes over the same {tokens} tokens differ by up to {most_apart:.1e} of the largest value, first at "
        f"state {first}: the model is not deterministic (dropout or noise left on, a router that samples, sums in "
        "changing order), and another run gives other numbers"
    )
    return [Finding("not_deterministic", first, text)]


def differences(model: Model, ids: Tensor, kind: str) -> list[tuple[float, torch.dtype]]:
    """Per state, the largest difference between two passes by the largest value, and its dtype."""
    kept: list[Tensor] = []
    found: list[tuple[float, torch.dtype]] = []

    def keep(_: int, hidden: Tensor) -> None:
        kept.append(hidden.clone())

    def compare(state: int, hidden: Tensor) -> None:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        before, now = (value.to(wide).nan_to_num(0, 0, 0) for value in (kept[state], hidden))
        gap = (now - before).abs().max() / before.abs().max().clamp_min(1e-30)
        found.append((float(gap), hidden.dtype))

    model.stream(ids, kind=kind, on_state=keep)
    model.stream(ids, kind=kind, on_state=compare)
    return found
