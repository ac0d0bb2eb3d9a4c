"""Penalties on states: against the metrics and plain loops in float64, gradients by finite differences."""

import itertools

import pytest
import torch
from torch.nn import functional
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, MambaConfig, MambaForCausalLM

from repflow import metrics
from repflow.core.errors import InputError
from repflow.training import Batch
from repflow.training.losses import (
    BlockGain,
    DecayBound,
    ExcessSimilarity,
    HoldAt,
    IntermediateSupervision,
    Pass,
    SmoothnessPenalty,
    StabilityPenalty,
    TokenDiversity,
    attach_heads,
    detach_heads,
    states,
    token_cross_entropy,
)
from repflow.training.losses.cross_entropy import read_pass
from repflow.training.losses.states import pass_of
from repflow.training.losses.tokens import pair_cosine, token_contrast
from tests.training.tiny_training import VOCABULARY, network

STATES, ROWS, TOKENS, WIDTH = 5, 3, 6, 4
DRAWS = torch.Generator().manual_seed(5)
HIDDEN = torch.randn(STATES, ROWS, TOKENS, WIDTH, generator=DRAWS, dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])
IDS = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=DRAWS)


def seen(hidden=HIDDEN, mask=MASK):
    batch = Batch(torch.zeros(hidden.shape[1:3], dtype=torch.long), mask=mask)
    return Pass(torch.nn.Identity(), batch, dict(enumerate(hidden)), len(hidden) - 1)


def pass_through(model, mask=None):
    batch = Batch(IDS, mask=mask)
    return pass_of(model, batch, read_pass(model, batch, states=True)[1])


def contrast_by_loops(state, count, margin):
    pairs = [
        max(0.0, margin - 1 + float(functional.cosine_similarity(state[i], state[j], dim=0)))
        for i, j in itertools.permutations(range(count), 2)
    ]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("margin", [0.5, 1.0, 2.0])
def test_the_contrast_is_its_definition_pair_by_pair(margin, monkeypatch):
    expected = [contrast_by_loops(HIDDEN[1, row], int(MASK[row].sum()), margin) for row in range(ROWS)]
    value = token_contrast(HIDDEN[1], MASK.bool(), margin=margin)
    assert value.tolist() == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr("repflow.training.losses.tokens.SLICE", ROWS * TOKENS * 2)  # two tokens at a time
    assert token_contrast(HIDDEN[1], MASK.bool(), margin=margin).tolist() == pytest.approx(expected, rel=1e-12)


def test_with_the_largest_margin_the_contrast_is_the_similarity_plus_one():
    similarity = metrics.token_similarity(HIDDEN, mask=MASK)
    value = torch.stack([token_contrast(state, MASK.bool(), margin=2.0) for state in HIDDEN])
    torch.testing.assert_close(value, similarity + 1, rtol=1e-12, atol=0)


