"""Decoding from kept states: the tokens of whole forward passes, for every architecture that keeps a right state."""

import copy

import pytest
import torch
from transformers.cache_utils import DynamicLayer

from repflow.capture.continuation import (
    CachedContinuation,
    Continuation,
    OwnContinuation,
    blocks_agree,
    keeps_state,
    read_prompts,
)
from repflow.capture.key_values import RoomyLayer
from repflow.models import load
from repflow.models.devices import probe_dtype
from repflow.models.fastpath.memory import Memory, remembers
from tests.models.tiny_configs import NAMED, VOCAB, tiny_model
from tests.sample import sampled

OWN = ("mamba", "falcon_mamba", "mamba2")
WITHOUT_STATE = {"rwkv": "transformers mixes up the rows of a batch"}


def prompts(length, rows=3):
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("kind", sampled(NAMED))
def test_cached_tokens_are_those_of_whole_passes(kind):
    """In float64, where two tokens are never nearly equal."""
    model = load(tiny_model(kind).double())
    for length in (1, 2, 11):
        ids = prompts(length)
        state = keeps_state(model, ids)
        assert state == (kind not in WITHOUT_STATE) or length == 1, WITHOUT_STATE.get(kind, "a state that agrees")
        if state:
            got = read_prompts(model, ids, cached=True).greedy(8)
            assert torch.equal(got, Continuation(model, ids).greedy(8))


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("length", [1, 2, 3, 9, 20])
def test_own_states_of_every_length(kind, length):
    """Shorter than the convolution, as long, longer than a chunk of the scan."""
    model = load(tiny_model(kind).double())
    ids = prompts(length + 6, rows=2)
    continuation = read_prompts(model, ids[:, :length], cached=True)
    assert isinstance(continuation, OwnContinuation)
    whole = model.network(ids, use_cache=False).logits.double()
    assert torch.allclose(continuation.first, whole[:, length - 1], atol=1e-4)
    for place, logits in enumerate(continuation.follow(ids[:, length:])):
        assert torch.allclose(logits, whole[:, length + place], atol=1e-4)


@pytest.mark.parametrize("kind", OWN)
def test_words_go_on_from_the_same_prompt_and_leave_it(kind):
    model = load(tiny_model(kind).double())
    continuation = read_prompts(model, prompts(7), cached=True)
    before = continuation.greedy(5)
    list(continuation.follow(prompts(4, rows=6)))  # two words behind each of three prompts
    assert torch.equal(continuation.greedy(5), before)
    assert torch.equal(continuation.greedy(5, last=True), before)
    assert not torch.equal(continuation.greedy(5, last=True), before), "the last reading moves the state on"


def test_rows_that_ended_are_filled_up():
    model = load(tiny_model("mamba2").double())
    continuation = read_prompts(model, prompts(7), cached=True)
    plain = continuation.greedy(20)
    end = int(plain[0, 3])
    ids = continuation.greedy(20, end)
    first = [row.index(end) if end in row else 20 for row in plain.tolist()]
    assert ids.shape[1] == min(20, max(first) + 1)
    for row, stop in zip(ids.tolist(), first, strict=True):
        assert row[stop:] == [end] * (ids.shape[1] - stop)
    for ours, theirs, stop in zip(ids.tolist(), plain.tolist(), first, strict=True):
        assert ours[:stop] == theirs[:stop]


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "bamba", "jamba", "gpt_neo", "gpt_neox", "zamba2", "falcon_h1"])
def test_blocks_are_compared_one_by_one(kind):
    assert blocks_agree(load(tiny_model(kind)), prompts(12), tolerance=1e-3)


@pytest.mark.parametrize("kind", OWN)
def test_a_state_that_was_lost_is_noticed(kind, monkeypatch):
    model = load(tiny_model(kind))
    usual = Memory.rows

    def forgets(self, index):
        chosen = usual(self, index)
        for held in chosen.layers.values():
            held.state.zero_()
        return chosen

    monkeypatch.setattr(Memory, "rows", forgets)
    assert not blocks_agree(model, prompts(12))
    assert not keeps_state(model, prompts(12))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", [*OWN, "gpt_neox"])
