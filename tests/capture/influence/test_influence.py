"""Influence against torch's own Jacobian, finite differences in float64, and the closed form of a linear stack."""

import numpy as np
import pytest
import torch

from repflow.capture import MemorySink, OutOfMemoryError
from repflow.capture.decay import largest_decays, readable
from repflow.capture.influence import check as influence_check
from repflow.capture.influence.batches import InfluenceOptions, make_influence_plan, run_influence, token_at
from repflow.capture.influence.check import check_gradients, packed_weight
from repflow.capture.influence.jacobian import FINAL, _accumulate, _directions, influence_squares, rademacher
from repflow.core.errors import InputError, UnsupportedModelError
from repflow.core.intervals import student_quantile
from repflow.models import load, ssm_quantities
from repflow.theory import lti_influence
from tests.capture.inputs import model, prompts
from tests.models.stack.inputs import HYBRID, stack
from tests.models.tiny_configs import tiny_model
from tests.sample import sampled

ARCHITECTURES = ("gpt_neo", "gpt_neox", "mamba", "mamba2", "rwkv", "recurrent_gemma", "bamba")
FAMILIES = ("s4d", "h3", "s6", "ssd", "linear_attention", "retention", "gla", "rwkv4", "rwkv5", "rg_lru")
IDS = torch.randint(3, 64, (2, 11), generator=torch.Generator().manual_seed(3))


def jacobian_norms(network, ids, at):
    """‖∂y_t/∂x_s‖ through inputs_embeds of a network that repflow never saw."""
    base = network.base_model

    def output(embedded):
        return base(inputs_embeds=embedded[None], use_cache=False).last_hidden_state[0, at]

    embedded = network.get_input_embeddings()(ids).detach()
    return torch.autograd.functional.jacobian(output, embedded).norm(dim=(0, 2)).numpy()


@pytest.mark.parametrize("kind", sampled(ARCHITECTURES))
def test_exact_rows_are_torchs_jacobian(kind):
    ours = influence_squares(model(kind, "float64"), IDS, None, at=[10, 6])[FINAL]
    for row, at in enumerate((10, 6)):
        theirs = jacobian_norms(tiny_model(kind).double(), IDS[row], at)
        norms = np.sqrt(ours.mean[0, row])
        # transformers computes norms and its own scans in float32 whatever the dtype
        np.testing.assert_allclose(norms, theirs, rtol=1e-3, atol=1e-4 * theirs.max())
        assert (norms[at + 1 :] == 0).all()
    assert (ours.variance == 0).all()


def numeric_norms(network, ids, at, step):
    """The same by central differences of every entry of every embedding, each a row of one batch."""
    embedded = network.get_input_embeddings()(ids).detach()
    step = step * float(embedded.square().mean().sqrt())
    shifts = step * torch.eye(embedded.numel(), dtype=embedded.dtype).reshape(-1, *embedded.shape)
    with torch.no_grad():
        ends = [
            network.base_model(inputs_embeds=embedded + sign * shifts, use_cache=False).last_hidden_state[:, at]
            for sign in (1, -1)
        ]
    return ((ends[0] - ends[1]) / (2 * step)).reshape(*embedded.shape, -1).norm(dim=(1, 2)).numpy()


@pytest.mark.parametrize("kind", sampled(ARCHITECTURES))
def test_exact_rows_agree_with_finite_differences(kind):
    ours = influence_squares(model(kind, "float64"), IDS[:1, :6], None, at=[5])[FINAL]
    loose = kind != "gpt_neox"  # the others round to float32 inside
    numeric = numeric_norms(tiny_model(kind).double(), IDS[0, :6], 5, step=2e-3 if loose else 1e-4)
    np.testing.assert_allclose(np.sqrt(ours.mean[0, 0]), numeric, rtol=3e-2 if loose else 1e-5)


