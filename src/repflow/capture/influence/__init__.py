"""Influence of tokens on one output, by backward passes."""

from repflow.moved import successor

__getattr__ = successor("repflow.capture.influence", "repflow.capture.influence.jacobian")
