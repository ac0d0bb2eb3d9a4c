"""Needles: false statements in long documents."""

from repflow.moved import successor

__getattr__ = successor("repflow.tasks.needle", "repflow.tasks.needle.needles")