@pytest.mark.parametrize("mixers", [*((family,) for family in FAMILIES), HYBRID], ids=lambda m: "+".join(m))
def test_stacks_agree_with_finite_differences_in_float64(mixers):
    network = stack(mixers).double()
    loaded = load(network, dtype="float64")
    ours = influence_squares(loaded, IDS[:1, :6], None, at=[5])[FINAL]
    numeric = numeric_norms(network, IDS[0, :6], 5, step=1e-4)
    # cumulative sums of the fast forms and complex kernels leave 1e-7
    np.testing.assert_allclose(np.sqrt(ours.mean[0, 0]), numeric, rtol=2e-5, atol=1e-7 * numeric.max())


def linear_s4d(layers):
    """A stack of S4D layers whose read-out is the state-space model alone, without norms: linear and time-invariant."""
    network = stack(["s4d"] * layers, norm="none", final_norm=False, spread=1.0).double()
    for block in network.model.blocks:
        object.__setattr__(block.mixer, "readout", lambda y, x: y)
    return network


def channel_influence(block, lags):
    """|∂y_t/∂x_s| of each channel by `theory.lti_influence`: conjugate pairs make the real system."""
    log_decay, entry, step = (part.detach().numpy() for part in block.mixer.kernel.discretise())
    c = block.mixer.kernel.readouts().detach().numpy() / 2
    decay, b = np.exp(log_decay), entry * step[:, None]
    both = [np.concatenate([part, part.conj()], axis=1) for part in (decay, b, c)]
    return np.stack([lti_influence(*(part[row] for part in both), lags) for row in range(len(decay))])


def test_a_linear_s4d_stack_has_the_closed_form_of_the_theory():
    network = linear_s4d(2)
    loaded = load(network, dtype="float64")
    ids = torch.randint(3, 64, (1, 40), generator=torch.Generator().manual_seed(1))
    by_target = influence_squares(loaded, ids, None, at=[39], targets=(FINAL, 1))
    lags = np.arange(1, 40)
    for block, squares in ((0, by_target[1].mean[0, 0]), (1, by_target[FINAL].mean[2, 0])):
        theirs = np.sqrt((channel_influence(network.model.blocks[block], lags) ** 2).sum(0))
        np.testing.assert_allclose(np.sqrt(squares[:39][::-1]), theirs, rtol=1e-9)
    kernels = [block.mixer.kernel.kernel(40).detach().numpy() for block in network.model.blocks]
    for kernel in kernels:
        kernel[:, 0] += 1  # the residual stream
    whole = np.stack([np.convolve(a, b)[:40] for a, b in zip(*kernels, strict=True)])
    np.testing.assert_allclose(
        np.sqrt(by_target[FINAL].mean[0, 0][::-1]), np.sqrt((whole**2).sum(0)), rtol=1e-9, atol=1e-12
    )


def test_influence_between_depths_is_the_jacobian_of_the_blocks_between():
    network = tiny_model("gpt_neox").double()
    squares = influence_squares(model("gpt_neox", "float64"), IDS[:1], None, at=[8], targets=(3, FINAL))
    states = network.base_model(IDS[:1], output_hidden_states=True).hidden_states
    positions = torch.arange(IDS.shape[1])[None]
    turned = network.base_model.rotary_emb(states[0], positions)

    def between(hidden, first, last):
        for block in network.base_model.layers[first:last]:
            hidden = block(hidden, attention_mask=None, position_embeddings=turned)
            hidden = hidden if isinstance(hidden, torch.Tensor) else hidden[0]
        return hidden

    for source in range(3):
        rows = torch.autograd.functional.jacobian(
            lambda hidden, source=source: between(hidden, source, 3)[0, 8], states[source].detach()
        )
        np.testing.assert_allclose(
            np.sqrt(squares[3].mean[1 + source, 0]), rows[:, 0].norm(dim=(0, 2)).numpy(), rtol=1e-9, atol=1e-12
        )
    own = np.zeros(IDS.shape[1])
    own[8] = np.sqrt(network.config.hidden_size)
    np.testing.assert_allclose(np.sqrt(squares[3].mean[4, 0]), own)  # a state on itself is the identity
    assert (squares[3].mean[5:] == 0).all()
    np.testing.assert_allclose(squares[FINAL].mean[0], squares[FINAL].mean[1])  # the embedding is state 0 here


