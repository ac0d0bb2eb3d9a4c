"""Names of ablations: read in one order, refused with advice."""

import pytest

from repflow.core.errors import InputError
from repflow.interventions import ABLATIONS, parse_ablations


def test_one_order_whatever_the_spelling():
    for spelling in (
        ["positions", "norm-affine"],
        "norm-affine,positions",
        ["positions+norm-affine"],
        "norm-affine, positions",
    ):
        assert [str(a) for a in parse_ablations(spelling)] == ["norm-affine", "positions"]
    assert parse_ablations([]) == ()
    assert [str(a) for a in parse_ablations(["attention-window:7", "norm:block"])] == [
        "norm:block",
        "attention-window:7",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("norms", "did you mean norm"),
        ("attention-window", "attention-window:W with W of at least 1; got 'attention-window'"),
        ("attention-window:0", "at least 1"),
        ("attention-window:-3", "at least 1"),
        ("norm:inside", "norm, or norm:SCOPE; got 'norm:inside'; known: block, final, inner"),
        ("positions:3", "positions without an option"),
        ("norm,norm", "different ablations; got norm twice"),
        ("attention-window:3,attention-window:4", "one attention window"),
        ("block", "block:N with N from 1; got 'block'; state N is the output of block N"),
        ("block:0", "block:N with N from 1"),
        ("branch:3", "branch:KIND or branch:N.KIND; got 'branch:3'"),
        ("branch:2.atention", "did you mean attention"),
        ("branch:x.ssm", "branch:N with N from 1"),
    ],
)
def test_refused(given, message):
    with pytest.raises(InputError, match=message):
        parse_ablations(given)


def test_blocks_and_branches_have_one_spelling():
    texts = ["branch:2.ssm", "block:3,block:1", "branch:mlp"]
    assert [str(a) for a in parse_ablations(texts)] == ["block:1", "block:3", "branch:2.ssm", "branch:mlp"]


def test_every_ablation_is_described():
    known = {"norm-affine", "norm", "positions", "attention-window", "attention-uniform", "block", "branch"}
    assert set(ABLATIONS) == known
    assert all(len(text) > 10 for text in ABLATIONS.values())
