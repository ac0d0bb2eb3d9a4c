"""Which runs a page finds, what they are called, and which may stand in one chart."""

import json

import pytest

from repflow.core.errors import InputError
from repflow.report.data.comparable import MIXED, comparison_warnings, difference, group_runs
from repflow.report.data.runs import read_runs
from repflow.report.page.build import build_page
from tests.report.stored_runs import compared, keep, measured, probed


def test_runs_studies_and_folders_of_both_are_found_once(tmp_path):
    keep(tmp_path / "runs", "one", measured("gpt"))
    keep(tmp_path / "runs" / "grid", "cell", measured("gpt", length=64))
    (tmp_path / "runs" / "grid" / "lost.json").write_text(
        json.dumps({"cell": "lost", "status": "failed", "reason": "no room"})
    )
    runs, warnings = read_runs([tmp_path / "runs", tmp_path / "runs" / "one"])
    assert [(run.name, run.cell_of) for run in runs] == [("one", ""), ("grid/cell", "grid")]
    assert warnings == ["grid/lost has no result: failed: no room"]


def test_missing_damaged_and_unfinished_runs_are_named_and_left_out(tmp_path):
    keep(tmp_path, "good", measured("gpt"))
    path = keep(tmp_path, "cut", measured("gpt", length=64))
    raw = bytearray((path / "result.safetensors").read_bytes())
    raw[-3] ^= 1
    (path / "result.safetensors").write_bytes(raw)
    page = build_page([tmp_path / "good", path, tmp_path / "nowhere"])
    told = "\n".join(page.warnings)
    assert "nowhere is missing" in told
    assert "cut is left out" in told
    assert "does not match its sha256" in told
    runs = next(block for section in page.sections for block in section.blocks if block.id == "made-runs")
    assert [row[0] for row in runs.rows] == ["good"]


def test_a_page_of_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"run to report on; got \S+nowhere is missing: no folder has this name; see"):
        build_page([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="at least one run folder"):
        build_page([])


def test_models_of_one_name_are_told_apart(tmp_path):
    keep(tmp_path, "a", measured("gpt", spec="first/gpt", weights="w1"))
    keep(tmp_path, "b", measured("gpt", spec="second/gpt", weights="w2", length=64))
    keep(tmp_path, "c", measured("gpt", init="xavier", init_seed=0))
    keep(tmp_path, "d", measured("gpt", init="xavier", init_seed=1))
    runs, _ = read_runs([tmp_path])
    assert [run.label for run in runs] == [
        "gpt [first/gpt]",
        "gpt [second/gpt]",
        "gpt (xavier), seed 0",
        "gpt (xavier), seed 1",
    ]


def test_both_models_of_a_comparison_are_on_the_page(tmp_path):
    keep(tmp_path, "pair", compared("gpt", "mamba"))
    page = build_page([tmp_path / "pair"])
    assert [(model.label, model.layers) for model in page.models] == [("gpt", 4), ("mamba", 6)]


def _runs(tmp_path, *results):
    for place, result in enumerate(results):
        keep(tmp_path, f"run{place}", result)
    return read_runs([tmp_path])[0]


def test_other_prompts_and_formats_are_drawn_apart_and_named(tmp_path):
    runs = _runs(
        tmp_path, measured("a"), measured("b"), measured("c", prompts="other"), measured("d", dtype="bfloat16")
    )
    groups = group_runs(runs)
    assert [[run.label for run in group.runs] for group in groups] == [["a", "b"], ["c"], ["d"]]
    assert len({group.part for group in groups}) == 3
    told = comparison_warnings(runs)
    assert [("read different prompts" in text, "float32 and bfloat16" in text) for text in told] == [
        (True, False),
        (False, True),
    ]
    assert all("not drawn together (--allow-mixed does)" in text for text in told)


def test_mixed_runs_are_drawn_together_when_asked_and_still_named(tmp_path):
    runs = _runs(tmp_path, measured("a"), measured("b", prompts="other"))
    (group,) = group_runs(runs, allow_mixed=True)
    assert [run.label for run in group.runs] == ["a", "b"]
    assert "read different prompts" in group.note
    assert "drawn together as asked" in comparison_warnings(runs, allow_mixed=True)[0]


def test_kinds_of_state_are_kept_apart_unless_asked(tmp_path):
    runs = _runs(tmp_path, measured("a"), measured("b", states="branch"))
    assert {group.states for group in group_runs(runs)} == {"residual", "branch"}
    (text,) = comparison_warnings(runs)
    assert "a has residual states and b branch states" in text
    mixed = [group for group in group_runs(runs, allow_mixed=True) if group.states == MIXED]
    assert [run.label for run in mixed[0].runs] == ["a", "b"]


def _asked_together(name, text="a b"):
    result = measured(name, prompts=f"tokens of {name}")
    result.config["match_with"] = ["models/a", "models/b"]
    result.provenance["kept"] = [{"ids": [0], "tokens": ["t"] * 32, "text": text}] * 2
    return result


def test_the_same_text_through_two_tokenizers_compares(tmp_path):
    first, second = _runs(tmp_path, _asked_together("a"), _asked_together("b"))
    assert difference(first, second) == ""


@pytest.mark.parametrize("change", ["text", "alone", "seed"])
def test_other_text_or_another_request_does_not_compare(tmp_path, change):
    other = _asked_together("b", "other" if change == "text" else "a b")
    other.config |= {"alone": {"match_with": []}, "seed": {"seed": 1}}.get(change, {})
    first, second = _runs(tmp_path, _asked_together("a"), other)
    assert difference(first, second) == "read different prompts"


def test_no_torch_is_imported(tmp_path):
    import subprocess
    import sys

    keep(tmp_path, "one", measured("gpt"))
    keep(tmp_path, "two", probed("gpt"))
    code = (
        "import sys; from repflow.report.page.build import build_page; "
        f"page = build_page([{str(tmp_path)!r}]); assert page.sections; "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=3600)


def test_a_page_is_the_same_twice(tmp_path):
    keep(tmp_path, "one", measured("gpt"))
    first, second = (build_page([tmp_path]) for _ in range(2))
    assert first == second
