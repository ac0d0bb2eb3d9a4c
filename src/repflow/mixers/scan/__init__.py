"""Scans: a diagonal recurrence token by token, in chunks or on the GPU, and what it carries from call to call."""

from repflow.moved import successor

__getattr__ = successor("repflow.mixers.scan", "repflow.mixers.scan.forms")
