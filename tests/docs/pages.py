"""The pages of the documentation, cut into fenced blocks and links."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(
    r"(?:^<!-- (?P<flag>no-run|added|study|prompts=\d+)(?:: (?P<reason>[^\n]+))? -->\n)?"
    r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
SKIPPED = "no-run"
ADDED = "added"
"""Runs once the steps above it are done: tests/test_contributing.py does them in a copy of the package."""
STUDY = "study"
"""Takes GPU minutes: not run, but the modules that it names are there."""


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: file it stands in.
        line: line of its opening fence.
        language: what stands behind the fence.
        flag: of the comment on the line above, which readers of the site do not see.
        reason: why a block is not run.
        body: what it holds.
    """

    page: Path
    line: int
    language: str
    flag: str
    reason: str
    body: str

    @property
    def runs(self) -> bool:
        return self.language in ("python", "bash", "toml") and self.flag not in (SKIPPED, ADDED, STUDY)

    @property
    def prompts(self) -> int | None:
        """Prompts that its numbers are shares of, None where they are not shares."""
        return int(self.flag.removeprefix("prompts=")) if self.flag.startswith("prompts=") else None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fenced = []
    for match in FENCE.finditer(text):
        line = text[: match.start("info")].count("\n") + 1
        fenced.append(
            Block(page, line, match["info"].strip(), match["flag"] or "", match["reason"] or "", match["body"])
        )
    return fenced


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    return [match["target"] for match in LINK.finditer(prose(page))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))
