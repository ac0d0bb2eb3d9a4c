"""Measure the house: how many files stand side by side, how they are named, who imports whom, what an addition touches.

Prints a table and, with `--json`, the numbers. tests/test_house.py holds the limits.

    python tools/house.py [--json]
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TREES = ("src", "tests", "tools")
FAMILY = 3
"""Files of one folder with the same first word that make a name family."""
EXAMPLES = {
    "study": ({"twins", "repflow.studies.twins"}, "src/repflow/studies/twins"),
    "metric": ({"effective_rank"}, "src/repflow/metrics/rank"),
    "theorem": ({"printed_table"}, "src/repflow/theory/statements/printed_table"),
    "page section": ({"scaling", "scaling_section"}, "src/repflow/report/sections/scaling"),
}
"""Kind of addition → the names of an existing one, and where it is at home."""
MOST_NAMING = {"study": 5, "metric": 1, "theorem": 1, "page section": 1}
"""How many files beside its own may name one; a row in a table is a file too."""
WAYS = {
    "Plotly figures": r"plotly\.(graph_objects|subplots|express)",
    "matplotlib figures": r"matplotlib(\.figure|\.pyplot| import pyplot)",
    "colours of names of the palette": r"""(startswith\(|startsWith\(|/\^)['"]?model:""",
}
"""What is made in one place → what the files that make it hold."""


def folders(tree: str) -> dict[str, list[Path]]:
    """Python files by folder, as paths below the repository."""
    by_folder: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((ROOT / tree).rglob("*.py")):
        by_folder[path.parent.relative_to(ROOT).as_posix()].append(path)
    return dict(by_folder)


def sibling_named(paths: Sequence[Path]) -> list[str]:
    """Modules of a folder whose name is another one's with a suffix: `probe_part` beside `probe`."""
    stems = {path.stem for path in paths}
    return sorted(stem for stem in stems if any(stem.startswith(f"{other}_") for other in stems - {stem}))


def families(paths: Sequence[Path]) -> dict[str, list[str]]:
    """First words that several modules of a folder share; test files count by the word behind `test_`."""
    words: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        stem = path.stem.removeprefix("test_")
        if not stem.startswith("__"):
            words[stem.split("_")[0]].append(path.stem)
    return {word: stems for word, stems in words.items() if len(stems) >= FAMILY}


def config_fields() -> tuple[int, int]:
    """Options that the studies' configs and their parts declare, and how many distinct ones: name and type."""
    options: list[tuple[str, str]] = []
    for path in (ROOT / "src/repflow/studies").rglob("*.py"):
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.ClassDef):
                options += [
                    (ast.unparse(line.target), ast.unparse(line.annotation)) for line in node.body if _is_option(line)
                ]  # type: ignore[attr-defined]
    return len(options), len(set(options))


def _is_option(line: ast.stmt) -> bool:
    """Whether a line of a class declares an option, as `repflow.studies.engine.parts` makes them."""
    made_by = line.value.func if isinstance(line, ast.AnnAssign) and isinstance(line.value, ast.Call) else None
    return isinstance(made_by, ast.Name) and made_by.id in ("option", "listed", "length_option")


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def circles() -> tuple[list[list[str]], dict[str, list[str]]]:
    """Modules that import one another in a circle, and packages whose children do; imports inside functions count."""
    import grimp
    import numpy as np
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    graph = grimp.build_graph("repflow", cache_dir=None)
    names = sorted(graph.modules)
    place = {name: number for number, name in enumerate(names)}
    pairs = [(place[a], place[b]) for a in names for b in graph.find_modules_directly_imported_by(a) if b in place]
    rows, columns = zip(*pairs, strict=True)
    matrix = csr_array((np.ones(len(pairs)), (rows, columns)), shape=(len(names), len(names)))
    _, labels = connected_components(matrix, connection="strong")
    many = [label for label, count in Counter(labels.tolist()).items() if count > 1]
    modules = [[name for name in names if labels[place[name]] == label] for label in many]
    return sorted(modules), dict(_packages(graph, names))


def _packages(graph: Any, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    for name in names:
        if len(graph.find_children(name)) > 1:
            breakers = graph.nominate_cycle_breakers(name)
            if breakers:
                yield name, sorted(f"{importer} -> {imported}" for importer, imported in breakers)


def study_lines() -> dict[str, int]:
    """Lines of each study, all its files together."""
    lines: dict[str, int] = Counter()
    home = ROOT / "src/repflow/studies"
    for path in home.rglob("*.py"):
        name = path.relative_to(home).parts[0].removesuffix(".py")
        lines[name] += len(path.read_text(encoding="utf-8").splitlines())
    lines.pop("__init__", None)
    return dict(sorted(lines.items()))


def naming(names: set[str], home: str) -> list[str]:
    """Source files outside its home that name an existing study, metric, theorem or section; prose does not count."""
    places = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if not place.startswith(home) and path.name != "moved.py" and _named_in(path) & names:
            places.append(place)
    return places


@functools.cache
def _named_in(path: Path) -> set[str]:
    """Identifiers, imported names, packages of imports and whole strings of a file."""
    names: set[str] = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, node.module.rpartition(".")[0], *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def makers(pattern: str) -> list[str]:
    """Source files, scripts of the page among them, that hold a pattern; scripts of others are not ours to count."""
    files = sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".js"))
    files = [path for path in files if not path.name.endswith(".min.js")]
    return [path.relative_to(ROOT).as_posix() for path in files if re.search(pattern, path.read_text(encoding="utf-8"))]


