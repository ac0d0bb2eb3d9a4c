"""Eigenvalue signs of real layers against the whole matrix, and x'Mx against B and C of a forward pass."""

import itertools
import re

import numpy as np
import pytest
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

import repflow
from repflow.core.errors import UnsupportedModelError
from repflow.dynamics import symmetric_eigenvalues
from repflow.dynamics.projections import signature
from repflow.dynamics.rates import MOVED
from repflow.models import StackConfig, StackForCausalLM
from repflow.studies.dynamics.apply import _course, apply
from repflow.studies.dynamics.layers import mamba_layers, reading_forms

SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "vocab_size": 50}


@pytest.fixture(scope="module")
def mamba():
    torch.manual_seed(0)
    return repflow.load(MambaForCausalLM(MambaConfig(**SMALL, state_size=4)).eval())


@pytest.fixture(scope="module")
def mamba2():
    torch.manual_seed(0)
    config = Mamba2Config(**SMALL, state_size=8, num_heads=4, head_dim=8, n_groups=2, chunk_size=8)
    return repflow.load(Mamba2ForCausalLM(config).eval())


@pytest.mark.parametrize(("state", "width"), [(2, 9), (4, 8), (5, 6), (1, 1)])
def test_signature_is_that_of_the_whole_matrix(state, width):
    rng = np.random.default_rng(state * 10 + width)
    s_c, s_b = rng.normal(size=(2, state, width))
    signs = signature(s_c, s_b)
    values = np.linalg.eigvalsh((s_c.T @ s_b + s_b.T @ s_c) / 2)
    size = np.abs(values).max() * 1e-9
    assert (signs.negative, signs.positive) == ((values < -size).sum(), (values > size).sum())
    assert signs.negative + signs.zero + signs.positive == width
    assert (signs.lowest, signs.highest) == pytest.approx((values.min(), values.max()), abs=1e-9)


def test_definite_parametrisation_of_the_paper():
    """S_C = Lᵀ, S_B = D Lᵀ gives L D Lᵀ: rank N, one sign, the rest zeros."""
    rng = np.random.default_rng(0)
    lower = np.tril(rng.normal(size=(12, 4)))
    for sign in (-1, 1):
        signs = signature(lower.T, sign * np.diag(rng.uniform(0.5, 2, size=4)) @ lower.T)
        assert (signs.negative, signs.zero, signs.positive) == ((4, 8, 0) if sign < 0 else (0, 8, 4))
        assert signs.prediction == ("convergence" if sign < 0 else "divergence")


def test_mamba_1_reads_x_proj(mamba):
    layers = mamba_layers(mamba)
    assert [layer.layer for layer in layers] == [0, 1, 2]
    mixer = mamba.network.backbone.layers[1].mixer
    weight = mixer.x_proj.weight.detach().double().numpy()
    rank = mixer.time_step_rank
    ((s_c, s_b),) = layers[1].matrices()
    assert (s_b == weight[rank : rank + 4]).all()
    assert (s_c == weight[rank + 4 :]).all()
    seen = {}
    handle = mixer.x_proj.register_forward_hook(lambda module, args, output: seen.update(x=args[0].double()))
    with reading_forms(layers) as forms:
        mamba.stream(torch.arange(9)[None], on_state=lambda *_: None)
    handle.remove()
    x = seen["x"][0].numpy()
    expected = np.einsum("tk,kl,tl->t", x, s_c.T @ s_b, x)
    assert forms[1][0, :, 0].numpy() == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_mamba_2_reads_in_proj_by_group(mamba2):
    layers = mamba_layers(mamba2)
    mixer = mamba2.network.backbone.layers[0].mixer
    assert (layers[0].groups, layers[0].state) == (2, 8)
    seen = {}
    handle = mixer.in_proj.register_forward_hook(lambda module, args, output: seen.update(u=args[0].double()))
    with reading_forms(layers) as forms:
        mamba2.stream(torch.arange(7)[None], on_state=lambda *_: None)
    handle.remove()
    u = seen["u"][0].numpy()
    weight = mixer.in_proj.weight.detach().double().numpy()
    start = 2 * mixer.intermediate_size
    for group, (s_c, s_b) in enumerate(layers[0].matrices()):
        assert (s_b == weight[start + 8 * group : start + 8 * group + 8]).all()
        assert (s_c == weight[start + 16 + 8 * group : start + 24 + 8 * group]).all()
        expected = np.einsum("tk,kl,tl->t", u, s_c.T @ s_b, u)
        assert forms[0][0, :, group].numpy() == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_apply_counts_and_norms(mamba, tmp_path):
    result = apply(mamba, samples=2, length=12, out=tmp_path)
    layers = mamba_layers(mamba)
    for i, layer in enumerate(layers):
        ((s_c, s_b),) = layer.matrices()
        _, signs = symmetric_eigenvalues(s_c.T @ s_b)
        counted = [int(result[name][i]) for name in ("negative", "zero", "positive")]
        values = np.linalg.eigvalsh((s_c.T @ s_b + s_b.T @ s_c) / 2)
        assert counted == [(values < -1e-6).sum(), (np.abs(values) <= 1e-6).sum(), (values > 1e-6).sum()]
        assert signs.sum() == counted[2] - counted[0]
    states = repflow.measure(mamba, "random", metrics=["token_norm"], samples=2, length=12)
    assert result["token_norm"] == pytest.approx(np.nanmean(states["token_norm"], axis=2), rel=1e-5)
    assert result["token_norm_without_norms"].shape == result["token_norm"].shape
    assert not np.allclose(result["token_norm_without_norms"][-1], result["token_norm"][-1])
    said = {finding.code: finding.message for finding in result.findings}
    assert said.keys() >= {"prediction", "token_norm_course"}
    assert re.search(r"(\d) of 3 Mamba blocks .* \(\d+ % \[\d+, \d+\]\)$", said["blocks"])
    rate = result.provenance["followed"]["token_norm_without_norms"]
    assert ("too little to distinguish" in said["token_norm_without_norms_course"]) == (rate["moved"] < MOVED)
    again = apply(mamba, samples=2, length=12, out=tmp_path)
    assert (again["form_positive"] == result["form_positive"]).all()


