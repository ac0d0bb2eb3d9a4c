"""Random schemes touch the parameters they say and no others, with the spread they say."""

import math

import pytest
import torch
from torch import nn

from repflow.core.errors import InputError, UnsupportedModelError
from repflow.models import load, twin
from repflow.models.transformers_own import config_class
from repflow.models.weights.initialise import generator_seed, parameter_groups, random_model, redraw, residual_outputs
from repflow.spec.scheme import REDRAWN, parse_scheme
from tests.models.tiny_configs import COMMON, CONFIGS, NAMED, tiny_config, tiny_model
from tests.sample import sampled


def parameters(model_type, init, seed=0):
    network = random_model(tiny_config(model_type), init, seed=seed)
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


def groups(model_type):
    return parameter_groups(random_model(tiny_config(model_type), "default", seed=0))


@pytest.mark.parametrize("model_type", sampled(NAMED))
def test_which_parameters_are_redrawn(model_type):
    before, after, of = parameters(model_type, "default"), parameters(model_type, "gaussian:0.3"), groups(model_type)
    for name, parameter in after.items():
        redrawn = of[name] in REDRAWN
        assert redrawn != torch.equal(parameter, before[name]), name
        if redrawn and parameter.numel() > 500:
            assert float(parameter.std()) == pytest.approx(0.3, rel=0.15), name
        assert redrawn or of[name] in ("norms", "biases", "recurrence")
        assert not redrawn or parameter.ndim >= 2, name


def test_groups_by_name():
    """The table of the module's docstring, read off four architectures by hand."""
    gpt, mamba, bamba, gemma = (groups(kind) for kind in ("gpt2", "mamba", "bamba", "recurrent_gemma"))
    assert gpt["transformer.wte.weight"] == gpt["transformer.wpe.weight"] == "embeddings"
    assert gpt["transformer.h.0.ln_1.bias"] == gpt["transformer.ln_f.weight"] == "norms"
    assert gpt["transformer.h.0.mlp.c_fc.bias"] == "biases"
    assert gpt["transformer.h.0.attn.c_attn.weight"] == "matrices"
    mixer = {name.removeprefix("backbone.layers.0.mixer."): group for name, group in mamba.items()}
    assert {mixer[name] for name in ("A_log", "D", "dt_proj.bias")} == {"recurrence"}
    assert (mixer["conv1d.weight"], mixer["conv1d.bias"], mixer["x_proj.weight"]) == (
        "convolutions",
        "biases",
        "matrices",
    )
    assert {bamba[f"model.layers.0.mamba.{name}"] for name in ("A_log", "D", "dt_bias")} == {"recurrence"}
    assert bamba["model.layers.0.mamba.norm.weight"] == "norms"
    assert bamba["lm_head.weight"] == "embeddings"
    assert gemma["model.layers.0.temporal_block.rg_lru.recurrent_param"] == "recurrence"
    assert gemma["model.layers.0.temporal_block.rg_lru.input_gate_bias"] == "biases"


def test_fans():
    gpt2 = parameters("gpt2", "he")["transformer.h.0.mlp.c_fc.weight"]  # stored (in, out)
    assert gpt2.shape == (32, 128)
    assert float(gpt2.std()) == pytest.approx(math.sqrt(2 / 32), rel=0.1)
    llama = parameters("llama", "he")["model.layers.0.mlp.down_proj.weight"]
    assert float(llama.std()) == pytest.approx(math.sqrt(2 / 64), rel=0.1)
    xavier = parameters("llama", "xavier")["model.layers.0.mlp.down_proj.weight"]
    assert float(xavier.std()) == pytest.approx(math.sqrt(2 / 96), rel=0.1)
    conv = parameters("mamba", "he")["backbone.layers.0.mixer.conv1d.weight"]  # one input channel, kernel of 4
    assert float(conv.std()) == pytest.approx(math.sqrt(2 / 4), rel=0.2)
    experts = parameters("jamba", "he")["model.layers.1.feed_forward.experts.down_proj"]
    assert float(experts.std()) == pytest.approx(math.sqrt(2 / 64), rel=0.1)


def test_fans_of_convolutions():
    """Against torch's own counting; three dimensions outside a convolution are experts (expert, out, in)."""

    class Filters(nn.Module):
        def __init__(self):
            super().__init__()
            self.whole, self.grouped, self.deep = (
                nn.Conv1d(64, 48, 5),
                nn.Conv1d(64, 64, 5, groups=4),
                nn.Conv1d(96, 96, 9, groups=96),
            )
            self.experts = nn.Parameter(torch.zeros(8, 48, 64))

    torch.manual_seed(0)
    network = Filters()
    of = parameter_groups(network)
    for init in ("he", "xavier"):
        redraw(network, parse_scheme(init), of)
        for name, parameter in network.named_parameters():
            if parameter.ndim == 3:
                matrix = parameter[0] if name == "experts" else parameter
                fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(matrix)
                fans = fan_in if init == "he" else fan_in + fan_out
                assert float(parameter.detach().std()) == pytest.approx(math.sqrt(2 / fans), rel=0.1), name


