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
    """Records by `torch.cuda.graph`."""

    def warm(self, run: Callable[[], None]) -> None:
        """Run on a stream of its own."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)

    def record(self, run: Callable[[], None]) -> Recorded:
        """Capture what a run launches."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                run()
        except BaseException:
            torch.cuda.synchronize()
            raise
        return graph
