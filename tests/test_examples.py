"""Every script in examples/ runs and prints; the notebook runs, shows figures, and says nothing on the side."""

import re
import runpy
from pathlib import Path

import pytest

import repflow

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first-look.ipynb"
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(script, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPS", "12")  # of those that train
    monkeypatch.setenv("PYTHONPATH", str(Path(repflow.__file__).parents[1]))  # of those that call the command line
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.strip()
    assert "nan" not in printed.lower()


def test_there_are_examples():
    assert len(EXAMPLES) >= 3


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook, run in a kernel of its own."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = tmp_path_factory.mktemp("notebook")
    NotebookClient(notebook, timeout=3600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return notebook


def outputs(notebook, cell):
    return next(entry.outputs for entry in notebook.cells if entry.id == cell)


def test_the_notebook_is_kept_without_outputs():
    import nbformat

    assert not [cell.id for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.get("outputs")]


def test_the_notebook_prints_nothing_on_the_side(executed):
    """Loading said which packages of transformers are missing, on stderr."""
    streams = [out for cell in executed.cells for out in cell.get("outputs", []) if out.output_type == "stream"]
    assert [out.text for out in streams] == []


@pytest.mark.parametrize("cell", ["measure", "mirror", "reach"])
def test_a_result_is_a_figure_with_a_table_on_demand(executed, cell):
    (shown,) = outputs(executed, cell)
    page = shown.data["text/html"]
    assert 'src="data:image/svg+xml;base64,' in page
    assert re.search(r'alt="[^"]{20,}"', page)
    assert "<details><summary>table</summary>" in page
    assert "<table>" in page


def test_the_notebook_as_a_page_shows_all_figures(executed):
    """`result.plot()` was blank there."""
    from nbconvert import HTMLExporter

    page, _ = HTMLExporter().from_notebook_node(executed)
    assert page.count("data:image/svg+xml;base64,") >= 3
    assert "Plotly.newPlot(" in page
    assert page.index("plotly.js v") < page.index("Plotly.newPlot(")
