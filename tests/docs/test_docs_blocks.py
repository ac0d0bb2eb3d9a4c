"""Every block of code in README and docs runs, in order, page by page, in a folder of its own.

| fence | what happens |
|---|---|
| ```python | executed; the blocks of a page share one namespace; a ```text block right behind it is its output |
| ```bash | `repflow ...` through the real command line in this process, `make X` as `make -n X` in the checkout |
| ```toml, ```python with a first line `# file: NAME` | also written to NAME, for the commands that use it |
| ```text | output; behind commands, every line of it is among what they print |

| comment on the line above a fence | |
|---|---|
| <!-- no-run: reason --> | not executed |
| <!-- study --> | a study of GPU minutes: not executed, its modules and scripts exist |
| <!-- added --> | executed in a copy of the package with the page's additions (tests/test_contributing.py) |
| <!-- prompts=N --> | its numbers are shares of N prompts: equal up to their standard error √(p (1 − p) / N) |

A command that is meant to fail carries `# exit N`.

Guides of long studies (`LONG`) are executed by `make test-all`; `make test` reads their commands as the command line
would, compiles their Python and imports what it imports. Their commands run in CI elsewhere: tests/cli, tests/goldens.
"""

import ast
import contextlib
import importlib
import io
import math
import re
import shlex
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
import typer
from typer._click.exceptions import UsageError

from tests.docs.pages import PAGES, ROOT, SKIPPED, STUDY, Block, blocks, name
from tests.sample import chosen

LANGUAGES = {"python", "bash", "toml", "text", "json"}
MOST_SKIPPED = 6
EXIT = re.compile(r"\s+# exit (?P<code>\d)$")
NUMBER = re.compile(r"[+-]?\d+\.\d+(?:e[+-]?\d+)?")
TITLE = re.compile(r"^# file: (\S+)\n")
RUNNING = [page for page in PAGES if any(block.runs for block in blocks(page))]


LONG = {
    f"docs/guides/{page}.md"
    for page in [
        "compare-two-models",
        "corrupt",
        "diagnose",
        "lose-the-key",
        "needle",
        "over-smoothing",
        "paper-figures",
        "probe",
        "random-twin",
        "recency",
        "reproduce",
        "run-a-grid",
        "theory",
        "train",
        "watch-training",
    ]
}


@pytest.mark.parametrize("page", chosen(RUNNING, [page for page in RUNNING if name(page) not in LONG]), ids=name)
def test_page_runs(page, workplace, monkeypatch):
    module = types.ModuleType("docs_page")
    monkeypatch.setitem(sys.modules, "docs_page", module)
    all_blocks = blocks(page)
    for block, following in zip(all_blocks, [*all_blocks[1:], None], strict=True):
        if not block.runs:
            continue
        if title := TITLE.match(block.body):
            Path(title[1]).write_text(block.body, encoding="utf-8")
        if block.language == "python":
            printed = run_python(block, module.__dict__)
            if following is not None and following.language == "text":
                assert_alike(printed, following.body, str(following), following.prompts)
        elif block.language == "bash":
            printed = run_commands(block)
            if following is not None and following.language == "text" and "make " not in block.body:
                for line in filter(str.strip, following.body.splitlines()):
                    assert_printed(printed, line, str(following), following.prompts)


@pytest.mark.parametrize("page", [page for page in RUNNING if name(page) in LONG], ids=name)
def test_long_page_is_understood(page):
    for block in (block for block in blocks(page) if block.runs):
        if block.language == "python":
            understand_python(block)
        elif block.language == "bash":
            for line in commands(block):
                understand_command(shlex.split(line, comments=True))


def test_what_is_not_understood_would_be_seen():
    for words, error in (("measure --lenght 4", "lenght"), ("mesure", "mesure"), ("compare a b c", "argument")):
        with pytest.raises(UsageError, match=error):
            understand_command(["repflow", *words.split()])
    with pytest.raises(AttributeError):
        understand_python(Block(ROOT, 1, "python", "", "", "import repflow\nrepflow.mesure(1)\n"))
    with pytest.raises(ImportError):
        understand_python(Block(ROOT, 1, "python", "", "", "from repflow.tasks import nothing\n"))


