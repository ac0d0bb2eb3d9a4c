"""check_study: does a study keep the promises of `Study`? For this package's and for your own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.studies import STUDIES
from repflow.studies.engine.loading import HOW
from repflow.studies.engine.naming import UNNAMED

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.studies.engine.study import BaseStudy


class BrokenPromiseError(InputError):
    """A study does not do what every study does; the message says what, and what to change."""


def check_study(study: BaseStudy[Any], config: Any, *, models: dict[str, Model] | None = None) -> None:
    """Check what the engine, grids and stored runs rely on; the study runs four times, so keep the request small.

    Args:
        study: an object with `name`, `config`, `check`, `names` and `run`.
        config: a request that it can run.
        models: loaded models by label, instead of those that the config names.

    Raises:
        BrokenPromiseError: its table row, options, names, results or resumed runs are not as they must be.
    """
    _check_table(study)
    _check_options(study)
    study.check_request(config)
    _check_names(study, config)
    first = study.run(config, models=models)
    _check_result(study, first)
    with tempfile.TemporaryDirectory() as folder:
        whole = study.run(config, models=models, out=folder, name="whole")
        _same(first, whole, "a stored run gives what the same request gives in memory")
        _check_again(study, whole)
        _check_resumed(study, config, models, Path(folder), whole)


def _broken(expected: str, got: str, remedy: str) -> BrokenPromiseError:
    return BrokenPromiseError(teach(expected, got, remedy))


def _check_table(study: BaseStudy[Any]) -> None:
    if study.name not in [row.name for row in STUDIES]:
        remedy = f'add StudyRow("{study.name}", "{type(study).__module__}", ...) to repflow.core.studies'
        raise _broken("a study with a row in the table of studies", repr(study.name), remedy)


def _check_options(study: BaseStudy[Any]) -> None:
    if not is_dataclass(study.config):
        raise _broken("a config that is a dataclass", repr(study.config), "inherit parts and add @dataclass")
    for entry in fields(study.config):
        if not entry.metadata.get("help"):
            raise _broken("a help text for every option", f"none for {entry.name}", "make the field with option()")
        if entry.default is MISSING and entry.default_factory is MISSING:
            raise _broken("a default for every option", f"none for {entry.name}", "make the field with option()")


def _check_names(study: BaseStudy[Any], config: Any) -> None:
    """Another value of an option that changes the result is another run."""
    name = study.run_name(config)
    for option, changed in _changes(study, config):
        if study.run_name(changed) == name:
            got = f"{name!r} for two values of {option}"
            remedy = "make names with engine.naming.spell, which adds digits for options that are not spelt out"
            raise _broken("a name that changes with every option", got, remedy)


def _changes(study: BaseStudy[Any], config: Any) -> Iterator[tuple[str, Any]]:
    """The config with one number or switch changed, where the study takes the other value."""
    for entry in fields(config):
        value = getattr(config, entry.name)
        if entry.name in UNNAMED or entry.name in HOW or not isinstance(value, bool | int | float):
            continue
        other = (not value) if isinstance(value, bool) else value + 1
        try:
            changed = replace(config, **{entry.name: other})
            study.check(changed)
        except InputError:
            continue
        yield entry.name, changed


def _check_result(study: BaseStudy[Any], result: Result) -> None:
    if not len(result):
        raise _broken("a Result with at least one array", "none", "return Result(arrays, axes) from compute")
    try:
        json.dumps(result.to_json(), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _broken("config and provenance that JSON holds", str(error), "convert them to plain values") from error
    if "seconds" not in result.provenance and study.one_model:
        raise _broken("seconds by phase in the provenance", "none", "let the engine run the study (`run_study`)")


def _check_again(study: BaseStudy[Any], result: Result) -> None:
    """The stored config is enough to repeat the request."""
    stored = json.loads(json.dumps(result.config))
    again = study.again(stored)
    for entry in fields(study.config):
        if entry.name in stored and getattr(again, entry.name) != stored[entry.name]:
            got = f"{getattr(again, entry.name)!r} for {entry.name}, stored as {stored[entry.name]!r}"
            raise _broken(
                "options that come back from the stored config", got, "bring lists into one form in __post_init__"
            )


def _check_resumed(
    study: BaseStudy[Any], config: Any, models: dict[str, Model] | None, folder: Path, whole: Result
) -> None:
    """A run interrupted after its first shard resumes with that shard and ends as if nothing had happened."""
    from repflow.store import RunFolder

    write = RunFolder.write_shard
    written: list[str] = []

    def until_one(run: RunFolder, name: str, *args: Any, **kwargs: Any) -> None:
        if written:
            raise KeyboardInterrupt
        write(run, name, *args, **kwargs)
        written.append(name)

    def counting(run: RunFolder, name: str, *args: Any, **kwargs: Any) -> None:
        if run.path.name == "cut" and name in written:
            got = f"{name} written twice"
            raise _broken("a resumed run that computes only what is missing", got, "ask sink.has(name) before the work")
        write(run, name, *args, **kwargs)

    with mock.patch.object(RunFolder, "write_shard", until_one), suppress(KeyboardInterrupt):
        study.run(config, models=models, out=folder, name="cut")
    with mock.patch.object(RunFolder, "write_shard", counting):
        resumed = study.run(config, models=models, out=folder, name="cut")
    _same(whole, resumed, "a resumed run ends like one that was not interrupted")


def _same(first: Result, second: Result, promise: str) -> None:
    for name in {*first, *second}:
        equal = (
            name in first and name in second and np.array_equal(first[name], second[name], equal_nan=_real(first[name]))
        )
        if not equal:
            raise _broken(
                promise, f"another {name}", "draw random numbers from the config's seed, keep results in the sink"
            )


def _real(array: np.ndarray) -> bool:
    return array.dtype.kind in "fc"
