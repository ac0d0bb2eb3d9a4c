"""A stack is a model like any other: loaded, read, padded, saved, initialised, generated from."""

import itertools
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

import repflow
from repflow.capture.continuation import keeps_state
from repflow.core.errors import InputError
from repflow.mixers import families
from repflow.models import StackConfig, StackForCausalLM, load, twin
from repflow.models.weights.initialise import parameter_groups
from tests import warm
from tests.models.rounding import MARGIN, amplification, worst
from tests.models.stack.inputs import HYBRID, entry, ids, stack
from tests.models.test_conformance import collect

KIND = {
    **dict.fromkeys(("s4d", "h3", "s6", "ssd"), "ssm"),
    **dict.fromkeys(("linear_attention", "retention", "gla", "rwkv4", "rwkv5", "rg_lru"), "recurrent"),
    **dict.fromkeys(("delta_net", "gated_delta_net", "kda", "hgrn2", "min_gru", "min_lstm", "mlstm"), "recurrent"),
    "softmax_attention": "attention",
}
EVERY = pytest.mark.parametrize("name", families())


@EVERY
@pytest.mark.parametrize("norm", ["rms", "layer", "none"])
def test_states_are_those_of_a_plain_loop(name, norm):
    network = stack([name] * 3, norm=norm, mlp=["gelu", None, "swiglu"], embedding_norm=True, spread=1.0)
    model = load(network)
    with torch.no_grad():
        hidden = network.model.embedding_norm(network.model.embeddings(ids()))
        expected = [hidden]
        for block in network.model.blocks:
            hidden = hidden + block.mixer(block.mixer_norm(hidden))
            if hasattr(block, "mlp"):
                hidden = hidden + block.mlp(block.mlp_norm(hidden))
            expected.append(hidden)
        normed = network.model.final_norm(hidden)
        logits = network(ids()).logits
    states, last = collect(model, ids())
    assert worst(states, expected) < 1e-5
    with torch.inference_mode():
        assert worst([last, model.logits(last)], [normed, logits]) < 1e-5
    assert model.layer_kinds == [KIND[name]] * 3
    assert model.reading.sublayer_problem is None
    assert worst(collect(model, ids(), kind="hf-tuple")[0], expected) < 1e-5, "the stack's tuple lacks no state"


def test_a_hybrid_shows_its_kinds_and_branches():
    model = load(stack(HYBRID, mlp="swiglu"))
    assert model.layer_kinds == [KIND[name] for name in HYBRID]
    assert model.sublayers("branch:attention") == [2, 5]
    assert model.sublayers("branch:ssm") == [0, 1]
    states, _ = collect(model, ids())
    totals = [torch.zeros_like(state) for state in states[1:]]
    for kind in ("attention", "ssm", "recurrent", "mlp"):
        parts = collect(model, ids(), kind=f"branch:{kind}")[0]
        for layer, part in zip(model.sublayers(f"branch:{kind}"), parts, strict=True):
            assert part.abs().max() > 0
            totals[layer] += part
    assert worst(totals, [b - a for a, b in itertools.pairwise(states)]) < 1e-4


def test_right_padding_is_exact_and_left_padding_refused():
    model = load(stack(HYBRID))
    lengths, within = [20, 13, 5], MARGIN * amplification(stack(HYBRID), ids())
    mask = torch.arange(20)[None] < torch.tensor(lengths)[:, None]
    states, _ = collect(model, torch.where(mask, ids(), 0), mask)
    for row, length in enumerate(lengths):
        alone, _ = collect(model, ids()[row : row + 1, :length])
        assert worst([state[row : row + 1, :length] for state in states], alone) < within
    with pytest.raises(InputError, match="expected padding on the right"):
        model.network(ids(), attention_mask=mask.flip(1))


