"""Sequence mixers in one formulation: (batch, token, width) → same, each with its recurrence where the family has one.

>>> from repflow.mixers import build, check_mixer
>>> check_mixer(build("gla", 8, heads=2)).state_size
16
"""

from repflow.mixers.base import Mixer
from repflow.mixers.build import build, families
from repflow.mixers.check import Report, check_mixer
from repflow.mixers.transition import DeltaTransition, Transition

__all__ = ["DeltaTransition", "Mixer", "Report", "Transition", "build", "check_mixer", "families"]
