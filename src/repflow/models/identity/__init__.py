"""Identity of a model: weights, configuration, code and function."""

from repflow.moved import successor

__getattr__ = successor("repflow.models.identity", "repflow.models.identity.record")
