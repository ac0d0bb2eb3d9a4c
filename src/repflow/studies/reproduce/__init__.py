"""Reproduce: figures and tables of the papers, ours beside the printed values."""

from repflow.moved import successor

__getattr__ = successor("repflow.studies.reproduce", "repflow.studies.reproduce.study")
