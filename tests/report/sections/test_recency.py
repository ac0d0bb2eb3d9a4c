"""The page on recency: curves, maps and bars are the stored arrays; fit and bound lie where they must."""

from dataclasses import replace

import numpy as np
import pytest

from repflow.core.results import Result
from repflow.report.data.context import Context
from repflow.report.data.model import Figure
from repflow.report.sections.attention import pooled
from repflow.report.sections.memory import quartiles
from repflow.report.sections.recency import section as build
from tests.report.study_runs import block, chosen, line, one, read, recency_runs


@pytest.fixture(scope="module")
def runs():
    return read(recency_runs())


@pytest.fixture(scope="module")
def section(runs):
    return build(runs, Context([], allow_mixed=True))


def of_other_prompts(run):
    """The run as if its model had read prompts of its own."""
    result = run.result
    about = {**result.provenance, "digests": {**result.provenance["digests"], "prompts": "others"}}
    return replace(run, result=Result(result.arrays, result.axes, result.config, about, result.findings, result.bands))


def values(trace, side="y"):
    return np.array(trace[side], dtype=float)


def test_no_such_run_no_section():
    assert build([], Context([])) is None


def test_unlike_prompts_are_drawn_apart_unless_asked(runs):
    unlike = [of_other_prompts(run) if run.label == "bamba" and run.study == "recency" else run for run in runs]
    apart = block(build(unlike, Context([])), "recency-depth").variants
    assert [v.when["prompts"] for v in apart] == ["set 2: gpt_neox, mamba2", "set 1: bamba"]
    (together,) = block(build(unlike, Context([], allow_mixed=True)), "recency-depth").variants
    assert "read different prompts" in together.note


def test_curves_fit_and_bound(runs, section):
    run = one(runs, "influence-mamba2").result
    variant = chosen(block(section, "recency-influence"), beside_the_curve="fit and bound", distance="linear")
    mean = np.nanmean(run["log_influence"], axis=0)
    np.testing.assert_allclose(values(line(variant, "mamba2")), mean, rtol=1e-8)
    fit = run.provenance["recency"]["fit"]
    drawn = values(line(variant, "mamba2: exponential fit"))
    inside = np.arange(fit["first"], fit["last"] + 1)
    slope, start = np.polyfit(inside, mean[inside], 1)
    np.testing.assert_allclose(drawn[inside], start + slope * inside, rtol=1e-8)
    assert np.isnan(drawn[: fit["first"]]).all()
    bound = values(line(variant, "mamba2: slope of Theorem 3.1"))
    kappa = np.nanmin(run["theorem_kappa"])
    np.testing.assert_allclose(np.diff(bound[1:]), -kappa, atol=1e-7)
    assert (bound[1:] >= mean[1:] - 1e-7).all()
    assert np.isclose(bound[1:], mean[1:]).any()
    assert not any(t.get("name") == "gpt_neox: slope of Theorem 3.1" for t in variant.traces)


def test_band_and_twin(runs, section):
    run = one(runs, "influence-mamba2").result
    variant = chosen(block(section, "recency-influence"), beside_the_curve="random twin", distance="linear")
    twin = np.nanmean(run["twin/log_influence"], axis=0)
    np.testing.assert_allclose(values(line(variant, "mamba2: random twin")), twin)
    place = variant.traces.index(line(variant, "mamba2"))
    low, high = variant.traces[place - 2 : place]
    np.testing.assert_allclose(values(low), run.bands["log_influence"].low)
    np.testing.assert_allclose(values(high), run.bands["log_influence"].high)
    assert high["fill"] == "tonexty"


def test_a_logarithmic_axis_leaves_out_the_token_itself(section):
    variant = chosen(block(section, "recency-influence"), beside_the_curve="nothing", distance="logarithmic")
    assert variant.layout["xaxis"]["type"] == "log"
    assert all(min(trace["x"]) >= 1 for trace in variant.traces if trace["x"] != [None])


