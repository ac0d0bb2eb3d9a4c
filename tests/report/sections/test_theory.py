"""The page on theory: every number is the stored one, and what is right to compare is compared."""

import copy
import io

import numpy as np
import pytest
from rich.console import Console

from repflow.report.data.context import Context
from repflow.report.data.model import Page, Section
from repflow.report.sections.theory import LEAST, NOISE
from repflow.report.sections.theory import section as build
from repflow.report.terminal.theory import apply_view, short_verdict
from tests.report.study_runs import block, line, one, read, theory_runs


@pytest.fixture(scope="module")
def runs():
    return read(theory_runs())


@pytest.fixture(scope="module")
def section(runs):
    return build(runs, Context([]))


def test_no_run_about_theory_no_section(runs):
    assert build([], Context([])) is None
    assert build([run for run in runs if run.study == "measure"], Context([])) is None


def test_ratios_are_stored_values_over_their_simulations(runs, section):
    checks = one(runs, "verify").result.provenance["checks"]
    (variant,) = block(section, "theory-forms").variants
    told = {f"{c['statement']}: {c['setting']}": c for c in checks if c["kind"] == "value"}
    drawn = [name.replace(":\n", ": ") for name in line(variant, "corrected")["y"]]
    far = [name for name, c in told.items() if abs(c["simulation"]) > NOISE * abs(c["error"])]
    assert drawn == far
    assert 0 < len(drawn) <= len(told)
    for form in ("printed", "corrected"):
        for name, ratio in zip(drawn, line(variant, form)["x"], strict=True):
            value = told[name][form]
            wanted = None if value is None else max(value / told[name]["simulation"], LEAST)
            assert ratio == wanted or np.isclose(ratio, wanted, rtol=1e-8)
    bars = line(variant, "corrected")["error_x"]["array"]
    assert bars[0] == pytest.approx(2 * told[drawn[0]]["error"] / abs(told[drawn[0]]["simulation"]))
    assert str(len(told) - len(drawn)) in variant.note or len(told) == len(drawn)


def test_every_statement_is_in_the_table_with_its_verdict(runs, section):
    checks = one(runs, "verify").result.provenance["checks"]
    table = block(section, "theory-checks")
    assert [row[1] for row in table.rows] == [check["statement"] for check in checks]
    assert [row[7] for row in table.rows] == [short_verdict(check) for check in checks]
    bound = next(i for i, check in enumerate(checks) if check["kind"] == "bound")
    assert table.rows[bound][5] == f"of {int(checks[bound]['simulation'])}"
    corrected = [check for check in checks if check["kind"] != "data"]
    assert table.caption.startswith(f"{sum(c['passes'] for c in corrected)} of {len(corrected)} corrected")


def test_layers_are_drawn_where_their_output_stands(runs, section):
    figure = block(section, "theory-layers")
    (variant,) = figure.variants
    assert figure.depth_axis
    result = one(runs, "mamba2").result
    for form in ("measured", "predicted", "printed"):
        trace = line(variant, f"mamba2: {form}")
        np.testing.assert_allclose(trace["y"], result[form], rtol=1e-8)
        count = len(result[form])
        assert trace["meta"]["x"]["absolute"] == list(range(1, count + 1))
        assert trace["meta"]["x"]["relative"][-1] == 1.0
    told = [row[1] for row in variant.rows if row[0] == "mamba2" and row[2] == "measured"]
    assert told == trace["meta"]["x"]["absolute"]
    (cost,) = block(section, "theory-linearisation").variants
    told = [row[1] for row in cost.rows if row[0] == "mamba2"]
    assert told == line(cost, "mamba2")["meta"]["x"]["absolute"] == list(range(1, count + 1))


def test_stack_and_hypotheses(runs, section):
    result = one(runs, "gpt_neox").result
    row = next(row for row in block(section, "theory-stack").rows if row[0] == "gpt_neox")
    assert row[1:4] == [float(result[f"depth_{name}"]) for name in ("stability", "lower", "upper")]
    assert row[2] <= row[1] <= row[3]
    table = block(section, "theory-hypotheses")
    found = result.provenance["hypotheses"]
    name = found[0]["name"]
    broken = sum(entry["name"] == name and not entry["holds"] for entry in found)
    wanted = next(row for row in table.rows if row[:2] == ["gpt_neox", name])
    assert wanted[2] == f"{broken} of {len(result['sigma'])}"


def test_the_layer_that_breaks_a_hypothesis_is_counted_from_1(runs):
    run = copy.deepcopy(one(runs, "gpt_neox"))
    run.result.provenance["hypotheses"] = [{"layer": 2, "name": "one head", "holds": False, "found": "4 heads"}]
    (row,) = block(build([run], Context([])), "theory-hypotheses").rows
    assert row[3] == "block 3: 4 heads"
    shown = Console(width=120, record=True, file=io.StringIO())
    for part in apply_view(run.result):
        shown.print(part)
    text = shown.export_text()
    assert "- one head: 1 of 4 blocks; block 3: 4 heads" in text
    table = [cells[0] for words in text.splitlines() if (cells := words.split()) and cells[0].isdigit()]
    assert table == ["1", "2", "3", "4"]


def test_the_page_takes_it(section):
    from repflow.report.page.render import render

    page = Page("t", "s", [], [], [Section("part", "Part", section.lead, section.blocks)])
    assert "theory-forms" in render(page)
