"""Every architecture gives the same things: true states, exact right padding, kinds, branches, bounded memory."""

import itertools
import weakref

import pytest
import torch

from repflow.core.errors import InputError
from repflow.models import load
from repflow.models.families import EMBEDDING, FAMILIES
from tests.models.rounding import tolerance, worst
from tests.models.tiny_configs import CONFIGS, KINDS, NAMED, UNLISTED, tiny_model
from tests.sample import sampled

EVERY = pytest.mark.parametrize("model", sampled(NAMED + UNLISTED), indirect=True)


def collect(model, ids, mask=None, kind="residual"):
    states, normed = [], []
    model.stream(ids, mask, kind=kind, on_state=lambda i, h: states.append((i, h.clone())), on_final_norm=normed.append)
    assert [index for index, _ in states] == list(range(model.state_count(kind)))
    assert len(normed) == 1
    return [hidden for _, hidden in states], normed[0]


@EVERY
def test_facts(model):
    assert model.n_layers == len(CONFIGS[model.model_type].get("layers_block_type", KINDS[model.model_type]))
    assert model.n_states == model.n_layers + 1 == model.state_count("residual") == model.state_count("hf-tuple")
    assert (model.width, model.vocab_size, model.bos_token_id) == (64 if model.model_type == "xlstm" else 32, 128, 1)
    assert model.layer_kinds == KINDS[model.model_type]
    bounded = any("attention" in kind for kind in model.layer_kinds) and model.model_type != "recurrent_gemma"
    assert model.max_length == (64 if bounded else None)
    assert model.nonfinite == [] == model.findings
    assert model.first_bad_state is None
    assert not model.network.training


@pytest.mark.numeric
@EVERY
def test_states_are_those_of_an_independent_run(model, ids):
    """Against a fresh network: its own tuple where that is right, its embedding table and its norm where it is not."""
    network = tiny_model(model.model_type)
    if model.model_type == "rwkv":
        network.train()  # out of inference mode transformers does not rescale the stream; RWKV has no dropout
    with torch.no_grad():
        output = network.base_model(ids, use_cache=False, output_hidden_states=True)
        table = network.get_input_embeddings()(ids)
    states, normed = collect(model, ids)
    with torch.no_grad():
        renormed = model.final_norm(states[-1])
    reference, within = list(output.hidden_states), tolerance(model.model_type)
    if FAMILIES[model.model_type].missing == EMBEDDING:
        assert worst(states[1:], reference[:-1]) < within
        assert worst(states[:1], [table]) < 1e-6
    else:
        assert worst(states[:-1], reference[:-1]) < within
    assert worst([normed, renormed], [reference[-1]] * 2) < within
    assert worst([normed], [output.last_hidden_state]) < within
    assert worst([states[-1]], [normed]) > 10 * within, (
        "the last state must be the raw block output, not the normed one"
    )


@pytest.mark.numeric
@EVERY
def test_logits_from_the_final_norm(model, ids):
    with torch.no_grad():
        expected = model.network(ids, use_cache=False).logits
        _, normed = collect(model, ids)
        assert worst([model.logits(normed)], [expected]) < tolerance(model.model_type)


@pytest.mark.numeric
@EVERY
def test_right_padding_is_exact(model, ids):
    lengths, within = [20, 13, 5], tolerance(model.model_type)
    mask = torch.arange(20)[None] < torch.tensor(lengths)[:, None]
    padded = torch.where(mask, ids, 0)
    states, normed = collect(model, padded, mask)
    for row, length in enumerate(lengths):
        alone, alone_normed = collect(model, ids[row : row + 1, :length])
        assert worst([s[row : row + 1, :length] for s in states], alone) < within
        assert worst([normed[row : row + 1, :length]], [alone_normed]) < within


@EVERY
def test_branch_is_the_step_between_states(model, ids):
    states, _ = collect(model, ids)
    branches, _ = collect(model, ids, kind="branch")
    assert len(branches) == model.n_layers
    assert worst(branches, [b - a for a, b in itertools.pairwise(states)]) < 1e-5