def test_depth_map_shares_and_ratio(runs, section):
    run = one(runs, "influence-gpt_neox").result
    (kappa,) = block(section, "recency-depth").variants
    np.testing.assert_allclose(values(line(kappa, "gpt_neox")), run.mean("depth/kappa"))
    assert "gpt_neox: no finite value at state 4" in kappa.note
    assert "Coloured strip" in kappa.note
    assert {shape["fillcolor"] for shape in kappa.layout["shapes"]} == {"kind:ssm", "kind:attention"}
    bound = line(kappa, "mamba2: Theorem 3.1")
    told = [row[2] for row in kappa.rows if row[:2] == ["mamba2", "Theorem 3.1, layer"]]
    assert told == bound["meta"]["x"]["absolute"]
    (maps,) = block(section, "recency-map").variants
    whole = run["depth/log_influence"]
    drawn = next(t for t in maps.traces if t["meta"]["model"] == "gpt_neox")
    np.testing.assert_allclose(values(drawn, "z"), whole - np.nanmax(whole, axis=1, keepdims=True))
    assert len({(t["zmin"], t["zmax"]) for t in maps.traces}) == 1
    (shares,) = block(section, "recency-shares").variants
    np.testing.assert_allclose(values(line(shares, "gpt_neox")), np.nanmean(run["recent_share"][:, :2], axis=0))
    assert line(shares, "gpt_neox")["x"] == ["last 1", "last 16"]
    ratio = next(r for r in runs if r.study == "recency-ratio").result
    (found,) = block(section, "recency-ratio").variants
    np.testing.assert_allclose(values(line(found, "ratio")), ratio["log_ratio"])
    np.testing.assert_allclose(values(line(found, "fit")), ratio["log_ratio_fit"])


def test_numbers_of_recency(runs, section):
    table = block(section, "recency-numbers")
    row = dict(zip(table.columns, next(row for row in table.rows if row[0] == "mamba2"), strict=True))
    run = one(runs, "influence-mamba2").result
    assert row["κ"] == run.provenance["recency"]["fit"]["kappa"]
    assert row["twin κ"] == run.provenance["twin"]["fit"]["kappa"]
    assert row["half reach"] == pytest.approx(run["half_reach"].mean())
    assert row["Theorem 3.1 κ"] == pytest.approx(np.nanmin(run["theorem_kappa"]))


def test_needle_maps_curves_and_slopes(runs, section):
    run = one(runs, "needle-gpt_neox").result
    words = "what the needle adds to the log-odds, nats"
    variant = chosen(block(section, "needle-map"), score=words)
    trace = next(t for t in variant.traces if t["meta"]["model"] == "gpt_neox")
    np.testing.assert_allclose(values(trace, "z"), run["gain"].mean(-1))
    assert trace["y"] == ["150", "200"]
    assert trace["zmin"] == -trace["zmax"]
    assert values(trace, "customdata").shape == (2, 3, 2)
    curve = line(chosen(block(section, "needle-position"), score=words, length="200"), "gpt_neox")
    np.testing.assert_allclose(values(curve), run["gain"].mean(-1)[1])
    assert curve["x"] == [0.0, 0.5, 1.0]
    row = next(row for row in block(section, "needle-slopes").rows if row[:2] == ["gpt_neox", words])
    assert row[2] == pytest.approx(run["slope_all/gain"].mean())
    assert row[3] <= row[2] <= row[4]


def test_memory(runs, section):
    run = one(runs, "memory-bamba").result
    whole = chosen(block(section, "memory-range"), layer="all")
    np.testing.assert_allclose(values(line(whole, "bamba")), run["range_cumulative"])
    assert line(whole, "bamba")["x"] == run.provenance["thresholds"]
    life = block(section, "memory-life").variants[0]
    finite = run["half_life"][~np.isnan(run["half_life"]).any(1)]
    drawn = values(line(life, "bamba"))
    np.testing.assert_allclose(drawn[np.isfinite(drawn)], np.median(finite, axis=1))
    empty = [str(i + 1) for i, row in enumerate(run["half_life"]) if np.isnan(row).all()]
    assert f"bamba: no finite value at layer {', '.join(empty)}" in life.note
    sharp = chosen(block(section, "memory-sharpness"), quantity="sharpness of block output")
    assert {"gpt_neox", "mamba2", "bamba"} <= {trace.get("name") for trace in sharp.traces}
    np.testing.assert_allclose(
        values(line(sharp, "gpt_neox")), one(runs, "memory-gpt_neox").result.mean("sharpness/block")
    )
    rows = {row[0]: row for row in block(section, "memory-numbers").rows}
    assert rows["gpt_neox"][4] is None
    half = int(np.argmin(np.abs(np.array(run.provenance["thresholds"]) - 0.5)))
    assert rows["bamba"][4] == run["range_cumulative"][half]


def test_quartiles_against_numpy():
    table = np.random.default_rng(0).lognormal(size=(5, 37))
    band, endless = quartiles(table)
    np.testing.assert_allclose([band.low, band.mean, band.high], np.quantile(table, [0.25, 0.5, 0.75], axis=1))
    assert endless == 0
    assert np.isnan(quartiles(np.full((1, 3), np.nan))[0].mean).all()


