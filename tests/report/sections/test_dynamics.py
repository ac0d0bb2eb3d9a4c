"""The page on token dynamics: paths and P as stored, the end of the story first."""

import numpy as np
import pytest

from repflow.report.data.context import Context
from repflow.report.sections.dynamics import section as build
from tests.report.study_runs import block, dynamics_runs, one, read


@pytest.fixture(scope="module")
def runs():
    return read(dynamics_runs())


@pytest.fixture(scope="module")
def section(runs):
    return build(runs, Context([]))


def test_no_run_about_dynamics_no_section():
    assert build([], Context([])) is None


def test_paths_and_scores_are_the_stored_ones(runs, section):
    result = one(runs, "blow-up").result
    figure = next(b for b in section.blocks if b.title == "Simulation blow-up")
    alive = [i for i in range(len(result["moments"])) if np.isfinite(result["attention"][i]).all()]
    times = [f"{result['moments'][i]:.4g}" for i in reversed(alive)]
    assert [variant.when["time of P"] for variant in figure.variants] == times
    first = figure.variants[0]
    last = result["attention"][alive[-1]]
    heat = first.traces[-1]
    np.testing.assert_allclose(heat["customdata"], last, rtol=1e-8)
    low = np.tril_indices(len(last))
    drawn, there = np.array(heat["z"], dtype=float)[low], last[low] != 0
    sizes = 1 + np.log10(np.abs(last[low][there]) / np.abs(last[low][there]).min())
    np.testing.assert_allclose(drawn[there], np.sign(last[low][there]) * sizes)
    assert (drawn[~there] == 0).all()
    assert heat["z"][0][1] is None
    paths = first.traces[:-1]
    assert len(paths) == result["tokens"].shape[1]
    drawn = np.array(paths[1]["y"], dtype=float)
    np.testing.assert_allclose(drawn, np.abs(result["tokens"][:, 1]))
    told = [row[3] for row in first.rows if row[0] == "token" and row[1] == 2]
    np.testing.assert_allclose(told, np.abs(result["tokens"][:, 1]))


def test_vectors_are_drawn_by_their_norm(runs, section):
    result = one(runs, "plane").result
    figure = next(b for b in section.blocks if b.title == "Simulation plane")
    norms = np.linalg.norm(result["tokens"], axis=-1)
    for token, trace in enumerate(figure.variants[0].traces[:-1]):
        np.testing.assert_allclose(trace["y"], norms[:, token], rtol=1e-8)
    assert figure.variants[0].layout["yaxis"]["title"]["text"] == "‖x‖"


def test_a_figure_of_the_paper_has_its_lines(runs, section):
    result = one(runs, "dynamics-fig5").result
    table = next(b for b in section.blocks if b.title.endswith("stated and measured"))
    assert [row[0] for row in table.rows] == [entry["quantity"] for entry in result.provenance["lines"]]
    assert table.rows[0][1] == result.provenance["lines"][0]["measured"]


def test_what_real_layers_do(runs, section):
    result = one(runs, "mamba").result
    (norms,) = block(section, "dynamics-norms").variants
    solid = next(t for t in norms.traces if t.get("name") == "mamba: with norms")
    np.testing.assert_allclose(solid["y"], result["token_norm"].mean(1))
    assert solid["meta"]["x"]["absolute"] == list(range(len(result["token_norm"])))
    (signs,) = block(section, "dynamics-signs").variants
    for trace, sign in zip(signs.traces, ("negative", "zero", "positive"), strict=True):
        assert trace["y"] == result[sign].tolist()
    blocks = [layer + 1 for layer in result.provenance["ssm_layers"]]  # block N makes state N
    assert all(trace["x"] == [str(number) for number in blocks] for trace in signs.traces)
    assert [row[0] for row in signs.rows] == signs.traces[0]["x"]
    (form,) = block(section, "dynamics-form").variants
    assert [row[1] for row in form.rows] == form.traces[-1]["meta"]["x"]["absolute"] == blocks
    np.testing.assert_allclose(form.traces[-1]["y"], result["form_positive"].mean(1))
    assert len(block(section, "dynamics-applied").paragraphs) == len(result.findings)