def measure() -> dict[str, Any]:
    """All numbers."""
    trees = {tree: folders(tree) for tree in TREES}
    largest = {
        tree: max(((len(paths), name) for name, paths in by_folder.items()), default=(0, ""))
        for tree, by_folder in trees.items()
    }
    declared, distinct = config_fields()
    modules, packages = circles()
    lines, examples = study_lines(), EXAMPLES.items()
    return {
        "largest_folder": {tree: {"files": count, "folder": name} for tree, (count, name) in largest.items()},
        "named_after_a_sibling": {tree: _named(by_folder, sibling_named) for tree, by_folder in trees.items()},
        "families": {tree: _named(by_folder, families) for tree, by_folder in trees.items()},
        "config_fields": {"declared": declared, "distinct": distinct},
        "import_circles": {"modules": modules, "packages": packages},
        "study_lines": lines,
        "ways": {what: makers(pattern) for what, pattern in WAYS.items()},
        "named_in": {
            kind: {"example": min(names, key=len), "files": naming(names, home)} for kind, (names, home) in examples
        },
    }


def _named(by_folder: dict[str, list[Path]], find: Any) -> dict[str, Any]:
    return {folder: names for folder, paths in by_folder.items() if (names := find(paths))}


def rows(numbers: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Lines of the table: what, now, goal."""
    for tree, entry in numbers["largest_folder"].items():
        yield f"most files in one folder, {tree}", f"{entry['files']} ({entry['folder']})", "≤ 25"
    for tree, by_folder in numbers["named_after_a_sibling"].items():
        yield (
            f"modules named after a sibling, {tree}",
            _counted([n for names in by_folder.values() for n in names]),
            "0",
        )
    for tree, by_folder in numbers["families"].items():
        yield f"name families, {tree}", _counted([word for words in by_folder.values() for word in words]), "0"
    fields = numbers["config_fields"]
    yield "config fields declared / distinct", f"{fields['declared']} / {fields['distinct']}", "each once"
    imports = numbers["import_circles"]
    count = sum(map(len, imports["modules"]))
    yield "import circles (modules in them)", f"{len(imports['modules'])} ({count})", "0"
    yield "packages whose children import in a circle", _counted(list(imports["packages"])), "0"
    lines = numbers["study_lines"]
    yield "lines of studies, all / largest", f"{sum(lines.values())} / {max(lines.values())}", ""
    for what, files in numbers["ways"].items():
        yield f"files that make {what}", _counted(files), "1"
    for kind, entry in numbers["named_in"].items():
        yield (
            f"files beside its own that name a {kind} ({entry['example']})",
            str(len(entry["files"])),
            f"≤ {MOST_NAMING[kind]}",
        )


def _counted(names: Sequence[str]) -> str:
    first = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"{len(names)} ({first})" if names else "0"


def main() -> None:
    """Print the table, or the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the numbers behind the table")
    numbers = measure()
    if parser.parse_args().json:
        print(json.dumps(numbers, indent=1))
        return
    table = list(rows(numbers))
    wide = [max(len(row[column]) for row in table) for column in range(3)]
    for row in [("", "now", "goal"), *table]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip())


if __name__ == "__main__":
    main()
