"""Interventions: a model with one of its parts changed, to see what that part does."""

from repflow.interventions.ablate import ablate
from repflow.spec.ablation import ABLATIONS, Ablation, parse_ablations

__all__ = ["ABLATIONS", "Ablation", "ablate", "parse_ablations"]
