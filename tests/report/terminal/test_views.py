"""Views are found by the study's name, in the terminal as on the page."""

import io

import pytest
from rich.console import Console

from repflow.core.errors import InputError
from repflow.report.terminal import view_of
from tests.report.stored_runs import measured


def shown(*parts, width=100):
    console = Console(width=width, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.file.getvalue()


def test_results_find_their_view():
    result, view = measured(), view_of("measure")
    assert "gpt" in shown(*view.view(result))
    assert "gpt" in shown(view.side_by_side([result, result]))
    assert view_of("compare").side_by_side is None


def test_stored_runs_of_every_study_find_theirs():
    from tests.report.study_runs import dynamics_runs, read, recency_runs, theory_runs

    seen = {}
    for run in [*read(theory_runs()), *read(dynamics_runs()), *read(recency_runs())]:
        if run.study == "hidden_attention":  # maps of a memory study, for the page alone
            continue
        seen.setdefault(run.study, []).append(shown(*view_of(run.study).view(run.result)))
    assert set(seen) == {
        "theory-verify", "theory-apply", "dynamics-simulate", "dynamics-figure", "dynamics-apply",
        "recency", "recency-ratio", "memory", "needle",
    }  # fmt: skip
    assert all(text.strip() for texts in seen.values() for text in texts)
    assert "gpt_neox / mamba2" in seen["recency-ratio"][0]


@pytest.mark.parametrize("name", ["toy", "fitted", "../states", "os.path", ""])
def test_a_study_without_a_view_is_refused_with_what_to_do(name):
    with pytest.raises(InputError, match=r"a study with a view for the terminal; got .*; add"):
        view_of(name)