def test_half_precision_keeps_its_state(kind, name):
    """Rounding changes tokens from block to block; that is not the state's fault."""
    dtype = getattr(torch, name)
    if (problem := probe_dtype(dtype)) is not None:
        pytest.skip(f"{name} products do not run on this CPU: {problem}")
    model = load(tiny_model(kind, spread=1.0).to(dtype))
    assert keeps_state(model, prompts(12))
    if kind in OWN:
        continuation = read_prompts(model, prompts(5), cached=True)
        assert all(held.state.dtype == torch.float32 for held in continuation._cache.layers.values())


def test_models_with_other_layers_use_their_own_cache():
    assert not remembers(load(tiny_model("bamba")).blocks)
    assert isinstance(read_prompts(load(tiny_model("gpt2")), prompts(4), cached=True), CachedContinuation)


def test_keys_and_values_are_not_copied_for_every_token():
    """They lie in a tensor with room behind them, and move when it is full or rows were chosen."""
    torch.manual_seed(0)
    ours, theirs = RoomyLayer(), DynamicLayer()
    for size in (5, 1, 1, 70, 1):
        new = torch.randn(2, 3, size, 4), torch.randn(2, 3, size, 4)
        before = ours.keys.data_ptr() if ours.is_initialized else None
        for a, b in zip(ours.update(*new), theirs.update(*new), strict=True):
            assert torch.equal(a, b)
        assert ours.get_seq_length() == theirs.get_seq_length()
        if size == 1:
            assert ours.keys.data_ptr() == before
    copied = copy.deepcopy(ours)
    for layer in (ours, theirs):
        layer.reorder_cache(torch.tensor([1, 1, 0]))
    new = torch.randn(3, 3, 1, 4), torch.randn(3, 3, 1, 4)
    for a, b in zip(ours.update(*new), theirs.update(*new), strict=True):
        assert torch.equal(a, b)
    was = copied.keys.clone()
    copied.update(torch.zeros(2, 3, 1, 4), torch.zeros(2, 3, 1, 4))
    assert torch.equal(copied.keys[:, :, :-1], was)
    assert not torch.equal(ours.keys[0, :, -2:-1], torch.zeros(3, 1, 4)), "a copy has a room of its own"


def test_steps_behind_the_first_are_captured_once_and_say_the_same(monkeypatch):
    """The graph stands in by what it does on a GPU: one buffer of ids, one of logits, the step replayed in place."""
    from repflow.capture import continuation

    model = load(tiny_model("mamba2"))
    ids = torch.arange(3, 23).reshape(2, 10)
    plain = read_prompts(model, ids, cached=True).greedy(9)
    built = []

    class Replayed:
        def __init__(self, step, first):
            self.ids, self.step, self.logits = first.clone(), step, None
            built.append(self)

        def __call__(self, given):
            self.ids.copy_(given)
            logits = self.step(self.ids)
            self.logits = logits if self.logits is None else self.logits.copy_(logits)
            return self.logits

    monkeypatch.setattr(continuation, "captured", Replayed)
    monkeypatch.setattr(continuation, "on_gpu", lambda model: True)
    cached_prompts = read_prompts(model, ids, cached=True)
    assert torch.equal(cached_prompts.greedy(9), plain)
    assert torch.equal(cached_prompts.greedy(9), plain)  # a second answer begins from the prompt again
    assert len(built) == 2
    cached_prompts.greedy(3)
    assert len(built) == 2, "a short answer is not worth a graph"


def test_a_step_that_cannot_be_captured_runs_as_it_is(monkeypatch):
    from repflow.capture import token_graph

    class Refused:
        def __init__(self, *_):
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(token_graph, "TokenGraph", Refused)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def step(ids):
        return ids * 2

    assert token_graph.captured(step, torch.ones(1, 1)) is step
