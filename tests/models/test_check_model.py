"""check_model: the named architectures pass it, and each broken promise is named."""

import inspect

import pytest
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from repflow.core.errors import InputError
from repflow.models import check_model
from repflow.models.families import EMBEDDING, FAMILIES, Family
from tests.models.tiny_configs import CONFIGS, KINDS, tiny_model
from tests.sample import sampled

CHECKS = ("load", "states", "logits", "padding", "branch", "sublayers", "kinds", "memory", "row")
LONG = 8
"""Tokens that the self-check at load looks at; what goes wrong behind them is left to check_model."""


HIDDEN = {"unknown name": "whirl", "called mlp": "mlp"}
"""Names of sublayers that do not say what they do."""


class ToyConfig(PreTrainedConfig):
    model_type = "toy"

    def __init__(self, fault="", **others):
        self.vocab_size, self.hidden_size, self.num_hidden_layers, self.fault = 30, 8, 3, fault
        super().__init__(**others)


class MeanAttention(nn.Module):
    """Mean of the tokens so far, or of all of them where it is at fault."""

    def __init__(self, fault):
        super().__init__()
        self.linear, self.fault = nn.Linear(8, 8), fault

    def forward(self, x):
        tokens = x.shape[1]
        weights = torch.ones(tokens, tokens).tril()
        if self.fault == "looks ahead" and tokens > LONG:
            weights = torch.ones(tokens, tokens)
        return self.linear(weights / weights.sum(1, keepdim=True) @ x)


class Mean(MeanAttention):
    """The same under a name that does not say so."""


class Block(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.name = HIDDEN.get(fault, "self_attn")
        self.add_module(self.name, (Mean if fault in HIDDEN else MeanAttention)(fault))

    def forward(self, x):
        return x + getattr(self, self.name)(self.norm(x))


class ToyModel(PreTrainedModel):
    config_class = ToyConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed, self.norm, self.fault = nn.Embedding(30, 8), nn.LayerNorm(8), config.fault
        self.layers = nn.ModuleList(Block(config.fault) for _ in range(3))
        self.post_init()

    def forward(self, input_ids, output_hidden_states=False):
        hidden, states = self.embed(input_ids), []
        for layer in self.layers:
            states += [hidden] if output_hidden_states or self.fault == "keeps states" else []
            hidden = layer(hidden)
        if self.fault == "other tuple" and input_ids.shape[1] > LONG:
            states = [2 * state for state in states]
        if self.fault == "no tuple" and input_ids.shape[1] > LONG:
            states = states[1:]
        if self.fault == "whole tuple":
            return BaseModelOutput(self.norm(hidden), (*states, hidden) if output_hidden_states else None)
        hidden = self.norm(hidden)
        return BaseModelOutput(hidden, (*states, hidden) if output_hidden_states else None)


class Toy(PreTrainedModel):
    config_class = ToyConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        self.model, self.lm_head = ToyModel(config), nn.Linear(8, 30, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids, output_hidden_states=False):
        output = self.model(input_ids, output_hidden_states)
        logits = self.lm_head(output.last_hidden_state)
        if self.config.fault == "bent logits" and input_ids.shape[1] > LONG:
            logits = logits.relu()
        return CausalLMOutput(logits=logits, hidden_states=output.hidden_states)


def toy(fault=""):
    torch.manual_seed(0)
    return Toy(ToyConfig(fault))


@pytest.mark.parametrize("model_type", sampled(CONFIGS))
def test_named_architectures_pass(model_type):
    report = check_model(tiny_model(model_type))
    assert report.layer_kinds == tuple(KINDS[model_type])
    assert tuple(report.errors) == CHECKS
    assert max(report.errors.values()) <= report.tolerance < 1e-2
    assert f"{model_type}: 9 checks passed" in str(report)


def test_a_sound_one_of_your_own_passes(monkeypatch):
    monkeypatch.setitem(FAMILIES, "toy", Family())
    network = toy()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert tuple(check_model(network).errors) == CHECKS
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_whole_tuple_needs_no_row():
    assert tuple(check_model(toy("whole tuple")).errors) == CHECKS[:-1]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("other tuple", r"states as in the model's own tuple.*check 'states' of toy"),
        ("no tuple", r"a tuple of 4 hidden states \(check 'states' of toy\); got 3 entries"),
        ("bent logits", r"logits from the final norm's output.*check 'logits'"),
        ("looks ahead", r"whatever stands behind it.*check 'padding'"),
        ("unknown name", r"check 'sublayers' of toy.*list them in Family\(mixers=\.\.\.\)"),
        ("called mlp", r"check 'kinds' of toy.*got mlp for block 1 \(norm, mlp\), which mixes tokens"),
        ("keeps states", r"check 'memory' of toy.*got state 1 still there at state 3"),
    ],
)
def test_faults_are_named(fault, message, monkeypatch):
    monkeypatch.setitem(FAMILIES, "toy", Family())
    with pytest.raises(InputError, match=message):
        check_model(toy(fault))


def test_the_row_is_held(monkeypatch):
    with pytest.raises(InputError, match=r"check 'row' of toy\); got no row; write \"toy\": Family\(\) in"):
        check_model(toy())
    monkeypatch.setitem(FAMILIES, "toy", Family(EMBEDDING))
    with pytest.raises(InputError, match=r"tuple lacks the last block \(check 'row' of toy\); got 'embedding'"):
        check_model(toy())


def test_a_mixer_of_another_name_is_listed(monkeypatch):
    monkeypatch.setitem(FAMILIES, "toy", Family(mixers={"whirl": "recurrent"}))
    assert check_model(toy("unknown name")).layer_kinds == ("recurrent",) * 3


def test_what_is_not_a_decoder_is_refused():
    with pytest.raises(InputError, match="a transformers PreTrainedModel; got Linear"):
        inspect.unwrap(check_model)(nn.Linear(2, 2))  # without the test run's own type check
