"""Every section's numbers against the stored arrays, computed here by other ways."""

import json

import numpy as np
import pytest

from repflow.report.data.interval import Interval
from repflow.report.data.model import Figure, Link
from repflow.report.data.text import json_text
from repflow.report.page.build import build_page
from tests.report.stored_runs import DROP, compared, keep, measured, probed, stray

KINDS = ["ssm", "ssm", "attention", "ssm"]


@pytest.fixture(scope="module")
def results():
    """Two models on two lengths, probed and compared; one is a hybrid."""
    found = {}
    for name, kinds in (("gpt", None), ("hybrid", KINDS)):
        for length in (32, 64):
            size = 1000 if name == "gpt" else 5000
            found[f"{name}-{length}"] = measured(name, kinds=kinds, length=length, seed=len(found), parameters=size)
            found[f"{name}-probe-{length}"] = probed(name, kinds=kinds, length=length, seed=len(found), parameters=size)
    found["gpt-64"].findings.append(stray())
    found["pair"] = compared("gpt", "mamba")
    return found


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, result in results.items():
        keep(folder, name, result)
    return build_page([folder], papers=True)


def block(page, wanted):
    return next(block for section in page.sections for block in section.blocks if block.id == wanted)


def variant(figure, **when):
    return next(v for v in figure.variants if all(v.when.get(key) == value for key, value in when.items()))


def lines(found, label):
    return [t for t in found.traces if t.get("name") == label and t["mode"] == "lines+markers"]


def close(values, expected, digits=4):
    numbers = [np.nan if value is None else value for value in values]
    np.testing.assert_allclose(numbers, expected, rtol=10.0**-digits, equal_nan=True)


def test_figure_2_draws_the_mean_over_prompts_with_and_without_sinks(page, results):
    figure = block(page, "figure-2")
    for tokens, prefix in (("all", ""), (f"without sink tokens ({DROP})", f"{DROP}/")):
        for measure, metric in (("raw", "token_similarity"), ("excess over other prompts", "token_similarity_excess")):
            found = variant(figure, length="32", measure=measure, tokens=tokens)
            stored = results["gpt-32"][f"{prefix}{metric}"]
            (line,) = lines(found, "gpt")
            close(line["y"], stored.astype(float).sum(1) / stored.shape[1])
            assert line["meta"]["x"] == {"relative": [0, 0.25, 0.5, 0.75, 1], "absolute": [0, 1, 2, 3, 4]}
            final = next(t for t in found.traces if t.get("name") == "gpt, final norm")
            close(final["y"], [results["gpt-32"][f"final_norm/{prefix}{metric}"].mean()])
            row = next(r for r in found.rows if r[0] == "gpt" and r[6] == 2)
            assert row[8] == pytest.approx(stored[2].mean(), rel=1e-6)
            assert row[9] <= row[8] <= row[10]


def test_figure_1_is_the_mean_cosine_by_layer_and_position(page, results):
    found = variant(block(page, "figure-1"), length="32")
    heat = next(t for t in found.traces if t["name"] == "gpt")
    stored = results["gpt-32"]["layer_cosine"]
    by_hand = np.array([[stored[layer, :, at].mean() for layer in range(4)] for at in range(32)])
    np.testing.assert_allclose(heat["z"], by_hand, atol=1e-4)
    assert heat["meta"]["x"]["absolute"] == [1, 2, 3, 4]
    assert heat["y"] == list(range(32))


def test_figure_4_hatches_exactly_what_is_not_above_chance(page, results):
    found = variant(block(page, "figure-4"), length="32", form="unbiased")
    stored = results["gpt-32"]
    heat = next(t for t in found.traces if t["type"] == "heatmap" and t["name"] == "gpt")
    np.testing.assert_allclose(heat["z"], stored["cka_pooled"].T, atol=1e-4)
    strokes = next(t for t in found.traces if t.get("mode") == "lines" and t["meta"]["model"] == "gpt")
    hatched = np.zeros((5, 5), dtype=bool)
    x, y = strokes["meta"]["x"]["absolute"], strokes["meta"]["y"]["absolute"]
    for i in range(0, len(x), 3):
        steps = round(x[i + 1] - x[i])
        assert steps == round(y[i + 1] - y[i])
        for k in range(steps):
            hatched[round(x[i] + 0.5) + k, round(y[i] + 0.5) + k] = True
    limit = stored["cka_pooled_null_mean"] + 3 * stored["cka_pooled_null_sd"]
    np.testing.assert_array_equal(hatched, stored["cka_pooled"] <= limit)
    assert {row[6] for row in found.rows if row[0] == "gpt"} == {"yes", "no"}