@pytest.mark.parametrize("scheme", ["xavier", "he"])
def test_gains(scheme):
    one, half = parameters("bamba", scheme), parameters("bamba", f"{scheme}:0.5")
    of = groups("bamba")
    for name, parameter in one.items():
        if of[name] not in REDRAWN:
            assert torch.equal(half[name], parameter), name
        elif parameter.numel() > 500:
            assert float(half[name].std()) == pytest.approx(0.5 * float(parameter.std()), rel=0.15), name


def test_schemes_of_one_seed_are_independent_draws():
    """Correlation of all redrawn values, which scaling cannot change; 3 standard errors of none."""
    inits = ["gaussian", "gaussian:0.1", "xavier", "xavier:0.5", "he", "he:2"]
    of = groups("bamba")
    drawn = []
    for init in inits:
        weights = parameters("bamba", init, seed=3)
        drawn.append(torch.cat([(p / p.std()).flatten() for name, p in weights.items() if of[name] in REDRAWN]))
    correlation = torch.corrcoef(torch.stack(drawn)) - torch.eye(len(inits))
    assert float(correlation.abs().max()) < 4 / math.sqrt(drawn[0].numel())
    noise = [parameters("bamba", f"{init}+norms:0.1")["model.final_layernorm.weight"] for init in ("default", "xavier")]
    assert not torch.equal(*noise)
    assert torch.equal(
        parameters("bamba", "gaussian:0.10")["lm_head.weight"], parameters("bamba", "gaussian:0.1")["lm_head.weight"]
    )


def test_the_seed_of_a_draw_is_fixed():
    """Pinned, so that stored runs can be made again; noise and the residual factor keep what is redrawn."""
    seeds = [generator_seed(seed, parse_scheme(init)) for seed, init in ((0, "xavier"), (1, "xavier"), (0, "he"))]
    assert seeds == [1921193921, 1324357118, 4217200001]
    plain, switched = (parameters("gpt2", init) for init in ("he", "he+norms+biases+residual:0.5"))
    assert torch.equal(plain["transformer.wte.weight"], switched["transformer.wte.weight"])
    expected = torch.Generator().manual_seed(4217200001)
    assert torch.equal(plain["transformer.h.0.attn.c_attn.weight"],
                       torch.empty(32, 96).normal_(0.0, math.sqrt(2 / 32), generator=expected))  # fmt: skip


@pytest.mark.parametrize("group", [*REDRAWN, "norms", "biases", "recurrence"])
def test_switches_of_groups(group):
    of, before = groups("bamba"), parameters("bamba", "default")
    mask = group in REDRAWN
    after = parameters("bamba", f"gaussian+keep-{group}" if mask else f"default+{group}:0.1")
    changed = {of[name] for name in after if not torch.equal(after[name], before[name])}
    assert changed == (set(REDRAWN) - {group} if mask else {group})
    if not mask:
        noise = torch.cat([(after[name] - before[name]).flatten() for name in after if of[name] == group])
        assert float(noise.std()) == pytest.approx(0.1, rel=0.25)


@pytest.mark.parametrize("model_type", sampled(NAMED))
def test_residual_factor_scales_what_every_branch_adds(model_type):
    """The branches of both networks get the same input: one adds a quarter of what the other does."""
    whole, quarter = (random_model(tiny_config(model_type), f"xavier+biases+residual:{f}", seed=2) for f in (1, 0.25))
    one, two = load(whole), load(quarter)
    ids = torch.randint(0, 128, (2, 12), generator=torch.Generator().manual_seed(5))
    first, second = ([] for _ in range(2))
    for model, states in ((one, first), (two, second)):
        model.stream(ids, on_state=lambda _, hidden, states=states: states.append(hidden.clone()))
    for kind in ("attention", "ssm", "recurrent", "conv", "mlp"):
        if 0 not in one.sublayers(f"branch:{kind}"):
            continue
        parts = [part for model in (one, two) for part in model.reading.parts[0] if part.kind == kind]
        outputs = [_added(model, part, ids) for model, part in zip((one, two), _halves(parts), strict=True)]
        if kind != "mlp":  # the first sublayer of the first block: its input is the same in both
            assert torch.allclose(outputs[1], 0.25 * outputs[0], rtol=1e-3, atol=1e-6), kind
    assert torch.equal(first[0], second[0])
    assert len(residual_outputs(whole)) == sum(len(parts) for parts in one.reading.parts)


def _halves(parts):
    return parts[: len(parts) // 2][0], parts[len(parts) // 2 :][0]


def _added(model, part, ids):
    outputs = []
    handle = part.module.register_forward_hook(lambda _, __, output: outputs.append(output))
    with torch.no_grad():
        model.network(input_ids=ids, use_cache=False)
    handle.remove()
    return outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]


