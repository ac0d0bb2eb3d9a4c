"""Blocks and branches taken out: the stream passes unchanged, all else is computed as before."""

import pytest
import torch

from repflow.core.errors import InputError
from repflow.interventions import ablate
from tests.interventions.ablation_inputs import calls, states
from tests.models.tiny_configs import CONFIGS
from tests.sample import sampled


@pytest.mark.parametrize("model", sampled(CONFIGS), indirect=True)
def test_a_block_taken_out_hands_on_its_input(model, ids):
    before, after = states(model, ids), states(ablate(model, "block:2"), ids)
    assert torch.equal(after[:2], before[:2])
    assert torch.equal(after[2], after[1])
    assert not torch.equal(before[2], before[1])
    # the next block reads what the one before handed on: as the model itself would, called by hand
    assert not torch.allclose(after[3], before[3])


@pytest.mark.parametrize("model", ["bamba", "jamba", "llama", "gpt2", "mamba2", "falcon_h1"], indirect=True)
def test_next_block_is_computed_from_the_passing_stream(model, ids):
    """Oracle: the third block of the whole model, called with the state that the second one would have handed on."""
    ablated = ablate(model, "block:2")
    ((args, kwargs, output),) = calls(ablated, [ablated.blocks[2]], ids)
    entering = args[0] if args else kwargs["hidden_states"]
    assert torch.equal(entering, states(model, ids)[1])
    with torch.no_grad():
        again = model.blocks[2](*args, **kwargs)
    hidden, wanted = (value if isinstance(value, torch.Tensor) else value[0] for value in (output, again))
    torch.testing.assert_close(hidden, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", ["bamba", "jamba", "llama", "falcon_h1"], indirect=True)
def test_a_branch_taken_out_leaves_the_others(model, ids):
    number = next(i for i, parts in enumerate(model.reading.parts) if any(p.kind == "attention" for p in parts)) + 1
    ablated = ablate(model, f"branch:{number}.attention")
    parts = [part for part in ablated.reading.parts[number - 1] if part.kind == "attention"]
    added = [
        output if isinstance(output, torch.Tensor) else output[0]
        for *_, output in calls(ablated, [p.module for p in parts], ids)
    ]
    assert all(not value.any() for value in added)
    before, after = states(model, ids), states(ablated, ids)
    assert torch.equal(after[:number], before[:number])
    assert not torch.equal(after[number], after[number - 1])  # the MLP is still there
    # branches still sum up to what their block adds, so that they can be read
    assert ablated.reading.sublayer_problem is None


@pytest.mark.parametrize("model", ["bamba"], indirect=True)
def test_a_kind_is_taken_out_of_all_blocks(model, ids):
    values = [i + 1 for i, kind in enumerate(model.layer_kinds) if kind == "attention"]
    one_by_one = ablate(model, [f"branch:{number}.attention" for number in values])
    assert torch.equal(states(ablate(model, "branch:attention"), ids), states(one_by_one, ids))
    finding = next(f for f in ablate(model, "branch:attention").findings if f.code == "ablated")
    assert f"{len(values)} changed (block {values[0]} attention" in finding.message


@pytest.mark.parametrize("model", ["bamba"], indirect=True)
def test_ablations_join_and_the_model_stays(model, ids):
    before = states(model, ids)
    twice = ablate(ablate(model, "block:1"), "norm-affine")
    assert twice.ablations == ("norm-affine", "block:1")
    after = states(twice, ids)
    assert torch.equal(after[1], after[0])
    assert torch.equal(states(model, ids), before)


@pytest.mark.parametrize("model", ["bamba"], indirect=True)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("block:40", r"a block from 1 to \d+; got block:40 of"),
        ("branch:1.attention", r"a kind of branch that is there; got branch:1.attention in .*; there are mlp, ssm"),
        ("branch:conv", "there are attention, mlp, ssm"),
    ],
)
def test_what_is_not_there_is_refused(model, wrong, message):
    with pytest.raises(InputError, match=message):
        ablate(model, wrong)