def test_figure_4_one_against_the_other_has_the_first_model_to_the_right(page, results):
    found = variant(block(page, "figure-4-cross"), pair="gpt against mamba", metric="CKA")
    heat = found.traces[0]
    stored = results["pair"]["cka_cross_pooled"]
    assert (len(heat["x"]), len(heat["y"])) == stored.shape == (5, 7)
    assert heat["z"][6][1] == pytest.approx(stored[1, 6], abs=1e-4)
    assert heat["meta"]["model"] == ["gpt", "mamba"]
    shared = variant(block(page, "figure-4-cross"), metric="shared nearest neighbours")
    assert shared.traces[0]["z"][0][0] == pytest.approx(results["pair"]["neighbours_cross"][0, 0].mean(), abs=1e-4)


def test_figure_7_has_interval_chance_control_peak_and_lens(page, results):
    figure = block(page, "figure-7")
    stored = results["gpt-probe-32"]
    found = variant(figure, length="32", **{"read-out": "linear probe"})
    (line,) = lines(found, "gpt")
    close(line["y"], stored["probe_accuracy"].mean(1))
    low, high = (t for t in found.traces if t["meta"]["model"] == "gpt" and t.get("line", {}).get("width") == 0)
    close(low["y"], stored["probe_accuracy"].mean(1) - 0.05)
    close(high["y"], stored["probe_accuracy"].mean(1) + 0.06)
    control = next(t for t in found.traces if t.get("name") == "gpt, control task")
    close(control["y"], stored["probe_control_accuracy"].mean(1))
    chance = [shape for shape in found.layout["shapes"] if shape["type"] == "line"]
    assert [shape["y0"] for shape in chance] == [0.25]
    peak = next(t for t in found.traces if t.get("name") == "gpt, peak")
    assert peak["meta"]["x"]["absolute"] == [int(stored["probe_accuracy"].mean(1).argmax())]
    lens = variant(figure, length="32", **{"read-out": "logit lens, answer ranks first"})
    close(lines(lens, "gpt")[0]["y"], (stored["lens_rank"] == 1).mean(1))
    ranks = variant(figure, length="32", **{"read-out": "logit lens, median rank"})
    close(lines(ranks, "gpt")[0]["y"], np.median(stored["lens_rank"], axis=1))


def test_scaling_is_over_length_and_over_size(page, results):
    figure = block(page, "scaling-length")
    found = variant(figure, metric="smoothness Sm")
    line = next(t for t in found.traces if t["name"] == "hybrid")
    assert line["x"] == [32, 64]
    close(line["y"], [results[f"hybrid-{n}"]["smoothness"].mean() for n in (32, 64)])
    accuracy = next(t for t in variant(figure, metric="probing accuracy, last state").traces if t["name"] == "gpt")
    close(accuracy["y"], [results[f"gpt-probe-{n}"]["probe_accuracy"][-1].mean() for n in (32, 64)])
    sizes = variant(block(page, "scaling-size"), metric="stability St", length="64")
    assert [trace["x"] for trace in sizes.traces] == [[1000], [5000]]
    close(sizes.traces[1]["y"], [results["hybrid-64"]["stability"].mean()])