def test_probes_estimate_the_exact_norm_and_their_error():
    loaded = model("mamba", "float64")
    exact = influence_squares(loaded, IDS, None, at=[10, 10])[FINAL].mean[0]
    estimate = influence_squares(loaded, IDS, None, at=[10, 10], probes=150, seed=1)[FINAL]
    z = (estimate.mean[0] - exact) / np.sqrt(estimate.variance)
    assert np.abs(z).max() < 5
    assert 0.2 < (z**2).mean() < 5
    few = influence_squares(loaded, IDS, None, at=[10, 10], probes=8)[FINAL]
    assert np.median(np.abs(np.sqrt(few.mean[0] / exact) - 1)) < 0.2
    assert np.isnan(influence_squares(loaded, IDS, None, at=[10, 10], probes=1)[FINAL].variance).all()


def test_the_gradient_of_a_sum_behind_a_layer_norm_is_nothing():
    # what this module must not do: with LayerNorm's own weight 1 the entries of y_t sum to a constant
    network = tiny_model("gpt_neox").double()
    embedded = network.get_input_embeddings()(IDS[:1]).detach().requires_grad_()
    network.base_model(inputs_embeds=embedded).last_hidden_state[0, 5].sum().backward()
    exact = influence_squares(model("gpt_neox", "float64"), IDS[:1], None, at=[5])[FINAL].mean[0, 0]
    assert float(embedded.grad.norm()) < 1e-9 * np.sqrt(exact.sum())


def test_probes_of_a_prompt_do_not_depend_on_who_runs_beside_it():
    inputs, loaded = prompts((7, 21, 2, 13)), model("bamba", "float64")
    options = InfluenceOptions(probes=4, decays=False, targets=(FINAL, 2))
    runs = [
        run_influence(loaded, inputs, InfluenceOptions(**vars(options) | {"batch_size": size}), MemorySink())
        for size in (1, 4)
    ]
    for sample in range(4):
        assert runs[0][sample]["mean"].shape == (2, 6, inputs.lengths[sample])
        for name in ("mean", "variance"):
            np.testing.assert_allclose(runs[0][sample][name], runs[1][sample][name], rtol=1e-4, atol=1e-9)
    assert rademacher(0, 1, 2, 64).tolist() != rademacher(0, 2, 1, 64).tolist()


def test_distances_count_back_from_t():
    inputs, loaded = prompts((9,)), model("gpt_neo", "float64")
    whole = influence_squares(loaded, torch.tensor([inputs.samples[0].ids]), None, at=[4])[FINAL].mean[0, 0]
    record = run_influence(loaded, inputs, InfluenceOptions(at=4, probes=None, decays=False), MemorySink())[0]
    np.testing.assert_allclose(record["mean"][0, 0], whole[:5][::-1])
    assert record["future"][0] == 0
    last = run_influence(loaded, inputs, InfluenceOptions(at=-1, probes=None, decays=False), MemorySink())[0]
    assert np.isnan(last["future"][0])


@pytest.mark.parametrize("kind", ["gpt_neo", "mamba2", "bamba"])
def test_checkpointing_changes_no_number_and_leaves_nothing_behind(kind):
    loaded = model(kind)
    hooks = [len(block._forward_hooks) for block in loaded.blocks]
    options = {"at": [10, 10], "probes": 3, "targets": (FINAL, 2)}
    plain = influence_squares(loaded, IDS, None, **options)
    saved = influence_squares(loaded, IDS, None, **options, checkpointing=True)
    for target in plain:
        np.testing.assert_array_equal(plain[target].mean, saved[target].mean)
    assert not any("forward" in block.__dict__ for block in loaded.blocks)
    assert [len(block._forward_hooks) for block in loaded.blocks] == hooks
    assert all(parameter.requires_grad for parameter in loaded.network.parameters())
    assert all(parameter.grad is None for parameter in loaded.network.parameters())


