"""Capture: run a model once and hand each state to the meters, in bounded memory."""

from repflow.capture.plan import Plan, make_plan
from repflow.capture.run import MemorySink, Sink, collect_states, gather, run_batch, run_plan
from repflow.core.errors import OutOfMemoryError

__all__ = [
    "MemorySink",
    "OutOfMemoryError",
    "Plan",
    "Sink",
    "collect_states",
    "gather",
    "make_plan",
    "run_batch",
    "run_plan",
]
