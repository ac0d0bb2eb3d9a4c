"""Pages name files of the repository that are there."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = re.compile(r"(?:tests|src/repflow|benchmarks|tools|docs|examples)/[\w/.-]+\.(?:py|json|md|toml)")
TO_WRITE = {"drift.py", "ema.py", "odd.py", "decay.py", "parity.py", "NAME.py"}
"""Files that the guide for contributors asks to write."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_are_there(page):
    named = {name for name in NAMED.findall(page.read_text(encoding="utf-8")) if Path(name).name not in TO_WRITE}
    assert {name for name in named if not (ROOT / name).exists()} == set()
