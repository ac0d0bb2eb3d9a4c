"""Recording a step as a CUDA graph: a thousand launches become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch


@runtime_checkable
class Recorded(Protocol):
    """A recorded step."""

    def replay(self) -> None:
        """Run it again, on what its buffers hold now."""
        ...


@runtime_checkable
class Recorder(Protocol):
    """What records steps; tests put one in its place that needs no GPU."""

    def warm(self, run: Callable[[], None]) -> None:
        """Run a step as what comes before a recording has to."""
        ...

    def record(self, run: Callable[[], None]) -> Recorded:
        """Record a step without running it; raises whatever stands in the way."""
        ...


class CudaRecorder:
    """Records by `torch.cuda.graph`; all its graphs work in the same memory, so that only one may run at a time.

    A step needs nothing of the step before but weights, moments and buffers, which lie outside: activations and
    gradients of one graph may overwrite those of another. With memory of its own for every shape of batches a training
    on rows of six shapes took six times as much.
    """

    def __init__(self) -> None:
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # one: memory of a stream is no other's
        self._pool = torch.cuda.graph_pool_handle()

    def warm(self, run: Callable[[], None]) -> None:
        """Run on a stream of its own."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            run()
        torch.cuda.current_stream().wait_stream(self._side)

    def record(self, run: Callable[[], None]) -> Recorded:
        """Capture what a run launches."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                run()
        except BaseException:
            torch.cuda.synchronize()
            raise
        return graph
