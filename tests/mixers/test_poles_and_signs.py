"""Polarized states and eigenvalue-constrained S6, against what their definitions say."""

import pytest
import torch

from repflow.mixers import build
from repflow.mixers.scan.forms import recurrence
from tests.mixers.mamba_oracles import WIDTH, inputs, loud, relative

DIAGONAL = {
    "s6": {"state": 6},
    "ssd": {"state": 6, "head_dim": 4, "groups": 3},
    "rwkv5": {"head_dim": 6},
}


def polarized(name, polarize):
    torch.manual_seed(0)
    return loud(build(name, WIDTH, polarize=polarize, **DIAGONAL[name]).double())


@pytest.mark.parametrize("name", sorted(DIAGONAL))
@pytest.mark.parametrize("polarize", ["one", "zero", "both"])
def test_poles_are_exact_and_cost_no_state(name, polarize):
    mixer, plain = polarized(name, polarize), build(name, WIDTH, **DIAGONAL[name])
    decay = mixer.transition(inputs()).A.detach()
    one, zero = polarize != "zero", polarize != "one"
    assert bool((decay[..., 0] == 1).all()) == one
    assert bool((decay[..., -1] == 0).all()) == zero
    free = decay[..., int(one) : decay.shape[-1] - int(zero)]
    assert bool(((free > 0) & (free < 1)).all())
    assert mixer.state_size == plain.state_size
    assert decay.shape[-1] == 6
    fewer = sum(p.numel() for p in plain.parameters()) - sum(p.numel() for p in mixer.parameters())
    # free decays only: one per channel and pole in S6, per head and pole in RWKV-5; SSD's decay per head serves all
    # its states
    assert fewer == (one + zero) * {"s6": 24, "ssd": 0, "rwkv5": 2}[name]


@pytest.mark.parametrize("name", sorted(DIAGONAL))
def test_poles_remember_all_and_nothing(name):
    """The state of decay 1 is the sum of all its inputs, the state of decay 0 is the last input."""
    mixer = polarized(name, "both")
    transition = mixer.transition(inputs())
    _, states = recurrence(transition, return_states=True)
    entered = (transition.delta * transition.b).detach()
    assert relative(states[..., 0], entered[..., 0].cumsum(1)) < 1e-12
    assert torch.equal(states[..., -1].detach(), entered[..., -1])


@pytest.mark.parametrize("name", ["s6", "ssd"])
def test_zero_is_zero_where_the_papers_code_has_a_third(name):
    """exp(−100 Δ) at Δ = .01 is .37; here a tiny step size leaves the pole at 0."""
    mixer = polarized(name, "zero")
    torch.nn.init.constant_(mixer.dt_proj.bias if name == "s6" else mixer.dt_bias, -4.6)
    decay = mixer.transition(0 * inputs()).A
    assert float(decay[..., 0].detach().max()) > 0.9
    assert bool((decay[..., -1] == 0).all())


@pytest.mark.parametrize("eigenvalues", ["positive", "negative", "mixed"])
@pytest.mark.parametrize("state", [4, 5])
def test_signs_of_the_input_output_matrix(eigenvalues, state):
    torch.manual_seed(0)
    mixer = build("s6", WIDTH, state=state, eigenvalues=eigenvalues).double()
    with torch.no_grad():
        mixer.signed.lower.normal_()
        mixer.signed.diagonal.normal_(0, 2)
    matrix = mixer.input_output_matrix().detach()
    values = torch.linalg.eigvalsh(matrix)
    assert relative(matrix, matrix.mT) < 1e-12
    found = values[values.abs() > 1e-9]
    assert mixer.signed.rank == len(found) == state < len(values) == 24  # D − N eigenvalues are zero
    positive = {"positive": state, "negative": 0, "mixed": (state + 1) // 2}[eigenvalues]
    assert int((found > 0).sum()) == positive


def test_maps_are_the_papers_factorisation():
    """B = D Lᵀ u and C = Lᵀ u with L unit lower triangular, so that C·B = uᵀ L D Lᵀ u."""
    torch.manual_seed(0)
    mixer = build("s6", WIDTH, state=4, eigenvalues="mixed").double()
    with torch.no_grad():
        mixer.signed.lower.normal_()
    factor = mixer.signed.maps()[1].mT.detach()
    assert torch.equal(factor.triu(), torch.eye(24, 4, dtype=torch.float64))
    u = torch.randn(2, 3, 24, dtype=torch.float64)
    B, C = mixer.signed(u)
    said = torch.einsum("btd,de,bte->bt", u, mixer.input_output_matrix(), u)
    assert relative((B * C).sum(-1), said) < 1e-12


def test_more_states_than_channels_leave_the_rank_at_the_channels():
    mixer = build("s6", 3, expand=1, state=5, eigenvalues="positive")
    assert mixer.signed.rank == int(torch.linalg.matrix_rank(mixer.input_output_matrix())) == 3
    assert mixer.state_size == 15
    B, C = mixer.signed(torch.ones(1, 1, 3))
    assert not bool(B[..., 3:].any() or C[..., 3:].any())


def test_unconstrained_input_output_matrix():
    """What one token says to itself through the scan: y_1 = delta_1 (u_1ᵀ S_Cᵀ S_B u_1) u_1."""
    mixer = loud(build("s6", WIDTH, state=4).double())
    x = inputs(tokens=1)
    y = recurrence(mixer.transition(x))
    u, _ = mixer._project(x)
    delta, _, _ = mixer._select(u)
    said = torch.einsum("btd,de,bte->bt", u, mixer.input_output_matrix(), u)
    assert relative(y, delta * u * said[..., None]) < 1e-12
