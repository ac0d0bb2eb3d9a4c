"""Write docs/papers.md, what survives of three papers: rows of docs/papers.toml, verdicts from what is stored.

Run `python -m docs.make_papers`; it takes seconds. Verdicts come from the trainings beside the built-in models, from
docs/theory.md, docs/random-initialisation.md, docs/architecture.json and docs/papers.json. The last is written by
`python -m docs.make_papers --run [FOLDER]`, which runs the recipes that papers.toml names, some minutes of one core.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from docs.made_parts import filled, table

DOCS = Path(__file__).parent
PAPERS_PAGE, ROWS, RUNS = DOCS / "papers.md", DOCS / "papers.toml", DOCS / "papers.json"
STATUS = {
    "run": "run here",
    "recipe": "can be run",
    "checked": "checked",
    "no claim": "no claim",
    "not yet": "not yet run",
}


def papers() -> list[dict[str, Any]]:
    """Papers with their rows."""
    return list(tomllib.loads(ROWS.read_text(encoding="utf-8"))["paper"])


def counted(holds: list[bool | None], noun: str = "statements") -> str:
    """A verdict word with its counts: all shown, all shown not to be, some of each, or nothing shown.

    >>> counted([True, False, None]), counted([True, True])
    ('**partly holds**: 1 of 3 statements, 1 not, 1 open', '**holds**: 2 of 2 statements')
    """
    yes, no = sum(value is True for value in holds), sum(value is False for value in holds)
    rest = len(holds) - yes - no
    word = "partly holds" if yes and no else "open" if rest else "holds" if yes else "does not hold"
    tail = f"{f', {no} not' if no and (yes or rest) else ''}{f', {rest} open' if rest else ''}"
    return f"**{word}**: {yes} of {len(holds)} {noun}{tail}"


def findings() -> dict[str, str]:
    """Verdict of each finding of paper 1 on the trainings that come with the package."""
    from repflow.papers.findings import judge, known_readings

    return {entry.code: _emphasised(str(entry.judgement)) + f" ({entry.code})" for entry in judge(known_readings())}


def _emphasised(text: str) -> str:
    word, colon, rest = text.partition(":")
    return f"**{word}**{colon}{rest}"


def statements() -> dict[str, str]:
    """Verdicts of docs/theory.md by statement."""
    text = (DOCS / "theory.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| statement \| function \| verdict \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for table in tables for line in table.splitlines()]
    return {name.strip(): f"**{_word(said.strip())}**: {said.strip()}" for name, _, said in rows}


def _word(said: str) -> str:
    """The verdict word for what docs/theory.md says of a statement as it is printed.

    >>> _word("true of each token; not of their mean"), _word("wrong by a factor"), _word("true and tight")
    ('partly holds', 'does not hold', 'holds')
    """
    if re.match(r"false|wrong", said):
        return "does not hold"
    return "partly holds" if re.match(r"true of|true for|an approximation|need|the blow-up true", said) else "holds"


def check() -> str:
    """How many of paper 1's sentences agree with its own tables."""
    from repflow.studies.reproduce.claims import text_checks

    by_words: dict[tuple[str, str], list[bool | None]] = {}
    for entry in text_checks():
        by_words.setdefault((entry.words, entry.citation), []).append(entry.holds)
    whole = [True if all(values) else None if any(values) else False for values in by_words.values()]
    counts = [sum(value is word for value in whole) for word in (True, None, False)]
    return f"**partly holds**: of {len(whole)} quotations {counts[0]} agree, {counts[1]} in part, {counts[2]} do not"


def random_half() -> str:
    """Figure 3's random half, from the page that measured it."""
    text = (DOCS / "random-initialisation.md").read_text(encoding="utf-8")
    words, model = {}, ""
    for line in re.findall(r"^\| .* \|$", text, re.MULTILINE):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        model = cells[0] or model
        if found := re.search(r"\*\*(holds|does not hold)\*\*", cells[-1]):
            words.setdefault(model, []).append(found[1] == "holds")
    told = [f"{model} {counted(values, 'schemes')}" for model, values in words.items()]
    return f"{'; '.join(told)}: [the study](random-initialisation.md)"


