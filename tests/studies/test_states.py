"""`repflow.states`: shapes, masks, tokens, kinds, and tensors that can be worked with afterwards."""

import pytest
import torch

import repflow
from repflow.core.errors import InputError
from repflow.models import load
from repflow.studies.states import States
from tests.studies.compare.inputs import TEXTS, model, network, save, words_tokenizer


def test_ragged_texts():
    loaded = model("gpt2", words_tokenizer)
    states = repflow.states(loaded, TEXTS)
    lengths = [len(loaded.tokenizer(text)["input_ids"]) for text in TEXTS]
    assert isinstance(states, States)
    assert states.hidden.shape == (5, 3, max(lengths), 32)
    assert states.mask.dtype == torch.bool
    assert states.mask.sum(1).tolist() == lengths
    assert bool((states.mask[:, :-1] >= states.mask[:, 1:]).all()), "padding on the right"
    assert [len(row) for row in states.tokens] == lengths
    assert states.tokens[0] == TEXTS[0].split()
    alone = repflow.states(loaded, TEXTS[0])
    torch.testing.assert_close(alone.hidden[:, 0], states.hidden[:, 0, : lengths[0]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "count"), [("residual", 5), ("branch", 4), ("branch:mlp", 4), ("branch:attention", 4), ("hf-tuple", 5)]
)
def test_kinds(kind, count):
    assert repflow.states(model("gpt2"), [[1, 2, 3]], kind=kind).hidden.shape == (count, 1, 3, 32)


def test_residual_states_are_transformers_own_but_for_the_last():
    loaded, ids = model("gpt2"), torch.tensor([[5, 9, 301, 7]])
    with torch.no_grad():
        out = loaded.network(ids, output_hidden_states=True).hidden_states
    hidden = repflow.states(loaded, ids).hidden
    torch.testing.assert_close(hidden[:-1], torch.stack(out[:-1]))
    torch.testing.assert_close(loaded.final_norm(hidden[-1]), out[-1])
    torch.testing.assert_close(repflow.states(loaded, ids, kind="hf-tuple").hidden, torch.stack(out))
    branch = repflow.states(loaded, ids, kind="branch").hidden
    torch.testing.assert_close(hidden[0] + branch.cumsum(0), hidden[1:])
    parts = sum(repflow.states(loaded, ids, kind=f"branch:{part}").hidden for part in ("attention", "mlp"))
    torch.testing.assert_close(parts, branch)


def test_what_comes_out_can_be_worked_with():
    """Made in inference mode, but no inference tensors: they can be changed and differentiated."""
    hidden, mask, _ = repflow.states(model("mamba"), [[1, 2, 3, 4], [5, 6]])
    assert not hidden.is_inference()
    assert not hidden.requires_grad
    again = hidden.clone().requires_grad_()
    repflow.metrics.stability(again, mask=mask).sum().backward()
    assert bool(again.grad[:, mask].isfinite().all())
    hidden[0] = 0
    assert bool(mask.logical_not()[1, 2:].all())


def test_specs_and_live_models(tmp_path):
    folder = save("gpt2", tmp_path / "m", tokenizer=words_tokenizer)
    by_spec = repflow.states(str(folder), TEXTS)
    live = repflow.states(network("gpt2"), [[1, 2, 3]])
    assert by_spec.tokens[0] == TEXTS[0].split()
    assert live.tokens == [["1", "2", "3"]]


@pytest.mark.parametrize("bos", ["model", "always", "never"])
def test_first_token(bos):
    loaded = load(network("gpt2"), tokenizer=words_tokenizer(bos=True))
    tokens = repflow.states(loaded, "the old mill", bos=bos).tokens[0]
    assert tokens == ([] if bos == "never" else ["<s>"]) + ["the", "old", "mill"]
    plain = repflow.states(model("gpt2", words_tokenizer), "the old mill", bos="never" if bos == "always" else bos)
    assert plain.tokens[0] == ["the", "old", "mill"]


@pytest.mark.parametrize(
    ("given", "options", "text"),
    [
        ("", {}, "at least 2 tokens; got 0 in sample 0"),
        ("mill", {}, "at least 2 tokens; got 1"),
        (["the old", ""], {}, "at least 2 tokens; got 0 in sample 1"),
        ([[1] * 257], {}, "at most 256 tokens for this model; got 257"),
        ([[1, 2]], {"kind": "residuals"}, "a kind of state; got 'residuals'; did you mean residual"),
        ([[1, 2]], {"kind": "branch:ssm"}, "a model with ssm sublayers; got one without; ask for branch:attention"),
        ("the old mill", {"bos": "yes"}, "bos = model, always or never; got 'yes'"),
        ([[1, 400]], {}, "token ids from 0 to 399; got 1 to 400 in sample 0"),
    ],
)
def test_refused(given, options, text):
    with pytest.raises(InputError, match=text):
        repflow.states(model("gpt2", words_tokenizer), given, **options)
