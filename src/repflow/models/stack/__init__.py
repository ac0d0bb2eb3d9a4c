"""Stack: a residual model of any mixers, as a transformers model."""

from repflow.moved import successor

__getattr__ = successor("repflow.models.stack", "repflow.models.stack.network")
