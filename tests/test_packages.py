"""Packages that tests are skipped without: all of the tested set, and in CI all of them there."""

import importlib.util
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ASKED = re.compile(r"""(?:importorskip|find_spec)\("([\w.]+)"\)""")
PROJECTS = {"fla": "flash-linear-attention"}
"""Projects that are called otherwise than what is imported."""


def asked():
    """Packages that some test is skipped without."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    return {name.partition(".")[0] for path in files for name in ASKED.findall(path.read_text(encoding="utf-8"))}


def test_they_are_of_the_tested_set():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {line.partition("==")[0].lower() for line in text.splitlines() if "==" in line}
    assert {"triton", "peft", "fla"} <= asked()
    assert {name for name in asked() if PROJECTS.get(name, name) not in pinned} == set()


def test_they_are_there_in_ci():
    missing = sorted(name for name in asked() if importlib.util.find_spec(name) is None)
    if missing and not os.environ.get("CI"):
        pytest.skip(f"tests of {', '.join(missing)} are skipped: pip install -c constraints.txt -e '.[dev]'")
    assert not missing