def understand_python(block):
    """It compiles, what it imports of repflow is there, and so are the attributes of the package that it names."""
    tree = ast.parse(block.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "repflow":
            exec(compile(ast.Module([node], []), str(block), "exec"), {})
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "repflow":
            getattr(importlib.import_module("repflow"), node.attr)


def understand_command(words):
    """The command line takes every word of it, without doing what they say."""
    from repflow.cli.main import app

    if words[0] != "repflow":
        return
    words = words[1 : words.index(">") if ">" in words else None]
    command, label, context = typer.main.get_command(app), "repflow", None
    while command is not None:
        context = command.make_context(label, words, parent=context)
        is_group = isinstance(command, typer.core.TyperGroup)
        words = [*context._protected_args, *context.args]
        label, command, words = command.resolve_command(context, words) if is_group else ("", None, [])


def run_python(block, namespace):
    code = compile("\n" * block.line + block.body, str(block.page), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        exec(code, namespace)
    return printed.getvalue()


def run_commands(block):
    printed = ""
    for line in commands(block):
        expected = EXIT.search(line)
        code, output = run_command(EXIT.sub("", line).strip(), block)
        assert code == (int(expected["code"]) if expected else 0), f"{block}: {line} ended with {code}"
        printed += output
    return printed


def commands(block):
    lines = block.body.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def run_command(line, block):
    words = shlex.split(line, comments=True)
    if words[0] == "repflow":
        return run_repflow(words[1:])
    if words[0] == "make":
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout
    if words[:1] == ["python"] and words[1].startswith("docs/"):
        assert (ROOT / words[1]).is_file(), f"{block}: no {words[1]}"  # its work is done: it made this folder
        return 0, ""
    pytest.fail(f"{block}: {line!r} is no repflow or make command; mark the block {SKIPPED}")


def run_repflow(words):
    from typer.testing import CliRunner

    from repflow.cli.main import app

    target = None
    if ">" in words:
        words, target = words[: words.index(">")], words[-1]
    result = CliRunner().invoke(app, words)
    if target is not None:
        Path(target).write_text(result.stdout, encoding="utf-8")
    if result.exit_code and result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    print(result.stdout, result.stderr)
    return result.exit_code, f"{result.stdout}\n{result.stderr}\n"


def error_of(share, prompts):
    """Standard error of a share of prompts, and the rounding of its printed digits; 0 where prompts are not counted."""
    if prompts is None:
        return 0.0
    share = min(max(abs(share), 1 / prompts), 1 - 1 / prompts)  # one prompt may always answer otherwise
    return math.sqrt(share * (1 - share) / prompts) + 0.005


def assert_alike(printed, written, where, prompts=None):
    """Equal text, and numbers equal to 2 % or .005: another BLAS rounds differently."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", written).split(), f"{where}:\n{printed}"
    for got, said in zip(NUMBER.findall(printed), NUMBER.findall(written), strict=True):
        allowed = max(0.02 * abs(float(said)), 0.005, error_of(float(said), prompts))
        assert abs(float(got) - float(said)) <= allowed, f"{where}: prints {got}, says {said}"


def assert_printed(printed, line, where, prompts=None):
    """The line's words stand in a row in the output, with numbers equal to 5 % or .01: the toys are trained anew."""
    words, said = printed.split(), line.split()
    masked, wanted = ([NUMBER.sub("#", word) for word in part] for part in (words, said))
    places = [i for i in range(len(words)) if masked[i : i + len(said)] == wanted]
    expected = [float(number) for number in NUMBER.findall(line)]
    for place in places:
        numbers = [float(number) for number in NUMBER.findall(" ".join(words[place : place + len(said)]))]
        allowed = [max(0.05 * abs(said), 0.01, error_of(said, prompts)) for said in expected]
        if all(abs(got - said) <= most for got, said, most in zip(numbers, expected, allowed, strict=True)):
            return
    pytest.fail(f"{where}: no command prints {line!r}")


def test_output_comparison_can_fail():
    assert_alike("a 0.500 b", "a 0.501 b", "here")
    with pytest.raises(AssertionError):
        assert_alike("a 0.500", "a 0.600", "here")
    with pytest.raises(AssertionError):
        assert_alike("a 0.500", "b 0.500", "here")
    assert_printed("x\nsay 0.50 now\ny", "say 0.51 now", "here")
    for wrong in ("say 0.60 now", "tell 0.50 now"):
        with pytest.raises(pytest.fail.Exception):
            assert_printed("x\nsay 0.50 now\ny", wrong, "here")


def test_shares_of_few_prompts_are_equal_up_to_their_standard_error():
    """0.44 of 180 prompts has a standard error of 0.037; a share of 0 or 1 still has a prompt to give."""
    assert_alike("a 0.45", "a 0.44", "here", 180)
    assert_alike("a 0.47", "a 0.44", "here", 180)
    assert_printed("x a 0.47 b", "a 0.44", "here", 180)
    assert_alike("a 0.99", "a 1.00", "here", 180)
    with pytest.raises(AssertionError):
        assert_alike("a 0.50", "a 0.44", "here", 180)
    with pytest.raises(AssertionError):
        assert_alike("a 0.45", "a 0.44", "here", 10_000)
    with pytest.raises(pytest.fail.Exception):
        assert_printed("x a 0.50 b", "a 0.44", "here", 180)


def test_every_fence_is_known_and_few_are_skipped():
    every = [block for page in PAGES for block in blocks(page)]
    assert not [f"{block}: {block.language!r}" for block in every if block.language not in LANGUAGES]
    skipped = [block for block in every if block.flag == SKIPPED]
    assert not [str(block) for block in skipped if not block.reason]
    assert len(skipped) <= MOST_SKIPPED, [str(block) for block in skipped]


def test_studies_name_modules_and_commands_that_exist():
    lines = [
        shlex.split(line, comments=True)
        for page in PAGES
        for b in blocks(page)
        if b.flag == STUDY
        for line in commands(b)
    ]
    assert {words[0] for words in lines} <= {"python", "repflow"}
    for words in lines:
        if words[0] == "repflow":
            understand_command(words)
            continue
        script = f"{words[2].replace('.', '/')}.py" if words[1] == "-m" else words[1]
        assert (ROOT / script).is_file(), script


def test_most_pages_have_code():
    assert len(RUNNING) >= 12
