"""`theory apply` and `dynamics apply` on repflow's own stacks: the numbers of transformers' Mamba of those weights."""

import numpy as np
import pytest
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

import repflow
from repflow.core.errors import UnsupportedModelError
from repflow.models.stack.network import StackConfig, StackForCausalLM
from repflow.studies.dynamics import apply as dynamics_apply
from repflow.studies.theory import apply as theory_apply
from repflow.studies.theory.layer import channel_block
from repflow.studies.theory.reading import Seen, mamba_of, watching
from repflow.theory.channel import channel_output

SHAPE = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 3, "state_size": 4}
RENAMED = (
    ("backbone.layers", "model.blocks"),
    ("backbone.embeddings", "model.embeddings"),
    ("backbone.norm_f", "model.final_norm"),
    (".norm.weight", ".mixer_norm.weight"),
    ("mixer.mixer_norm", "mixer.norm"),
)


def pair(family):
    """A random Mamba or Mamba-2 of transformers, and the stack with its weights; both in float64."""
    torch.manual_seed(3)
    if family == "s6":
        theirs = MambaForCausalLM(MambaConfig(**SHAPE))
        entry = {"name": "s6", "state": 4}
    else:
        theirs = Mamba2ForCausalLM(Mamba2Config(**SHAPE, num_heads=4, head_dim=8, n_groups=2, chunk_size=8))
        entry = {"name": "ssd", "state": 4, "head_dim": 8, "groups": 2}
    special = {name: getattr(theirs.config, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    ours = StackForCausalLM(StackConfig([entry] * 3, hidden_size=16, vocab_size=64, **special))
    state = theirs.state_dict()
    with torch.no_grad():
        for name, value in state.items():  # so that branches matter, and nothing is linear by smallness
            if value.ndim == 2 and "A_log" not in name:
                value.mul_(4)
    for old, new in RENAMED:
        state = {name.replace(old, new): value for name, value in state.items()}
    ours.load_state_dict(state)
    return repflow.load(theirs.eval(), dtype="float64"), repflow.load(ours.eval(), dtype="float64")


def same(theirs, ours):
    """Every array of two results; transformers' scans run in float32 whatever the weights are."""
    assert list(theirs) == list(ours)
    for name in theirs:
        assert theirs.axes[name] == ours.axes[name]
        # a power iteration that has not settled ends elsewhere after other rounding
        near = 1e-2 if name == "block/lipschitz" else 2e-5
        np.testing.assert_allclose(ours[name], theirs[name], rtol=near, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("family", ["s6", "ssd"])
def test_theory_of_a_stack_is_that_of_the_same_mamba(family):
    theirs, ours = (theory_apply.run(theory_apply.ApplyConfig(length=12, samples=3), model=m) for m in pair(family))
    same(theirs, ours)
    rows = [result.provenance["hypotheses"] for result in (theirs, ours)]
    assert [(r["block"], r["name"], r["holds"]) for r in rows[0]] == [
        (r["block"], r["name"], r["holds"]) for r in rows[1]
    ]
    assert {r["block"] for r in rows[1]} == {1, 2, 3}


@pytest.mark.parametrize("family", ["s6", "ssd"])
def test_dynamics_of_a_stack_are_those_of_the_same_mamba(family):
    config = dynamics_apply.ApplyConfig(length=12, samples=3)
    theirs, ours = (dynamics_apply.run(config, model=model) for model in pair(family))
    same(theirs, ours)
    assert np.isfinite(ours["token_norm_without_norms"]).all()
    messages = [[f.message for f in result.findings if f.code != "random_ids"] for result in (ours, theirs)]
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    "options",
    [
        {"name": "s6", "state": 4, "conv": 0, "skip": False},
        {"name": "s6", "state": 4, "eigenvalues": "negative"},
        {"name": "s6", "state": 5, "polarize": "both"},
        {"name": "ssd", "state": 4, "head_dim": 8, "norm": False, "conv": 0},
        {"name": "ssd", "state": 5, "head_dim": 8, "polarize": "both"},
    ],
    ids=str,
)
def test_channels_of_every_kind_of_stack_are_its_mixer(options):
    """What the reading computes by channel is what reaches the output projection, or the gated norm before it."""
    torch.manual_seed(5)
    model = repflow.load(StackForCausalLM(StackConfig([options] * 2, hidden_size=16, vocab_size=64)), dtype="float64")
    caught, seen = {}, {}
    for index, block in enumerate(model.blocks):
        place = getattr(block.mixer, "norm", None) or block.mixer.out_proj

        def keep(module, args, index=index):
            caught[index] = args[0][0].detach().numpy()

        place.register_forward_pre_hook(keep)
    with watching(model, "mamba", [], seen):
        model.stream(torch.arange(3, 15)[None], on_state=lambda *_: None)
    for index, block in enumerate(model.blocks):
        assert isinstance(seen[index], Seen)
        channels, u, gate, skip = channel_block(mamba_of(block.mixer), seen[index])
        entered = u / (1 + torch.exp(-u))
        out = channel_output(channels, entered) + skip * entered
        out = out if getattr(block.mixer, "norm", None) is not None else out * gate / (1 + torch.exp(-gate))
        np.testing.assert_allclose(out, caught[index], rtol=1e-6, atol=1e-9)
    result = theory_apply.run(theory_apply.ApplyConfig(length=8, samples=2), model=model)
    assert np.isfinite(result["predicted"]).all()


def test_a_polarized_stack_has_no_contraction():
    options = {"name": "s6", "state": 5, "polarize": "one"}
    model = repflow.load(StackForCausalLM(StackConfig([options] * 2, hidden_size=16, vocab_size=64)))
    result = theory_apply.run(theory_apply.ApplyConfig(length=8, samples=2), model=model)
    assert (result["constants/rho"] == 1).all()
    assert np.isinf(result["bound"]).all()
    assert "‖A_t‖₂ ≤ ρ < 1" in theory_apply.failing(result.provenance["hypotheses"])


def test_signs_of_a_constrained_stack_are_read():
    options = {"name": "s6", "state": 4, "eigenvalues": "negative"}
    model = repflow.load(StackForCausalLM(StackConfig([options] * 2, hidden_size=16, vocab_size=64)))
    result = dynamics_apply.run(dynamics_apply.ApplyConfig(length=8, samples=3), model=model)
    assert result["negative"].tolist() == [4, 4]
    assert result["positive"].tolist() == [0, 0]
    assert (result["form_positive"] == 0).all()


@pytest.mark.parametrize("mixers", [["s6", "softmax_attention"], ["gla", "gla"]])
def test_stacks_without_a_reading_are_refused(mixers):
    from tests.models.stack.inputs import stack

    with pytest.raises(UnsupportedModelError, match=r"stacks of s6 or ssd alone.*got repflow_stack"):
        theory_apply.run(theory_apply.ApplyConfig(length=8, samples=2), model=repflow.load(stack(mixers)))
    with pytest.raises(UnsupportedModelError, match="can be read in"):
        gelu = stack(["s6", "s6"], mlp="gelu")
        theory_apply.run(theory_apply.ApplyConfig(length=8, samples=2), model=repflow.load(gelu))


def test_a_hybrid_stack_is_read_where_it_is_mamba():
    from tests.models.stack.inputs import stack

    model = repflow.load(stack(["s6", "softmax_attention", "ssd"]))
    result = dynamics_apply.run(dynamics_apply.ApplyConfig(length=8, samples=3), model=model)
    assert result.provenance["ssm_layers"] == [0, 2]
