"""What is said of planted scores: a statement only where its interval is on one side of zero."""

import numpy as np
import pytest

from repflow.core.results import Result
from repflow.studies.needle.result import CELL, _findings

NEEDLES = np.array([-1.0, -0.5, 0.0, 0.0, 0.5, 1.0])
"""Around a mean of zero: Student's interval of their mean is ± 0.78."""


def codes(gain=2.0, bias=0.0, ends=0.0):
    shape = (1, 3, len(NEEDLES))
    scores = np.broadcast_to(gain + NEEDLES, shape)
    arrays = {
        "gain": scores,
        "log_odds": scores,
        "slope_all/log_odds": bias + NEEDLES,
        "ends/gain": (ends + NEEDLES)[None],
    }
    axes = {"gain": CELL, "log_odds": CELL, "slope_all/log_odds": ("sample",), "ends/gain": ("length", "sample")}
    return {finding.code: finding.message for finding in _findings(Result(arrays, axes))}


def test_plain_scores_show_no_bias():
    assert codes().keys() == {"no_positional_bias"}


@pytest.mark.parametrize(("gain", "unused"), [(0.9, False), (0.7, True), (0.0, True), (-0.7, True), (-2.0, True)])
def test_a_needle_is_unused_unless_its_gain_is_shown(gain, unused):
    found = codes(gain=gain)
    assert ("needle_unused" in found) is unused
    if unused:
        assert f"raises the log-odds of its word by {gain:.2f} nats [" in found["needle_unused"]


@pytest.mark.parametrize(("ends", "lost"), [(0.9, True), (0.7, False), (-0.7, False), (-0.9, False)])
def test_the_middle_is_lost_only_where_both_ends_are_shown_to_gain_more(ends, lost):
    assert ("lost_in_the_middle" in codes(ends=ends)) is lost


@pytest.mark.parametrize(
    ("bias", "code", "end"),
    [
        (0.9, "recency_bias", "near the end"),
        (0.7, "no_positional_bias", "no slope"),
        (-0.7, "no_positional_bias", "no slope"),
        (-0.9, "primacy_bias", "near the start"),
    ],
)
def test_a_bias_has_the_side_of_its_interval(bias, code, end):
    found = codes(bias=bias)
    assert found.keys() == {code}
    assert end in found[code]
