"""S6 and SSD are Mamba and Mamba-2: transformers' mixers with the same weights give the same numbers in float64."""

import pytest
import torch
from torch.nn.functional import softplus

from repflow.core.errors import InputError
from repflow.mixers import build, check_mixer
from repflow.mixers.parts.step import initial_step_bias
from repflow.mixers.scan.forms import recurrence
from tests.mixers.mamba_oracles import WIDTH, inputs, loud, mamba2_mixer, mamba_mixer, outputs, relative

S6_OPTIONS = {"width": WIDTH, "state": 5}
SSD_OPTIONS = {"width": WIDTH, "state": 6, "head_dim": 4, "groups": 3}


def twin(name, oracle, **options):
    mixer = build(name, **options).double()
    mixer.load_state_dict(oracle.state_dict())
    return mixer


@pytest.mark.parametrize("biases", [False, True])
def test_s6_is_transformers_mamba(biases):
    oracle = loud(mamba_mixer(use_bias=biases, use_conv_bias=not biases))
    mixer = twin("mamba", oracle, **S6_OPTIONS, bias=biases, conv_bias=not biases)
    assert relative(mixer(inputs()), outputs(oracle, inputs())) < 1e-13


def test_s6_scan_alone_is_transformers_mamba():
    """At tiny random weights the scan is lost beside D u: without D nothing else is left."""
    oracle = loud(mamba_mixer())
    expected = outputs(oracle, inputs())
    with torch.no_grad():
        oracle.D.zero_()
    mixer = twin("s6", oracle, **S6_OPTIONS)
    alone = outputs(oracle, inputs())
    assert relative(mixer(inputs()), alone) < 1e-13
    assert relative(alone, expected) > 0.01
    mixer.A_log.data[0, 0] += 1e-6  # the comparison sees one decay of one channel
    assert relative(mixer(inputs()), alone) > 1e-12


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_ssd_is_transformers_mamba2(groups):
    oracle = loud(mamba2_mixer(groups=groups))
    mixer = twin("mamba2", oracle, **{**SSD_OPTIONS, "groups": groups})
    assert relative(mixer(inputs()), outputs(oracle, inputs())) < 1e-12
    with torch.no_grad():
        oracle.D.zero_()
    mixer = twin("ssd", oracle, **{**SSD_OPTIONS, "groups": groups})
    assert relative(mixer(inputs()), outputs(oracle, inputs())) < 1e-12
    assert relative(mixer(inputs(), path="reference"), mixer(inputs())) < 1e-12


def test_ssd_norm_in_groups():
    """mamba_ssm norms group by group: each group is as if it stood alone."""
    mixer = build("ssd", norm_groups=3, **SSD_OPTIONS).double()
    y, z = inputs().repeat(1, 1, 2), inputs(2).repeat(1, 1, 2)
    gated = (y * torch.nn.functional.silu(z)).unflatten(-1, (3, 8))
    expected = torch.nn.functional.rms_norm(gated, (8,), eps=1e-5).flatten(2)
    assert relative(mixer.norm(y, z), expected) < 1e-12
    assert relative(build("ssd", **SSD_OPTIONS).double().norm(y, z), expected) > 0.01


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("s6", {}),
        ("s6", {"conv": 0, "gate": False, "skip": False}),
        ("s6", {"conv": 1, "bias": True, "expand": 1, "dt_rank": 3, "dt_init": "constant"}),
        ("s6", {"polarize": "one"}),
        ("s6", {"polarize": "zero"}),
        ("s6", {"polarize": "both", "pole_states": "added"}),
        ("s6", {"polarize": "both", "pole_states": "added", "zero_rate": -1000.0}),
        ("s6", {"polarize": "zero", "zero_rate": -100.0, "dt_bias": "zero"}),
        ("s6", {"polarize": "both", "placebo": True}),
        ("s6", {"polarize": "one", "placebo": True, "pole_states": "added"}),
        ("s6", {"polarize": "both", "eigenvalues": "mixed"}),
        ("s6", {"eigenvalues": "positive"}),
        ("s6", {"eigenvalues": "negative", "expand": 0.25}),
        ("ssd", {}),
        ("ssd", {"conv": 0, "gate": False, "skip": False, "norm": False}),
        ("ssd", {"conv_bias": False, "bias": True, "groups": 3, "head_dim": 8, "norm_groups": 2, "a_init": "range"}),
        ("ssd", {"polarize": "one"}),
        ("ssd", {"polarize": "zero", "groups": 2, "head_dim": 4}),
        ("ssd", {"polarize": "both", "norm": False}),
    ],
    ids=str,
)
def test_every_form_keeps_the_promises_of_a_mixer(name, options):
    check_mixer(build(name, 12, state=4, **options))


