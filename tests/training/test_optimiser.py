"""Groups of AdamW, schedules and the papers' recipes."""

import math

import pytest
import torch

from repflow.core.errors import InputError
from repflow.training import RECIPES, OptimiserConfig, Schedule, TrainingConfig, paper_config
from repflow.training.optimiser import grouped_names, make_optimiser, set_rate
from tests.training.tiny_training import network

CPU = torch.device("cpu")


def groups_by_name(model, optimiser):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(p)]: group for group in optimiser.param_groups for p in group["params"]}


def test_norms_biases_and_the_recurrence_do_not_decay():
    model = network(mixers=["s6", "ssd", "softmax_attention"], norm="layer")
    found = groups_by_name(model, make_optimiser(model, OptimiserConfig(decay=0.3), CPU))
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, group in found.items():
        last = name.rpartition(".")[2]
        free = "norm" in name or last in ("bias", "A_log", "D", "dt_bias") or last.endswith("_bias")
        assert group["weight_decay"] == (0.0 if free else 0.3), name
    assert {"A_log", "D", "dt_bias", "bias"} <= {name.rpartition(".")[2] for name in found}
    few = groups_by_name(model, make_optimiser(model, OptimiserConfig(decayed=("matrices",)), CPU))
    assert few["model.embeddings.weight"]["weight_decay"] == 0.0


def test_rates_go_by_the_first_pattern_in_a_name():
    model = network()
    config = OptimiserConfig(rate=0.5, rates={"A_log|dt_proj": 0.1, "mixer": 0.4})
    optimiser = make_optimiser(model, config, CPU)
    set_rate(optimiser, 0.2)
    found = groups_by_name(model, optimiser)
    for name, group in found.items():
        expected = 0.1 if "A_log" in name or "dt_proj" in name else 0.4 if "mixer" in name else 1.0
        assert group["lr"] == pytest.approx(0.2 * expected)


def test_frozen_parameters_are_left_out():
    model = network()
    model.model.embeddings.weight.requires_grad_(False)
    names = {name for group in grouped_names(model, OptimiserConfig()).values() for name in group}
    assert names == dict(model.named_parameters()).keys() - {"model.embeddings.weight"}
    with pytest.raises(InputError, match="expected a parameter to train; got none that needs a gradient"):
        grouped_names(model.requires_grad_(False), OptimiserConfig())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rate": 0.0}, "expected a learning rate above 0; got 0.0; give another"),
        ({"rate": math.nan}, "expected a learning rate above 0; got nan"),
        ({"decay": -0.1}, "expected decay of at least 0; got -0.1"),
        ({"decayed": ("matrix",)}, "expected a kind of parameters in decayed; got 'matrix'; did you mean matrices"),
        ({"rates": {"A_log": -1.0}}, "expected a factor of at least 0 for 'A_log'; got -1.0"),
        ({"rates": {"(": 1.0}}, r"expected a pattern in rates; got '\(' \(.*\); write a regular expression"),
    ],
)
def test_a_wrong_optimiser_is_refused(options, told):
    with pytest.raises(InputError, match=told):
        OptimiserConfig(**options)


def test_a_pattern_that_is_in_no_name_is_refused():
    config = OptimiserConfig(rates={"A_lgo": 0.1})
    with pytest.raises(
        InputError, match=r"expected patterns of rates .*; got 'A_lgo', which is in none; names are such as"
    ):
        make_optimiser(network(), config, CPU)


def test_schedules_have_their_known_values():
    linear = Schedule("linear", warmup=4, final=0.2)
    assert [linear.rate(2.0, step, 14) for step in (0, 3)] == [0.5, 2.0]
    assert [round(linear.rate(1.0, step, 14), 6) for step in (4, 9, 14, 99)] == [1.0, 0.6, 0.2, 0.2]
    cosine = Schedule("cosine", hold=10)
    assert [round(cosine.rate(1.0, step, 110), 6) for step in (0, 50, 100, 105)] == [1.0, 0.5, 0.0, 0.0]
    staged = Schedule("cosine", stage=25)
    rates = [staged.rate(1.0, step, 100) for step in range(100)]
    assert sorted({round(rate, 6) for rate in rates}) == [0.146447, 0.5, 0.853553, 1.0]
    assert rates[24] == rates[0] != rates[25]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shape": "cosinus"}, "expected the shape of a schedule; got 'cosinus'; did you mean cosine"),
        ({"warmup": -1}, "expected warmup of at least 0; got -1"),
        ({"final": 1.5}, "expected final from 0 to 1; got 1.5; it is a share of the peak"),
        ({"stage": 0}, "expected stage of at least 1; got 0"),
    ],
)
def test_a_wrong_schedule_is_refused(options, told):
    with pytest.raises(InputError, match=told):
        Schedule(**options)


def test_recipes_are_those_that_the_papers_print():
    mamba = paper_config("dynamics-table2", 22_500)
    assert (mamba.optimiser.rate, mamba.optimiser.betas, mamba.optimiser.decay) == (1.5e-3, (0.9, 0.999), 0.25)
    assert mamba.schedule.warmup == 225
    assert mamba.rate(22_499) == pytest.approx(1.5e-4, rel=1e-3)
    deep = paper_config("recency-fig4", 13_500, rate=1.5e-3)
    assert deep.rate(13_499) == pytest.approx(1e-5, rel=1e-3)
    assert (deep.clip, deep.optimiser.decay) == (1.0, 0.1)
    pixels = paper_config("recency-table1", 100 * 781, epoch=781, seed=5)
    assert (pixels.optimiser.rate, pixels.clip, pixels.seed) == (1e-3, None, 5)
    assert pixels.rate(780) == pixels.rate(0) != pixels.rate(781)
    assert pixels.rate(99 * 781) == pytest.approx(1e-3 * 0.5 * (1 + math.cos(math.pi * 0.99)))
    printed = {*("recency-table1", "recency-table2", "recency-fig4", "dynamics-table2", "dynamics-table3")}
    assert set(RECIPES) == {*printed, "pixels-strong"}
    with pytest.raises(InputError, match="expected the name of a paper's recipe; got 'recency-tabel1'; did you mean"):
        paper_config("recency-tabel1", 10)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"steps": 0}, "expected steps of at least 1; got 0"),
        ({"seed": -1}, "expected seed from 0"),
        ({"clip": 0.0}, "expected clip above 0; got 0.0; pass None"),
        ({"clip": math.nan}, "expected clip above 0; got nan"),
        ({"seconds": -1.0}, "expected seconds of at least 0; got -1.0"),
        ({"accumulate": 0}, "expected accumulate of at least 1"),
        ({"log_every": 0}, "expected log_every of at least 1"),
        ({"precision": "float61"}, "expected a known precision; got 'float61'; did you mean"),
        ({"nonfinite": "ignore"}, "expected a known nonfinite; got 'ignore'"),
        ({"evaluate": (3, 11)}, r"expected evaluate from 0 to steps, 10; got \(3, 11\)"),
        ({"evaluate": -2}, "expected evaluate from 0 to steps, 10; got -2"),
    ],
)
def test_a_wrong_config_is_refused(options, told):
    with pytest.raises(InputError, match=told):
        TrainingConfig(**{"steps": 10, **options})
