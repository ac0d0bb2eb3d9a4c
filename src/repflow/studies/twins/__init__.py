"""Twins: does the shape of token similarity over depth come from the architecture or from training?"""

from repflow.moved import successor

__getattr__ = successor("repflow.studies.twins", "repflow.studies.twins.study")
