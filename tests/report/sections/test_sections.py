"""A section is one module and one row: the page, its figures for papers and `Result.plot()` find it there."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import repflow.report.sections as sections
from repflow.core.results import Result
from repflow.report.page.build import build_page
from repflow.report.page.render import render
from repflow.report.paper.write import FigureRequest, figure_files
from tests.report.stored_runs import keep, measured

GUIDE = Path(__file__).parents[3] / "CONTRIBUTING.md"


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The one file, as the guide for contributors has it, and the one row that a new section takes."""
    part = GUIDE.read_text(encoding="utf-8").partition("### A page section")[2]
    module = re.search(r"```python\n(.*?)```", part, re.DOTALL).group(1)
    (tmp_path / "modules/toy_laboratory").mkdir(parents=True)
    (tmp_path / "modules/toy_laboratory/section.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    row = sections.Row("toy", "Toys", "toy_laboratory.section", ("toy",))
    monkeypatch.setattr(sections, "SECTIONS", (*sections.SECTIONS, row))
    return Result({"height": np.array([1.0, 3.0, 2.0])}, {"height": ("step",)}, {"study": "toy"})


def test_a_new_section_is_one_module_and_one_row(toy, tmp_path):
    folders = [keep(tmp_path, "block", toy), keep(tmp_path, "gpt", measured())]
    page = build_page(folders)
    assert [section.title for section in page.sections][-1] == "Toys"
    assert "How high the towers become." in render(page)
    assert "heights" in [drawn.name for drawn in figure_files(page, FigureRequest())]
    drawn = toy.plot()
    assert drawn.layout.title.text == "Heights"
    assert list(drawn.data[0].y) == [1.0, 3.0, 2.0]


def test_no_section_without_its_runs(toy, tmp_path):
    assert "toy" not in [section.id for section in build_page([keep(tmp_path, "gpt", measured())]).sections]


def test_modules_are_imported_when_a_page_is_built(tmp_path):
    import subprocess

    code = "import sys, repflow.report.sections; print([m for m in sys.modules if m.startswith('repflow.report.sec')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['repflow.report.sections']"
