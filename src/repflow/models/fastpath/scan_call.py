"""One call of transformers' scan functions, read into the arguments of `repflow.mixers.scan.forms`.

The delta rule's are in `repflow.models.fastpath.delta_call`.

| function | layers | layout |
|---|---|---|
| `mamba_selective_scan` | mamba, falcon_mamba, jamba, zamba (once per head) | x, dt, gate (batch, channel, token) |
| `mamba2_chunk_scan` | mamba2, bamba, zamba2, nemotron_h, granitemoehybrid, falcon_h1 | x (batch, token, head, dim) |
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from repflow.mixers.scan.forms import Choice, choose, selective_scan, ssd_scan
from repflow.models.fastpath import delta_call
from repflow.models.fastpath.delta_call import DeltaCall

Kind = Literal["s6", "ssd", "delta"]
FUNCTIONS: dict[str, Kind] = {
    "mamba_selective_scan": "s6",
    "mamba2_chunk_scan": "ssd",
    "torch_chunk_gated_delta_rule": "delta",
    "torch_recurrent_gated_delta_rule": "delta",
    "chunk_kimi_delta_attention": "delta",
    "recurrent_kimi_delta_attention": "delta",
}
DEVICES = ("cpu", "cuda")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NEEDED = {
    "s6": ("hidden_states", "dt", "A", "B", "C", "D", "z", "delta_bias", "delta_softplus", "return_last_state"),
    "ssd": ("hidden_states", "dt", "A", "B", "C", "D", "dt_bias", "dt_softplus", "dt_limit", "return_final_states"),
    "delta": delta_call.NEEDED,
}
TENSORS = {"s6": ("hidden_states", "dt", "A", "B", "C"), "delta": delta_call.TENSORS}


class NotReadError(Exception):
    """A call that is left to transformers; the message says why."""


@dataclass(frozen=True)
class ScanCall:
    """Arguments of a scan in the axes of `repflow.mixers.scan.forms`, before the step size's softplus.

    Attributes:
        kind: s6 (Mamba) or ssd (Mamba-2).
        x: Inputs (batch, token, channel), or (batch, token, head, dim).
        raw_delta: Step sizes before bias, softplus and limits.
        A: Decay rates (channel, state), or (head,).
        B: Input map (batch, token, state), or (batch, token, group, state).
        C: Read-out, as B.
        D: Skip.
        gate: What the output is gated with, before silu; s6 only.
        initial: State before the first token; ssd only.
        bias: Bias of the step sizes.
        softplus: Whether the step sizes go through softplus.
        limits: Least and greatest step size.
        wants_final: Whether the state after the last token is requested.
    """

    kind: Literal["s6", "ssd"]
    x: Tensor
    raw_delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    gate: Tensor | None
    initial: Tensor | None
    bias: Tensor | None
    softplus: bool
    limits: tuple[float, float]
    wants_final: bool

    @functools.cached_property
    def delta(self) -> Tensor:
        """Step sizes as the recurrence uses them, in float32 at least."""
        wide = torch.promote_types(self.raw_delta.dtype, torch.float32)
        delta = self.raw_delta.to(wide)
        delta = delta if self.bias is None else delta + self.bias.to(wide)
        delta = softplus(delta) if self.softplus else delta
        return delta if self.limits == (0.0, float("inf")) else delta.clamp(*self.limits)

    def choose(self) -> Choice:
        """Form that `run` would take."""
        return choose(self.kind, self.x, self.raw_delta, self.A, self.B, self.C)

    def alone(self) -> ScanCall:
        """The scan without skip and gate, in which its own part of the output cannot hide."""
        return replace(self, D=None, gate=None)

    def answer(self, y: Tensor, final: Tensor) -> Any:
        """What transformers' function gives."""
        return (y, final) if self.wants_final else y

    def run(self) -> tuple[Tensor, Tensor]:
        """Output and final state, in transformers' axes."""
        if self.choose().path == "triton":
            y, final = self._fused()
        elif self.kind == "ssd":
            parts = (self.x, self.delta, self.A, self.B, self.C)
            y, final = ssd_scan(*parts, D=self.D, initial=self.initial, return_final=True)
        else:
            y, final = selective_scan(self.x, self.delta, self.A, self.B, self.C, D=self.D, return_final=True)
            y = y if self.gate is None else y * silu(self.gate)
        # Layers take views of Mamba-2's.
        return (y.mT, final) if self.kind == "s6" else (y.contiguous(), final.contiguous())

    def _fused(self) -> tuple[Tensor, Tensor]:
        """The Triton kernels take bias, softplus, limits and gate in, which saves their traffic."""
        parts = (self.x, self.raw_delta, self.A, self.B, self.C, self.D, self.initial, True)
        steps: dict[str, Any] = {"delta_bias": self.bias, "delta_softplus": self.softplus}
        if self.kind == "s6":
            from repflow.mixers.triton.s6 import selective_scan_triton

            y, final = selective_scan_triton(*parts, z=self.gate, **steps)
        else:
            from repflow.mixers.triton.ssd import ssd_scan_triton

            y, final = ssd_scan_triton(*parts, limit=self.limits, **steps)
        return y, final


