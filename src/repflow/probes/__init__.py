"""Linear probes: what can be read off each state, all states and seeds at once."""

from repflow.probes.bootstrap import bootstrap_accuracy, interval
from repflow.probes.chance import chance_level, corrected, majority_share, prior_log_likelihood
from repflow.probes.control import control_labels, shuffled_capacity, shuffled_labels
from repflow.probes.features import ArrayFeatures, Features
from repflow.probes.fit import RECIPES, ProbeFit, fit_probes
from repflow.probes.sentinels import Sentinel, sentinels
from repflow.probes.split import Split, three_way_split
from repflow.probes.summary import ProbeSummary, summarise

__all__ = [
    "RECIPES",
    "ArrayFeatures",
    "Features",
    "ProbeFit",
    "ProbeSummary",
    "Sentinel",
    "Split",
    "bootstrap_accuracy",
    "chance_level",
    "control_labels",
    "corrected",
    "fit_probes",
    "interval",
    "majority_share",
    "prior_log_likelihood",
    "sentinels",
    "shuffled_capacity",
    "shuffled_labels",
    "summarise",
    "three_way_split",
]
