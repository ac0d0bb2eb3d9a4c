"""Grid: one run for every combination of models, tasks, lengths, inits and seeds that a STUDY.toml names.

    [study]
    kind = "measure"
    models = ["gpt2", "state-spaces/mamba-130m-hf"]
    tasks = ["random", "text"]
    lengths = [512, "2K"]
    inits = ["trained", "default"]
    seeds = [0]
    text = ["corpus.txt"]     # any other option of `repflow measure`, the same for all cells
    samples = 16

`kind` is the name of a study (`repflow.core.studies`); its options are those of its command. An axis is a list only
where the study has no option of that name: to `repflow probe`, `seeds` is a number. To a study without `models`
(a comparison, a laboratory, a simulation) every option that takes one value may be a list, with a cell for each entry:

    [study]
    kind = "compare"
    model_a = "zoo:gpt-neox"
    model_b = ["zoo:mamba", "zoo:mamba2"]

Paths are relative to the working directory, as on the command line. Each cell is a run of its own in the study's folder
and resumes like one. Code that a study names runs only if the call that reads it allows it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from repflow.core.errors import InputError, nearest, teach
from repflow.core.studies import STUDIES, row_named
from repflow.core.trust import Trust, check_trust
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.loading import identity
from repflow.studies.engine.prompts import only_fitting
from repflow.studies.engine.table import study_for, study_named

if TYPE_CHECKING:
    from repflow.studies.engine.study import BaseStudy

AXES = {"models": "model", "inits": "init", "seeds": "seed", "tasks": "task", "lengths": "length"}
"""List in the study → field of a cell's config; the order keeps cells that share a model together."""
KINDS = tuple(row.name for row in STUDIES if not row.no_grid)
"""Studies that a grid can be made of."""
NAME_LENGTH = 120
HASH_DIGITS = 10


@dataclass(frozen=True)
class Study:
    """A grid of cells.

    Attributes:
        name: folder of the study in the folder of runs.
        cells: in the order of running.
    """

    name: str
    cells: tuple[Cell, ...]

    def part(self, part: str) -> tuple[Cell, ...]:
        """Cells of share i of k, written `i/k`; the k shares are disjoint and make the whole."""
        number, total = parse_part(part)
        count = len(self.cells)
        return self.cells[count * (number - 1) // total : count * number // total]


def parse_part(part: str) -> tuple[int, int]:
    """Number and count of a share.

    >>> parse_part("2/4")
    (2, 4)
    """
    first, slash, second = part.partition("/")
    if slash and first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second):
        return int(first), int(second)
    raise InputError(teach("--part i/k with 1 <= i <= k", repr(part), "write --part 1/4, 2/4, 3/4 and 4/4"))


def read_study(path: str | Path, *, allow_code: bool = False, trust_remote_code: bool = False) -> Study:
    """Read and expand a STUDY.toml.

    Args:
        path: the file, which may come from anyone.
        allow_code: run Python files that it names as metrics.
        trust_remote_code: run Python that comes with its models, where it says so too.

    Raises:
        InputError: it cannot be read, or a key, type or value in it is wrong, or it names code that is not allowed; the
            message names it.
    """
    table = read_table(path, Trust(allow_code, trust_remote_code))
    return expand(table, default_name=Path(path).stem)


def read_table(path: str | Path, trust: Trust) -> Mapping[str, Any]:
    """The table [study] of a STUDY.toml; its keys and their types are right. Looks at no model.

    Raises:
        InputError: as `read_study`.
    """
    file = Path(path)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8-sig"))  # some editors begin a file with a byte-order mark
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}; check the path") from None
    except (ValueError, RecursionError) as error:  # bad TOML or UTF-8, a number of 5,000 digits, brackets without end
        raise InputError(f"{file} is not valid TOML: {error}; correct the file") from None
    if data.keys() != {"study"} or not isinstance(data["study"], dict):
        stray = sorted(data.keys() - {"study"})
        got = f"{stray[0]!r}, {nearest(stray[0], ['study'])}" if stray else "none"
        raise InputError(teach(f"one table [study] in {file}", got, "put every key under [study]"))
    check_trust(data["study"], trust, str(file))
    _checked(data["study"])
    return dict(data["study"])


def expand(data: Mapping[str, Any], *, default_name: str) -> Study:
    """Check the table [study] and make its cells."""
    from repflow.store import check_name, safe_name

    data = _checked(data)
    study = study_named(data["kind"])
    configs = _of_models(data, study) if "models" in data else _of_options(data, study)
    cells = tuple(Cell(cell_name(config), config) for config in configs)
    name = data.get("name", safe_name(default_name))
    return Study(check_name(name, "study name"), cells)


def _of_models(data: Mapping[str, Any], study: BaseStudy[Any]) -> Iterator[Any]:
    """Configs over models, tasks, lengths, inits and seeds."""
    axes = axes_of(study.config)
    # a length that is not given is left to the task
    lists = {name: _axis(data, key, study.config) for key, name in axes.items() if key in data or name != "length"}
    options = {key: value for key, value in data.items() if key not in axes and key not in ("kind", "name")}
    several = len(lists["model"]) > 1
    if several and "grid" in {entry.name for entry in fields(study.config)} and options.get("grid") is None:
        first = study.config(**options, **{name: values[0] for name, values in lists.items()})
        options["grid"] = study.together(only_fitting(first), lists["model"])[0].grid  # the same for all cells
    for values in itertools.product(*lists.values()):
        config = only_fitting(study.config(**options, **dict(zip(lists, values, strict=True))))
        if several:
            config = study.together(config, lists["model"])[0]
        _check_cell(config)
        yield config