def test_cosines_within_and_between_prompts_are_the_metrics():
    for state, similarity, excess in zip(
        HIDDEN,
        metrics.token_similarity(HIDDEN, mask=MASK),
        metrics.token_similarity_excess(HIDDEN, mask=MASK),
        strict=True,
    ):
        within, between = pair_cosine(state, MASK.bool())
        torch.testing.assert_close(within, similarity, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(within - between, excess, rtol=1e-12, atol=1e-14)


def test_the_excess_penalty_counts_what_lies_above_its_limit():
    excess = metrics.token_similarity_excess(HIDDEN, mask=MASK)
    limit = float(excess.median())
    expected = (excess - limit).clamp(min=0).mean()
    assert float(ExcessSimilarity(1.0, limit=limit, states="all")(seen())) == pytest.approx(float(expected), rel=1e-12)
    assert float(expected) > 0


@pytest.mark.parametrize("slice_", [2**24, STATES * ROWS * WIDTH * 2])
@pytest.mark.parametrize(
    ("penalty", "form", "metric"),
    [
        (SmoothnessPenalty, "raw", metrics.smoothness),
        (SmoothnessPenalty, "direction", metrics.direction_smoothness),
        (StabilityPenalty, "raw", metrics.stability),
        (StabilityPenalty, "direction", metrics.direction_stability),
    ],
)
def test_penalties_over_depth_are_the_metrics(penalty, form, metric, slice_, monkeypatch):
    monkeypatch.setattr("repflow.training.losses.depth.SLICE", slice_)
    expected = float(metric(HIDDEN, mask=MASK).mean())
    assert float(penalty(1.0, form=form)(seen())) == pytest.approx(expected, rel=1e-9)
    assert float(penalty(1.0, form=form, limit=expected - 0.125)(seen())) == pytest.approx(0.125, rel=1e-9)
    assert float(penalty(1.0, form=form, limit=2 * expected)(seen())) == 0


def test_the_gain_is_its_definition():
    norms = HIDDEN.norm(dim=-1)
    costs = []
    for row in range(ROWS):
        numbers = [
            float(max(0.0, norms[layer + 1, row, token] / norms[layer, row, token] - 1.1) ** 2)
            for layer in range(STATES - 1)
            for token in range(int(MASK[row].sum()))
        ]
        costs.append(sum(numbers) / len(numbers))
    assert float(BlockGain(1.0, limit=1.1)(seen())) == pytest.approx(sum(costs) / ROWS, rel=1e-9)


@pytest.mark.parametrize(
    "penalty",
    [
        TokenDiversity(1.0, margin=0.9, states="all"),
        ExcessSimilarity(1.0, limit=-0.3, states="all"),
        SmoothnessPenalty(1.0),
        SmoothnessPenalty(1.0, form="raw"),
        StabilityPenalty(1.0),
        StabilityPenalty(1.0, form="raw"),
        BlockGain(1.0, limit=0.8),
    ],
    ids=lambda penalty: f"{penalty.name}-{getattr(penalty, 'form', '')}",
)
def test_gradients_are_those_of_finite_differences(penalty):
    hidden = HIDDEN[..., :2].clone().requires_grad_()  # each number is changed by itself
    assert torch.autograd.gradcheck(lambda h: penalty(seen(h)), (hidden,), atol=1e-7, rtol=1e-5)
    value = penalty(seen(hidden))
    value.backward()
    gradient = hidden.grad
    assert gradient.isfinite().all()
    assert float(gradient.abs().sum()) > 0
    assert float(gradient[:, 1, 4:].abs().sum()) == 0, "padding has a gradient"


@pytest.mark.parametrize("penalty", [TokenDiversity(1.0, states="all"), SmoothnessPenalty(1.0), StabilityPenalty(1.0)])
def test_what_padding_holds_does_not_matter(penalty):
    spoilt = HIDDEN.clone()
    spoilt[:, MASK == 0] = torch.nan
    spoilt.requires_grad_()
    value = penalty(seen(spoilt))
    assert float(value) == pytest.approx(float(penalty(seen())), rel=1e-12)
    value.backward()
    assert spoilt.grad[:, MASK == 1].isfinite().all()


POLES = ({}, {"polarize": "both"}, {"polarize": "both", "zero_rate": -1000.0}, {"polarize": "both", "placebo": True})


@pytest.mark.parametrize(
    ("family", "options"), [*(("s6", poles) for poles in POLES), ("ssd", {}), ("rg_lru", {}), ("rwkv5", {})]
)
def test_the_decay_bound_is_its_definition_over_the_whole_sequence(family, options, monkeypatch):
    model = network(mixers=[{"name": family, **options}] * 2).double()
    monkeypatch.setattr("repflow.training.losses.decay.TOKENS", 2)
    known = pass_through(model, MASK)
    limit, costs = 0.4, []
    for layer, block in enumerate(model.model.blocks):
        decay = block.mixer.transition(block.mixer_norm(known.states[layer])).A.abs()
        cost = (decay - limit).clamp(min=0) ** 2
        cost = cost.mean(tuple(range(2, cost.ndim))).expand(ROWS, TOKENS)
        costs.append(torch.stack([cost[row, : int(MASK[row].sum())].mean() for row in range(ROWS)]).mean())
    value, wanted = DecayBound(1.0, limit=limit)(known), sum(costs) / 2
    torch.testing.assert_close(value, wanted, rtol=1e-9, atol=0)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    ours, theirs = (
        torch.autograd.grad(cost, weights, retain_graph=True, materialize_grads=True) for cost in (value, wanted)
    )
    assert any(float(slope.abs().sum()) > 0 for slope in theirs)
    for slope, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(slope, reference, rtol=1e-8, atol=1e-15)


def test_shared_heads_give_the_cross_entropy_of_the_models_own_head_at_that_depth():
    model = network(mixers=["s6", "s6", "s6"]).double()
    known = pass_through(model, MASK)
    weights = MASK[:, 1:].double()
    each = []
    for depth in (1, 2):
        logits = model.lm_head(model.model.final_norm(known.states[depth]))[:, :-1]
        each.append((token_cross_entropy(logits, IDS[:, 1:]) * weights).sum() / weights.sum())
    value = IntermediateSupervision(1.0, depths=(1, 2))(known)
    assert float(value.detach()) == pytest.approx(float(sum(each).detach()) / 2, rel=1e-6)
    # at the last state the model's own head is the model
    own = functional.cross_entropy(model(IDS).logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    last = IntermediateSupervision(1.0, depths=(-1,))(pass_through(model))
    assert float(last.detach()) == pytest.approx(float(own.detach()), rel=1e-6)


def test_heads_of_their_own_are_trained_with_the_model_and_can_be_removed():
    model = network(mixers=["s6", "s6"])
    before = set(model.state_dict())
    penalty = IntermediateSupervision(1.0, depths=(1,), heads="own")
    with pytest.raises(InputError, match=r"a head at state 1; got none; call attach_heads"):
        penalty(pass_through(model))
    attach_heads(model, [1])
    penalty(pass_through(model)).backward()
    heads = model.intermediate_heads["1"]
    assert all(float(p.grad.abs().sum()) > 0 for p in heads.parameters())
    assert model.lm_head.weight.grad is None
    detach_heads(model)
    assert set(model.state_dict()) == before


def tiny_mamba():
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=3, state_size=4, time_step_rank=2)
    return MambaForCausalLM(config).eval()


def tiny_neox():
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 8}
    return GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=VOCABULARY, **sizes)).eval()


