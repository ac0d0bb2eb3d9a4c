"""Polarized states and eigenvalue-constrained S6, against what their definitions say."""

import math

import pytest
import torch

from repflow.core.errors import InputError
from repflow.mixers import build
from repflow.mixers.scan.forms import recurrence
from repflow.mixers.transition import Transition
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


FORMS = {
    "replaced": ({}, 6, [0, -1, -2, -3, -4, -torch.inf]),
    "added": ({"pole_states": "added"}, 8, [0, -1, -2, -3, -4, -5, -6, -torch.inf]),
    "printed": ({"pole_states": "added", "zero_rate": -1000.0}, 8, [0, -1, -2, -3, -4, -5, -6, -1000]),
    "published": ({"pole_states": "added", "zero_rate": -100.0}, 8, [0, -1, -2, -3, -4, -5, -6, -100]),
    "placebo": ({"placebo": True}, 6, [-1, -2, -3, -4, -5, -6]),
    "placebo added": ({"placebo": True, "pole_states": "added"}, 8, [-1, -2, -3, -4, -5, -6, -7, -8]),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_the_paper_and_its_control(form):
    """Decays exp(Δ A) of every state at initialisation, number of states, and which of them learn."""
    options, states, rates = FORMS[form]
    torch.manual_seed(0)
    mixer = build("s6", WIDTH, state=6, polarize="both", **options).double()
    x = inputs()
    transition = mixer.transition(x)
    steps = transition.delta.detach().expand(-1, -1, -1, 1)
    said = torch.exp(steps * torch.tensor(rates, dtype=torch.float64))
    assert relative(transition.A.detach(), said) < 1e-6
    assert mixer.state_size == mixer.inner * states
    assert mixer.A_log.shape == (mixer.inner, states - 2)
    assert mixer.x_proj.weight.shape[0] == mixer.dt_rank + 2 * states
    mixer(x).square().sum().backward()
    with torch.no_grad():
        mixer.A_log -= mixer.A_log.grad
    moved = (mixer.transition(x).A.detach() - transition.A.detach()).abs().amax((0, 1, 2)) > 0
    assert moved.tolist() == [False] + [True] * (states - 2) + [False]


@pytest.mark.parametrize(
    ("steps", "rate", "holds"),
    [("mamba", -torch.inf, True), ("zeroed", -1000.0, True), ("mamba", -1000.0, False), ("mamba", -100.0, False)],
)
def test_the_claim_of_e_5_1_on_the_gradient_of_the_step_size(steps, rate, holds):
    """Paper 2, E.5.1: poles add nothing to what ∂l/∂Δ gets through the decays exp(Δ A).

    exp(Δ A) A is 0 for A = 0 and in the limit A → −∞. At −1000 it is −368 for Δ = .001, so that with Mamba's own step
    sizes the claim fails; it holds at the Δ = .69 that the paper's code starts with. Through the entries Δ B u the
    poles add to ∂l/∂Δ in any case.
    """
    torch.manual_seed(0)
    low, high = (1e-3, 1e-1) if steps == "mamba" else (0.69, 0.7)
    spread = torch.empty(2, 12, 3, 1, dtype=torch.float64).uniform_(math.log(low), math.log(high))
    delta = spread.exp().requires_grad_()
    rates = torch.tensor([0.0, -1.0, -2.0, -3.0, rate], dtype=torch.float64)
    b, c, weight = (torch.randn(2, 12, 3, size, dtype=torch.float64) for size in (5, 5, 1))

    def through_decay(state):
        """Gradient of Δ by one state's output, less that with the decays held."""
        one = slice(state, state + 1)
        decay = torch.exp(delta * rates[one]) if rates[state] > -torch.inf else torch.zeros_like(delta)
        gradients = []
        for held in (decay, decay.detach()):
            loss = (recurrence(Transition(held, b[..., one], c[..., one], delta)) * weight[..., 0]).square().sum()
            gradients.append(torch.autograd.grad(loss, delta)[0])
        return gradients[0] - gradients[1], gradients[1]

    sizes = [float(through_decay(state)[0].norm()) for state in range(5)]
    assert sizes[0] == 0
    assert (sizes[4] < 1e-12 * sizes[1]) == holds
    if not holds:
        assert sizes[4] > 0.1 * sizes[1]
    assert all(float(through_decay(state)[1].norm()) > 0 for state in (0, 4))


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
    nonzero = values[values.abs() > 1e-9]
    assert mixer.signed.rank == len(nonzero) == state < len(values) == 24  # D − N eigenvalues are zero
    positive = {"positive": state, "negative": 0, "mixed": (state + 1) // 2}[eigenvalues]
    assert int((nonzero > 0).sum()) == positive


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


SCENARIOS = [None, "positive", "negative", "mixed", "complex"]


def constrained(eigenvalues, **options):
    torch.manual_seed(0)
    return build("s6", WIDTH, state=4, eigenvalues=eigenvalues, **options).double()


@pytest.mark.parametrize("eigenvalues", SCENARIOS)
def test_equal_scale_is_the_same_spectral_norm_at_the_start(eigenvalues):
    for norm in (0.1, 1.0, 30.0):
        matrix = constrained(eigenvalues, eigenvalue_norm=norm).input_output_matrix().detach()
        assert abs(float(torch.linalg.matrix_norm(matrix, 2)) / norm - 1) < 1e-5
    drawn, scaled = constrained(eigenvalues), constrained(eigenvalues, eigenvalue_norm=1.0)
    ratio = scaled.input_output_matrix() / drawn.input_output_matrix()
    assert relative(ratio, ratio.flatten()[0].expand_as(ratio)) < 1e-4, "only the scale differs at a seed"


def test_complex_eigenvalues_of_a_normal_matrix():
    mixer = constrained("complex")
    with torch.no_grad():
        mixer.signed.basis.normal_()
        mixer.signed.diagonal.normal_()
    matrix = mixer.input_output_matrix().detach()
    assert relative(matrix @ matrix.mT, matrix.mT @ matrix) < 1e-12
    sizes, angles = mixer.signed.sizes().detach(), mixer.signed.angle.detach()
    said = torch.polar(torch.cat([sizes, sizes]), torch.cat([angles, -angles]))
    values = mixer.spectrum()
    assert relative(torch.view_as_real(values).sort(0).values, torch.view_as_real(said).sort(0).values) < 1e-9
    largest = torch.linalg.eigvals(matrix)
    assert int((largest.abs() > 1e-9).sum()) == 4 < len(largest)
    B, C = mixer.signed(torch.ones(1, 1, 24, dtype=torch.float64))
    assert relative(B, torch.ones(24, dtype=torch.float64) @ mixer.maps()[0].mT) < 1e-12
    assert B.shape == C.shape == (1, 1, 4)


@pytest.mark.parametrize("eigenvalues", SCENARIOS)
def test_the_spectrum_is_that_of_the_whole_matrix(eigenvalues):
    mixer = constrained(eigenvalues)
    whole = torch.linalg.eigvals(mixer.input_output_matrix().detach())
    whole = whole[whole.abs() > 1e-9]
    short = mixer.spectrum()
    for part in ("real", "imag"):
        assert float((getattr(short, part).sort().values - getattr(whole, part).sort().values).abs().max()) < 1e-9


def test_the_shift_of_the_papers_code_moves_eigenvalues_away_from_zero():
    """softplus(0) = .693, and .7 beside it: L diag(1.393) Lᵀ for positive, its negative for negative."""
    plain, shifted = constrained("positive"), constrained("positive", eigenvalue_shift=0.7)
    ratio = float(shifted.input_output_matrix()[0, 0] / plain.input_output_matrix()[0, 0])
    assert abs(ratio - (math.log(2) + 0.7) / math.log(2)) < 1e-6
    negative = constrained("negative", eigenvalue_shift=0.7)
    assert relative(negative.input_output_matrix(), -shifted.input_output_matrix()) < 1e-12
    with torch.no_grad():
        shifted.signed.diagonal.fill_(-50.0)
    assert float(shifted.signed.sizes().min()) == pytest.approx(0.7)


BAD_EIGENVALUES = {
    "odd": ({"eigenvalues": "complex", "state": 3}, "an even number of states"),
    "unknown": ({"eigenvalues": "complexx"}, "did you mean complex"),
    "shift alone": ({"eigenvalue_shift": 0.7}, "eigenvalues with eigenvalue_shift"),
    "shift below": ({"eigenvalues": "negative", "eigenvalue_shift": -0.7}, "sign comes from the scenario"),
    "norm": ({"eigenvalue_norm": 0.0}, "eigenvalue_norm above 0"),
    "norm below the shift": (
        {"eigenvalues": "positive", "eigenvalue_shift": 0.7, "eigenvalue_norm": 0.1},
        "larger norm or a smaller shift",
    ),
}


@pytest.mark.parametrize("case", BAD_EIGENVALUES)
def test_wrong_eigenvalues_are_refused(case):
    options, words = BAD_EIGENVALUES[case]
    with pytest.raises(InputError, match=words):
        build("s6", WIDTH, **{"state": 4, **options})