@pytest.mark.parametrize(
    "model_type", ["llama", "gpt2", "jamba", "granitemoehybrid", "nemotron_h", "qwen3_next", "rwkv"]
)
def test_residual_factor_of_every_mlp(model_type):
    """Every MLP, mixture and gated form, fed the same numbers by hand."""
    pair = [random_model(tiny_config(model_type), f"xavier+biases+residual:{f}", seed=2).eval() for f in (1, 0.25)]
    one, two = (load(network) for network in pair)
    hidden = torch.randn(1, 12, one.width, generator=torch.Generator().manual_seed(1))
    checked = 0
    for parts, others in zip(one.reading.parts, two.reading.parts, strict=True):
        for part, other in zip(parts, others, strict=True):
            if part.kind == "mlp":
                with torch.no_grad():
                    a, b = part.module(hidden.clone()), other.module(hidden.clone())
                a, b = (out[0] if isinstance(out, tuple) else out for out in (a, b))
                assert torch.allclose(b, 0.25 * a, rtol=1e-3, atol=1e-6), type(part.module).__name__
                checked += 1
    assert checked


def test_residual_by_depth_is_gpt2s_rule():
    """GPT-2's own rule divides by sqrt(2 L); Mamba, with one branch per block, by sqrt(L)."""
    plain, scaled = parameters("gpt2", "gaussian:0.1"), parameters("gpt2", "gaussian:0.1+residual")
    for name, parameter in plain.items():
        factor = 1 / math.sqrt(2 * 4) if "c_proj.weight" in name else 1.0
        assert torch.allclose(scaled[name], factor * parameter), name
    plain, scaled = parameters("mamba", "xavier"), parameters("mamba", "xavier+residual")
    assert torch.allclose(scaled["backbone.layers.0.mixer.out_proj.weight"],
                          plain["backbone.layers.0.mixer.out_proj.weight"] / 2)  # fmt: skip
    off = load(random_model(tiny_config("llama"), "xavier+residual:0", seed=0))
    states = []
    off.stream(torch.arange(5)[None], on_state=lambda _, hidden: states.append(hidden.clone()))
    assert all(torch.equal(hidden, states[0]) for hidden in states)


def test_residual_behind_a_norm_is_refused():
    config = config_class("gemma2")(**{**COMMON, **CONFIGS["gemma2"]})
    got = r"the attention branch of block 1 \(\w+\), which has none that repflow knows"
    with pytest.raises(UnsupportedModelError, match=f"output projection in every residual branch; got {got}"):
        random_model(config, "xavier+residual", seed=0)


@pytest.mark.parametrize("init", ["default", "gaussian", "xavier", "he:2+residual+norms"])
def test_seeds(init):
    first, again, other = (parameters("mamba2", init, seed) for seed in (4, 4, 5))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("gausian", "did you mean gaussian"),
        ("", "an init"),
        ("gaussian:x", "a positive number"),
        ("gaussian:-1", "a positive number"),
        ("gaussian:0", "a positive number"),
        ("gaussian:nan", "a positive number"),
        ("he:0", "a positive number"),
        ("default:2", "an init"),
        ("trained+residual", "trained weights as they are"),
        ("xavier+residul", "did you mean residual"),
        ("xavier+residual:-1", "a positive number"),
        ("xavier+keep-embedings", "did you mean keep-embeddings"),
        ("xavier+keep-norms", "a switch of an init"),
        ("xavier+norms+norms", "norms twice"),
        ("default+keep-matrices", "default redraws nothing"),
    ],
)
def test_unknown_schemes(init, message):
    with pytest.raises(InputError, match="expected") as caught:
        parse_scheme(init)
    assert message in str(caught.value)


def test_numbers_with_an_exponent():
    scheme = parse_scheme("gaussian:1e-3+residual:1e+1+norms:5e-2")
    assert (scheme.number, scheme.residual, scheme.noise) == (1e-3, 10.0, {"norms": 0.05})


def test_a_twin_keeps_everything_but_the_weights():
    original = load(tiny_model("gpt2"), tokenizer=None)
    original.tokenizer = object()
    twin_model = twin(original, "xavier:2", seed=3)
    assert twin_model.tokenizer is original.tokenizer
    assert (twin_model.spec, twin_model.name, twin_model.dtype, twin_model.init) == (
        original.spec,
        original.name,
        original.dtype,
        "xavier:2",
    )
    assert twin_model.digest() != original.digest() != twin(original, "xavier:2", seed=4).digest()
    before, after = original.network.config.to_dict(), twin_model.network.config.to_dict()
    assert {key for key in before if before[key] != after[key]} <= {"dtype"}
    shapes = [{n: p.shape for n, p in model.network.named_parameters()} for model in (original, twin_model)]
    assert shapes[0] == shapes[1]
    with pytest.raises(InputError, match="a random scheme for a twin"):
        twin(original, "trained")
