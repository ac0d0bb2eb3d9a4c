"""Compare: which states of two models, or of checkpoints of one, are alike on the same text?"""

from repflow.moved import successor

__getattr__ = successor("repflow.studies.compare", "repflow.studies.compare.study")
