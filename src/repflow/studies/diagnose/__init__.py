"""Diagnose: one page that joins flow and probes, each statement with its number."""

from repflow.moved import successor

__getattr__ = successor("repflow.studies.diagnose", "repflow.studies.diagnose.study")