def test_every_number_of_the_verdict_leads_to_its_figure(page, results):
    sentences = block(page, "verdict-words").paragraphs
    assert [text.split(",")[0] for text in sentences] == ["gpt", "hybrid"]
    table = block(page, "verdict-table")
    ids = {part.id for section in page.sections for part in section.blocks}
    row = dict(zip(table.columns, table.rows[0], strict=True))
    stored = results["gpt-64"]
    state = int(stored["token_similarity"].mean(1).argmax())
    assert row["depth of homogenisation"].text.startswith(f"{state / 4:.0%} (state {state}), similarity")
    probe = results["gpt-probe-64"]
    drop = probe["probe_accuracy"].mean(1).max() - probe["probe_accuracy"].mean(1)[-1]
    assert row["last-layer loss, points"].text.startswith(f"{100 * drop:.1f} [")
    assert "one token carries all" in row["unusual"]
    for name in ("depth of homogenisation", "best read-out layer", "last-layer loss, points", "Sm", "St"):
        assert isinstance(row[name], Link), name
        assert row[name].target in ids, name


def test_eight_findings_with_numbers_and_intervals(page, results):
    table = block(page, "findings-table")
    assert [row[0].text for row in table.rows] == [
        f"F 3.{a}" for a in ("2.1", "2.2", "2.3", "3.1", "3.2", "4.1", "4.2", "4.3")
    ]
    place = table.columns.index("verdict")
    words = ("holds: ", "partly holds: ", "does not hold: ", "open: ")
    assert all(row[place].startswith(words) and " parts in " in row[place] for row in table.rows)
    rows = block(page, "findings-numbers").rows
    mine = next(row for row in rows if row[1] == "fall from the highest to the last state" and row[2] == "gpt")
    curve = results["gpt-64"]["token_similarity"].astype(float).mean(1)
    assert mine[3] == pytest.approx(curve.max() - curve[-1], rel=1e-6)
    assert mine[4] <= mine[3] <= mine[5]
    told = next(row[-1] for row in table.rows if row[0].text == "F 3.2.2")
    assert f"gpt {Interval(*mine[3:6]).fitted}" in told, "the interval of the very number"


def test_hybrids_have_their_strip_on_every_depth_axis(page):
    for wanted in ("figure-1", "figure-2", "depth-metrics", "figure-4", "figure-7"):
        figure = block(page, wanted)
        strips = [s for s in figure.variants[0].layout["shapes"] if s.get("fillcolor", "").startswith("kind:")]
        own = [s for s in strips if s["meta"]["axis"] == "x"]
        assert [s["fillcolor"] for s in own] == ["kind:ssm", "kind:attention", "kind:ssm"], wanted
        # a state has its block before it, and Figure 1 a cell around each block
        ends = [[0.5, 2.5], [2.5, 3.5], [3.5, 4.5]] if wanted == "figure-1" else [[0, 2], [2, 3], [3, 4]]
        assert [s["meta"]["absolute"] for s in own] == ends, wanted
        assert min(s["y0"] for s in own) > 1, "outside the panel, where it hides no data"
        above = [word["y"] for word in figure.variants[0].layout.get("annotations", [])]
        above += [figure.variants[0].layout["legend"]["y"]] if "legend" in figure.variants[0].layout else []
        assert above, wanted
        assert min(above) > max(s["y1"] for s in own), "headings and legend above it, not on it"
        assert {s["meta"]["model"] for s in own} == {"hybrid"}
        assert "ssm in blocks 1 to 2, 4; attention in blocks 3" in figure.caption


def test_prompts_hold_tokens_and_every_metric_by_layer(page, results):
    explorer = block(page, "prompts-explorer")
    sample = next(s for s in explorer.samples if s.model == "hybrid" and "32 tokens" in s.label)
    assert sample.tokens == [f"t{i}" for i in range(32)]
    np.testing.assert_allclose(
        sample.metrics["cosine with the layer before"], results["hybrid-32"]["kept/layer_cosine"][:, 0], rtol=1e-3
    )
    assert len(sample.metrics["norm"]) == 5
    assert "gold item at 0% of the items" in sample.text


def test_made_names_runs_digests_settings_and_commands(page):
    runs = {row[0]: row for row in block(page, "made-runs").rows}
    assert "weights w-gpt-traine" in runs["gpt-32"][7]
    assert any(
        line.startswith("repflow measure models/gpt --task kvpr") for line in block(page, "made-commands").paragraphs
    )
    settings = {(row[0], row[1]): row[2] for row in block(page, "made-settings").rows}
    assert settings["measure", "drop"] == DROP
    assert block(page, "made-findings").rows[0][2:] == ["sink_tokens", "one token carries all"]


