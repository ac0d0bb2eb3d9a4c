"""Files for papers: their names, sizes, fonts and bytes."""

import hashlib
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repflow.core.errors import InputError, MissingExtraError
from repflow.report.data.model import Page, Section
from repflow.report.paper.write import FigureRequest, figure_files, table_bytes, write_figures
from tests.report.paper.example import NASTY, lines, paper_page
from tests.report.stored_runs import compared, keep, measured, probed
from tests.report.study_runs import folder


def written(out, **request):
    return write_figures(paper_page(), out, FigureRequest(**request))


def streams(data):
    """Contents of a PDF, its compressed parts opened."""
    found = [data]
    for match in re.finditer(rb"stream\r?\n(.*?)endstream", data, re.DOTALL):
        try:
            found.append(zlib.decompress(match[1]))
        except zlib.error:
            continue
    return b"\n".join(found)


def test_one_file_per_figure_and_the_captions(tmp_path):
    files = written(tmp_path, format="png")
    assert [path.name for path in files] == ["figure-2.png", "figure-4.png", "shares.png", "captions.txt"]
    text = files[-1].read_text(encoding="utf-8")
    assert "figure-2.png\nSimilarity x_1" in text
    assert "(task: kvpr)\nHow alike.\nState 2 is NaN." in text
    assert "Note: x_1" in text
    assert "\u202e" not in text
    assert "\u2028" not in text


def test_what_is_asked_for_is_drawn(tmp_path):
    page = paper_page()

    def names(**request):
        return [drawn.name for drawn in figure_files(page, FigureRequest(**request))]

    assert names(every=True) == ["figure-2", "figure-2-mdqa", "figure-4", "shares"]
    assert names(figures=("figure-2",), choose={"task": "mdqa"}) == ["figure-2-mdqa"]
    assert names(choose={"task": "mdqa"}) == ["figure-2-mdqa", "figure-4", "shares"]
    assert names(figures=("figure-2",), choose={"task": "kvpr"}) == ["figure-2"]  # what the page opens with
    drawn = figure_files(page, FigureRequest(choose={"task": "mdqa"}))[0]
    assert drawn.variant.when == {"task": "mdqa"}
    for request, message in (
        ({"figures": ("figure-5",)}, "a figure that these runs have; got 'figure-5'; did you mean figure-"),
        ({"choose": {"tusk": "x"}}, "a choice that a figure of these runs has; got 'tusk'; did you mean task"),
        ({"choose": {"task": "kvp"}}, "a value of 'task'; got 'kvp'; did you mean kvpr"),
        ({"format": "eps"}, "a format of pdf, svg, png; got 'eps'"),
        ({"style": "poster"}, "a style of paper"),
        ({"text": "none"}, "text as outlines or editable"),
        ({"width": "wide"}, "a width of auto, column, page"),
        ({"depth": "deep"}, "depth of auto, relative, absolute"),
    ):
        with pytest.raises(InputError, match=message):
            written(tmp_path / "refused", **request)
    assert not (tmp_path / "refused").exists()
    with pytest.raises(InputError, match="runs with something to draw"):
        write_figures(Page("t", "s", [], [], []), tmp_path)


SCRIPT = """
import sys
import matplotlib as mpl
from tests.report.paper.example import paper_page
from repflow.report.paper.write import FigureRequest, write_figures
mpl.rcParams["font.size"] = float(sys.argv[2])
for format in ("pdf", "svg", "png"):
    write_figures(paper_page(), sys.argv[1], FigureRequest(format=format, data=True))
"""


def test_same_bytes_whatever_the_process_and_its_settings(tmp_path):
    """Two processes of other hash seeds, times and settings of matplotlib draw the same files."""
    found = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        env = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"} | {"PYTHONHASHSEED": seed}
        args = [str(out), f"{10 + int(seed)}"]
        subprocess.run([sys.executable, "-c", SCRIPT, *args], env=env, check=True)
        found.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())})
    assert {name.rpartition(".")[2] for name in found[0]} == {"pdf", "svg", "png", "csv", "txt"}
    assert found[0] == found[1]
    for path in (tmp_path / "1").iterdir():
        assert not re.search(rb"20\d\d-\d\d-\d\d|D:20\d\d", path.read_bytes())


def test_pdf_embeds_its_fonts_at_column_width(tmp_path):
    (file, _) = written(tmp_path, figures=("figure-2",))
    content = streams(file.read_bytes())
    assert b"/FontFile2" in content
    assert b"/Type3" not in content
    assert set(re.findall(rb"/BaseFont /(?:[A-Z]{6}\+)?(\w+)", content)) == {b"STIXGeneral"}
    assert re.search(rb"/MediaBox \[ 0 0 234 \d+", content)  # 3.25 inches of 72 points
    (wide, _) = written(tmp_path, figures=("figure-2",), width="page")
    assert re.search(rb"/MediaBox \[ 0 0 486 \d+", streams(wide.read_bytes()))