def _of_options(data: Mapping[str, Any], study: BaseStudy[Any]) -> Iterator[Any]:
    """Configs over every option that takes one value and is a list."""
    hints, axes = get_type_hints(study.config), axes_of(study.config)
    options = {axes.get(key, key): value for key, value in data.items() if key not in ("kind", "name")}
    lists = {key: _entries(key, value) for key, value in options.items() if not _fits(value, hints[key])}
    for values in itertools.product(*lists.values()):
        config = only_fitting(study.config(**options | dict(zip(lists, values, strict=True))))
        study.check_request(config)
        yield config


def _checked(data: Mapping[str, Any]) -> dict[str, Any]:
    """The table with lengths as numbers; its keys are known and of the right types."""
    _check_kind(data)
    study = study_named(data["kind"])
    axes = axes_of(study.config)
    data = _with_lengths(data, axes)
    if "models" not in axes:
        hints = get_type_hints(study.config)
        data = {key: _words(value) if hints.get(key) in (str, list[str]) else value for key, value in data.items()}
    _check_keys(data, study, axes)
    return data


def _words(value: Any) -> Any:
    """Numbers as they stand on a command line, for options that take words: `layers = [2, 4]`."""
    if isinstance(value, list):
        return [_words(entry) for entry in value]
    return f"{value:g}" if type(value) in (int, float) else value


def axes_of(config: type) -> dict[str, str]:
    """Lists that a study takes, with the field of a cell that each fills."""
    known = {entry.name for entry in fields(config)}
    return {key: name for key, name in AXES.items() if name in known and key not in known}


def cell_name(config: Any) -> str:
    """Readable and stable name of a cell, with a hash of the whole configuration against collisions."""
    text = json.dumps(identity(config), sort_keys=True)
    tag = hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]
    named = study_for(config).cell_word(config)
    seed = f"-seed{config.seed}" if hasattr(config, "seed") else ""
    return f"{named[:NAME_LENGTH].rstrip('-. ')}{seed}-{tag}"


def _with_lengths(data: Mapping[str, Any], axes: Mapping[str, str]) -> dict[str, Any]:
    """The table with lengths such as "4K" as numbers of tokens."""
    from repflow.spec.length import THOUSANDS, parse_length

    listed = data.get("lengths")
    if not isinstance(listed, list) or "lengths" not in axes:
        return dict(data)
    words = [parse_length(entry) if isinstance(entry, str) and THOUSANDS.match(entry) else entry for entry in listed]
    return {**data, "lengths": words}


def _check_kind(data: Mapping[str, Any]) -> None:
    expected = f"kind = one of {', '.join(KINDS)} in [study]"
    reason = next((row.no_grid for row in STUDIES if row.name == data.get("kind")), "")
    if reason:
        raise InputError(teach(expected, repr(data["kind"]), reason))
    if "kind" in data and data["kind"] not in list(KINDS):  # a list has no hash
        raise InputError(teach(expected, repr(data["kind"]), nearest(str(data["kind"]), KINDS)))
    if "kind" not in data:
        known = {"kind", "name", *AXES, *(entry.name for entry in fields(study_named("measure").config))}
        if unknown := sorted(data.keys() - known):
            raise InputError(f"unknown key {unknown[0]!r} in [study]; {nearest(unknown[0], known)}")
        raise InputError(teach(expected, "None", nearest("None", KINDS)))


def _check_keys(data: Mapping[str, Any], study: BaseStudy[Any], axes: Mapping[str, str]) -> None:
    config = study.config
    options = {f.name for f in fields(config)} - set(axes.values())
    known = {"kind", "name", *axes, *options}
    if unknown := sorted(data.keys() - known):
        raise InputError(f"unknown key {unknown[0]!r} in [study]; {nearest(unknown[0], known)}")
    if "models" in axes and "models" not in data:
        raise InputError(teach("models = [...] in [study]", "none", "name at least one model"))
    hints = get_type_hints(config)
    for key, value in data.items():
        kind: Any = types.GenericAlias(list, hints[axes[key]]) if key in axes else hints.get(key, str)
        several = "models" not in axes and isinstance(value, list) and key in hints  # an axis, entry by entry
        for entry in [value] if not several or _fits(value, kind) or not value else value:
            _check_type(key, entry, kind, row_named(study.name).command)


def _check_type(key: str, value: Any, hint: Any, command: str) -> None:
    if _fits(value, hint):
        return
    kind = str(hint).removeprefix("<class '").removesuffix("'>")
    raise InputError(teach(f"{key} of type {kind} in [study]", f"{value!r}", f"see `repflow {command} --help`"))


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(entry, get_args(hint)[0]) for entry in value)
    if isinstance(hint, types.UnionType):
        return any(_fits(value, kind) for kind in get_args(hint))
    return type(value) is hint  # isinstance would take true for 1


def _axis(data: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    return _entries(key, data.get(key, [getattr(kind(), AXES[key])]))


def _entries(key: str, values: list[Any]) -> list[Any]:
    if not values:
        raise InputError(teach(f"at least one entry in {key}", "an empty list", "name one, or leave the key out"))
    if any(values.count(value) > 1 for value in values):
        twice = next(value for value in values if values.count(value) > 1)
        raise InputError(teach(f"different entries in {key}", f"{twice!r} twice", "name each once"))
    return list(values)


def _check_cell(config: Any) -> None:
    """Refuse what no model could run, so that a misspelt study writes nothing."""
    if not config.model.strip():
        raise InputError(teach("names in models", repr(config.model), "name a folder, hub id or config:FILE.json"))
    study_for(config).check_request(config)
