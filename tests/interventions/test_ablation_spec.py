"""Names of ablations: read in one order, refused with advice."""

import pytest

from repflow.errors import InputError
from repflow.interventions import ABLATIONS, parse_ablations


def test_one_order_whatever_the_spelling():
    for given in (
        ["positions", "norm-affine"],
        "norm-affine,positions",
        ["positions+norm-affine"],
        "norm-affine, positions",
    ):
        assert [str(a) for a in parse_ablations(given)] == ["norm-affine", "positions"]
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
    ],
)
def test_refused(given, message):
    with pytest.raises(InputError, match=message):
        parse_ablations(given)


def test_every_ablation_is_described():
    assert set(ABLATIONS) == {"norm-affine", "norm", "positions", "attention-window", "attention-uniform"}
    assert all(len(text) > 10 for text in ABLATIONS.values())