@pytest.mark.parametrize(
    "arguments",
    [{}, {"tie_word_embeddings": True, "max_position_embeddings": 32}, {"norm": "none", "spread": 1.0}],
    ids=str,
)
def test_saved_and_loaded_whole(arguments, tmp_path):
    """Every family, constants included: transformers would build onto a device without values and lose them."""
    network = stack(families(), **arguments)
    network.save_pretrained(tmp_path)
    assert {"config.json", "model.safetensors"} <= {path.name for path in tmp_path.iterdir()}
    before = torch.get_rng_state()
    model = load(tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    with torch.no_grad():
        assert torch.equal(model.network(ids()).logits, network(ids()).logits)
    assert model.init == "trained"
    assert model.digest() == load(network).digest()
    tied = model.network.lm_head.weight is model.network.model.embeddings.weight
    assert tied == bool(arguments.get("tie_word_embeddings"))
    assert model.max_length == arguments.get("max_position_embeddings")
    wide = load(tmp_path, dtype="float64")
    assert worst([wide.network(ids()).logits.float()], [network(ids()).logits]) < 1e-4


def test_missing_weights_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    stack(["s6"]).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("model.blocks.0.mixer.A_log")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"lacks 1 of them \(model.blocks.0.mixer.A_log"):
        load(tmp_path)


def test_layers_that_share(tmp_path):
    network = stack(["s6", "softmax_attention"] * 3, share=True, mlp="gelu")
    blocks = network.model.blocks
    assert network.config.share == [0, 1] * 3
    assert blocks[4].mixer.in_proj.weight is blocks[0].mixer.in_proj.weight
    assert blocks[4].mixer is not blocks[0].mixer, "each layer is a module of its own, whose output can be read"
    single = stack(["s6", "softmax_attention"], mlp="gelu")
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in single.parameters())
    network.save_pretrained(tmp_path)
    model = load(tmp_path)
    again = model.network.model.blocks
    assert again[5].mlp.up_proj.weight is again[1].mlp.up_proj.weight
    with torch.no_grad():
        hidden = network.model.embeddings(ids())
        for block in [*blocks[:2]] * 3:
            hidden = block(hidden)
    states, _ = collect(model, ids())
    assert worst([states[-1]], [hidden]) < 1e-5
    assert model.reading.sublayer_problem is None
    random = twin(model, "gaussian:0.3", seed=1).network.model.blocks
    assert random[4].mixer.in_proj.weight is random[0].mixer.in_proj.weight
    network(ids()).logits.sum().backward()
    assert blocks[4].mixer.in_proj.weight.grad is not None


def test_groups_of_layers_that_share():
    network = stack(["s6"] * 4, share=[7, 3, 7, 3])
    a, b, c, d = (block.mixer.A_log for block in network.model.blocks)
    assert (a is c, b is d, a is b) == (True, True, False)


@pytest.mark.parametrize(
    "init", ["default", "gaussian", "gaussian:0.3", "xavier", "he", "xavier+residual", "default+norms"]
)
def test_configuration_alone_and_init_schemes(init, tmp_path):
    config = StackConfig(mixers=[entry(name) for name in families()], hidden_size=16, mlp="rwkv", norm="layer")
    (tmp_path / "my.json").write_text(config.to_json_string(), encoding="utf-8")
    one, same, other = (load(f"config:{tmp_path / 'my.json'}", init=init, seed=seed) for seed in (0, 0, 1))
    assert one.init == init
    assert one.digest() == same.digest() != other.digest()
    assert one.layer_kinds == [KIND[name] for name in families()]
    groups = parameter_groups(one.network)
    drawn = [p for name, p in one.network.named_parameters() if groups[name] in ("matrices", "embeddings")]
    if init.startswith("gaussian"):
        wanted = float(init.partition(":")[2] or 0.02)
        assert torch.cat([p.flatten() for p in drawn]).std().item() == pytest.approx(wanted, rel=0.05)
    # what a recurrence is made of keeps its family's rule under every scheme
    plain = dict(load(f"config:{tmp_path / 'my.json'}", seed=0).network.named_parameters())
    for name, parameter in one.network.named_parameters():
        if groups[name] == "recurrence":
            assert torch.equal(parameter, plain[name]), name
    steps = torch.nn.functional.softplus(one.network.model.blocks[6].mixer.dt_proj.bias)
    assert bool(((steps > 0.9e-3) & (steps < 0.11)).all())


