"""Whether a forward pass gives the same states twice: dropout left on, noisy routers and sums in changing order do not.

The beginning of one prompt is read twice more: at most one in a hundred of the run's tokens each time, since a model
that is not deterministic usually shows it at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from repflow.core.results import Finding
from repflow.models import Model
from repflow.models.identity.live import network_state, weight_versions
from repflow.tasks import Prompts

SHARE = 100
LEAST_TOKENS = 8
MOST_TOKENS = {"cpu": 64, "cuda": 256}
"""Sums in changing order are a matter of GPUs, where more tokens cost little and show more."""

ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Differences below this are a last bit or two and what later blocks make of them: sums on a GPU may change so much."""


_known: WeakKeyDictionary[nn.Module, tuple[Any, list[Finding]]] = WeakKeyDictionary()
"""Networks that were read twice before, in the state they were in, and what was found."""


@dataclass
class RepeatCheck:
    """The beginning of the first prompt, read twice.

    Attributes:
        model: that reads.
        prompts: of the run.
        kind: of state.
    """

    model: Model
    prompts: Prompts
    kind: str = "residual"
    _gaps: list[tuple[Tensor, torch.dtype]] = field(default_factory=list)

    def _state(self) -> Any:
        if weight_versions(self.model.network) is None:
            return None
        return network_state(self.model.network), self.kind, self._tokens()

    def _tokens(self) -> int:
        most = MOST_TOKENS.get(self.model.device.type, MOST_TOKENS["cpu"])
        return min(most, max(LEAST_TOKENS, sum(self.prompts.lengths) // SHARE), self.prompts.lengths[0])

    def start(self) -> None:
        """Launch both passes, but for an unchanged model; on a GPU they queue behind what it is still computing."""
        state = self._state()
        if state is None or _known.get(self.model.network, (None, []))[0] != state:
            self._gaps = differences(self.model, torch.tensor([self.prompts[0].ids[: self._tokens()]]), self.kind)

    def findings(self) -> list[Finding]:
        """A finding where the states differ by more than rounding."""
        if not self._gaps:
            return list(_known.get(self.model.network, (None, []))[1])
        apart = torch.stack([gap.double().cpu() for gap, _ in self._gaps]).tolist()
        own = self._judge(apart)
        if (state := self._state()) is not None:
            _known[self.model.network] = state, own
        return list(own)

    def _judge(self, apart: list[float]) -> list[Finding]:
        limits = [ROUNDING[dtype] for _, dtype in self._gaps]
        differing = [state for state, (gap, limit) in enumerate(zip(apart, limits, strict=True)) if gap > limit]
        if not differing:
            return []
        text = (
            f"two passes over the same {self._tokens()} tokens differ by up to {max(apart):.1e} of the largest value, "
            f"first at state {differing[0]}: the model is not deterministic (dropout or noise left on, a router that "
            "samples, sums in changing order), and another run gives other numbers"
        )
        return [Finding("not_deterministic", differing[0], text)]


def differences(model: Model, ids: Tensor, kind: str) -> list[tuple[Tensor, torch.dtype]]:
    """Per state, the largest difference between two passes by the largest value, and the state's dtype."""
    states: list[Tensor] = []
    changes: list[tuple[Tensor, torch.dtype]] = []

    def keep(_: int, hidden: Tensor) -> None:
        states.append(hidden.clone())

    def compare(state: int, hidden: Tensor) -> None:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        before, now = (value.to(wide).nan_to_num(0, 0, 0) for value in (states[state], hidden))
        changes.append(((now - before).abs().max() / before.abs().max().clamp_min(1e-30), hidden.dtype))

    model.stream(ids, kind=kind, on_state=keep)
    model.stream(ids, kind=kind, on_state=compare)
    return changes
