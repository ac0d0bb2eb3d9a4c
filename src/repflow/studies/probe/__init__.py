"""Probe: at which depth can a linear read-out find what the task is about?"""

from repflow.moved import successor

__getattr__ = successor("repflow.studies.probe", "repflow.studies.probe.study")