def test_initial_step_sizes_and_decays_are_mambas():
    """Against transformers' own initialisation: the same fixed parts, the same law of the random ones."""
    torch.manual_seed(0)
    mixer, oracle = build("s6", 500), mamba_mixer(width=500, state=16)
    assert torch.equal(mixer.A_log.double(), oracle.A_log)
    assert torch.equal(mixer.D.double(), oracle.D)
    assert mixer.dt_proj.weight.shape == oracle.dt_proj.weight.shape
    for ours, theirs in ((mixer.dt_proj.weight, oracle.dt_proj.weight), (mixer.dt_proj.bias, oracle.dt_proj.bias)):
        ours, theirs = (part.detach().double().flatten().sort().values for part in (ours, theirs))
        spread = float(theirs.std())
        assert float((ours - theirs).abs().max()) < 0.25 * spread  # quantile by quantile
    steps = softplus(mixer.dt_proj.bias.detach()).log10().sort().values
    assert float((steps - torch.linspace(-3, -1, 1000)).abs().max()) < 0.12  # log-uniform from 0.001 to 0.1


def test_no_step_starts_below_the_floor():
    torch.manual_seed(0)
    steps = softplus(initial_step_bias(4000, 1e-3, 1e-1, 1e-2).double())
    assert float(steps.min()) == pytest.approx(1e-2, rel=1e-4)
    assert float(steps.max()) == pytest.approx(1e-1, rel=1e-2)
    at_floor = float((steps < 1.001e-2).double().mean())
    assert 0.46 < at_floor < 0.54  # half of them would be below it: five standard errors
    torch.manual_seed(0)
    assert float(softplus(build("s6", 64, dt_floor=1e-2).dt_proj.bias.detach()).min()) == pytest.approx(1e-2, rel=1e-4)


def test_initial_decay_is_long_where_the_papers_code_forgets():
    """Largest decay at initialisation .999 with the step bias, .50 with a bias of zero (FACTS)."""
    torch.manual_seed(0)
    mixer = build("s6", 64, conv=0).double()
    x = torch.zeros(1, 1, 64, dtype=torch.float64)
    assert float(mixer.transition(x).A.detach().max()) == pytest.approx(0.999, abs=5e-4)
    torch.manual_seed(0)
    zeroed = build("s6", 64, conv=0, dt_bias="zero").double()
    assert float(zeroed.transition(x).A.detach().max()) == pytest.approx(0.5, abs=1e-9)
    others = [name for name, part in mixer.named_parameters() if name != "dt_proj.bias"]
    assert all(torch.equal(zeroed.get_parameter(name), mixer.get_parameter(name)) for name in others)


def test_ssd_initialisation():
    torch.manual_seed(0)
    mixer = build("ssd", 512, head_dim=2)
    rates = mixer.A_log.exp().sort().values.detach()
    assert float((rates - torch.linspace(1, 16, 512)).abs().max()) < 1.0
    steps = softplus(mixer.dt_bias.detach()).log10().sort().values
    assert float((steps - torch.linspace(-3, -1, 512)).abs().max()) < 0.15
    as_transformers = build("ssd", a_init="range", **SSD_OPTIONS)
    assert torch.allclose(as_transformers.A_log.double(), mamba2_mixer().A_log)