def test_random_twin_of_a_loaded_stack(tmp_path):
    stack(HYBRID).save_pretrained(tmp_path)
    model = load(tmp_path)
    twin_model = twin(model, "default", seed=3)
    assert twin_model.layer_kinds == model.layer_kinds
    assert twin_model.digest() == twin(model, "default", seed=3).digest() != model.digest()


def copied(theirs, config):
    """Our stack with the weights of transformers' Mamba or Mamba-2."""
    ours = StackForCausalLM(config).eval()
    renamed = {
        name.replace("backbone.layers", "model.blocks")
        .replace("backbone.embeddings", "model.embeddings")
        .replace("backbone.norm_f", "model.final_norm")
        .replace(".norm.weight", ".mixer_norm.weight")
        .replace("mixer.mixer_norm", "mixer.norm"): value
        for name, value in theirs.state_dict().items()
    }
    ours.load_state_dict(renamed)
    return ours


@pytest.mark.parametrize("tied", [True, False])
def test_a_stack_of_s6_is_mamba(tied):
    theirs = MambaForCausalLM(
        MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=3, state_size=4, tie_word_embeddings=tied)
    ).eval()
    config = StackConfig(
        [{"name": "mamba", "state": 4}] * 3, hidden_size=16, vocab_size=64, norm_eps=1e-5, tie_word_embeddings=tied
    )
    ours = copied(theirs, config)
    with torch.no_grad():
        assert worst([ours(ids()).logits], [theirs(ids()).logits]) < 1e-5


def test_a_stack_of_ssd_is_mamba2():
    sizes = {
        "num_heads": 4,
        "head_dim": 8,
        "n_groups": 2,
        "state_size": 4,
        "chunk_size": 8,
        "tie_word_embeddings": False,
    }
    theirs = Mamba2ForCausalLM(Mamba2Config(vocab_size=64, hidden_size=16, num_hidden_layers=3, **sizes)).eval()
    config = StackConfig(
        [{"name": "mamba2", "state": 4, "head_dim": 8, "groups": 2}] * 3, hidden_size=16, vocab_size=64, norm_eps=1e-5
    )
    ours = copied(theirs, config)
    with torch.no_grad():
        assert worst([ours(ids()).logits], [theirs(ids()).logits]) < 1e-5


def test_generate_says_what_forward_passes_say():
    network = stack(HYBRID)
    grown = ids(batch=2, tokens=7)
    with torch.no_grad():
        for _ in range(6):
            grown = torch.cat([grown, network(grown).logits[:, -1:].argmax(-1)], dim=1)
        generated_ids = network.generate(ids(batch=2, tokens=7), max_new_tokens=6, do_sample=False)
    assert torch.equal(generated_ids, grown)
    assert keeps_state(load(network, tokenizer=None), ids(2, 7))


