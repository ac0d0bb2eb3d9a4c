"""A live model stays as it is, whatever reads it: modes of its modules, hooks, configuration, tensors, flags."""

import copy
import threading

import pytest
import torch

import repflow
from repflow.core.errors import InputError
from repflow.interventions import ablate
from tests.models.tiny_configs import tiny_model
from tests.studies.needle.inputs import needle_network, needle_tokenizer

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def print_of(network):
    """Everything of a network that reading it could change."""
    modules = {
        name: (
            module.training,
            tuple(tuple(map(id, getattr(module, hooks).values())) for hooks in HOOKS),
            sorted(vars(module)),
            {key: id(value) for key, value in vars(module).items() if isinstance(value, torch.Tensor)},
        )
        for name, module in network.named_modules()
    }
    tensors = {
        name: (id(tensor), tensor.requires_grad, tensor.dtype, tensor.is_inference(), tensor._version, tensor.tolist())
        for name, tensor in [*network.named_parameters(), *network.named_buffers()]
    }
    return modules, tensors, network.config.to_dict(), network.generation_config.to_dict()


def trained_network(kind):
    """In training mode but for its first block and one more module, some parameters frozen."""
    network = needle_network(kind).train()
    layers = getattr(network.base_model, "layers", None) or getattr(network.base_model, "blocks", None)
    (network.base_model.h if layers is None else layers)[0].eval()
    for parameter in list(network.parameters())[::3]:
        parameter.requires_grad_(False)
    network.register_forward_hook(lambda *_: None)
    return network


PROBE = {"length": 250, "items": 2, "samples": 40, "seeds": 1, "answers": 2, "lens": 2, "controls": ["none"]}
TOKENS = [[5, 9, 11, 3, 8, 2, 40, 7, 21, 30, 4, 17]]
CALLS = {
    "load": lambda net, tok: repflow.load(net),
    "measure": lambda net, tok: repflow.measure(net, TOKENS),
    "measure in float64": lambda net, tok: repflow.measure(net, TOKENS, dtype="float64"),
    "states": lambda net, tok: repflow.states(net, TOKENS),
    "influence": lambda net, tok: repflow.influence(net, TOKENS),
    "compare": lambda net, tok: repflow.compare(net, "twin", TOKENS * 2),
    "hidden_attention": lambda net, tok: repflow.hidden_attention(net, 1, TOKENS),
    "needle": lambda net, tok: repflow.needle(net, tokenizer=tok, lengths=[120], positions=[0.5], samples=2),
    "probe": lambda net, tok: repflow.probe(net, "kvpr", tokenizer=tok, **PROBE),
    "ablate": lambda net, tok: repflow.measure(net, TOKENS, ablate=["block:2", "norm-affine"]),
}


LONG = ("needle", "probe")
PAIRS = [(c, kind) for c in CALLS for kind in ("gpt_neo", "mamba2", "rwkv", "bamba") if c not in LONG]
PAIRS += [("needle", "gpt_neo"), ("probe", "mamba2")]


@pytest.mark.parametrize(
    ("call", "kind"),
    [pytest.param(*pair, marks=pytest.mark.slow if pair[1] == "bamba" else ()) for pair in PAIRS],
)
def test_a_live_model_stays_as_it_is(call, kind):
    network = trained_network(kind)
    before = print_of(network)
    CALLS[call](network, needle_tokenizer())
    assert print_of(network) == before


@pytest.mark.parametrize("kind", ["gpt_neo", "mamba2", "rwkv"])
def test_also_when_it_fails_in_the_middle(kind, monkeypatch):
    network = trained_network(kind)
    loaded = repflow.load(network)
    before = print_of(network)

    def fail(*_, **__):
        raise KeyboardInterrupt

    handle = loaded.blocks[2].register_forward_hook(fail)
    for call in (repflow.measure, repflow.states, repflow.influence):
        with pytest.raises(KeyboardInterrupt):
            call(loaded, TOKENS)
    handle.remove()
    with pytest.raises(InputError):
        repflow.measure(network, [[100_000_000]])
    assert print_of(network) == before


def test_dropout_is_off_for_the_reading_only():
    network = tiny_model("gpt2").train()
    quiet = repflow.states(copy.deepcopy(network).eval(), TOKENS).hidden
    model = repflow.load(network)
    assert torch.equal(repflow.states(model, TOKENS).hidden, quiet)
    assert torch.equal(repflow.states(ablate(model, "norm-affine"), TOKENS).hidden[0], quiet[0])
    assert network.training
    torch.manual_seed(0)
    noisy = network(torch.tensor(TOKENS), output_hidden_states=True).hidden_states[1]
    assert not torch.allclose(noisy, quiet[1])


def test_training_goes_on_behind_it_and_the_model_sees_the_steps():
    network = tiny_model("gpt2").train()
    model = repflow.load(network)
    first = repflow.states(model, TOKENS).hidden
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    network(torch.tensor(TOKENS), labels=torch.tensor(TOKENS)).loss.backward()
    optimiser.step()
    second = repflow.states(model, TOKENS).hidden
    assert not torch.allclose(first, second)
    assert torch.equal(second, repflow.states(network, TOKENS).hidden)


def test_rwkv_that_rescales_itself_later_does_not_reach_the_model():
    network = tiny_model("rwkv").train()
    model = repflow.load(network)
    first = repflow.states(model, TOKENS).hidden
    with torch.no_grad():
        network.eval()(torch.tensor(TOKENS))  # halves its weights in place
    assert network.base_model.layers_are_rescaled
    assert torch.equal(repflow.states(model, TOKENS).hidden, first)
    assert torch.equal(repflow.states(network, TOKENS).hidden, first)


def test_tensors_inside_a_graph_are_shared_and_locks_are_refused():
    network = tiny_model("gpt2")
    network.transformer.kept = network.transformer.wte.weight * 2  # a tensor with a history cannot be copied
    repflow.states(network, TOKENS)
    network = tiny_model("gpt2")
    network.lock = threading.Lock()
    with pytest.raises(InputError, match="a live model whose modules can be copied; got GPT2LMHeadModel"):
        repflow.load(network)