AnyCall = ScanCall | DeltaCall


def read_call(kind: Kind, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> AnyCall:
    """Read a call; raises NotReadError with the reason if it is left to transformers."""
    bound = _signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    rest = arguments.pop("kwargs", {})
    arguments = rest | arguments
    if missing := [name for name in NEEDED[kind] if name not in arguments and name != "z"]:
        raise NotReadError(f"this transformers' {function.__name__} has no argument {missing[0]!r}")
    for name in ("cu_seqlens", "seq_idx", "cu_chunk_seqlens"):
        if arguments.get(name) is not None:
            raise NotReadError(f"packed sequences ({name})")
    _check_tensors(arguments, TENSORS.get(kind, TENSORS["s6"]))
    call: AnyCall
    if kind == "delta":
        call = delta_call.read_delta(arguments, lambda: delta_call.torch_form(function)(*args, **kwargs))
    else:
        call = _read_s6(arguments) if kind == "s6" else _read_ssd(arguments)
    if call.x.shape[1] == 0:
        raise NotReadError("no tokens")
    return call


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _check_tensors(arguments: dict[str, Any], names: tuple[str, ...]) -> None:
    first = arguments[names[0]]
    for name in names:
        part = arguments[name]
        if not isinstance(part, Tensor) or part.dtype not in DTYPES:
            got = str(part.dtype) if isinstance(part, Tensor) else type(part).__name__
            raise NotReadError(f"{name} of dtype {got}, which the fast scans do not take")
        if part.device.type not in DEVICES:
            known = " and ".join(DEVICES)
            raise NotReadError(f"tensors on the device {part.device.type}; the fast scans run on {known}")
        if part.device != first.device:
            raise NotReadError(f"{name} on {part.device}, the input on {first.device}")


def _read_s6(arguments: dict[str, Any]) -> ScanCall:
    x, dt, A, B, C = (arguments[name] for name in ("hidden_states", "dt", "A", "B", "C"))
    if x.ndim != 3 or A.ndim != 2 or B.ndim != 3 or C.ndim != 3:
        shapes = ", ".join(str(tuple(part.shape)) for part in (x, A, B, C))
        raise NotReadError(f"shapes {shapes} of input, A, B and C, not one input map for all channels")
    gate = arguments["z"]
    return ScanCall(
        kind="s6",
        x=x.mT,
        raw_delta=dt.mT,
        A=A,
        B=B.mT,
        C=C.mT,
        D=arguments["D"],
        gate=None if gate is None else gate.mT,
        initial=None,
        bias=arguments["delta_bias"],
        softplus=bool(arguments["delta_softplus"]),
        limits=(0.0, float("inf")),
        wants_final=bool(arguments["return_last_state"]),
    )


def _read_ssd(arguments: dict[str, Any]) -> ScanCall:
    x, dt, A, B, C = (arguments[name] for name in ("hidden_states", "dt", "A", "B", "C"))
    if arguments.get("z") is not None:
        raise NotReadError("a gate inside the scan of Mamba-2")
    if x.ndim != 4 or A.ndim != 1 or B.ndim != 4 or C.ndim != 4:
        shapes = ", ".join(str(tuple(part.shape)) for part in (x, A, B, C))
        raise NotReadError(f"shapes {shapes} of input, A, B and C, not one decay per head")
    low, high = arguments["dt_limit"]
    return ScanCall(
        kind="ssd",
        x=x,
        raw_delta=dt,
        A=A,
        B=B,
        C=C,
        D=arguments["D"],
        gate=None,
        initial=arguments.get("initial_states"),
        bias=arguments["dt_bias"],
        softplus=bool(arguments["dt_softplus"]),
        limits=(float(low), float(high)),
        wants_final=bool(arguments["return_final_states"]),
    )
