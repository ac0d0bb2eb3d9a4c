"""What the recurrent layers of a model compute inside, handed out while it runs and not kept.

Nothing of size tokens · channels · states exists unless it is requested, and then one run of tokens at a time; except
for the transition of a mixer that is not repflow's, which is made whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from repflow.core.errors import InputError, teach
from repflow.mixers.base import Mixer
from repflow.mixers.transition import AnyTransition
from repflow.models.fastpath.delta_call import DeltaCall
from repflow.models.fastpath.layer_scan import LayerScan
from repflow.models.fastpath.scan_call import AnyCall, ScanCall
from repflow.models.fastpath.scans import MARK
from repflow.models.recurrence.delta import DeltaRecurrence
from repflow.models.recurrence.layer import WHOLE, Recurrence, ScanRecurrence
from repflow.models.recurrence.own import mixer_recurrence
from repflow.models.recurrence.readers import READ, module_recurrence

if TYPE_CHECKING:
    from repflow.models.pretrained import Model


@dataclass(frozen=True)
class SsmQuantities:
    """The recurrence of one layer on one batch.

        h_t = A_t h_{t−1} + Δ_t b_t        y_t = Σ_state c_t h_t

    Attributes:
        layer: Index of the block.
        part: Number of the scan within the layer: zamba has one per head, all others one.
        kind: s6 (Mamba), ssd (Mamba-2), delta (the delta rule), rwkv, rg_lru (Griffin), lightning, or own for a mixer
            of repflow.
        tokens: Tokens of the batch, padding included.
        call: Arguments of the scan as the layer gave them (x, delta, A, B, C, D); None for all but s6 and ssd.
        family: Family of a mixer of repflow; None for a layer of transformers.
    """

    layer: int
    part: int
    kind: str
    tokens: int
    call: ScanCall | None
    _recurrence: Callable[[], Recurrence]
    _initial: Tensor | None = None
    family: str | None = None

    @property
    def recurrence(self) -> Recurrence:
        """The whole recurrence, by unit; made when first used (`repflow.models.recurrence.layer`)."""
        return self._recurrence()

    def transition(self, tokens: slice = WHOLE) -> AnyTransition:
        """A_t, b_t, c_t and Δ_t of some tokens, each broadcastable to (batch, token, channel, state).

        In Mamba-2 the channels are head · dim. The delta rule's is a `DeltaTransition`.
        """
        return self.recurrence.transition(tokens)

    def decay(self, tokens: slice = WHOLE) -> Tensor:
        """|A_t| of some tokens: (batch, token, unit, state), a unit being a channel, or a head where it has one decay.

        Axes of one entry stand for all: (batch, token, head, 1) in Mamba-2. At the first token A multiplies nothing;
        RWKV and Griffin have 0 there. The delta rule has further factors beside this one.
        """
        return self.recurrence.log_decay(tokens).exp()

    def states(self, chunk: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Run over the tokens and give h (batch, token, channel, state), a few tokens at a time.

        Args:
            chunk: Tokens at a time; by default as many as 16 MiB of float32 hold.
        """
        yield from self.recurrence.states(chunk, self._initial)

    def output(self) -> Tensor:
        """Y (batch, token, channel): what the states alone give, without skip, gate and projections.

        In RWKV-4, whose states have no output apart from it, the current token's bonus is in.
        """
        return self.recurrence.output(self._initial)


OnLayer = Callable[[int, SsmQuantities], object]


@contextmanager
def ssm_quantities(model: Model, on_layer: OnLayer) -> Iterator[None]:
    """Hand out the quantities of every recurrent layer during the forward passes inside the block.

    Transformers' Mamba, Mamba-2 and delta-rule layers, those of hybrids, RWKV, RecurrentGemma, lightning attention, and
    repflow's own mixers. The tensors are the ones of the pass itself: take from them what is needed, and let them go.

    Args:
        model: A loaded model.
        on_layer: Called with the block's index and its quantities, before the layer's scan runs.

    Raises:
        InputError: The model has no such layer.
    """
    if not recurrent_layers(model):
        kinds = ", ".join(sorted(set(model.layer_kinds)))
        raise InputError(
            teach("a model with state-space layers", f"{model.name}, whose layers are {kinds}", "choose another model")
        )

    def watch(layer: LayerScan, call: AnyCall) -> None:
        on_layer(layer.layer, of_call(layer, call))

    with ExitStack() as stack:
        for layer in model.scans.layers:
            if layer.kind != "own":
                layer.watchers.append(watch)
                stack.callback(layer.watchers.remove, watch)
        for index, block in enumerate(model.blocks):
            for module in block.modules():
                if isinstance(module, Mixer) and module.recurrent and not module.reordered:
                    stack.callback(module.register_forward_pre_hook(_of_own(on_layer)).remove)
                elif type(module).__name__ in READ:
                    hook = _of_module(index, on_layer)
                    stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


def recurrent_layers(model: Model) -> dict[int, str]:
    """Blocks whose recurrence can be read, and its kind: s6, ssd, delta, rwkv, rg_lru, lightning or own."""
    kinds = {layer.layer: layer.kind for layer in model.scans.layers}
    for index, block in enumerate(model.blocks):
        for module in block.modules():
            if (kind := READ.get(type(module).__name__)) is not None:
                kinds[index] = kind
    return dict(sorted(kinds.items()))


def of_call(layer: LayerScan, call: AnyCall) -> SsmQuantities:
    """Quantities of one scan of a transformers layer."""
    initial = None if call.initial is None else call.initial.flatten(1, 2)
    if isinstance(call, DeltaCall):
        theirs = call.theirs
        delta = functools.cache(lambda: DeltaRecurrence(call.transition(), layer=lambda: theirs().flatten(2)))
        return SsmQuantities(layer.layer, layer.calls, "delta", call.v.shape[1], None, delta, initial)
    recurrence = functools.cache(lambda: ScanRecurrence(call))
    return SsmQuantities(layer.layer, layer.calls, call.kind, call.x.shape[1], call, recurrence, initial)


def _of_own(on_layer: OnLayer) -> Callable[[nn.Module, tuple], None]:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(module, Mixer)
        # made when first used
        recurrence = functools.cache(lambda: mixer_recurrence(module, args[0]))
        layer = getattr(module, MARK).layer
        on_layer(layer, SsmQuantities(layer, 0, "own", args[0].shape[1], None, recurrence, None, module.family))

    return hook


def _of_module(layer: int, on_layer: OnLayer) -> Callable[[nn.Module, tuple, dict[str, Any]], None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recurrence = functools.cache(lambda: module_recurrence(module, args, kwargs))
        tokens = (args[0] if args else next(iter(kwargs.values()))).shape[1]
        on_layer(layer, SsmQuantities(layer, 0, READ[type(module).__name__], tokens, None, recurrence))

    return hook