def test_loss_is_that_of_the_next_token_and_falls_in_training():
    network = stack(["ssd", "softmax_attention"], spread=1.0).train()
    labels = ids().clone()
    labels[:, -4:] = -100
    output = network(ids(), labels=labels, logits_to_keep=0)
    logprobs = output.logits.log_softmax(-1)[:, :15].gather(2, ids()[:, 1:16, None])
    assert float(output.loss.detach()) == pytest.approx(float(-logprobs.mean().detach()), rel=1e-5)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(12):
        loss = network(ids(), labels=ids()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.7 * float(output.loss.detach())


def test_outputs_as_transformers_gives_them():
    network = stack(["s6", "rwkv4"])
    with torch.no_grad():
        whole = network(ids(), output_hidden_states=True)
        part = network(ids(), logits_to_keep=2)
        (alone,) = network.model(ids(), return_dict=False)
        embedded = network(inputs_embeds=network.get_input_embeddings()(ids()))
    assert len(whole.hidden_states) == 3
    assert torch.equal(part.logits, whole.logits[:, -2:])
    assert torch.equal(alone, network.model.final_norm(whole.hidden_states[-1]))
    assert torch.equal(embedded.logits, whole.logits)


def test_measure_and_compare_take_a_stack(tmp_path):
    stack(HYBRID).save_pretrained(tmp_path / "one")
    one, other = repflow.load(tmp_path / "one"), repflow.load(stack(["s6"] * 4, seed=5))
    result = repflow.measure(one, ids())
    assert result["token_similarity"].shape == (7, 3)
    assert result.provenance["model"]["layer_kinds"] == [KIND[name] for name in HYBRID]
    hidden, _, _ = repflow.states(one, ids())
    assert result["token_similarity"][:, 0] == pytest.approx(
        repflow.metrics.token_similarity(hidden)[:, 0].numpy(), abs=1e-5
    )
    both = repflow.compare(one, other, ids(), samples=3)
    assert both.findings is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixers": []}, "expected at least one layer; got none"),
        ({"mixers": "mambo"}, "did you mean mamba"),
        ({"mixer": "s6"}, "expected an option of StackConfig; got 'mixer'; did you mean mixers"),
        ({"mixers": [{"state": 4}]}, "expected a mixer's name, or a name with options"),
        ({"mixers": ["s6"], "num_hidden_layers": 2}, "expected num_hidden_layers of 1, one per entry of mixers; got 2"),
        ({"mlp": "relu"}, "expected mlp among gelu, swiglu, rwkv; got 'relu'"),
        ({"mlp": ["gelu", None]}, "expected mlp for each of 1 layers; got 2"),
        ({"norm": "batch"}, "expected norm among rms, layer, none; got 'batch'"),
        ({"pooling": "max"}, "expected pooling among mean, last; got 'max'"),
        ({"share": [0, 0], "mixers": ["s6", "ssd"]}, r"blocks 1 \(s6\) and 2 \(ssd\) in group 0"),
        ({"input_channels": 3, "tie_word_embeddings": True}, "tie_word_embeddings with 3 input channels"),
        ({"hidden_size": 0}, "expected hidden_size of at least 1; got 0"),
        ({"norm_eps": -1.0}, "norm_eps and initializer_range of at least 0; got -1.0"),
    ],
    ids=str,
)
def test_wrong_configurations_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        StackConfig(**options)


def test_wrong_kinds_are_refused(tmp_path):
    """In a process of its own: here, tests check the types of every call before the code can."""
    cases = {
        "hidden_size='16'": "hidden_size to be a whole number or none; got '16'",
        "num_hidden_layers='2'": "num_hidden_layers to be a whole number or none; got '2'",
        "mixers=None": "a name, or a list of them; got None",
        "final_norm='no'": "final_norm to be true or false; got 'no'",
    }
    lines = ["from repflow.core.errors import InputError", "from repflow.models import StackConfig"]
    for options in cases:
        lines += ["try:", f"    StackConfig({options})", "except InputError as error:", "    print(error)"]
    for line, message in zip(warm.printed("\n".join(lines), cwd=tmp_path), cases.values(), strict=True):
        assert message in line


def test_wrong_option_in_a_file_names_the_option(tmp_path):
    file = tmp_path / "my.json"
    file.write_text(
        json.dumps({"model_type": "repflow_stack", "mixers": [{"name": "s6", "stat": 4}]}), encoding="utf-8"
    )
    with pytest.raises(InputError, match="did you mean state"):
        load(f"config:{file}")


def test_wrong_inputs_are_refused():
    network = stack(["softmax_attention"], max_position_embeddings=8)
    with pytest.raises(InputError, match="expected at most 8 tokens, which have a position embedding; got 9"):
        network(ids(tokens=9))
    with pytest.raises(InputError, match=r"expected token ids \(batch, token\); got floats"):
        network(torch.zeros(1, 4, 16))
    with pytest.raises(InputError, match=r"pass ids\[None\]"):
        network(ids()[0])
    with pytest.raises(InputError, match="either input_ids or inputs_embeds"):
        network()


