"""Token dynamics of deep selective state-space models: the token ODE, its regimes, and real checkpoints beside it.

Paper 3 reads depth as time: a token x_l moves by dx_l/dt = Σ_{j≤l} P_lj x_j, P the hidden attention of an S6 layer.

Glossary: mu and io_matrix are S_Cᵀ S_B, s_delta is S_Δ, a is the decay of A = -a I, l and j count tokens.
"""

from repflow.dynamics.attention import hidden_attention, hidden_attention_nd
from repflow.dynamics.blow_up import BlowUp, blow_up_time
from repflow.dynamics.classify import Classification, classify
from repflow.dynamics.conjecture import ClassificationND, classify_nd, symmetric_eigenvalues
from repflow.dynamics.limits import convergence_limits, first_token_estimate, first_token_log_rate
from repflow.dynamics.simulate import simulate, simulate_nd
from repflow.dynamics.trajectory import Event, Trajectory

__all__ = [
    "BlowUp",
    "Classification",
    "ClassificationND",
    "Event",
    "Trajectory",
    "blow_up_time",
    "classify",
    "classify_nd",
    "convergence_limits",
    "first_token_estimate",
    "first_token_log_rate",
    "hidden_attention",
    "hidden_attention_nd",
    "simulate",
    "simulate_nd",
    "symmetric_eigenvalues",
]