@pytest.mark.parametrize("name", ["s6", "ssd"])
@pytest.mark.parametrize("size", [30.0, 200.0])
def test_large_steps_leave_everything_finite(name, size):
    mixer = build(name, 8, state=4, polarize="both", conv=0)
    bias = mixer.dt_proj.bias if name == "s6" else mixer.dt_bias
    torch.nn.init.constant_(bias, size)
    x = torch.randn(2, 40, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mixer(x).square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in [x, *(p for p in mixer.parameters() if p.grad is not None)])
    assert relative(mixer(x), mixer.readout(recurrence(mixer.transition(x)), x)) < 1e-5


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("s6", {"state": 0}, "expected state of at least 1; got 0"),
        ("s6", {"conv": -1}, "expected conv of at least 0; got -1"),
        ("s6", {"dt_init": "uniform"}, "expected dt_init among random, constant; got 'uniform'"),
        ("s6", {"dt_min": 0.0}, "expected 0 < dt_min <= dt_max; got 0.0 and 0.1"),
        ("s6", {"dt_min": 0.2}, "expected 0 < dt_min <= dt_max; got 0.2 and 0.1"),
        ("s6", {"polarize": "ones"}, "expected polarize among one, zero, both; got 'ones'; did you mean one"),
        ("s6", {"polarize": "both", "state": 2}, "expected at least 3 states for polarize='both'; got 2"),
        ("s6", {"pole_states": "added"}, "expected polarize with pole_states; got none; leave pole_states out"),
        ("s6", {"placebo": True}, "expected polarize with placebo; got none"),
        ("s6", {"polarize": "both", "pole_states": "more"}, "expected pole_states among replaced, added; got 'more'"),
        (
            "s6",
            {"polarize": "one", "zero_rate": -9.0},
            "zero_rate below 0 of a pole at 0; got -9.0 with polarize='one'",
        ),
        ("s6", {"polarize": "both", "zero_rate": 9.0}, "expected a finite zero_rate below 0"),
        ("s6", {"polarize": "both", "zero_rate": -9.0, "placebo": True}, "got -9.0 with polarize='both' and placebo"),
        ("s6", {"dt_bias": "none"}, "expected dt_bias among drawn, zero; got 'none'"),
        ("s6", {"eigenvalues": "pos"}, "expected eigenvalues among positive, negative, mixed, complex; got 'pos'"),
        ("s6", {"eigenvalues": "mixed", "state": 1}, "expected state of at least 2; got 1"),
        ("ssd", {"head_dim": 5}, "expected head_dim that divides the inner width of 24; got 5"),
        ("ssd", {"head_dim": 4, "groups": 4}, "expected groups that divides the number of heads of 6; got 4"),
        ("ssd", {"norm_groups": 5}, "expected norm_groups that divides the inner width of 24; got 5"),
        ("ssd", {"a_init": "ones"}, "expected a_init among uniform, range; got 'ones'"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        build(name, 12, **options)


@pytest.mark.parametrize("name", ["s6", "ssd"])
def test_wrong_input_is_refused(name):
    with pytest.raises(InputError, match="width 12"):
        build(name, 12)(torch.zeros(2, 3, 8))


@pytest.mark.parametrize("name", ["s6", "ssd", "rwkv4", "rwkv5"])
def test_readout_of_a_float32_recurrence_stays_in_half_precision(name):
    """The recurrence runs in float32 in a half-precision model; dtypes alone, on the device without values."""
    mixer = build(name, 8).to("meta", torch.bfloat16)
    x = torch.empty(2, 5, 8, device="meta", dtype=torch.bfloat16)
    transition = mixer.transition(x)
    assert torch.float32 in {part.dtype for part in transition}
    channels = torch.broadcast_shapes(*(part.shape for part in transition))[2]
    y = torch.empty(2, 5, channels, device="meta", dtype=torch.float32)
    assert mixer.readout(y, x).dtype == torch.bfloat16
