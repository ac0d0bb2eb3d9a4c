"""Figure 4 of paper 2: statements judged on made losses whose truth is known; equal sizes and tokens at all depths."""

import numpy as np
import pytest

from repflow.core.results import Result
from repflow.studies.architecture.study import STUDY
from repflow.studies.engine.cells import Outcome
from repflow.studies.reproduce.config import ReproduceConfig
from repflow.studies.reproduce.depth import GRIDS, RECIPES, SIZES
from repflow.studies.reproduce.study import plan

DEPTHS, CONTEXTS = (4, 8, 16, 32), (256, 1024)
PAPER = {256: (1.0, 1.0, 1.0, 1.02), 1024: (0.9, 0.8, 0.8, 0.83)}
"""Losses as the paper says; at the short context both that all are alike and that the deepest is worse."""


def trained(curves, seeds=2, noise=0.0001, worse=0.3, draw=0):
    """Losses by depth at each context, a seed's own shift, and a second rate that is worse."""
    rng, cells, loss = np.random.default_rng(draw), [], []
    for context in CONTEXTS:
        for depth, value in zip(DEPTHS, curves[context], strict=True):
            for rate in (0.001, 0.003):
                for seed in range(seeds):
                    shape = {"row": "mamba", "layers": depth, "width": 104, "length": context}
                    cells.append({**shape, "rate": rate, "seed": seed})
                    loss.append(value + 0.2 * seed + worse * (rate == 0.003) + noise * rng.standard_normal())
    arrays = {"perplexity": np.exp(np.array(loss))[:, None], "parameters": np.full(len(loss), 661_648.0)}
    return Result(arrays, {"perplexity": ("cell", "text"), "parameters": ("cell",)}, {}, {"cells": cells})


def compared(*results):
    work = plan(ReproduceConfig(recipe="recency-fig4", scale="lab"), "runs")
    pairs = zip(work.cells, results, strict=True)
    outcomes = [Outcome(cell, work.folder, "finished", result=result) for cell, result in pairs]
    return RECIPES["recency-fig4"].compare(work, outcomes).provenance


def test_what_the_paper_says_holds_where_it_is_true():
    facts = compared(trained(PAPER), trained(PAPER))
    assert [line["holds"] for line in facts["lines"][:6]] == [True] * 6
    assert facts["verdict"]["word"] == "holds"
    assert "32 less 4 layers +0.020 [" in facts["lines"][1]["ours"]
    assert "(32 less 4 layers) at 1,024 less at 256 tokens -0.09" in facts["lines"][5]["ours"]
    assert len(facts["lines"]) == 6 + 2 * len(DEPTHS) * len(CONTEXTS)
    assert not any(line["judged"] for line in facts["lines"][6:])


def test_it_does_not_hold_where_depth_helps_at_the_short_context_alone():
    turned = {256: (1.0, 0.9, 0.8, 0.7), 1024: (0.7, 0.8, 0.9, 0.85)}
    lines = compared(trained(turned), trained(turned))["lines"]
    assert [line["holds"] for line in lines[:6]] == [False, False, False, False, False, False]


def test_where_depth_does_nothing_few_draws_say_otherwise():
    flat = dict.fromkeys(CONTEXTS, (1.0,) * 4)
    said, draws = RECIPES["recency-fig4"].statements(["small", "large"]), 100
    decided = np.zeros(6)
    for draw in range(draws):
        results = [trained(flat, noise=0.1, draw=2 * draw + size) for size in (0, 1)]
        decided += [statement.read(*results).holds is not None for statement in said]
    assert (decided[[1, 4, 5]] <= 0.1 * draws).all(), decided  # 5 % is due
    assert decided[2] <= 0.1 * draws  # both middle depths must be shown


def test_one_seed_leaves_it_open():
    one = compared(trained(PAPER, seeds=1), trained(PAPER, seeds=1))
    assert {line["holds"] for line in one["lines"][:6]} == {None}
    assert "too few for intervals" in one["lines"][0]["ours"]


def test_a_model_that_diverged_at_all_rates_leaves_it_open():
    broken = trained(PAPER)
    broken.arrays["perplexity"][-1] = np.nan
    broken.arrays["perplexity"][-3] = np.nan
    lines = compared(trained(PAPER), broken)["lines"]
    assert {line["holds"] for line in lines[:6]} == {None}
    assert "cannot be compared" in lines[0]["ours"]


@pytest.mark.parametrize("scale", GRIDS)
def test_depths_are_of_one_size_and_steps_of_one_number_of_tokens(scale):
    cells = plan(ReproduceConfig(recipe="recency-fig4", scale=scale), "runs").cells
    assert [cell.key for cell in cells] == list(SIZES[scale])
    for cell in cells:
        grid = cell.config.grid()
        sizes = {STUDY.count(model, cell.config) for model in grid}
        assert max(sizes) < 1.1 * min(sizes)
        assert len({STUDY.step_tokens(model, cell.config) for model in grid}) == 1
        if scale == "paper":
            low, high = (int(part.rstrip("M")) * 1e6 for part in str(cell.key).split("-"))
            assert all(low <= size <= high for size in sizes)
            assert STUDY.step_tokens(grid[0], cell.config) == 2**19
