"""Interventions: a model with one of its parts changed, to see what that part does."""

from repflow.ablation import ABLATIONS, Ablation, parse_ablations
from repflow.interventions.ablate import ablate

__all__ = ["ABLATIONS", "Ablation", "ablate", "parse_ablations"]
