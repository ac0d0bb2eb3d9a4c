"""Several residual streams, against the same model with fewer blocks, and against transformers' own tuple."""

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import repflow
from repflow.capture.influence.jacobian import influence_squares
from repflow.cli.main import app
from repflow.core.errors import InputError, UnsupportedModelError
from repflow.interventions import ablate
from repflow.models import from_hidden_states, load
from repflow.models.streams import INNER, OUTER, PACKED
from tests.models.rounding import tolerance, worst
from tests.models.tiny_configs import tiny_model
from tools.decoders.tiny import tiny_config

LAYOUTS = {
    "deepseek_v4": (4, INNER),
    "hy_v4": (4, INNER),
    "glm5_next_text": (4, INNER),
    "qwen4_exp_text": (2, PACKED),
    "gemma3n_text": (4, OUTER),
}
EVERY = pytest.mark.parametrize("model", LAYOUTS, indirect=True)


def states_of(model, ids, kind="residual"):
    states, normed = [], []
    model.stream(ids, kind=kind, on_state=lambda _, h: states.append(h.clone()), on_final_norm=normed.append)
    return states, normed[0]


def shortened(model_type, blocks):
    """The model with its last blocks gone: what it reads out is the mixture after those that are left."""
    network = tiny_model(model_type)
    network.base_model.layers = nn.ModuleList(network.base_model.layers[:blocks])
    return network


@pytest.mark.numeric
@EVERY
def test_the_state_is_what_a_model_of_fewer_blocks_would_read_out(model, ids):
    count, layout = LAYOUTS[model.model_type]
    assert (model.streams.count, model.streams.layout) == (count, layout)
    states, normed = states_of(model, ids)
    assert len(states) == model.n_states == 5
    for blocks in (1, 2, 3):
        with torch.no_grad():
            expected = shortened(model.model_type, blocks).base_model(ids, use_cache=False).last_hidden_state
            ours = model.final_norm(states[blocks])
        assert worst([ours], [expected]) < tolerance(model.model_type)
    with torch.no_grad():
        torch.testing.assert_close(model.final_norm(states[-1]), normed, rtol=1e-6, atol=1e-7)


@pytest.mark.numeric
@EVERY
def test_streams_are_those_of_transformers_tuple(model, ids):
    with torch.no_grad():
        entries = tiny_model(model.model_type).base_model(ids, use_cache=False, output_hidden_states=True).hidden_states
    count, layout = LAYOUTS[model.model_type]
    for number in range(1, count + 1):
        states, _ = states_of(model, ids, f"stream:{number}")
        assert states[0].shape == (3, 20, 32)
        for state, entry in zip(states[:-1], entries, strict=False):
            own = {
                INNER: lambda e, n: e[:, :, n - 1],
                PACKED: lambda e, n: e[..., 32 * (n - 1) : 32 * n],
                OUTER: lambda e, n: e[n - 1],
            }[layout](entry, number)
            assert worst([state], [own]) < tolerance(model.model_type)


@EVERY
def test_what_would_be_another_tensor_is_refused(model, ids):
    count = model.streams.count
    for kind, error, words in (
        ("branch", UnsupportedModelError, f"mix {count} streams before they add"),
        ("branch:mlp", UnsupportedModelError, f"{count} residual streams, and write what a sublayer gives into each"),
        ("hf-tuple", UnsupportedModelError, f"entries hold all {count} streams"),
        (f"stream:{count + 1}", InputError, f"a stream from 1 to {count}"),
    ):
        for request in (model.state_count, lambda kind: model.stream(ids, kind=kind, on_state=lambda *_: None)):
            with pytest.raises(error, match=words):
                request(kind)
    with pytest.raises(InputError, match="whose tuple holds all of its streams"):
        from_hidden_states([torch.zeros(2, 3, 4)] * 3, model.model_type)


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_a_model_with_one_stream_has_no_second(model):
    with pytest.raises(InputError, match="several residual streams; got stream:1 of one; ask for residual"):
        model.state_count("stream:1")
    assert model.streams is None
    assert model.findings == []