def hybrids() -> str:
    """Retrieval of the hybrid and its mirror, from the study of architecture."""
    entries = json.loads((DOCS / "architecture.json").read_text(encoding="utf-8"))
    shares = {}
    for variant in ("hybrid", "hybrid-mirror"):
        sets = [each["evaluation"]["retrieval"] for each in entries if each["variant"] == variant]
        shares[variant] = [
            entry["exact"] / entry["of"] for each in sets for name, entry in each.items() if name.startswith("kvpr")
        ]
    first, mirror = shares["hybrid"], shares["hybrid-mirror"]
    word = "holds" if min(first) > max(mirror) else "open"
    told = f"attention last answers {min(first):.0%} to {max(first):.0%} of key-value prompts, attention first"
    most = f"{max(mirror):.0%}" if max(mirror) > 0 else "none"
    more = laboratory("remedies", ["Attention in the last layers recalls more than in the first"])
    study = f"over {len(first)} seeds and lengths: [the study](architecture.md)"
    return f"**{word}**: {told} {most}, {study}; of four ratios, {more}"


def laboratory(name: str, claims: list[str]) -> str:
    """Verdicts of a laboratory's claims, by how they begin; without any, where to look.

    >>> laboratory("recall", [])
    'numbers in the [recall laboratory](laboratories/recall.md)'
    """
    link = f"[{name if name == 'remedies' else name.removesuffix('s')} laboratory](laboratories/{name}.md)"
    text = (DOCS / "laboratories" / f"{name}.md").read_text(encoding="utf-8")
    said = []
    for begin in claims:
        row = re.search(
            rf"^(?:\| )?({re.escape(begin)}[^|*]*?)(?: \|[^|]*\|)? \*\*([a-z ]+)\*\*(.*)$", text, re.MULTILINE
        )
        if row is None:
            raise SystemExit(f"docs/laboratories/{name}.md has no claim that begins with {begin!r}")
        word = "not run" if "not run" in row[3] else f"**{row[2]}**"
        said.append(f"{row[1].rstrip('.?')}: {word}")
    return f"{'; '.join(said)} ({link})" if said else f"numbers in the {link}"


MEAN_ATTACKS = ": attacks at the end succeed"
"""Claims on the mean over targets, as the two parts are."""


def attack_parts() -> str:
    """What is the end's and what is the image's of attacks on Mamba, where models of both orders were trained."""
    text = (DOCS / "laboratories" / "pixels.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| mamba \| (the end|the image) \| ([^|]+) \|", text, re.MULTILINE)
    return (
        f"; with images read in reverse too, due to {', to '.join(f'{word} {part}' for word, part in rows)}"
        if rows
        else ""
    )


def at_lab(item: str) -> str:
    """What the recipes of an item of paper 3 said at scale lab, where the laboratory keeps it.

    >>> at_lab("Table 77")
    ''
    """
    stored = json.loads((DOCS / "laboratories" / "tokens.json").read_text(encoding="utf-8")).get("recipes", {})
    kind = "fig" if item.startswith("Figure") else "table"
    known = [stored.get(f"dynamics-{kind}{number} lab", {"lines": []}) for number in re.findall(r"\d+", item)]
    holds = [line["holds"] for one in known for line in one["lines"]]
    return f"; at lab {counted(holds)}" if holds else ""


def run_words(recipe: str, stored: dict[str, Any]) -> str:
    """Verdict of a recipe that was run."""
    entry = stored[recipe]
    scale = " at scale zoo" if "zoo" in entry["command"] else ""
    return f"{counted([line['holds'] for line in entry['lines']])}{scale}"


