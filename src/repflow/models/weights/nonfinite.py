"""Non-finite weights: found before the model runs, so that garbage made from them is never reported as a value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repflow.core.results import Finding
from repflow.core.seconds import timed

CHUNK = 1 << 24


@dataclass(frozen=True)
class NonFinite:
    """A parameter with NaN or infinite entries.

    Attributes:
        block: Block that holds it, None for the embedding, the number of blocks for what follows the last one.
        parameter: Its full name.
        count: Number of entries that are not finite.
    """

    block: int | None
    parameter: str
    count: int


def stored_parameters(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter once, tied ones under their first name, with those that accelerate offloaded fetched."""
    for name, parameter in network.named_parameters():
        if parameter.device.type != "meta":
            yield name, parameter.detach()
            continue
        owner = network.get_submodule(name.rpartition(".")[0])
        weights = getattr(getattr(owner, "_hf_hook", None), "weights_map", None)
        if weights is not None:
            yield name, weights[name.rpartition(".")[2]]


def stored_buffers(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every buffer that a checkpoint holds; the others (masks, rotary tables) follow from the configuration."""
    for prefix, module in network.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set and buffer.device.type != "meta":
                yield f"{prefix}.{name}" if prefix else name, buffer.detach()


@timed("checks")
def scan(network: nn.Module, blocks: Sequence[nn.Module]) -> list[NonFinite]:
    """Count the non-finite entries of every parameter and say which block each one belongs to."""
    owner = {
        id(parameter): index for index, block in reversed(list(enumerate(blocks))) for parameter in block.parameters()
    }
    identities = {name: id(parameter) for name, parameter in network.named_parameters()}
    before = _names_before_blocks(network)
    entries = []
    for name, tensor in suspects(stored_parameters(network)):
        if count := count_nonfinite(tensor):
            place = owner.get(identities[name], None if name in before else len(blocks))
            entries.append(NonFinite(place, name, count))
    return entries


def suspects(tensors: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Tensors whose sum is not finite, which every NaN and infinity makes so; finite ones may overflow it too.

    A sum reads each weight once and keeps nothing, and each device is waited for once.
    """
    floating = [(name, tensor) for name, tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    sums = [_summable(tensor).sum(dtype=_wide(tensor.dtype)) for _, tensor in floating]
    finite: dict[int, bool] = {}
    for device in {total.device for total in sums}:
        here = [place for place, total in enumerate(sums) if total.device == device]
        known = torch.stack([sums[place].isfinite() for place in here]).tolist()
        finite |= dict(zip(here, known, strict=True))
    return [entry for place, entry in enumerate(floating) if not finite[place]]


def _names_before_blocks(network: nn.Module) -> set[str]:
    """Names of parameters that shape the first state: every embedding table and what follows it by name."""
    tables = {name for name, module in network.named_modules() if isinstance(module, nn.Embedding)}
    return {
        name
        for name, _ in network.named_parameters()
        if name.rpartition(".")[0] in tables
        or re.search(r"embeddings?_(layer_?)?norm|word_embeddings|project_in", name)
    }


def count_nonfinite(tensor: Tensor) -> int:
    """Number of NaN and infinite entries, read in chunks so that no copy of a large matrix is made."""
    if not tensor.is_floating_point():
        return 0
    flat = tensor.reshape(-1)
    return sum(int(torch.isfinite(_summable(part)).logical_not().sum()) for part in torch.split(flat, CHUNK))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _summable(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy of 8-bit floating-point numbers, with which torch does not compute."""
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor


@contextmanager
def zeroed(network: nn.Module, entries: Sequence[NonFinite]) -> Iterator[None]:
    """Replace the bad entries by zero for the length of the block, then put them back bit for bit."""
    parameters = dict(network.named_parameters())
    saved = []
    with torch.no_grad():
        for bad in entries:
            parameter = parameters[bad.parameter]
            if parameter.device.type == "meta":
                continue
            saved.append((parameter, parameter.detach().clone()))
            parameter.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, original in saved:
                parameter.copy_(original)


def first_bad_state(entries: Sequence[NonFinite], layers: int) -> int | None:
    """First state that cannot be trusted; None when the bad parameters are after the last block."""
    states = [0 if bad.block is None else bad.block + 1 for bad in entries if bad.block != layers]
    return min(states) if states else None


def findings(entries: Sequence[NonFinite], layers: int) -> list[Finding]:
    """One sentence for each bad parameter."""
    return [Finding("nonfinite_weight", bad.block, _sentence(bad, layers)) for bad in entries]


def _sentence(bad: NonFinite, layers: int) -> str:
    count = f"{bad.count} non-finite value{'s' if bad.count > 1 else ''}"
    if bad.block is None:
        return f"the embedding's {bad.parameter} holds {count}: no state can be trusted"
    if bad.block == layers:
        return (
            f"{bad.parameter}, after the last block, holds {count}: the states are sound, the final norm or head is not"
        )
    number = bad.block + 1  # block N makes state N
    return f"block {number}'s {bad.parameter} holds {count}: states from {number} on cannot be trusted"
