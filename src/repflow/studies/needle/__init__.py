"""Needle: does the model find a false statement in a long document?"""

from repflow.moved import successor

__getattr__ = successor("repflow.studies.needle", "repflow.studies.needle.study")
