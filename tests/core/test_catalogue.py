"""The catalogue: every metric has a function, sane facts and known words."""

import math
import subprocess
import sys
from typing import get_args

import pytest

from repflow import metrics
from repflow.core.axes import AXES
from repflow.core.catalogue import ALIASES, DEFAULT_METRICS, METRICS, Direction, Invariance, metric
from repflow.core.errors import InputError


@pytest.mark.parametrize("facts", METRICS.values(), ids=METRICS)
def test_facts_use_known_words(facts):
    assert set(facts.axes) <= set(AXES)
    assert facts.invariances <= set(get_args(Invariance))
    assert facts.direction in get_args(Direction)
    assert facts.low < facts.high
    assert not math.isnan(facts.low + (0 if math.isinf(facts.high) else facts.high))
    assert facts.source
    assert facts.summary
    assert facts.summary[0].islower() or facts.summary.startswith("Euclidean")
    assert not facts.summary.endswith(".")
    assert ("sample" in facts.axes) == (facts.inputs == 1)
    assert callable(getattr(metrics, facts.name))
    assert getattr(metrics, facts.name).__doc__


def test_keys_defaults_and_aliases():
    assert all(name == facts.name for name, facts in METRICS.items())
    assert set(DEFAULT_METRICS) == {name for name, facts in METRICS.items() if facts.default}
    assert {"cka_matrix", "effective_rank", "mutual_neighbours"}.isdisjoint(DEFAULT_METRICS)
    assert set(ALIASES.values()) <= set(METRICS)


def test_lookup_by_the_last_part_of_a_name():
    assert metric("token_similarity") is METRICS["token_similarity"]
    assert metric("final_norm/norm>10/sharpness") is METRICS["sharpness"]
    assert metric("Vloc") is METRICS["smoothness"]
    assert metric("norm>10/Vglob") is METRICS["stability"]
    with pytest.raises(InputError, match="unknown metric 'token_similarty'; did you mean token_similarity"):
        metric("token_similarty")


def test_catalogue_and_results_import_without_torch():
    code = "import sys, repflow.core.catalogue, repflow.core.results; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
