"""Stacks of one shape as one model, against each of them alone; what cannot be stacked."""

import copy

import pytest
import torch

from repflow.core.errors import InputError
from repflow.models import StackConfig, StackForCausalLM
from repflow.models.stack.replicas import ReplicaStack
from repflow.training import Batch, CrossEntropy

POLES = (
    {},
    {"polarize": "both"},
    {"polarize": "both", "placebo": True},
    {"polarize": "one"},
    {"polarize": "zero", "zero_rate": -100.0},
)


def stack(seed=0, **options):
    torch.manual_seed(seed)
    mixer = {"name": "s6", "state": 5, **options.pop("mixer", {})}
    chosen = {"mixers": mixer, "num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 20, **options}
    return StackForCausalLM(StackConfig(**chosen)).double()


def batch(rows, tokens=9, queries=3):
    torch.manual_seed(7)
    positions = torch.stack([torch.randperm(tokens)[:queries] for _ in range(rows)])
    ids, targets = torch.randint(0, 20, (rows, tokens)), torch.randint(0, 20, (rows, queries))
    return Batch(ids, targets, positions=positions)


def held_to_each_alone(networks):
    alone = [copy.deepcopy(network) for network in networks]
    whole, rows = ReplicaStack(networks), batch(2 * len(networks))
    losses, hits = whole.losses(rows.inputs, rows.positions, rows.targets)
    losses.mean(1).sum().backward()
    for number, network in enumerate(alone):
        part = rows.rows(slice(2 * number, 2 * number + 2))
        loss, metrics = CrossEntropy(accuracy=True)(network, part)
        loss.backward()
        assert float(losses[number].mean()) == pytest.approx(float(loss), rel=1e-12)
        assert float(hits[number].mean()) == pytest.approx(float(metrics["accuracy"]))
        for name, parameter in network.named_parameters():
            gradient = whole.stacked[name.replace(".", "/")].grad[number]
            if name.endswith("A_log") and gradient.shape != parameter.shape:
                free = whole.get_buffer(name.replace(".", "/") + "/free")[number, 0]
                assert not bool(gradient[:, ~free].any()), "a fixed decay has a gradient"
                gradient = gradient[:, free]
            assert torch.allclose(gradient, parameter.grad, rtol=1e-10, atol=1e-14), name


def test_each_computes_what_it_computes_alone_whatever_its_poles():
    held_to_each_alone([stack(seed, mixer=dict(more)) for seed, more in enumerate(POLES)])


EIGENVALUES = (
    {"eigenvalues": "positive"},
    {"eigenvalues": "negative", "eigenvalue_shift": 0.7},
    {"eigenvalues": "mixed", "eigenvalue_norm": 1.0},
)


def test_each_computes_what_it_computes_alone_whatever_the_signs_of_its_eigenvalues():
    held_to_each_alone([stack(seed, mixer=dict(more)) for seed, more in enumerate(EIGENVALUES)])


@pytest.mark.parametrize("options", [EIGENVALUES, [{"eigenvalues": "complex", "state": 4}] * 2, [{}, {}]])
def test_the_kernels_read_constrained_maps_as_rows_of_x_proj(options):
    """What the fused blocks multiply by, against B and C of each stack; its gradient reaches the maps' parameters."""
    networks = [stack(seed, mixer=dict(more)) for seed, more in enumerate(options)]
    whole, u = ReplicaStack(networks), torch.randn(4, 16, dtype=torch.float64)
    rows = whole._x_proj("model.blocks.1.mixer")
    for number, network in enumerate(networks):
        mixer = network.model.blocks[1].mixer
        _, B, C = torch.split(u @ rows[number].mT, [mixer.dt_rank, mixer.state, mixer.state], -1)
        _, said_B, said_C = mixer._select(u[None])
        assert torch.allclose(B, said_B[0], rtol=1e-10, atol=1e-14)
        assert torch.allclose(C, said_C[0], rtol=1e-10, atol=1e-14)
    rows.square().sum().backward()
    used = [
        value.grad for name, value in whole.named_single() if "blocks.1.mixer.signed" in name or "1.mixer.x_" in name
    ]
    assert used
    assert all(gradient is not None for gradient in used)


def test_reordered_stacks_compute_what_they_compute_alone():
    held_to_each_alone([stack(seed, reorder={"chunk": 3}) for seed in range(2)])
    with pytest.raises(InputError, match="stacks of one shape"):
        ReplicaStack([stack(reorder={"chunk": 3}), stack(reorder={"chunk": 4})])


def test_added_poles_stand_beside_as_many_free_states():
    held_to_each_alone(
        [stack(0, mixer={"polarize": "both", "pole_states": "added", "state": 5}), stack(1, mixer={"state": 7})]
    )


@pytest.mark.parametrize(
    "options",
    [
        {"mixers": ["s6", {"name": "softmax_attention", "heads": 2}], "num_hidden_layers": None},
        {"mixers": "ssd", "mlp": "swiglu", "tie_word_embeddings": True},
        {"mixers": "gla", "max_position_embeddings": 16},
    ],
    ids=["hybrid", "tied with mlp", "positions"],
)
def test_any_stack_can_be_a_replica(options):
    held_to_each_alone([stack(seed, **options) for seed in range(2)])


def test_weights_go_back_where_they_came_from():
    networks = [stack(seed, mixer=dict(POLES[seed])) for seed in range(3)]
    whole = ReplicaStack(networks)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter += 1
    before = [dict(copy.deepcopy(network).named_parameters()) for network in networks]
    for number, network in enumerate(whole.put_back()):
        for name, parameter in network.named_parameters():
            assert torch.equal(parameter, before[number][name] + 1), name


@pytest.mark.parametrize(
    ("networks", "factors", "message"),
    [
        (lambda: [], None, "expected at least one stack; got none"),
        (lambda: [stack(), stack(hidden_size=16)], None, "expected stacks of one shape; got (20, 16) in stack 1 and"),
        (lambda: [stack(), stack(norm="layer")], None, "for norm; train them in groups of equal shapes"),
        (lambda: [stack(), stack(mixer={"polarize": "one", "pole_states": "added"})], None, "A_log"),
        (lambda: [stack(), stack()], [1.0], "expected a factor above 0 for each of 2 stacks; got [1.0]"),
        (lambda: [stack()], [0.0], "expected a factor above 0 for each of 1 stacks"),
    ],
)
def test_what_cannot_be_stacked_is_refused(networks, factors, message):
    with pytest.raises(InputError) as caught:
        ReplicaStack(networks(), factors=factors)
    assert message in str(caught.value)


def test_rows_that_replicas_cannot_share_are_refused():
    rows = batch(3)
    with pytest.raises(InputError, match="a number of rows that 2 replicas share equally; got 3"):
        ReplicaStack([stack(), stack(1)]).losses(rows.inputs, rows.positions, rows.targets)


def test_it_says_why_the_kernels_cannot_take_it():
    ids = batch(1).inputs
    assert ReplicaStack([stack()]).fused(ids) == "dtype float64"
    assert ReplicaStack([stack().float()]).fused(ids) == "tensors on the cpu"