def test_tokens_grow_or_shrink_where_their_norm_doubles_or_halves():
    ratios = (0.1, 0.49, 0.5, 1.0, 2.0, 2.01)
    assert [_course(ratio) for ratio in ratios] == [*["shrink"] * 2, *["neither halve nor double"] * 3, "grow"]


def test_negative_layers_are_told(mamba):
    """A model whose every S_C is made -S_B: x'Mx < 0 for all tokens, negative eigenvalues only."""
    import copy

    network = copy.deepcopy(mamba.network)
    for block in network.backbone.layers:
        with torch.no_grad():
            rank = block.mixer.time_step_rank
            block.mixer.x_proj.weight[rank + 4 :] = -block.mixer.x_proj.weight[rank : rank + 4]
    result = apply(repflow.load(network), samples=1, length=8)
    assert (result["positive"] == 0).all()
    assert (result["negative"] == 4).all()
    assert (result["form_positive"] == 0).all()
    assert "tokens shrink" in result.findings[0].message


def test_wrong_requests(mamba):
    from transformers import GPT2Config, GPT2LMHeadModel

    gpt2 = repflow.load(GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=50, n_positions=32)))
    with pytest.raises(UnsupportedModelError, match="Mamba layers"):
        apply(gpt2, samples=1, length=8)
    with pytest.raises(ValueError, match="unknown option"):
        apply(mamba, lenght=8)
    with pytest.raises(ValueError, match="one shape"):
        signature(np.ones((2, 3)), np.ones((3, 3)))


@pytest.mark.parametrize(
    ("eigenvalues", "words"), [("negative", "negative ones only"), (None, "a positive eigenvalue")]
)
def test_a_stack_without_norms_is_read_as_it_is(eigenvalues, words):
    """Figures 7 and 8 ask for models trained without norms: there is nothing to take out, and nothing is missing."""
    torch.manual_seed(0)
    mixer = {"name": "s6", "state": 4} | ({} if eigenvalues is None else {"eigenvalues": eigenvalues})
    config = StackConfig(mixer, num_hidden_layers=3, hidden_size=8, vocab_size=50, norm="none", initializer_range=1.0)
    result = apply(repflow.load(StackForCausalLM(config)), "random", samples=2, length=8)
    assert np.array_equal(result["token_norm"], result["token_norm_without_norms"])
    assert result["token_norm_without_norms_rates"].shape == (3, 4)
    assert result.provenance["own_norms"] is False
    said = {finding.code: finding.message for finding in result.findings}
    assert words in said["prediction"]
    assert said["token_norm_course"].startswith("without norms at the stream, as the model is")
    assert "token_norm_without_norms_course" not in said
    assert "norms_needed" not in said
    states = result["token_norm"].mean(1)
    right = sum(bool((b > a) == (eigenvalues is None)) for a, b in itertools.pairwise(states))
    assert f"{right} of 3 Mamba blocks" in said["blocks"]
