"""Fast scans and whole layers inside transformers' own models."""

from repflow.moved import successor

__getattr__ = successor("repflow.models.fastpath", "repflow.models.fastpath.scans")
