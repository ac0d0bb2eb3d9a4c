"""Memory statistics of a model's layers."""

from repflow.moved import successor

__getattr__ = successor("repflow.capture.memory", "repflow.capture.memory.statistics")