def test_out_of_memory_halves_batches_then_recomputes_blocks(monkeypatch):
    from repflow.capture.influence import batches as influence_run

    inputs, tried = prompts((5, 5, 5)), []
    real = influence_run.influence_squares

    def limited(given, ids, mask, **options):
        tried.append((len(ids), options["checkpointing"]))
        if len(ids) > 1 or not options["checkpointing"]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(given, ids, mask, **options)

    monkeypatch.setattr(influence_run, "influence_squares", limited)
    options = InfluenceOptions(probes=2, decays=False)
    influence = run_influence(model("gpt_neox"), inputs, options, MemorySink())
    assert sorted(influence) == [0, 1, 2]
    assert tried[:3] == [(3, False), (1, False), (1, True)]
    monkeypatch.setattr(influence_run, "influence_squares", lambda *_, **__: (_ for _ in ()).throw(MemoryError("no")))
    with pytest.raises(OutOfMemoryError, match=r"room for one prompt.*use shorter prompts"):
        run_influence(model("gpt_neox"), inputs, options, MemorySink())


def test_batches_follow_the_memory_that_activations_take(monkeypatch):
    from repflow.capture.influence import batches as influence_run

    loaded, inputs = model("gpt_neox"), prompts((20, 20, 20, 20))
    assert len(make_influence_plan(loaded, inputs, InfluenceOptions()).batches) == 1
    monkeypatch.setitem(influence_run.MEMORY, "cpu", 2 * influence_run.kept_bytes(loaded, 20))
    assert make_influence_plan(loaded, inputs, InfluenceOptions()).batches == ((0, 1), (2, 3))
    assert len(make_influence_plan(loaded, inputs, InfluenceOptions(batch_size=1)).batches) == 4
    assert not influence_run.needs_checkpointing(loaded, 20)
    monkeypatch.setitem(influence_run.LONE, "cpu", 100)
    assert influence_run.needs_checkpointing(loaded, 20)
    whole = tiny_model("gpt_neox")
    whole.config._attn_implementation = "eager"
    assert influence_run.kept_bytes(load(whole), 20) > influence_run.kept_bytes(loaded, 20)


def test_t_out_of_range_is_refused():
    assert [token_at(-3, 5), token_at(0, 5)] == [2, 0]
    for at in (5, -6):
        with pytest.raises(InputError, match=f"t from -5 to 4, as the prompt has 5 tokens; got {at}; pass at=-1"):
            token_at(at, 5)
    with pytest.raises(InputError, match="as the prompt has 3 tokens"):
        run_influence(model("gpt_neox"), prompts((9, 3)), InfluenceOptions(at=4), MemorySink())


# gradients that cannot be trusted


@pytest.mark.parametrize("kind", sampled(ARCHITECTURES))
def test_gradients_pass_the_check_and_are_zero_behind_t(kind):
    gradients = check_gradients(model(kind), IDS[0])
    assert gradients.difference < 0.02
    assert gradients.future == 0
    assert gradients.causal
    assert gradients.at == 5


def test_the_check_is_three_passes_however_many_probes(monkeypatch):
    """One forward and one backward pass for all probes, one forward pass for all finite differences; none in half."""
    loaded, passes = model("mamba2"), []
    loaded.reading.base.register_forward_hook(lambda *_: passes.append("forward"))
    original = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: (passes.append("backward"), original(*a, **k))[1])
    check_gradients(loaded, IDS[0])
    assert passes == ["forward", "backward", "forward"]