def test_svg_letters_are_outlines_or_text(tmp_path):
    import xml.etree.ElementTree as ElementTree

    outlines = written(tmp_path, format="svg", figures=("figure-2",))[0].read_text(encoding="utf-8")
    assert "<text" not in outlines
    editable = written(tmp_path, format="svg", figures=("figure-2",), text="editable")[0].read_text(encoding="utf-8")
    root = ElementTree.fromstring(editable)
    texts = ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "x_1 $\\frac{1}{0}$ ^{ [U+202E]oen[U+2028]<b>&[U+0007]" in texts
    assert "<script" not in editable
    assert root.get("width") == "234pt"


def test_numbers_beside_a_figure(tmp_path):
    files = written(tmp_path, format="png", figures=("figure-2",), data=True)
    assert [path.name for path in files] == ["figure-2.png", "figure-2.csv", "captions.txt"]
    rows = files[1].read_bytes().decode("utf-8").split("\r\n")
    assert rows[0] == "model,state,similarity"
    assert rows[-2] == "mamba,4,0.1"
    variant = lines().variants[0]
    assert b"'=1+1" in table_bytes(type(variant)({}, [], {}, ["a"], [["=1+1"]]))


def test_matplotlib_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"matplotlib.*; got none; pip install 'repflow\[figures\]'"):
        written(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.fixture(scope="module")
def runs():
    """Stored runs of two models, one of them with a nasty name and a state that is NaN."""
    out = folder("figures")
    for name, kinds in (("gpt", None), ("mamba", ["ssm"] * 4)):
        result = measured(name, kinds=kinds)
        if name == "gpt":
            result["token_similarity"][2] = float("nan")
            result.provenance["model"]["name"] = NASTY
        keep(out, f"measure-{name}", result)
        keep(out, f"probe-{name}", probed(name, kinds=kinds))
    keep(out, "compare", compared())
    return out


def call(*args):
    from repflow.cli.main import app

    result = CliRunner().invoke(app, ["figures", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_command_draws_the_figures_of_the_paper(runs, tmp_path):
    asked = [word for number in (1, 2, 4, 7) for word in ("--figure", f"figure-{number}")]
    done = call(runs, "--out", tmp_path / "f", "--format", "png", "--data", *asked)
    assert done.exit_code == 0, done.stderr
    names = {path.name for path in (tmp_path / "f").iterdir()}
    assert names == {f"figure-{n}.{end}" for n in (1, 2, 4, 7) for end in ("png", "csv")} | {"captions.txt"}
    assert f"wrote {tmp_path / 'f' / 'figure-2.png'}" in done.stdout.splitlines()
    csv = (tmp_path / "f" / "figure-2.csv").read_text(encoding="utf-8")
    assert "nan" not in csv.lower()
    told = (tmp_path / "f" / "captions.txt").read_text(encoding="utf-8")
    assert "state 2" in told


def test_the_command_is_deterministic_and_speaks_json(runs, tmp_path):
    import json

    one = json.loads(call(runs, "--out", tmp_path / "a", "--figure", "figure-2", "--json").stdout)
    two = json.loads(call(runs, "--out", tmp_path / "b", "--figure", "figure-2", "--json").stdout)
    assert [Path(path).name for path in one["files"]] == ["figure-2.pdf", "captions.txt"]
    for first, second in zip(one["files"], two["files"], strict=True):
        assert Path(first).read_bytes() == Path(second).read_bytes()


def test_wrong_requests_leave_nothing(runs, tmp_path):
    out = tmp_path / "out"
    for args, message in (
        (("--format", "eps"), "a format of pdf, svg, png"),
        (("--choose", "task"), "--choose NAME=VALUE, such as task=kvpr; got 'task'"),
        (("--figure", "figure-9"), "a figure that these runs have; got 'figure-9'"),
    ):
        done = call(runs, "--out", out, *args)
        assert done.exit_code == 2
        assert message in done.stderr
    done = call(tmp_path / "nowhere", "--out", out)
    assert done.exit_code == 2
    done = call(runs, "--out", runs / "measure-gpt" / "figures")
    assert done.exit_code == 2
    assert "a folder outside run folders" in done.stderr
    assert not out.exists()


def test_sections_without_figures_are_no_figures():
    page = Page("t", "s", [], [], [Section("a", "A", "", [])])
    with pytest.raises(InputError, match="1 sections of text and tables"):
        figure_files(page, FigureRequest())