def test_it_is_said_what_was_measured(ids):
    model = load(tiny_model("hy_v4"))
    assert [finding.code for finding in model.findings] == ["streams"]
    assert "4 residual streams: `residual` states are their mixture" in model.findings[0].message
    result = repflow.measure(model, ids)
    assert result.provenance["model"]["streams"] == {"count": 4, "readout": "HYV4HyperHead"}
    assert "streams" in {finding.code for finding in result.findings}
    mixture, second = (repflow.measure(model, ids, states=kind) for kind in ("residual", "stream:2"))
    assert not np.allclose(mixture["token_norm"], second["token_norm"])
    one = repflow.states(model, ids, kind="stream:2").hidden
    np.testing.assert_allclose(second["token_norm"][:, 0, :], one[:, 0].norm(dim=-1).numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "matrix"), [("deepseek_v4", "o_b_proj"), ("hy_v4", "o_proj"), ("qwen4_exp_text", "o_proj")]
)
def test_a_silenced_sublayer_is_one_whose_matrix_is_zero(model_type, matrix, ids):
    """branch:attention, against the same network with zeros in the last matrix of every attention."""
    model, network = load(tiny_model(model_type)), tiny_model(model_type)
    with torch.no_grad():
        for layer in network.base_model.layers:
            if hasattr(layer, "self_attn"):
                getattr(layer.self_attn, matrix).weight.zero_()
    ours, theirs = states_of(ablate(model, "branch:attention"), ids)[0], states_of(load(network), ids)[0]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(ours[-1], states_of(model, ids)[0][-1], rtol=1e-3)


def test_a_block_that_does_more_than_mix_is_not_taken_apart(ids):
    model = load(tiny_model("gemma3n_text"))
    with pytest.raises(UnsupportedModelError, match=r"do no more than mix its streams .* take out whole blocks"):
        ablate(model, "branch:attention")
    states = states_of(ablate(model, "block:2"), ids)[0]
    assert torch.equal(states[2], states[1])


@pytest.mark.parametrize("model_type", ["hy_v4", "gemma3n_text"])
def test_influence_is_that_of_all_streams_on_the_mixture(model_type):
    """Exact rows against autograd's own Jacobian of a model of two blocks, by embedding and by the streams between."""
    model = load(tiny_model(model_type), dtype="float64")
    ids = torch.arange(3, 8)[None]
    squares = influence_squares(model, ids, None, at=[4], targets=(2,), probes=None)[2].mean
    caught, streams = {}, model.streams

    def mixture(x, state):
        def replace(_, args, kwargs):
            return (x, *args[1:]), kwargs

        block = model.blocks[state]
        hooks = [block.register_forward_pre_hook(replace, with_kwargs=True)]
        hooks.append(model.blocks[1].register_forward_hook(lambda _, __, out: caught.update(y=out)))
        model.reading.base(**model.reading.arguments(ids, None))
        for hook in hooks:
            hook.remove()
        out = caught["y"] if isinstance(caught["y"], torch.Tensor) else caught["y"][0]
        return streams.mixture(out)[0, 4]

    given = {}
    handles = [
        block.register_forward_pre_hook(lambda _, args, n=number: given.update({n: args[0].detach().clone()}))
        for number, block in enumerate(model.blocks[:2])
    ]
    with torch.no_grad():
        model.reading.base(**model.reading.arguments(ids, None))
    for handle in handles:
        handle.remove()
    for state in (0, 1):
        rows = torch.autograd.functional.jacobian(lambda x, s=state: mixture(x, s), given[state])
        by_token = streams.split(rows.flatten(0, 0).square().sum(0)).sum((0, 2, 3))
        np.testing.assert_allclose(squares[1 + state, 0], by_token.numpy(), rtol=1e-6)


def test_a_width_that_is_not_configured_is_not_taken_for_streams():
    network = tiny_model("llama")
    network.config.hidden_size = 16
    with pytest.raises(
        UnsupportedModelError, match=r"expected state 0 of shape \(2, 8, 16\), got \(2, 8, 32\), of which no"
    ):
        load(network)


def test_streams_without_a_read_out_are_refused():
    network = tiny_model("hy_v4")

    class Unhooked(type(network.base_model.hc_head)):
        def __call__(self, hidden):
            return self.forward(hidden)  # as if the model did it inline, where nothing can be caught

    network.base_model.hc_head.__class__ = Unhooked
    with pytest.raises(
        UnsupportedModelError, match="'read-out' failed: no module makes one state of the 4 residual streams"
    ):
        load(network)


@pytest.mark.parametrize("model_type", LAYOUTS)
def test_weights_are_recognised(model_type):
    """The fingerprint feeds blocks with states of its own, in all streams."""
    from repflow.models.identity.fingerprint import fingerprint

    model = load(tiny_model(model_type))
    changed = tiny_model(model_type)
    with torch.no_grad():
        changed.base_model.layers[2].mlp.register_forward_hook(lambda _, __, output: output * 1.5)
    first, again, other = (fingerprint(m) for m in (model, load(tiny_model(model_type)), load(changed)))
    assert first == again != other


def test_a_configuration_with_streams_is_measured(tmp_path):
    tiny_config("hy_v4").save_pretrained(tmp_path / "hy")
    options = ["--task", "random", "--length", "16", "--samples", "2", "--out", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, ["measure", f"config:{tmp_path / 'hy' / 'config.json'}", *options])
    assert done.exit_code == 0, done.output
    assert "residual (mixture of 4 streams) states" in " ".join(done.output.split())
    assert "4 residual streams" in " ".join(done.output.split())