class Detached(torch.nn.Module):
    """A branch whose kernel has no backward pass."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs).detach()


def test_a_branch_without_a_gradient_is_found_although_autograd_says_nothing():
    network = tiny_model("gpt_neox")
    loaded = load(network)
    loaded.network.gpt_neox.layers[2].mlp = Detached(loaded.network.gpt_neox.layers[2].mlp)
    with pytest.raises(UnsupportedModelError, match=r"% off finite differences.*load the checkpoint unquantised"):
        check_gradients(loaded, IDS[0])


def curved():
    """A model and ids where differences of steps of 1e-3 and 1e-4 are far from the right gradient: it is so curved."""
    ids = torch.randint(3, 60, (24,), generator=torch.Generator().manual_seed(0))
    return load(tiny_model("mamba2", spread=128.0)), ids


def test_a_right_gradient_is_not_refused_because_the_model_is_curved(monkeypatch):
    loaded, ids = curved()
    assert check_gradients(loaded, ids).difference < 0.1
    # where no step is small enough, as in a random Mamba-2.8B, the differences do not agree and say nothing
    monkeypatch.setitem(influence_check.STEPS, torch.float32, (1e-2, 1e-3, 1e-4))
    assert check_gradients(loaded, ids).difference > 0.1


def test_a_branch_without_a_gradient_is_found_in_a_curved_model():
    loaded, ids = curved()
    mixer = loaded.blocks[0].mixer
    mixer.out_proj = Detached(mixer.out_proj)
    with pytest.raises(UnsupportedModelError, match="% off finite differences"):
        check_gradients(loaded, ids)


def test_dynamically_quantised_layers_are_refused():
    network = tiny_model("gpt_neox")
    loaded = load(network)

    class Quantised(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.weight = torch.nn.Parameter((linear.weight * 100).round().to(torch.int8), requires_grad=False)

        def forward(self, x):
            return x @ (self.weight.to(x.dtype) / 100).T

    mlp = loaded.network.gpt_neox.layers[1].mlp
    mlp.dense_4h_to_h = Quantised(mlp.dense_4h_to_h)
    with pytest.raises(UnsupportedModelError, match=r"quantised weights .*layers.1.mlp.dense_4h_to_h.weight"):
        check_gradients(loaded, IDS[0])


def test_packed_weights_are_found_where_they_are():
    network = tiny_model("gpt_neox")
    network.is_quantized = True  # as transformers leaves it for a GGUF file, whose weights are unpacked
    assert packed_weight(network) is None
    dense = network.gpt_neox.layers[1].mlp.dense_4h_to_h
    dense.register_buffer("qweight", torch.zeros(8, 32, dtype=torch.int32))  # GPTQ
    assert packed_weight(network) == "gpt_neox.layers.1.mlp.dense_4h_to_h.qweight"
    network.is_quantized = False
    assert packed_weight(network) is None
    dense.weight = torch.nn.Parameter(dense.weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    assert packed_weight(network) == "gpt_neox.layers.1.mlp.dense_4h_to_h.weight"


def test_a_part_that_refuses_to_be_differentiated_is_named():
    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

    network = tiny_model("gpt_neox")
    loaded = load(network)
    loaded.network.gpt_neox.final_layer_norm.register_forward_hook(lambda _, __, y: Fused.apply(y))
    with pytest.raises(UnsupportedModelError, match=r"can be differentiated.*got .*scan='reference'"):
        check_gradients(loaded, IDS[0])


def test_an_output_cut_off_from_its_inputs_is_refused():
    network = tiny_model("gpt_neox")
    loaded = load(network)
    loaded.network.gpt_neox.layers[0].register_forward_hook(lambda _, __, y: y.detach())
    with pytest.raises(UnsupportedModelError, match="an output without a gradient"):
        check_gradients(loaded, IDS[0])


def test_a_model_that_looks_ahead_is_found():
    network = tiny_model("gpt_neox")
    loaded = load(network)

    def ahead(_, __, y):
        return y + 0.5 * torch.roll(y, -1, dims=1)

    loaded.network.gpt_neox.layers[0].register_forward_hook(ahead)
    gradients = check_gradients(loaded, IDS[0])
    assert gradients.future > 0.01
    assert not gradients.causal


def test_nan_weights_are_refused():
    network = tiny_model("gpt_neox")
    with torch.no_grad():
        network.gpt_neox.layers[1].mlp.dense_h_to_4h.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match="finite weights"):
        check_gradients(load(network), IDS[0])


# the theorem's A_max


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "bamba", "rwkv", "recurrent_gemma"])
def test_largest_decay_is_that_of_every_token_channel_and_state(kind):
    loaded, ends = model(kind), [11, 7]
    decays = largest_decays(loaded, IDS, None, ends)
    seen = np.full(decays.largest.shape, np.nan)

    def on_layer(layer, quantities):
        decay = quantities.decay().abs().expand(2, -1, -1, -1)
        seen[layer] = [float(decay[row, 1:end].max()) for row, end in enumerate(ends)]  # the first multiplies nothing

    with ssm_quantities(loaded, on_layer):
        loaded.stream(IDS, on_state=lambda *_: None)
    np.testing.assert_allclose(decays.largest, seen, rtol=1e-6)
    np.testing.assert_allclose(np.exp(-decays.kappa), seen, rtol=1e-6)
    assert np.isfinite(decays.kappa).any()
    if kind == "bamba":
        assert np.isnan(decays.kappa[[1, 3]]).all()  # attention layers


def test_kappa_below_the_rounding_of_the_decay():
    network = tiny_model("mamba")
    with torch.no_grad():
        for block in network.backbone.layers:
            block.mixer.dt_proj.weight.zero_()
            block.mixer.dt_proj.bias.fill_(-18.0)
    decays = largest_decays(load(network), IDS, None, [11, 11])
    # softplus(−18) times the slowest rate, which is 1 at initialisation; float32 would round exp(−κ) to 1
    np.testing.assert_allclose(decays.kappa, np.log1p(np.exp(-18.0)), rtol=1e-5)


def test_kappa_of_own_mixers_is_not_rounded_either():
    network = stack(["s6"])
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "dt_proj" in name:
                parameter.fill_(-18.0) if name.endswith("bias") else parameter.zero_()
    decays = largest_decays(load(network), IDS, None, [11, 11])
    np.testing.assert_allclose(decays.kappa, np.log1p(np.exp(-18.0)), rtol=1e-5)


def test_the_first_tokens_decay_is_no_part_of_the_bound():
    loaded = model("mamba")
    whole = largest_decays(loaded, IDS, None, [11, 11])
    alone = largest_decays(loaded, IDS, None, [1, 11])
    assert np.isnan(alone.kappa[:, 0]).all()
    np.testing.assert_array_equal(alone.kappa[:, 1], whole.kappa[:, 1])


def test_a_transition_that_cannot_be_read_is_said_and_an_attention_model_has_none():
    assert readable(model("mamba"), IDS[0]) is None
    assert readable(model("gpt_neox"), IDS[0]) == ""
    network = tiny_model("mamba")
    loaded = load(network)
    for layer in loaded.scans.layers:
        layer.readable = False
    assert "transformers 5.22" in readable(loaded, IDS[0])


@pytest.mark.parametrize(("rank", "most"), [(1, 0.12), (4, 0.075), (16, 0.065)])
def test_eight_probes_cover_with_students_quantile(rank, most):
    """Tokens with Jacobians of their own, 8 probes each time: at 1.96 standard errors, 9 to 15 % would lie beyond."""
    width, tokens = 96, 200
    beyond = []
    for seed in range(40):
        torch.manual_seed(seed)
        left, right = torch.randn(tokens, width, rank), torch.randn(tokens, rank, 24)
        jacobian = (left @ right).double()
        x = torch.zeros(1, tokens, 24, dtype=torch.float64, requires_grad=True)
        y = torch.einsum("tio,bto->bi", jacobian, x)[:, None].expand(1, tokens, width)  # read at one token
        estimate = _accumulate(0, None, y, [x], _directions(y, [0], 8, seed, [0]), exact=False)
        exact = jacobian.square().sum((1, 2)).numpy()
        error = np.sqrt(estimate.variance[0]) / (2 * estimate.mean[0, 0])  # of ln influence, as recency stores it
        away = 0.5 * np.abs(np.log(estimate.mean[0, 0] / exact)) / error
        beyond.append([(away > limit).mean() for limit in (1.959964, float(student_quantile(7)))])
    normal, student = np.mean(beyond, axis=0)
    assert normal > 0.08
    assert student < most
