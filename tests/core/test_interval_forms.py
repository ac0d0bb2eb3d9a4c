"""Intervals against their formulas by another way, where the common case does not show a term."""

import math

import numpy as np
import pytest
from scipy import stats

from repflow.core.intervals import clustered_interval, nested_interval, paired_proportion_interval, ratio_interval


def test_a_ratio_has_two_degrees_of_freedom_at_least():
    """One document has nearly all tokens: (Σ b²)² / Σ b⁴ − 1 is 0.002. The spread is what leaving each out changes."""
    nats, tokens = np.array([3.0, 1.0, 2500.0, 2.0]), np.array([1.0, 1.0, 1000.0, 1.0])
    whole = nats.sum() / tokens.sum()
    without = [(nats.sum() - a) / (tokens.sum() - b) for a, b in zip(nats, tokens, strict=True)]
    half = stats.t.ppf(0.975, 2) * math.sqrt(sum((whole - other) ** 2 for other in without))
    band = ratio_interval(nats, tokens)
    assert [float(part) for part in band] == pytest.approx([whole, whole - half, whole + half])


def test_paired_proportions_by_hand():
    """Four prompts, one that a alone has right: p = 2/6, q = 1/6, d = 1/6; half the width is z √((p + q − d²) / 6)."""
    band = paired_proportion_interval([1, 1, 0, 1], [1, 0, 0, 1])
    half = 1.959963984540054 * math.sqrt((1 / 2 - 1 / 36) / 6)
    assert [float(part) for part in band] == pytest.approx([1 / 4, 1 / 6 - half, 1 / 6 + half])


def test_errors_of_trainings_are_averaged_as_squares():
    """Without a spread of trainings only their errors are left: √((0.3² + 0 + 0) / 3), not a third of 0.3."""
    band = nested_interval([0.5] * 3, [0.3, 0.0, 0.0], 10**6)
    half = 1.959963984540054 * math.sqrt(0.03)
    assert [float(part) for part in band] == pytest.approx([0.5, 0.5 - half, 0.5 + half], rel=1e-5)


def test_crossed_clusters_vary_at_least_as_rows_do():
    """What cancels within rows and within columns makes V_both the greatest: V_rows + V_columns − V_both is below 0."""
    rows, columns = np.indices((4, 4)).reshape(2, -1)
    of_row = np.array([0.0, 0.1, 0.3, 0.2])
    band = clustered_interval(of_row[rows] + (-1.0) ** (rows + columns), rows, columns)
    low, high = stats.t.interval(0.95, 3, of_row.mean(), stats.sem(of_row))
    assert [float(part) for part in band] == pytest.approx([of_row.mean(), low, high])
