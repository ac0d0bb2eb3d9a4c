"""What blocks add: which modules' outputs sum to it, measured where names alone do not say it.

Names propose the sublayers (`repflow.models.anatomy.find_sublayers`). Where their outputs do not sum to what the block
adds, the calls inside it are looked at: a norm may stand behind a sublayer, a sublayer may add to the stream itself,
a factor may stand before the sum. What is found holds for every block, to the tolerance of the self-check, or is not
used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from repflow.models.anatomy import Sublayer
from repflow.models.reading import Reading, hidden_of
from repflow.models.trace import Call, Trace, close, copy, record_calls

Parts = list[list[Sublayer]]
Choice = Callable[[Reading, int, Sublayer, Sequence[Call]], nn.Module]


def settle_additions(reading: Reading, trace: Trace, ids: Tensor, tolerance: float) -> None:
    """Complete a reading's sublayers, or say why they cannot be read."""
    if reading.streams is not None:
        reading.sublayer_problem = stream_words(reading)
        reading.ablation_problem = _unmixed(reading, ids, tolerance)
        return
    problem = _problem(reading, trace.inputs, trace.outputs, trace.added, tolerance)
    if problem is not None and all(reading.parts):
        calls = record_calls(reading, ids)
        for choice in (_itself, _followed, _projected):
            parts = [
                [replace(part, module=choice(reading, index, part, calls[index])) for part in some]
                for index, some in enumerate(reading.parts)
            ]
            if (fitted := _fitted(reading, trace, parts, calls, tolerance)) is not None:
                reading.parts, problem = fitted, None
                break
    reading.sublayer_problem = reading.ablation_problem = problem


def stream_words(reading: Reading) -> str:
    """Why the parts of a block with several streams are not states."""
    assert reading.streams is not None
    return (
        f"self-check 'sublayers' failed: the blocks have {reading.streams.count} residual streams, and write what a "
        "sublayer gives into each with weights of its own; ask for kind='residual' (their mixture) or 'stream:1'"
    )


def _problem(
    reading: Reading,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    added: dict[int, list[Tensor]],
    tolerance: float,
) -> str | None:
    """Sublayers are trusted when they sum up to what their block adds."""
    for index, (before, after) in enumerate(zip(inputs, outputs, strict=True)):
        if hasattr(reading.blocks[index], "pre_ln"):  # RWKV's first block norms the stream itself before adding to it
            continue
        some = added.get(index, [])
        # the sum is compared within the stream: there the rounding of the block's own additions is the same
        if not some or not _sums(some, before, after, tolerance):
            return (
                f"self-check 'sublayers' failed: expected the known sublayers of block {index + 1} "
                f"({type(reading.blocks[index]).__name__}) to sum to what it adds; got another sum; "
                "read whole blocks (states branch), take out whole blocks (block:K)"
            )
    return None


def _sums(added: Sequence[Tensor], before: Tensor, after: Tensor, tolerance: float) -> bool:
    if any(part.numel() != after.numel() for part in added):
        return False
    total = sum((part.reshape(after.shape) for part in added), start=torch.zeros_like(after))
    return close(before + total, after, tolerance)


def _itself(_: Reading, __: int, part: Sublayer, ___: Sequence[Call]) -> nn.Module:
    return part.module


def _followed(reading: Reading, index: int, part: Sublayer, calls: Sequence[Call]) -> nn.Module:
    """The last of the block's own children that take a sublayer's output and nothing else: a norm behind it."""
    children = {id(child) for child in reading.blocks[index].children()}
    counts = {id(call.module): sum(other.module is call.module for other in calls) for call in calls}
    end = next((place for place, call in enumerate(calls) if call.module is part.module), None)
    while end is not None:
        output, part = calls[end].output, replace(part, module=calls[end].module)
        end = next(
            (
                place
                for place, call in enumerate(calls[end + 1 :], start=end + 1)
                if id(call.module) in children
                and counts[id(call.module)] == 1
                and call.output.shape == output.shape
                and any(entry.shape == output.shape and torch.equal(entry, output) for entry in call.inputs)
                and not torch.equal(call.output, output)
            ),
            None,
        )
    return part.module


def _projected(_: Reading, __: int, part: Sublayer, calls: Sequence[Call]) -> nn.Module:
    """The last matrix inside a sublayer that is given the stream and adds to it itself, as in BLOOM."""
    inside = {id(module) for module in part.module.modules()}
    last = [call.module for call in calls if id(call.module) in inside and isinstance(call.module, nn.Linear | Conv1D)]
    return last[-1] if last else part.module


def _fitted(
    reading: Reading, trace: Trace, parts: Parts, calls: Sequence[Sequence[Call]], tolerance: float
) -> Parts | None:
    """The parts with the factors by which their outputs sum to what each block adds; None where none do."""
    fitted: Parts = []
    for index, (before, after) in enumerate(zip(trace.inputs, trace.outputs, strict=True)):
        outputs = {id(call.module): call.output for call in calls[index]}
        if hasattr(reading.blocks[index], "pre_ln"):
            fitted.append(parts[index])
            continue
        caught = [outputs.get(id(part.module)) for part in parts[index]]
        added = [part for part in caught if part is not None and part.numel() == after.numel()]
        if len(added) != len(caught) or not all(bool(torch.isfinite(part).all()) for part in (*added, before, after)):
            return None
        matrix = torch.stack([part.double().reshape(-1) for part in added], dim=1)
        wanted = (after.double() - before.double()).reshape(-1, 1)
        factors = torch.linalg.lstsq(matrix, wanted).solution[:, 0].tolist()
        if not _sums([part * factor for part, factor in zip(added, factors, strict=True)], before, after, tolerance):
            return None
        whole = [1.0 if abs(factor - 1) < tolerance else factor for factor in factors]
        fitted.append([replace(part, scale=scale) for part, scale in zip(parts[index], whole, strict=True)])
    return fitted


def _unmixed(reading: Reading, ids: Tensor, tolerance: float) -> str | None:
    """With its sublayers silent a block of several streams must only mix them: what it hands on is in their span."""
    assert reading.streams is not None
    streams, entering = reading.streams, list[Tensor]()
    failed: list[int] = []

    def enter(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        entering.append(copy(streams.split(args[0] if args else kwargs["hidden_states"])))

    def leave(index: int) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            before, after = entering.pop().double(), copy(streams.split(hidden_of(output))).double()
            weights = torch.linalg.lstsq(before.mT, after.mT, driver="gelsd").solution
            if not close((before.mT @ weights).mT, after, tolerance):
                failed.append(index)

        return hook

    with ExitStack() as stack, torch.inference_mode():
        for index, block in enumerate(reading.blocks):
            stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(leave(index)).remove)
        for part in (part for parts in reading.parts for part in parts):
            stack.callback(part.module.register_forward_hook(silent).remove)
        reading.base(**reading.arguments(ids, None))
    if not failed and all(reading.parts):
        return None
    at = f"block {failed[0] + 1} ({type(reading.blocks[failed[0]]).__name__})" if failed else "a block"
    return (
        f"self-check 'sublayers' failed: expected {at} to do no more than mix its streams once its known sublayers are "
        "silent; got something else; take out whole blocks (block:K)"
    )


def silent(_: nn.Module, __: Any, output: Any) -> Any:
    """Hook that makes a module give zeros."""
    nothing = torch.zeros_like(hidden_of(output))
    return nothing if isinstance(output, Tensor) else (nothing, *output[1:])
