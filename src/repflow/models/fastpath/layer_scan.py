"""The scan of one layer inside a transformers model: its setting, what ran, and which form answers a call."""

from __future__ import annotations

import functools
import importlib.util
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.scan.preference import prefer
from repflow.models.fastpath.delta_call import torch_form
from repflow.models.fastpath.scan_call import AnyCall, Kind, NotReadError, read_call

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Largest difference from transformers' scan, by the largest output; in float64 it computes in float32 inside."""

OnCall = Callable[["LayerScan", AnyCall], object]


@dataclass
class LayerScan:
    """Setting and record of one layer's scan.

    Attributes:
        kind: s6, ssd, delta, or own for a mixer of repflow.
        layer: Index of the block it is in.
        setting: auto, fast or reference.
        ran: How often each form ran, with its reason.
        verifying: Compare the next call with transformers' own form.
        refused: Why the fast form is not used although it could run.
        watchers: Called with every scan before it runs.
        calls: Scans of the current forward pass; zamba has one per head.
        readable: Whether transformers calls a function for the scan, which can be replaced and watched.
        whole: Why the layer does not run on the Triton kernels as a whole; None where it can.
    """

    kind: str
    layer: int
    setting: str
    ran: Counter[tuple[str, str]] = field(default_factory=Counter)
    verifying: bool = False
    refused: str | None = None
    watchers: list[OnCall] = field(default_factory=list)
    calls: int = 0
    readable: bool = True
    whole: str | None = "its class is not one that the kernels know"

    def note(self, path: str, reason: str) -> None:
        """Count a form that ran."""
        self.ran[path, reason] += 1

    def answer(self, kind: Kind, original: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run one scan, by the form that the setting asks for and the tensors allow."""
        reason, call = self.refused or left_alone(self.setting, args, kind), None
        if reason is None or self.watchers:
            try:
                call = read_call(kind, original, args, kwargs)
            except NotReadError as error:
                reason = reason or str(error)
        self._show(call, reason)
        if call is not None and reason is None and self.verifying:
            reason = self._verify(call, original, args, kwargs)
        if call is not None and reason is None:
            try:
                return self._fast(call)
            except NotReadError as error:
                reason = str(error)
            except InputError as error:  # shapes that do not fit together: transformers may know better
                reason = str(error)
        if kind == "delta":
            return self._delta_of_transformers(original, args, kwargs, reason or "")
        self.note("mamba_ssm" if _kernel_installed() and _on_gpu(args) else "transformers", reason or "")
        return original(*args, **kwargs)

    def _delta_of_transformers(
        self, original: Callable[..., Any], args: tuple, kwargs: dict[str, Any], reason: str
    ) -> Any:
        """Transformers' own delta rule: the kernel of another package that it chose, or its torch form."""
        if _on_gpu(args) and importlib.util.find_spec("fla") is not None:
            try:
                output = original(*args, **kwargs)
                self.note("flash-linear-attention", reason)
                return output
            except Exception as error:  # noqa: BLE001  whatever another package's kernels raise where they cannot run
                first = str(error).strip().splitlines()
                reason = f"{reason}; flash-linear-attention failed: {first[0] if first else type(error).__name__}"
        self.note("transformers", reason)
        return torch_form(original)(*args, **kwargs)

    def _show(self, call: AnyCall | None, reason: str | None) -> None:
        if call is None and self.watchers:
            expected = f"a scan in block {self.layer + 1} whose quantities can be read"
            raise InputError(teach(expected, str(reason), "run the model on plain right-padded batches"))
        for watch in self.watchers:
            watch(self, call)  # type: ignore[arg-type]
        self.calls += 1

    def _fast(self, call: AnyCall) -> Any:
        chosen = call.choose()
        # transformers' own form differentiates in every mode; ours would be a sequential one too
        if chosen.path == "reference":
            raise NotReadError(chosen.reason)
        with prefer(chosen.path):
            y, final = call.run()
        self.note(*chosen)
        return call.answer(y, final)

    def _verify(self, call: AnyCall, original: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> str | None:
        """Why the fast form must not be used here; None if it agrees with transformers' on the scan's own output."""
        self.verifying = False
        try:
            ours = call.alone().run()[0]
        except RuntimeError as error:  # a kernel that does not compile or launch on this machine
            self.refused = f"the fast scan failed on this machine: {str(error).strip().splitlines()[0]}"
            return self.refused
        # Theirs in float32 at least: in half precision it rounds step sizes and states.
        bare = {name: None if name in ("D", "z") else _widened(value) for name, value in kwargs.items()}
        theirs = (torch_form(original) if call.kind == "delta" else original)(*map(_widened, args), **bare)
        off = relative(ours, theirs[0] if isinstance(theirs, tuple) else theirs)
        if not off <= TOLERANCE[call.x.dtype]:
            self.refused = f"the fast scan differs from transformers' by {off:.1e} of the largest output"
        return self.refused


def left_alone(setting: str, args: tuple, kind: str | None = None) -> str | None:
    """Why a scan is left to transformers whatever its tensors; None if it is not.

    flash-linear-attention's delta rule never comes first: where it is installed its kernels need not run.
    """
    if setting == "reference":
        return "asked for"
    if setting == "auto" and kind != "delta" and _kernel_installed() and _on_gpu(args):
        return "mamba_ssm is installed"
    return None


@functools.cache
def _kernel_installed() -> bool:
    return importlib.util.find_spec("mamba_ssm") is not None


def _on_gpu(args: tuple) -> bool:
    return bool(args) and isinstance(args[0], Tensor) and args[0].is_cuda


def _widened(value: Any) -> Any:
    """A half-precision tensor in float32, all else as it is."""
    half = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if half else value


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference by the largest entry; entries that are not finite must be so in both."""
    ours, theirs = ours.double(), theirs.double()
    if ours.shape != theirs.shape or not torch.equal(ours.isfinite(), theirs.isfinite()):
        return float("inf")
    scale = float(theirs.nan_to_num(0, 0, 0).abs().max())
    gap = float((ours - theirs).nan_to_num(0, 0, 0).abs().max())
    return 0.0 if gap == 0 else gap / scale if scale else float("inf")
