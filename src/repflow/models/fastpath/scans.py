"""Fast scans inside transformers' Mamba, Mamba-2, delta-rule layers and the hybrids that share their scan functions.

transformers runs its own slow forms where mamba_ssm is not installed. Here the scan functions of its modeling files get
a dispatcher in front of them: it answers the calls of layers that a loaded Model has switched over, by
`repflow.mixers.scan.forms`, and passes all others on. So two models with different settings live side by side, and
caches, masks and everything around the scan stay transformers'.

| setting | meaning |
|---|---|
| auto | the fastest form that can run: mamba_ssm's kernel on a GPU where it is installed, else repflow's |
| fast | repflow's, also where mamba_ssm is installed |
| reference | transformers' own; the sequential form in repflow's own mixers |

The delta rule is repflow's under auto as well: flash-linear-attention, which transformers takes wherever it is
installed, cannot run on every machine (on no CPU, for one). Under reference it runs on a GPU if it can.

A call that repflow's forms cannot take (packed sequences, an unknown dtype, device or shape) runs transformers' own
form, and `Scans.facts` says why. At load each layer's scan is compared with transformers' on the self-check's tokens.
On a GPU without gradients whole layers run on the Triton kernels (`repflow.models.fastpath.layers`), and are
compared with transformers' in the same way.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from repflow.core.results import Finding
from repflow.mixers.base import Mixer
from repflow.mixers.scan.preference import Preference, pop, push
from repflow.models.fastpath import layers as fastpath_layers
from repflow.models.fastpath.layer_scan import LayerScan
from repflow.models.fastpath.scan_call import FUNCTIONS, Kind
from repflow.spec.request import check_scan

MARK = "_repflow_scan"


@dataclass
class Scans:
    """The scans of one network; every Model of a live one has a copy of its modules, and so settings of its own.

    Attributes:
        given: Setting it was made with.
        layers: One entry per layer with a scan, in order.
        at_load: Facts of the check at load. A run's provenance holds these: what later passes run is the same unless a
            `slow_scan` finding says otherwise, and a run resumed after its last pass must still say it.
    """

    given: str
    layers: list[LayerScan]
    at_load: dict[str, Any] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        """What runs now, auto, fast or reference: the last one given to the network."""
        return self.layers[0].setting if self.layers else self.given

    def facts(self) -> dict[str, Any]:
        """Setting, and per kind of layer the forms that ran with their reasons."""
        kinds: dict[str, Any] = {}
        for layer in self.layers:
            entry = kinds.setdefault(layer.kind, {"layers": 0, "ran": []})
            entry["layers"] += 1
            entry["ran"] += [pair for pair in layer.ran if pair not in entry["ran"]]
        for entry in kinds.values():
            entry["ran"] = [{"path": path, "reason": reason} for path, reason in sorted(entry["ran"])]
        return {"asked": self.setting, **kinds}

    def findings(self) -> list[Finding]:
        """Fast forms that were requested and could not run."""
        if self.setting == "reference":
            return []
        slow: dict[tuple[str, str], list[LayerScan]] = {}
        for layer in self.layers:
            for path, reason in layer.ran:
                if path == "transformers" or reason.startswith("no Triton kernel"):
                    slow.setdefault((path, reason), []).append(layer)
        return [
            Finding(
                "slow_scan",
                scans[0].layer,
                f"{len(scans)} layers, the first of them block {scans[0].layer + 1}, ran the {path} scan: {reason}",
            )
            for (path, reason), scans in sorted(slow.items())
        ]

    def checked(self) -> None:
        """Keep the record of the check at load apart, and begin an empty one."""
        self.at_load = self.facts()
        self.forget()

    def forget(self) -> None:
        """Empty the record of what ran."""
        for layer in self.layers:
            layer.ran.clear()

    @contextmanager
    def verifying(self) -> Iterator[None]:
        """Compare the first scan of each layer with transformers' own form."""
        for layer in self.layers:
            layer.verifying = layer.setting != "reference"
        try:
            yield
        finally:
            for layer in self.layers:
                layer.verifying = False


def install(network: nn.Module, blocks: Sequence[nn.Module], setting: str = "auto") -> Scans:
    """Switch the scans of a network; may be called again with another setting.

    Args:
        network: A transformers model, or a stack of repflow's mixers.
        blocks: Its residual blocks.
        setting: auto, fast or reference.
    """
    check_scan(setting)
    layers: list[tuple[nn.Module, LayerScan]] = []
    for index, block in enumerate(blocks):
        for module in block.modules():
            part, whole = _scan_kind(module), fastpath_layers.kind_of(module)
            kind = part or whole
            if kind is None or any(other is module for other, _ in layers):
                continue
            if MARK not in module.__dict__:
                module.register_forward_pre_hook(_enter)
                module.register_forward_hook(_leave, always_call=True)
                object.__setattr__(module, MARK, LayerScan(kind, index, setting, readable=part is not None))
            scan: LayerScan = getattr(module, MARK)  # of an earlier Model of this network too, whose record it stays
            scan.layer, scan.setting, scan.refused = index, setting, None
            scan.ran.clear()
            layers.append((module, scan))
            if whole is not None:
                norms = (getattr(block, "norm", None), getattr(_innermost(network), "norm_f", None))
                fastpath_layers.switch(module, scan, [norm for norm in norms if isinstance(norm, nn.Module)])
    return Scans(setting, [scan for _, scan in layers])


def _innermost(network: nn.Module) -> nn.Module:
    """The model without its head."""
    base = getattr(network, "base_model", network)
    return base if isinstance(base, nn.Module) else network


def _scan_kind(module: nn.Module) -> str | None:
    """Kind of scan that a module itself runs; the dispatcher is put in front of a function found on the way."""
    if isinstance(module, Mixer):
        return "own" if module.recurrent and not module.reordered else None
    for home in (sys.modules.get(cls.__module__) for cls in type(module).__mro__):  # a subclass may stand elsewhere
        kinds = {kind for name, kind in FUNCTIONS.items() if hasattr(home, name) and _runs(module, kind)}
        for name, kind in FUNCTIONS.items():
            function = getattr(home, name, None) if kind in kinds else None
            if function is not None and not hasattr(function, MARK):
                setattr(home, name, _dispatcher(kind, function))
        if kinds:
            return kinds.pop()
    return None


def _runs(module: nn.Module, kind: Kind) -> bool:
    """Whether a module runs the scan of its file itself; a part of it may have the decay's parameters."""
    own = hasattr(module, "A_log")
    if kind == "delta":
        return isinstance(getattr(module, "conv1d", None), nn.Conv1d) and (own or hasattr(module, "forget_gate"))
    return own


class _Running(threading.local):
    def __init__(self) -> None:
        self.stack: list[LayerScan] = []


_running = _Running()


def _dispatcher(kind: Kind, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scan(*args: Any, **kwargs: Any) -> Any:
        if not _running.stack:
            return original(*args, **kwargs)
        return _running.stack[-1].answer(kind, original, args, kwargs)

    setattr(scan, MARK, original)
    return scan


def _enter(module: nn.Module, _: Any) -> None:
    layer: LayerScan = getattr(module, MARK)
    layer.calls = 0
    _running.stack.append(layer)
    if layer.kind == "own":
        push(Preference("reference" if layer.setting == "reference" else "auto", layer.note))


def _leave(module: nn.Module, _: Any, __: Any) -> None:
    _running.stack.pop()
    if getattr(module, MARK).kind == "own":
        pop()
