"""The word list of CONTRIBUTING.md, held in strings, docstrings and names of library and tools, and in docs."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for tree in ("src", "tools") for path in (ROOT / tree).rglob("*.py"))
PAGES = [
    ROOT / "README.md",
    # pages of laboratories have rules that were written before the data, and stay as they are
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "laboratories" not in path.parts),
]
# What the rules are not about, removed before a text is searched: idioms, and texts of prompts, which runs depend on.
ALLOWED = {
    "is no": r"\b(there|that|this) is no\b|\bis no (longer|such|more|less|better|one|further|way)\b",
    "told": r"a novel told by three sisters|what is told about it today",
    "are no": r"\bthere are no\b|\bare no (longer|such|more|less|better|further)\b",
}


def word_list() -> tuple[list[str], list[str]]:
    """Phrases and names of variables in the column `not` of the table in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| write | not |")[2].partition("\n\n")[0]
    cells = [line.split("|")[2].strip() for line in table.splitlines()[2:]]
    names = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    phrases = [phrase.strip() for cell in cells if "`" not in cell for phrase in cell.split(",")]
    return phrases, names


@functools.cache
def pattern(phrase: str) -> re.Pattern[str]:
    """A phrase as whole words; `4.` matches any number with a full stop after it, `...` up to six words."""
    special = {"4.": r"\d+\.(?!\d)", "...": r"[\w'-]+(?:\s+[\w'-]+){0,5}"}
    words = [special.get(word, re.escape(word) + r"\b") for word in phrase.split()]
    return re.compile(r"(?<![\w-])" + r"\s+".join(words), re.IGNORECASE)


@functools.cache
def any_of(phrases: tuple[str, ...]) -> re.Pattern[str]:
    """Hits wherever one of them does, perhaps more often: most texts are searched once."""
    return re.compile("|".join(pattern(phrase).pattern for phrase in phrases), re.IGNORECASE)


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Strings and docstrings with their lines; doctests and code between backticks are not prose."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            lines = [line for line in node.value.splitlines() if not line.lstrip().startswith((">>>", "..."))]
            yield node.lineno, re.sub(r"`[^`\n]*`", "", "\n".join(lines))


def faults(source: str, phrases: list[str], names: list[str]) -> list[str]:
    """Each place where a source breaks the list: its line and the word."""
    tree, broken = ast.parse(source), []
    every = any_of(tuple(phrases))
    for line, text in texts(tree):
        for phrase in phrases if every.search(text) else ():
            prose = re.sub(ALLOWED[phrase], "", text, flags=re.IGNORECASE) if phrase in ALLOWED else text
            if pattern(phrase).search(prose):
                broken.append(f"{line}: {phrase!r}")
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {id(part.target) for kind in classes for part in kind.body if isinstance(part, ast.AnnAssign)}
    for node in ast.walk(tree):
        stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields
        if stored and node.id in names:
            broken.append(f"{node.lineno}: a variable called {node.id}")
    return broken


def test_the_list_is_kept():
    """Strings, docstrings and variables of every file."""
    phrases, names = word_list()
    sources = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in FILES}
    broken = [f"{path}:{fault}" for path, source in sources.items() for fault in faults(source, phrases, names)]
    assert not broken, "\n".join(broken)


def page_faults(text: str, phrases: list[str]) -> list[str]:
    """Each phrase of the list in a page's prose; blocks of code, code between backticks and addresses are not prose."""
    prose = re.sub(r"```.*?```|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    without = {phrase: re.sub(ALLOWED.get(phrase, r"(?!)"), "", prose, flags=re.IGNORECASE) for phrase in phrases}
    return [phrase for phrase in phrases if pattern(phrase).search(without[phrase])]


def test_the_list_is_kept_in_docs():
    phrases, _ = word_list()
    broken = {path.relative_to(ROOT): page_faults(path.read_text(encoding="utf-8"), phrases) for path in PAGES}
    assert not {path: words for path, words in broken.items() if words}
    assert page_faults("It is no model; `tell`\n```text\nmend\n```\nAll is made anew.", phrases) == ["is no", "anew"]


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("def f():\n    'It is no model.'", "2: 'is no'"),
        ("x = f'two cannot be told\\n    apart from {y}'", "1: 'told apart'"),
        ("'reads every 4. token'", "1: 'every 4.'"),
        ("'hold the fast form against it'", "1: 'hold ... against'"),
        ("found = 1", "1: a variable called found"),
        ("(made := 1)", "1: a variable called made"),
    ],
)
def test_a_fault_is_found(source, fault):
    """In docstrings, across lines, in f-strings, and in every way to assign."""
    assert fault in faults(source, *word_list())


@pytest.mark.parametrize(
    "source",
    [
        "'there is no such file'",
        "'it is no longer there'",
        "'every 4.5 s'",
        "'''\n>>> tell(1)\n'''",
        "'`tell`'",
        "f(found=1)",
    ],
)
def test_what_the_list_does_not_mean(source):
    """Idioms, numbers, code, and names of arguments."""
    assert not faults(source, *word_list())
