"""The recurrence of a layer, in the same words whatever the layer is."""

from repflow.moved import successor

__getattr__ = successor("repflow.models.recurrence", "repflow.models.recurrence.layer")