def test_all_that_is_drawn_is_plain_json_with_null_for_gaps(page):
    for section in page.sections:
        for part in section.blocks:
            if isinstance(part, Figure):
                for found in part.variants:
                    json.dumps([list(found.traces), dict(found.layout), list(found.rows)], allow_nan=False)
    assert json_text([None]) == "[null]"


def test_nan_is_a_gap_whose_layer_is_named(tmp_path):
    result = measured("gpt")
    result.arrays["token_similarity"][3] = np.nan
    result.arrays["layer_cosine"][2] = np.nan
    result.arrays["cka_pooled"][3] = result.arrays["cka_pooled"][:, 3] = np.nan
    keep(tmp_path, "one", result)
    page = build_page([tmp_path])
    found = block(page, "figure-2").variants[0]
    assert lines(found, "gpt")[0]["y"][3] is None
    assert "gpt: no finite value at state 3, drawn as a gap." in found.note
    assert "gpt: no finite value at layer 3, drawn as a gap." in block(page, "figure-1").variants[0].note
    assert "no finite value for state 3" in block(page, "figure-4").variants[0].note


def test_branch_states_stand_at_their_block(tmp_path):
    keep(tmp_path, "one", measured("gpt", states="branch"))
    line = lines(block(build_page([tmp_path]), "figure-2").variants[0], "gpt")[0]
    assert line["meta"]["x"]["absolute"] == [1, 2, 3, 4]


def test_a_sharp_turn_and_what_rests_on_sinks_are_unusual(tmp_path):
    result = measured("gpt", layers=6)
    result.arrays["layer_cosine"][:] = 0.95
    result.arrays["layer_cosine"][0] = 0.1  # the first block turns every model's embedding
    result.arrays["layer_cosine"][3] = 0.4
    result.arrays["token_similarity"][:] = 0.5
    result.arrays[f"{DROP}/token_similarity"][:] = 0.5
    result.arrays[f"{DROP}/token_similarity"][2] = 0.2
    result.arrays["final_norm/token_similarity"][:] = 0.55
    keep(tmp_path, "one", result)
    (row,) = block(build_page([tmp_path]), "verdict-table").rows
    assert row[6] == (
        "block 4 turns tokens sharply (cosine 0.40, median block 0.95); "
        "without sink tokens similarity at state 2 changes by -0.30"
    )


@pytest.mark.parametrize(
    ("rise", "words"),
    [
        (0.3, "tokens become alike, most at state 2 of 4 (50% of the depth)"),
        (None, "too few prompts to judge the rise"),
    ],
)
def test_tokens_become_alike_only_where_other_prompts_say_so(tmp_path, rise, words):
    samples = 8 if rise else 2
    result = measured("gpt", samples=samples)
    noise = np.linspace(-0.02, 0.02, samples)
    similarity = np.array([0.1, 0.2, 0.4, 0.3, 0.25])[:, None] + noise * np.array([1, 2, 3, 1, 1])[:, None]
    result.arrays["token_similarity"] = similarity
    keep(tmp_path, "one", result)
    (sentence,) = block(build_page([tmp_path]), "verdict-words").paragraphs
    assert words in sentence
    if rise:  # state 2 minus state 0 on every second prompt: 0.3 plus twice their noise
        assert f"{(similarity[2] - similarity[0])[1::2].mean():+.3f} [" in sentence


def test_a_rise_that_only_the_choosing_prompts_show_is_not_claimed(tmp_path):
    result = measured("gpt", samples=8)
    similarity = np.full((5, 8), 0.2)
    similarity[3, ::2] = 0.9
    similarity[3, 1::2] = [0.1, 0.3, 0.15, 0.25]
    result.arrays["token_similarity"] = similarity
    keep(tmp_path, "one", result)
    (sentence,) = block(build_page([tmp_path]), "verdict-words").paragraphs
    assert "tokens are not shown to become alike" in sentence
