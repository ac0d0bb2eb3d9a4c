"""What the recurrent layers of a model compute inside, handed out while it runs and not kept.

Nothing of size tokens · channels · states exists unless it is asked for, and then one run of tokens at a time; but for
the transition of repflow's own mixers, which is made whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from repflow.errors import InputError, teach
from repflow.mixers.base import Mixer, Transition
from repflow.mixers.chunked import four_axes, joint_shape
from repflow.models.fastpath import MARK, LayerScan
from repflow.models.scan_call import ScanCall

if TYPE_CHECKING:
    from repflow.models.pretrained import Model

WHOLE = slice(None)
# Elements of the states that exist at once.
BUFFER = 2**22


@dataclass(frozen=True)
class SsmQuantities:
    """The recurrence of one layer on one batch.

        h_t = A_t h_{t−1} + Δ_t b_t        y_t = Σ_state c_t h_t

    Attributes:
        layer: Index of the block.
        part: Number of the scan within the layer: zamba has one per head, all others one.
        kind: s6, ssd, or own for a mixer of repflow.
        tokens: Tokens of the batch, padding included.
        call: Arguments of the scan as the layer gave them (x, delta, A, B, C, D); None for a mixer of repflow.
    """

    layer: int
    part: int
    kind: str
    tokens: int
    call: ScanCall | None
    _transition: Callable[[slice], Transition]
    _initial: Tensor | None = None

    def transition(self, tokens: slice = WHOLE) -> Transition:
        """A_t, b_t, c_t and Δ_t of some tokens, each broadcastable to (batch, token, channel, state).

        In Mamba-2 the channels are head · dim.
        """
        return self._transition(tokens)

    def decay(self, tokens: slice = WHOLE) -> Tensor:
        """A_t = exp(Δ_t A) of some tokens: (batch, token, channel, state), or (batch, token, head, 1) in Mamba-2."""
        if self.call is None:
            return four_axes(self.transition(tokens))[0]
        return _decay(self.call, tokens)

    def states(self, chunk: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Run over the tokens and give h (batch, token, channel, state), a few tokens at a time.

        Args:
            chunk: Tokens at a time; by default as many as 16 MiB of float32 hold.
        """
        h, first = self._initial, 0
        while first < self.tokens:
            here = slice(first, first + 1)
            if chunk is None:
                chunk = max(1, BUFFER // _product(four_axes(self.transition(here))).numel())
            here = slice(first, min(first + chunk, self.tokens))
            decay, b, _, delta = four_axes(self.transition(here))
            entry = delta * b
            shape = joint_shape(decay, entry)
            decay, entry = decay.expand(shape), entry.expand(shape)
            found = []
            for token in range(here.stop - here.start):
                h = entry[:, token] if h is None else decay[:, token] * h + entry[:, token]
                found.append(h)
            yield here, torch.stack(found, dim=1)
            first = here.stop

    def output(self) -> Tensor:
        """Y (batch, token, channel): what the states alone give, without skip, gate and projections."""
        pieces = []
        for here, h in self.states():
            y = (four_axes(self.transition(here))[2] * h).sum(-1)
            pieces.append(y.real if y.is_complex() else y)
        return torch.cat(pieces, dim=1)


OnLayer = Callable[[int, SsmQuantities], object]


@contextmanager
def ssm_quantities(model: Model, on_layer: OnLayer) -> Iterator[None]:
    """Hand out the quantities of every recurrent layer during the forward passes inside the block.

    Transformers' Mamba and Mamba-2 layers, those of hybrids, and repflow's own mixers. The tensors are the ones of the
    pass itself: take from them what is needed, and let go of them.

    Args:
        model: A loaded model.
        on_layer: Called with the block's index and its quantities, before the layer's scan runs.

    Raises:
        InputError: The model has no such layer.
    """
    if not model.scans.layers:
        kinds = ", ".join(sorted(set(model.layer_kinds)))
        raise InputError(
            teach("a model with state-space layers", f"{model.name}, whose layers are {kinds}", "choose another model")
        )

    def watch(layer: LayerScan, call: ScanCall) -> None:
        on_layer(layer.layer, of_call(layer, call))

    with ExitStack() as stack:
        for layer in model.scans.layers:
            if layer.kind != "own":
                layer.watchers.append(watch)
                stack.callback(layer.watchers.remove, watch)
        for block in model.blocks:
            for module in block.modules():
                if isinstance(module, Mixer) and module.recurrent:
                    stack.callback(module.register_forward_pre_hook(_of_own(on_layer)).remove)
        yield


def of_call(layer: LayerScan, call: ScanCall) -> SsmQuantities:
    """Quantities of one scan of a transformers layer."""
    initial = None if call.initial is None else call.initial.flatten(1, 2)
    return SsmQuantities(
        layer=layer.layer,
        part=layer.calls,
        kind=call.kind,
        tokens=call.x.shape[1],
        call=call,
        _transition=lambda tokens: _transition(call, tokens),
        _initial=initial,
    )


def _of_own(on_layer: OnLayer) -> Callable[[nn.Module, tuple], None]:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(module, Mixer)
        # made when first asked for, and then whole: a token's part may depend on those before it
        whole = functools.cache(lambda: four_axes(module.transition(args[0])))

        def part(wanted: slice) -> Transition:
            return Transition(*(entry[:, wanted] if entry.shape[1] > 1 else entry for entry in whole()))

        layer = getattr(module, MARK).layer
        on_layer(layer, SsmQuantities(layer, 0, "own", args[0].shape[1], None, part))

    return hook


def _decay(call: ScanCall, tokens: slice) -> Tensor:
    delta = call.delta[:, tokens]
    wide = torch.promote_types(delta.dtype, call.A.dtype)
    delta, rate = delta.to(wide), call.A.to(wide)
    return torch.exp(delta[..., None] * (rate if call.kind == "s6" else rate[:, None]))


def _transition(call: ScanCall, tokens: slice) -> Transition:
    """Parts in one dtype, float32 at least: half-precision products would not be what the scan computes."""
    decay, delta = _decay(call, tokens), call.delta[:, tokens]
    x, B, C = (part[:, tokens].to(decay.dtype) for part in (call.x, call.B, call.C))
    if call.kind == "s6":
        return Transition(decay, x[..., None] * B[:, :, None], C[:, :, None], delta[..., None])
    heads, dim = x.shape[2:]
    B, C = (part.repeat_interleave(heads // part.shape[2], dim=2) for part in (B, C))
    b = (x[..., None] * B[..., None, :]).flatten(2, 3)
    decay, delta, c = (part.repeat_interleave(dim, dim=2) for part in (decay, delta[..., None], C))
    return Transition(decay, b, c, delta)


def _product(parts: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    decay, b, _, delta = parts
    return delta * b * decay
