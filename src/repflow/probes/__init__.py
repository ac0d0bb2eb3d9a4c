"""Linear probes: what can be read off each state, all states and seeds at once."""

from repflow.probes.chance import chance_level, corrected, floored_change, majority_share, prior_log_likelihood
from repflow.probes.claims import Changes, block_changes, block_claims, peak_loss, states_to_refit
from repflow.probes.control import control_labels, shuffled_capacity, shuffled_labels
from repflow.probes.features import ArrayFeatures, Features
from repflow.probes.fit import RECIPES, ProbeFit, fit_probes
from repflow.probes.sentinels import Sentinel, sentinels
from repflow.probes.split import Split, half_training, three_way_split
from repflow.probes.spread import Spread, spread
from repflow.probes.summary import ProbeSummary, summarise

__all__ = [
    "RECIPES",
    "ArrayFeatures",
    "Changes",
    "Features",
    "ProbeFit",
    "ProbeSummary",
    "Sentinel",
    "Split",
    "Spread",
    "block_changes",
    "block_claims",
    "chance_level",
    "control_labels",
    "corrected",
    "fit_probes",
    "floored_change",
    "half_training",
    "majority_share",
    "peak_loss",
    "prior_log_likelihood",
    "sentinels",
    "shuffled_capacity",
    "shuffled_labels",
    "spread",
    "states_to_refit",
    "summarise",
    "three_way_split",
]