def test_auto_class_of_transformers_knows_stacks(tmp_path):
    stack(["s6"]).save_pretrained(tmp_path)
    assert isinstance(AutoModelForCausalLM.from_pretrained(tmp_path), StackForCausalLM)


def by_hand(model, ids, *, skip=1.0, neutreno=0.0):
    """The residual stream written out, block by block."""
    hidden = model.model.embed(ids)
    states, first = [hidden], model.model.blocks[0].mixer_norm(hidden)
    for block in model.model.blocks:
        normed = block.mixer_norm(hidden)
        factor = block.skip if isinstance(block.skip, torch.nn.Parameter) else skip
        hidden = factor * hidden + block.mixer(normed) + neutreno * (first - normed)
        if block.has_mlp:
            hidden = hidden + block.mlp(block.mlp_norm(hidden))
        states.append(hidden)
    return torch.stack(states)


@pytest.mark.parametrize("options", [{"skip": 0.7}, {"neutreno": 0.4}, {"skip": -0.5, "neutreno": 0.2}])
def test_the_stream_is_corrected_as_written(options, tmp_path):
    torch.manual_seed(0)
    config = StackConfig(["s6", "softmax_attention"], hidden_size=8, vocab_size=13, mlp=["gelu", None], **options)
    model = StackForCausalLM(config).double()
    ids = torch.randint(0, 13, (2, 5))
    states = torch.stack(model(ids, output_hidden_states=True).hidden_states)
    torch.testing.assert_close(states, by_hand(model, ids, **options), rtol=1e-12, atol=1e-12)
    usual = by_hand(model, ids)
    assert not torch.allclose(states, usual)
    # kept in the folder, and the same token by token
    model.save_pretrained(tmp_path)
    again = StackForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    cache, parts = None, []
    for token in range(5):
        output = model(ids[:, token : token + 1], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1), model(ids).logits, rtol=1e-9, atol=1e-9)


def test_a_learned_skip_is_a_parameter_of_every_block():
    torch.manual_seed(0)
    model = StackForCausalLM(StackConfig(["s6", "s6"], hidden_size=8, vocab_size=13, skip=0.9, skip_learned=True))
    learned = [name for name, _ in model.named_parameters() if name.endswith(".skip")]
    assert learned == ["model.blocks.0.skip", "model.blocks.1.skip"]
    ids = torch.tensor([[1, 2, 3]])
    model(ids, labels=ids).loss.backward()
    assert all(float(model.get_parameter(name).grad.abs()) > 0 for name in learned)
    torch.testing.assert_close(torch.stack(model(ids, output_hidden_states=True).hidden_states), by_hand(model, ids))


def test_the_usual_stream_is_stored_as_before():
    config = StackConfig("s6", hidden_size=8)
    assert not {"skip", "skip_learned", "neutreno"} & set(config.to_dict())
    assert StackConfig("s6", hidden_size=8, skip=0.5).to_dict()["skip"] == 0.5


@pytest.mark.parametrize("wrong", [{"skip": float("nan")}, {"neutreno": float("inf")}])
def test_a_stream_that_is_no_number_is_refused(wrong):
    with pytest.raises(InputError, match=f"{next(iter(wrong))}"):
        StackConfig("s6", hidden_size=8, **wrong)


@pytest.mark.parametrize("options", [{"skip": 0.7}, {"neutreno": 0.4}])
def test_states_of_a_corrected_stream_are_read_and_its_branches_are_not(options):
    torch.manual_seed(0)
    network = StackForCausalLM(StackConfig(["s6", "softmax_attention"], hidden_size=8, vocab_size=13, **options))
    model, tokens = load(network), torch.randint(0, 13, (2, 5))
    hidden, _, _ = repflow.states(model, tokens)
    torch.testing.assert_close(torch.as_tensor(hidden), by_hand(network, tokens, **options).detach())
    assert model.reading.sublayer_problem is not None