@pytest.mark.numeric
@EVERY
def test_sublayer_branches_sum_to_the_block(model, ids):
    branches, _ = collect(model, ids, kind="branch")
    totals = [torch.zeros_like(branch) for branch in branches]
    for name in ("attention", "mlp", "ssm", "recurrent", "conv"):
        kind = f"branch:{name}"
        layers = model.sublayers(kind)
        if not layers:
            with pytest.raises(InputError, match=f"with {name} sublayers"):
                model.stream(ids, kind=kind, on_state=lambda i, h: None)
            continue
        for layer, part in zip(layers, collect(model, ids, kind=kind)[0], strict=True):
            assert part.abs().max() > 0
            totals[layer] += part
    skip = 1 if model.model_type == "rwkv" else 0  # its first block norms the stream before it adds to it
    assert worst(totals[skip:], branches[skip:]) < 1e-4


@EVERY
def test_hf_tuple_is_transformers_own(model, ids):
    with torch.no_grad():
        expected = model.reading.base(ids, use_cache=False, output_hidden_states=True).hidden_states
    entries, _ = collect(model, ids, kind="hf-tuple")
    assert all(torch.equal(a, b) for a, b in zip(entries, expected, strict=True))
    assert model.reading.tuple_skips_embedding == (FAMILIES[model.model_type].missing == EMBEDDING)


@EVERY
def test_earlier_states_are_not_held(model, ids):
    seen = []

    def watch(index, hidden):
        seen.append(weakref.ref(hidden))
        # models keep the embedding output in a variable of their own, and a block's input until it is done
        alive = [i for i, ref in enumerate(seen[1:-2], start=1) if ref() is not None]
        assert alive == [], f"states {alive} are still held at state {index}"

    model.stream(ids, on_state=watch)
    assert len(seen) == model.n_states


@EVERY
def test_hooks_are_removed_even_after_an_error(model, ids):
    def fail(index, hidden):
        if index == 2:
            raise KeyError("from the callback")

    count = lambda: sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.network.modules())  # noqa: E731
    before = count()
    for kind in ("residual", "branch", "hf-tuple"):
        with pytest.raises(KeyError, match="from the callback"):
            model.stream(ids, kind=kind, on_state=fail)
    assert count() == before


@pytest.mark.parametrize("model", ["gpt_neox", "mamba2"], indirect=True)
def test_a_callback_cannot_change_the_run(model, ids):
    normed = []
    model.stream(ids, on_state=lambda i, h: torch.zeros_like(h), on_final_norm=normed.append)
    assert torch.equal(normed[0], collect(model, ids)[1])


def test_rwkv_is_straightened_after_it_was_rescaled(ids):
    network = tiny_model("rwkv")
    with torch.no_grad():
        bent = network.base_model(ids, output_hidden_states=True).hidden_states  # rescales the weights in place
    assert network.base_model.layers_are_rescaled
    states, _ = collect(load(network), ids)
    expected, _ = collect(load(tiny_model("rwkv")), ids)
    assert worst(states, expected) < 1e-6
    assert worst([bent[3]], [expected[4]]) > 0.5, "transformers' own last block is scaled down"


def test_xlstm_takes_a_prompt_in_one_piece(ids):
    network = tiny_model("xlstm")
    network.config.max_inference_chunksize = 8
    assert worst(collect(load(network), ids)[0], collect(load(tiny_model("xlstm")), ids)[0]) < 1e-6


@pytest.mark.parametrize("parallel", [True, False])
def test_gpt_neox_with_and_without_parallel_residual(parallel, ids):
    network = tiny_model("gpt_neox")
    for block in network.gpt_neox.layers:
        block.use_parallel_residual = parallel
    model = load(network)
    parts = [collect(model, ids, kind=kind)[0] for kind in ("branch:attention", "branch:mlp")]
    sums = [a + b for a, b in zip(*parts, strict=True)]
    assert worst(sums, collect(model, ids, kind="branch")[0]) < 1e-5