def test_hidden_attention(runs, section):
    run = one(runs, "memory-mamba2-maps").result
    figure = block(section, "hidden-attention")
    variant = chosen(figure, model="mamba2", layer="2", form="signed", prompt="1")
    whole = run["1/signed"][0, 0]
    low = np.tril_indices(len(whole))
    np.testing.assert_allclose(values(variant.traces[0], "z")[low], whole[low], rtol=1e-4)
    assert variant.traces[0]["z"][0][1] is None
    assert len(variant.rows) == len(whole) * (len(whole) + 1) // 2
    depth = chosen(block(section, "hidden-attention-depth"), quantity="mean distance, tokens")
    drawn = values(line(depth, "mamba2"))
    np.testing.assert_allclose(drawn, run["mean_distance"].mean(2).mean(1))


def test_long_maps_are_pooled_and_say_so():
    rng = np.random.default_rng(1)
    whole = np.tril(rng.uniform(size=(10, 10)))
    whole /= whole.sum(1, keepdims=True)
    shown, merged = pooled(whole, "normalised", 4)
    assert (shown.shape, merged) == ((4, 4), 3)
    np.testing.assert_allclose(shown.sum(1), 1)
    np.testing.assert_allclose(shown[1, 0], whole[3:6, :3].sum() / 3)
    signed, _ = pooled(whole, "signed", 4)
    np.testing.assert_allclose(signed[1, 0], whole[3:6, :3].mean())


def test_every_figure_is_drawn_for_a_paper_and_for_the_page(runs, section):
    """No trace, colour or axis of these sections is beyond matplotlib or the page."""
    import matplotlib as mpl

    from repflow.report.data.labels import page_models
    from repflow.report.data.model import Page, Section
    from repflow.report.page.render import render
    from repflow.report.paper.figure import draw
    from repflow.report.paper.style import style

    models = page_models([(run.label, run.facts) for run in runs])
    with mpl.rc_context(style("paper")):
        for figure in (b for b in section.blocks if isinstance(b, Figure)):
            draw(figure, figure.variants[0], models).canvas.draw()
    assert "recency-influence" in render(
        Page("t", "s", models, [], [Section("part", "Part", section.lead, section.blocks)])
    )


def test_many_long_maps_stay_small_and_say_so():
    from repflow.core.results import Result
    from repflow.report.data.runs import StoredRun
    from repflow.report.sections.attention import MOST, MOST_MAPS, attention_blocks

    maps = np.tril(np.random.default_rng(2).uniform(size=(1, 40, 150, 150)))
    maps /= maps.sum(-1, keepdims=True)
    facts = {"maps": [3], "units": {"3": {"kind": "channel", "indices": list(range(0, 80, 2))}}}
    result = Result({"3/normalised": maps}, {"3/normalised": ("sample", "unit", "token", "token")}, {}, facts)
    (figure,) = attention_blocks([StoredRun("r", "m", "hidden_attention", result)])
    assert len(figure.variants) == MOST_MAPS
    assert [v.when["channel"] for v in (figure.variants[0], figure.variants[-1])] == ["0", "78"]
    variant = figure.variants[0]
    assert len(variant.rows) <= MOST * (MOST + 1) // 2
    assert "Blocks of 3 by 3 positions" in variant.note
    assert "24 of 40 maps" in variant.note
    np.testing.assert_allclose(variant.traces[0]["z"][20][4], maps[0, 0, 60:63, 12:15].sum() / 3, rtol=1e-4)


def test_reproduced_figures_have_a_row_per_statement(tmp_path):
    from repflow.core.results import Finding, Result
    from repflow.report.page.build import build_page
    from tests.report.stored_runs import keep

    lines = [
        {"what": "b and h", "stated": "b above h", "ours": "4 of 4", "holds": True},
        {"what": "output", "stated": "falls", "ours": "+0.1", "holds": False},
        {"what": "block", "stated": "falls", "ours": "-0.1 [-0.2, 0.0]", "holds": None},
    ]
    config = {"study": "recency-figure", "recipe": "recency-fig5"}
    about = {"title": "Figure 5", "note": "the paper names no prompts", "lines": lines}
    result = Result({"x": np.ones(1)}, {"x": ("layer",)}, config, about)
    result.findings.append(Finding("stand_in", None, "other models stand for the paper's"))
    keep(tmp_path, "five", result)
    table = block(build_page([tmp_path]).sections[-1], "recency-reproduced-1")
    assert [list(row) for row in table.rows] == [
        ["b and h", "b above h", "4 of 4", "holds"],
        ["output", "falls", "+0.1", "does not hold"],
        ["block", "falls", "-0.1 [-0.2, 0.0]", "open"],
    ]
    assert table.title == "Paper 2, recency-fig5: Figure 5"
    assert table.caption == "The paper names no prompts. Other models stand for the paper's."


def test_sharpness_is_told_as_what_it_is(section):
    caption = block(section, "memory-sharpness").caption
    assert "all pairs of tokens" in caption
    assert "neighbouring" not in caption
