"""The meters' kernels are compiled side by side, before the first state needs them.

Triton compiles a kernel when it is first launched, one after the other: ten kernels of about a second each in the first
call on a bfloat16 model, half of them for the check in float32. Which ones they will be follows from shapes and dtypes
alone, so the meter is run once on tensors without data. What it would launch is compiled by threads, since the compiler
does not hold the interpreter's lock, and a launch waits for its own kernel only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repflow.metrics import fused
from repflow.metrics.flow import FlowMeter
from repflow.metrics.meter import BatchInfo, Meter

WORKERS = 12
"""At most; kernels of a first call."""


class Batch(NamedTuple):
    """What a meter will see.

    Attributes:
        samples: prompts.
        tokens: of the longest one.
        embedding: dtype of the first state.
        stream: dtype of the others.
        normed: dtype of the final norm's output.
    """

    samples: int
    tokens: int
    embedding: torch.dtype
    stream: torch.dtype
    normed: torch.dtype


class Launch(NamedTuple):
    """A kernel with the arguments it would be launched with."""

    kernel: Any
    grid: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def key(self) -> Any:
        """What makes Triton recompile: dtypes, whether a number is 1 or a multiple of 16, and the constants."""
        names = [getattr(each, "do_not_specialize", False) for each in getattr(self.kernel, "params", ())]
        fixed = names[: len(self.arguments)] or [False] * len(self.arguments)
        kinds = tuple(type(a) if any_ else _kind(a) for a, any_ in zip(self.arguments, fixed, strict=True))
        return self.kernel, kinds, tuple(sorted(self.options.items()))


def _kind(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.dtype, argument.is_meta or argument.data_ptr() % 16 == 0
    return (argument == 1, argument % 16 == 0) if isinstance(argument, int) else type(argument)


def launches(meter: FlowMeter, batch: Batch, width: int) -> list[Launch]:
    """What the meter launches for a batch, each kind once, in their order."""
    short = _short(meter)
    seen: list[Launch] = []
    with fused.noting(lambda *launch: seen.append(Launch(*launch))):
        short.begin(BatchInfo(tuple(range(batch.samples)), (batch.tokens,) * batch.samples))
        for state in range(short.n_states):
            short.update(state, _empty(batch, width, batch.stream if state else batch.embedding))
        short.final_norm(_empty(batch, width, batch.normed))
    return list({launch.key: launch for launch in reversed(seen)}.values())[::-1]


def _empty(batch: Batch, width: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(batch.samples, batch.tokens, width, dtype=dtype, device="meta")


def _short(meter: FlowMeter) -> FlowMeter:
    """The meter with the fewest states that still have its first, a middle and its last group."""
    states, group = meter.n_states, meter.group
    whole = 1 + -(-3 // group)  # a middle group's two states before it are no longer the embedding
    if meter.grid is None and states > (whole + 1) * group:
        states = whole * group + ((states - 1) % group + 1)
    return replace(meter, n_states=states)


class Ahead:
    """Kernels that are being compiled; every launch calls `wait` until all are."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pending: dict[Any, Future[None]] = {}
        self._listed = threading.Event()

    def start(self, listing: Callable[[], Iterable[Launch]]) -> None:
        """List the launches in a thread of its own and compile them in others."""
        threading.Thread(target=self._run, args=(listing,), daemon=True).start()

    def _run(self, listing: Callable[[], Iterable[Launch]]) -> None:
        try:
            todo = {launch.key: launch for launch in listing()}
            pool = ThreadPoolExecutor(min(WORKERS, max(2, os.cpu_count() or 2)))
            self._pending = {key: pool.submit(self._compile, launch) for key, launch in todo.items()}
            pool.shutdown(wait=False)
        finally:
            self._listed.set()

    def _compile(self, launch: Launch) -> None:
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            launch.kernel.run(*launch.arguments, grid=launch.grid, warmup=True, **launch.options)

    def wait(self, *launch: Any) -> bool:
        """Until the kernel of this launch is compiled; True when all are.

        A failure repeats in the launch itself, where it is reported.
        """
        self._listed.wait()
        pending = self._pending.get(Launch(*launch).key)
        if pending is not None:
            pending.exception()
        return all(each.done() for each in self._pending.values())


_begun: set[Any] = set()
"""What was compiled, or is being: a later call need not list it again."""


def compile_ahead(
    meters: Callable[[], Sequence[Meter]],
    batches: Sequence[Batch],
    width: int,
    device: torch.device,
    also: Callable[[], Sequence[Any]] = list,
) -> None:
    """Start compiling what these meters need for these batches, where it is worth it: on a GPU with Triton.

    Args:
        meters: makes the meters of a batch.
        batches: their shapes and dtypes.
        width: of the states.
        device: where they will be.
        also: gives other launches, as fields of `Launch`; called where Triton is.
    """
    if device.type != "cuda" or not fused.usable(torch.empty(0, width, device="meta", dtype=batches[0].stream)):
        return
    flows = [meter for meter in meters() if isinstance(meter, FlowMeter)]
    shapes = [replace(flow, keep=frozenset(), positions=0) for flow in flows]
    what = (
        device,
        width,
        repr(shapes),
        *(batch._replace(samples=1, tokens=bool(batch.tokens % 16)) for batch in batches),
    )
    if what in _begun:
        return
    _begun.add(what)
    ahead = Ahead(device)

    def listing() -> list[Launch]:
        mine = [launch for flow in flows for batch in batches for launch in launches(flow, batch, width)]
        return [*mine, *(Launch(*each) for each in also())]

    ahead.start(listing)
    fused.before_launch(ahead.wait)
