"""One call of transformers' delta-rule functions, read into the arguments of `repflow.mixers.scan.forms.delta_scan`.

| function | layers | decay |
|---|---|---|
| `torch_chunk_gated_delta_rule` | qwen3_next, qwen3_5, olmo_hybrid, qwen4_exp | of a head |
| `chunk_kimi_delta_attention` | kimi_linear, bailing_hybrid, glm5_next | of a key |

Those with `recurrent` in place of `chunk` run a single token that follows a cached prompt. transformers' states are
(key, value), ours (value, key); it divides queries by √key, and queries and keys by their lengths where it is asked to.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from repflow.mixers.parts.length import unit_length
from repflow.mixers.scan.forms import Choice, choose_delta, delta_scan
from repflow.mixers.transition import DeltaTransition

UNIT = 1e-6
NEEDED = ("query", "key", "value", "g", "beta", "initial_state", "output_final_state", "use_qk_l2norm_in_kernel")
TENSORS = ("query", "key", "value", "g", "beta")


@dataclass(frozen=True)
class DeltaCall:
    """Arguments of a delta rule, as transformers gives them.

    Attributes:
        q: Queries (batch, token, head, key).
        k: Keys, likewise.
        v: Values (batch, token, head, value).
        beta: Write strengths (batch, token, head).
        log_decay: (batch, token, head), or (batch, token, head, key).
        initial: State before the first token (batch, head, value, key).
        unit: Whether queries and keys are divided by their lengths.
        wants_final: Whether the state after the last token is requested.
        theirs: Runs transformers' own form of the call, in torch operations: (batch, token, head, value).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    log_decay: Tensor
    initial: Tensor | None
    unit: bool
    wants_final: bool
    theirs: Callable[[], Tensor]

    kind = "delta"

    @property
    def x(self) -> Tensor:
        """What is mixed over tokens: the values."""
        return self.v

    def choose(self) -> Choice:
        """Form that `run` would take."""
        return choose_delta(self.q, self.k, self.v, self.beta, self.log_decay)

    def alone(self) -> DeltaCall:
        """The call itself: no skip and no gate is in it."""
        return self

    def run(self) -> tuple[Tensor, Tensor]:
        """Output (batch, token, head, value), and final state in transformers' axes."""
        scaled = self.q * self.q.shape[-1] ** -0.5 if not self.unit else self.q
        y, final = delta_scan(
            scaled, self.k, self.v, self.beta, log_decay=self.log_decay, initial=self.initial, return_final=True,
            unit=UNIT if self.unit else None,
        )  # fmt: skip
        # of unit queries the outputs are scaled: one product less in half precision
        return y * self.q.shape[-1] ** -0.5 if self.unit else y, final.mT.contiguous()

    def answer(self, y: Tensor, final: Tensor) -> Any:
        """What transformers' function gives."""
        return y, final if self.wants_final else None

    def transition(self) -> DeltaTransition:
        """Its recurrence: keys of their lengths, queries scaled."""
        q, k = (unit_length(part, UNIT) if self.unit else part for part in (self.q, self.k))
        decay = self.log_decay.to(torch.promote_types(self.v.dtype, self.log_decay.dtype)).exp()
        scaled = q * q.shape[-1] ** -0.5
        return DeltaTransition(decay if decay.ndim == 4 else decay[..., None], k, self.v, scaled, self.beta)


def read_delta(arguments: dict[str, Any], theirs: Callable[[], Any]) -> DeltaCall:
    """Read the arguments of a call, which are all there; `theirs` makes the call to transformers' torch form."""
    initial = arguments["initial_state"]
    return DeltaCall(
        q=arguments["query"],
        k=arguments["key"],
        v=arguments["value"],
        beta=arguments["beta"],
        log_decay=arguments["g"],
        initial=None if initial is None else initial.mT,
        unit=bool(arguments["use_qk_l2norm_in_kernel"]),
        wants_final=bool(arguments["output_final_state"]),
        theirs=lambda: theirs()[0],
    )


def torch_form(function: Any) -> Any:
    """Transformers' own form behind a function that may have chosen another package's kernel."""
    return inspect.unwrap(function)
