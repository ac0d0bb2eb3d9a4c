"""Assumptions 5 to 8 on blocks: against scipy, plain loops and the singular values of a whole Jacobian in float64."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch

import repflow
from repflow import theory
from repflow.core.errors import InputError
from repflow.models import StackConfig, StackForCausalLM
from repflow.models.reading import hidden_of
from repflow.studies.theory.apply import ApplyConfig, run
from repflow.studies.theory.blocks import BlockFacts, block_facts, block_gains, correlation_by_lag, largest_kurtosis
from tests.models.tiny_configs import tiny_model

RNG = np.random.default_rng(4)


def test_kurtosis_is_scipys():
    rows = RNG.standard_t(5, (200, 7))
    rows[:, 3] = 1.0  # a channel that never varies
    expected = scipy.stats.kurtosis(np.delete(rows, 3, 1), fisher=False).max()
    assert largest_kurtosis(rows) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(largest_kurtosis(np.ones((4, 2))))


def test_correlation_by_lag_is_its_definition():
    prompts = [RNG.standard_normal((6, 3)), RNG.standard_normal((8, 3)) + 1]
    mean = np.concatenate(prompts).mean(0)
    energy = np.mean([((row - mean) ** 2).sum() for rows in prompts for row in rows])
    expected = [
        np.mean([(rows[t] - mean) @ (rows[t + lag] - mean) for rows in prompts for t in range(len(rows) - lag)])
        for lag in (1, 2, 3)
    ]
    assert correlation_by_lag(prompts) == pytest.approx(np.array(expected) / energy, rel=1e-12)
    assert correlation_by_lag([np.ones((1, 2))]).tolist() == [0.0]


def test_tokens_that_repeat_one_another_are_dependent_and_fresh_ones_are_not():
    fresh = [RNG.standard_normal((64, 40)) for _ in range(4)]
    walk = [np.cumsum(rows, 0) for rows in fresh]
    facts = {name: block_facts(rows, rows, 0.5) for name, rows in (("fresh", fresh), ("walk", walk))}
    holds = {name: {entry.name: entry.holds for entry in entries.hypotheses()} for name, entries in facts.items()}
    assert holds["fresh"]["Assumption 6: weakly dependent tokens"]
    assert not holds["walk"]["Assumption 6: weakly dependent tokens"]
    assert holds["fresh"]["Assumption 5: sub-Gaussian rows"]
    spiked = [np.where(RNG.random(rows.shape) < 0.01, 30.0, rows) for rows in fresh]
    assert not block_facts(spiked, spiked, 0.5).hypotheses()[0].holds
    assert facts["walk"].energy == pytest.approx(np.mean([np.mean(rows**2) for rows in walk]))


def models():
    yield "gpt_neox", tiny_model("gpt_neox", spread=4.0)
    yield "mamba", tiny_model("mamba", spread=4.0)
    torch.manual_seed(0)
    yield "stack", StackForCausalLM(StackConfig(["ssd", "s6"], hidden_size=16, vocab_size=40))


@pytest.mark.parametrize(("kind", "network"), list(models()), ids=lambda value: value if isinstance(value, str) else "")
def test_the_gain_is_the_largest_singular_value_of_the_blocks_jacobian(kind, network):
    model = repflow.load(network, dtype="float64")
    ids = torch.tensor([[3, 7, 1, 9, 4]])
    kept = []

    def keep(_, args, kwargs):
        kept.append((args, kwargs))

    handles = [block.register_forward_pre_hook(keep, with_kwargs=True) for block in model.blocks]
    with torch.no_grad():
        model.reading.base(**model.reading.arguments(ids, None))
    for handle in handles:
        handle.remove()
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    gains = block_gains(model, ids, iterations=60)
    for block, (args, kwargs), gain in zip(model.blocks, kept, gains, strict=True):
        hidden = args[0] if args else kwargs["hidden_states"]
        rest = {key: value for key, value in kwargs.items() if key != "hidden_states"}

        def function(x, block=block, args=args, rest=rest):
            return hidden_of(block(x, *args[1:], **rest))

        jacobian = torch.autograd.functional.jacobian(function, hidden.clone())
        size = hidden.numel()
        largest = float(torch.linalg.svdvals(jacobian.reshape(size, size))[0])
        assert gain <= largest * (1 + 1e-6)
        assert gain == pytest.approx(largest, rel=2e-3), kind
    assert all(torch.equal(value, before[name]) for name, value in model.network.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.network.parameters())


@pytest.mark.parametrize("init", ["trained", "default"])
def test_apply_reports_the_blocks_of_trained_and_random_models(init, tmp_path):
    tiny_model("mamba").save_pretrained(tmp_path / "model")
    config = ApplyConfig(model=str(tmp_path / "model"), task="random", length=12, samples=2, init=init)
    result = run(config, out=tmp_path / "runs")
    layers = len(result["sigma"])
    for name in ("kurtosis", "dependence", "lipschitz", "energy"):
        assert result[f"block/{name}"].shape == (layers,)
        assert np.isfinite(result[f"block/{name}"]).all()
    names = {row["name"] for row in result.provenance["hypotheses"]}
    assert {"Assumption 5: sub-Gaussian rows", "Assumption 6: weakly dependent tokens"} <= names
    broken = [row for row in result.provenance["hypotheses"] if row["name"].startswith("Lemma 2")]
    for row, gain in zip(broken, result["block/lipschitz"], strict=True):
        assert row["holds"] == (gain < 1)


def test_the_gap_is_the_least_ratio_over_depth():
    energies = RNG.uniform(1, 5, (2, 6))
    gap = theory.uniform_gap(*energies)
    ratios = energies[0] / energies[1]
    assert gap.delta == pytest.approx(ratios.min() - 1)
    assert gap.depth == pytest.approx(ratios.argmin() / 5)
    assert gap.holds == (ratios.min() > 1)
    # a model with more blocks is compared at the same relative depths
    fine = np.exp(np.interp(np.linspace(0, 1, 11), np.linspace(0, 1, 6), np.log(energies[1])))
    assert theory.uniform_gap(energies[0], fine).delta == pytest.approx(gap.delta)
    for wrong in itertools.product(([], [1.0, -1.0], [[1.0]]), ([1.0],)):
        with pytest.raises(InputError, match="energies of blocks, above 0"):
            theory.uniform_gap(*wrong)


def test_a_block_that_shrinks_everything_contracts():
    assert BlockFacts(3.0, 0.0, 0.0, 0.9, 1.0).hypotheses()[2].holds
    assert not BlockFacts(3.0, 0.0, 0.0, 1.1, 1.0).hypotheses()[2].holds
