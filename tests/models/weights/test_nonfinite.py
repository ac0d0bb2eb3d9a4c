"""Non-finite weights are findings: the states before them keep their values, later ones are NaN, nothing crashes."""

import pytest
import torch

from repflow.models import NonFinite, load
from repflow.models.weights import nonfinite
from tests.models.tiny_configs import NAMED, tiny_model
from tests.sample import sampled

BAD = [float("nan"), float("inf"), -float("inf")]


def poisoned(model_type, block, value, whole=False):
    """Network with one bad entry (or a whole bad parameter) in the last matrix of one block."""
    network = tiny_model(model_type)
    blocks = load(tiny_model(model_type)).n_layers
    clean = load(network)
    name, weight = [(n, p) for n, p in clean.blocks[block].named_parameters() if p.ndim >= 2][-1]
    whole_name = next(n for n, p in clean.network.named_parameters() if p is weight)
    parameter = dict(network.named_parameters())[whole_name]  # a few of RWKV's are not shared with a loaded model
    with torch.no_grad():
        if whole:
            parameter.fill_(value)
        else:
            parameter.reshape(-1)[5] = value
    return network, name, blocks


def states_of(model, kind="residual"):
    ids = torch.randint(0, 128, (2, 12), generator=torch.Generator().manual_seed(3))
    hidden, normed = [], []
    model.stream(ids, kind=kind, on_state=lambda i, h: hidden.append(h.clone()), on_final_norm=normed.append)
    return hidden, normed[0]


@pytest.mark.parametrize("model_type", sampled(NAMED))
def test_states_before_the_bad_block_stand(model_type):
    network, name, blocks = poisoned(model_type, 2, BAD[NAMED.index(model_type) % 3])
    model = load(network)
    assert [(bad.block, bad.count) for bad in model.nonfinite] == [(2, 1)]
    assert model.nonfinite[0].parameter.endswith(name)
    assert model.first_bad_state == 3
    (finding,) = model.findings
    assert (finding.code, finding.layer) == ("nonfinite_weight", 2)
    assert f"block 3's {model.nonfinite[0].parameter} holds 1 non-finite value: states from 3 on" in finding.message
    states, normed = states_of(model)
    expected, _ = states_of(load(tiny_model(model_type)))
    assert all(torch.equal(a, b) for a, b in zip(states[:3], expected[:3], strict=True))
    assert all(torch.isnan(state).all() for state in states[3:])
    assert len(states) == blocks + 1
    assert torch.isnan(normed).all()
    assert not torch.isfinite(dict(network.named_parameters())[model.nonfinite[0].parameter]).all(), "put back"


@pytest.mark.parametrize("model_type", ["gpt_neox", "mamba2"])
def test_branches_and_tuple_follow(model_type):
    model = load(poisoned(model_type, 1, BAD[0])[0])
    branches, _ = states_of(model, "branch")
    assert [bool(torch.isnan(b).all()) for b in branches] == [False, True, True, True]
    entries, _ = states_of(model, "hf-tuple")
    first = 1 if model_type == "mamba2" else 2
    assert [bool(torch.isnan(e).all()) for e in entries] == [i >= first for i in range(5)]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("model_type", ["gpt2", "mamba2", "opt"])
def test_embedding(model_type, whole):
    network = tiny_model(model_type)
    with torch.no_grad():
        weight = network.get_input_embeddings().weight
        weight.fill_(torch.nan) if whole else weight[7].fill_(torch.inf)
    model = load(network)
    assert model.nonfinite[0].block is None
    assert model.first_bad_state == 0
    assert "the embedding's" in model.findings[0].message
    assert all(torch.isnan(state).all() for state in states_of(model)[0])


def test_position_embedding():
    network = tiny_model("gpt2")
    with torch.no_grad():
        network.transformer.wpe.weight[3, 3] = torch.nan
    assert load(network).nonfinite == [NonFinite(None, "transformer.wpe.weight", 1)]


@pytest.mark.parametrize("part", ["norm", "head"])
def test_after_the_last_block(part):
    network = tiny_model("gpt_neox")
    target = network.gpt_neox.final_layer_norm if part == "norm" else network.get_output_embeddings()
    with torch.no_grad():
        target.weight.fill_(torch.nan)
    model = load(network)
    assert [bad.block for bad in model.nonfinite] == [model.n_layers]
    assert model.first_bad_state is None
    states, normed = states_of(model)
    assert all(torch.isfinite(state).all() for state in states)
    assert bool(torch.isnan(normed).all()) == (part == "norm")


def test_shared_block_counts_from_its_first_use():
    network = tiny_model("zamba2")
    hybrid = network.model.layers[1]
    with torch.no_grad():
        hybrid.shared_transformer.feed_forward.down_proj.weight[0, 0] = torch.nan
    assert load(network).first_bad_state == 2


def test_several_bad_parameters_are_all_named():
    network = tiny_model("gpt_neox")
    with torch.no_grad():
        network.gpt_neox.layers[3].mlp.dense_h_to_4h.bias[:4] = torch.inf
        network.gpt_neox.layers[1].attention.dense.weight[0, :2] = torch.nan
    model = load(network)
    assert sorted((bad.block, bad.count) for bad in model.nonfinite) == [(1, 2), (3, 4)]
    assert model.first_bad_state == 2


def test_digest_of_a_bad_model_is_stable():
    assert load(poisoned("gpt2", 1, BAD[0])[0]).digest() == load(poisoned("gpt2", 1, BAD[0])[0]).digest()


def test_weights_whose_sum_overflows_are_finite():
    network = tiny_model("gpt2")
    with torch.no_grad():
        network.transformer.h[1].mlp.c_fc.weight.fill_(3e38)
    assert nonfinite.scan(network, list(network.transformer.h)) == []


def test_infinities_that_cancel_are_found():
    tensors = [("a", torch.tensor([float("inf"), -float("inf")])), ("b", torch.ones(3)), ("c", torch.empty(0))]
    assert [name for name, _ in nonfinite.suspects(tensors)] == ["a"]


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16, torch.float64]
)
def test_every_floating_point_dtype_is_scanned(dtype):
    """torch has neither sums nor isfinite of every 8-bit dtype."""
    weights = torch.tensor([1.0, float("nan"), 2.0]).to(dtype)
    assert [nonfinite.count_nonfinite(weights), len(nonfinite.suspects([("w", weights)]))] == [1, 1]
    assert nonfinite.suspects([("w", torch.ones(3).to(dtype))]) == []