@pytest.mark.parametrize("make", [tiny_mamba, tiny_neox])
def test_states_of_transformers_models_stand_at_their_own_places(make):
    model = make()
    known = pass_through(model)
    recorded = {}
    blocks = model.backbone.layers if hasattr(model, "backbone") else model.gpt_neox.layers
    for place, block in enumerate(blocks):
        block.register_forward_hook(
            lambda _, __, output, at=place + 1: recorded.update(
                {at: output if isinstance(output, torch.Tensor) else output[0]}
            )
        )
    model(IDS)
    assert known.layers == 3
    assert sorted(known.states) == ([1, 2, 3] if make is tiny_mamba else [0, 1, 2])
    for index in set(known.states) - {0}:
        torch.testing.assert_close(known.states[index], recorded[index])
    missing = 0 if make is tiny_mamba else 3
    with pytest.raises(InputError, match=f"a state that a training pass of this model returns: .*got {missing}, which"):
        known.chosen((missing,))
    shared = IntermediateSupervision(1.0, depths=(1,))(known)
    assert float(shared.detach()) > 0


def test_names_of_states():
    known = seen(torch.zeros(10, 1, 2, 2))
    assert list(known.chosen("late")) == [6, 7, 8, 9]
    assert list(known.chosen("blocks")) == list(range(1, 10))
    assert list(known.chosen((-1, 2))) == [2, 9]
    assert set(states.Pass.__dataclass_fields__) == {"network", "batch", "states", "layers"}


def test_wrong_requests_say_what_to_do():
    with pytest.raises(InputError, match="'late', 'blocks', 'all' or a list of indices; got 'early'"):
        TokenDiversity(1.0, states="early")(seen())
    with pytest.raises(InputError, match=r"states from 0 \(the embedding\) to 4 \(the last block\); got 9"):
        TokenDiversity(1.0, states=(9,))(seen())
    with pytest.raises(InputError, match="states that follow one another"):
        SmoothnessPenalty(1.0, states=(0, 1, 3))(seen())
    with pytest.raises(InputError, match="at least 3 states; got 2"):
        SmoothnessPenalty(1.0, states=(0, 1))(seen())
    with pytest.raises(InputError, match="at least 2 prompts in a batch"):
        ExcessSimilarity(1.0)(seen(HIDDEN[:, :1], MASK[:1]))
    with pytest.raises(InputError, match="a stack with recurrent mixers; got Identity"):
        DecayBound(1.0)(seen())
    with pytest.raises(InputError, match="a model that returns its states"):
        pass_of(torch.nn.Identity(), Batch(IDS), torch.zeros(1))
    for wrong in (-1.0, float("nan")):
        with pytest.raises(InputError, match="a weight of at least 0"):
            TokenDiversity(wrong)
    for call in (
        lambda: TokenDiversity(1.0, margin=0.0),
        lambda: DecayBound(1.0, limit=1.0),
        lambda: BlockGain(1.0, limit=0.0),
        lambda: SmoothnessPenalty(1.0, form="round"),
        lambda: IntermediateSupervision(1.0, depths=()),
        lambda: HoldAt(target=0.0),
        lambda: HoldAt(target=1.0, least=2.0),
    ):
        with pytest.raises(InputError):
            call()
