"""The pages of the documentation, cut into fenced blocks and links."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
SKIPPED = "no-run"


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: file it stands in.
        line: line of its opening fence.
        language: first word of the fence.
        flags: the other words.
        body: what it holds.
    """

    page: Path
    line: int
    language: str
    flags: tuple[str, ...]
    body: str

    @property
    def runs(self) -> bool:
        return self.language in ("python", "bash", "toml") and SKIPPED not in self.flags

    @property
    def prompts(self) -> int | None:
        """Prompts that its numbers are shares of, None where they are no shares."""
        found = [int(flag.removeprefix("prompts=")) for flag in self.flags if flag.startswith("prompts=")]
        return found[0] if found else None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        language, *flags = match["info"].split() or [""]
        line = text[: match.start()].count("\n") + 1
        found.append(Block(page, line, language, tuple(flags), match["body"]))
    return found


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    return [match["target"] for match in LINK.finditer(prose(page))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))