def verdict(row: dict[str, Any], sources: dict[str, Any]) -> str:
    """What a row's last cell says."""
    kind, _, name = row["verdict"].partition(":")
    if row["status"] in ("not yet", "no claim"):
        return "–"
    if kind == "finding":
        return str(sources["findings"][name])
    if kind == "theory":
        return str(sources["statements"][name])
    if kind == "lab":
        page, _, claims = name.partition(":")
        more = at_lab(row["item"]) if page == "tokens" else attack_parts() if MEAN_ATTACKS in claims else ""
        return laboratory(page, claims.split("|") if claims else []) + more
    if kind == "recipe":
        known = at_lab(row["item"]).removeprefix("; ") or "not run yet at this scale: it needs a GPU"
        return f"{known}; {name}"
    if kind == "run":
        return run_words(name, sources["runs"])
    single = {"check": check, "random": random_half, "hybrids": hybrids}
    return single[kind]() if kind in single else str(row["verdict"])


def items(paper: dict[str, Any], sources: dict[str, Any]) -> str:
    """The rows of one paper."""
    lines = []
    for row in paper["rows"]:
        status = STATUS[row["status"]] + (f": {row['lab']}" if row.get("lab") else "")
        command = f"`{row['command']}`" if row.get("command") else ""
        lines.append([row["item"], row["what"], status, command, verdict(row, sources)])
    return table(["item", "what it shows", "status", "command", "verdict"], lines)


def counts() -> str:
    """How many rows have which status."""
    lines = []
    for paper in papers():
        numbers = [sum(row["status"] == status for row in paper["rows"]) for status in STATUS]
        lines.append([paper["name"], str(len(paper["rows"])), *map(str, numbers)])
    return table(["paper", "items", *STATUS.values()], lines)


def ours() -> str:
    """The statements of recipes that were run, each with our number."""
    lines = []
    word = {True: "holds", False: "does not hold", None: "open"}
    for recipe, entry in json.loads(RUNS.read_text(encoding="utf-8")).items():
        for line in entry["lines"]:
            said = [line[key].replace("|", "\\|") for key in ("stated", "ours")]
            lines.append([recipe, *said, word[line["holds"]]])
    return table(["recipe", "the paper", "ours", ""], lines)


def page(text: str) -> str:
    """The page with its made parts replaced."""
    sources = {
        "findings": findings(),
        "statements": statements(),
        "runs": json.loads(RUNS.read_text(encoding="utf-8")),
    }
    parts: dict[str, Callable[[], str]] = {"counts": counts, "ours": ours}
    for number, paper in enumerate(papers(), 1):
        parts[f"paper{number}"] = partial(items, paper, sources)
    return filled(text, parts)


def run(folder: Path) -> dict[str, Any]:
    """Run the recipes that rows name, and keep what each statement came to."""
    stored = {}
    for row in (row for paper in papers() for row in paper["rows"]):
        kind, _, recipe = row["verdict"].partition(":")
        if kind != "run":
            continue
        words = [*row["command"].split()[1:], "--out", str(folder), "--json"]
        done = subprocess.run([sys.executable, "-m", "repflow", *words], capture_output=True, text=True, check=True)
        result = json.loads(done.stdout)
        lines = [_line(line) for line in result["provenance"]["lines"]]
        stored[recipe] = {"command": row["command"], "repflow": result["provenance"]["repflow"], "lines": lines}
    return stored


def _line(line: dict[str, Any]) -> dict[str, Any]:
    """A recipe's line as statement, number and verdict; those of simulations say it in words."""
    if "holds" in line:
        return {"stated": f"{line['what']}: {line['stated']}", "ours": line["ours"], "holds": line["holds"]}
    word, _, _ = line["verdict"].partition(":")
    holds = {"holds": True, "does not hold": False}.get(word.partition(",")[0])
    measured = "–" if line["measured"] is None else f"{line['measured']:.6g}"
    return {"stated": f"{line['quantity']}: {line['stated']}", "ours": measured, "holds": holds}


def main() -> None:
    """Run the recipes if asked to, then write the page."""
    if "--run" in sys.argv:
        folder = Path(sys.argv[-1]) if sys.argv[-1] != "--run" else Path("runs/papers")
        RUNS.write_text(json.dumps(run(folder), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    PAPERS_PAGE.write_text(page(PAPERS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAPERS_PAGE.name}")


if __name__ == "__main__":
    main()
