"""The table of studies: name, where the code is, how a stored run is recognised. No torch; it imports no study.

A new study is a module with `STUDY` (an object of `repflow.studies.engine.study.Study`), its views, and one row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repflow.core.errors import InputError, nearest


@dataclass(frozen=True)
class StudyRow:
    """One study.

    Attributes:
        name: under `study` in a stored config; its views have this name too.
        module: the module that holds `STUDY`.
        marks: keys by which a stored config without a name is recognised.
        facts: keys of a result's provenance that do so too, for configs of earlier versions.
        command: words of the command line that run it.
        grid: whether `repflow run` takes it: it asks one thing of one model.
        also: further names under `study` in stored configs, for results that are shown in another way.
    """

    name: str
    module: str
    marks: tuple[str, ...] = ()
    command: str = ""
    grid: bool = False
    also: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()


STUDIES = (
    StudyRow(
        "reproduce",
        "repflow.studies.reproduce.study",
        ("recipe",),
        "reproduce",
        also=("recency-figure", "dynamics-figure", "reproduce-table"),
    ),
    StudyRow(
        "diagnose", "repflow.studies.diagnose.study", ("flow_samples",), "diagnose", grid=True, facts=("statements",)
    ),
    StudyRow("probe", "repflow.studies.probe.study", ("recipes", "controls"), "probe", grid=True, facts=("probe",)),
    StudyRow("measure", "repflow.studies.measure", ("metrics", "keep_samples"), "measure", grid=True),
    StudyRow("compare", "repflow.studies.compare.study", command="compare"),
    StudyRow("recency", "repflow.studies.recency.study", command="recency", grid=True),
    StudyRow("needle", "repflow.studies.needle.study", command="needle", grid=True),
    StudyRow("memory", "repflow.studies.memory.study", command="memory", grid=True),
    StudyRow("twins", "repflow.studies.twins.study", command="twins", grid=True),
    StudyRow("training", "repflow.studies.training"),
    StudyRow("recall", "repflow.studies.recall.study", command="recall"),
    StudyRow("theory-verify", "repflow.studies.theory.verify", command="theory verify"),
    StudyRow("theory-apply", "repflow.studies.theory.apply", command="theory apply", grid=True),
    StudyRow("dynamics-simulate", "repflow.studies.dynamics.simulate", command="dynamics simulate"),
    StudyRow("dynamics-apply", "repflow.studies.dynamics.apply", command="dynamics apply", grid=True),
)
"""Those whose stored configs have no name come first, the one with the most specific keys before the others."""


def row_named(name: str) -> StudyRow:
    """The row of a study.

    >>> row_named("memory").module
    'repflow.studies.memory.study'
    """
    match = next((row for row in STUDIES if row.name == name), None)
    if match is None:
        raise InputError(f"unknown study {name!r}; {nearest(name, [row.name for row in STUDIES])}")
    return match


def row_of(stored: Mapping[str, Any], provenance: Mapping[str, Any] | None = None) -> StudyRow | None:
    """The study that a stored config belongs to; None for what no study of the table made.

    Args:
        stored: the config.
        provenance: that of the result, where it was read too.

    >>> row_of({"study": "recency"}).name, row_of({"metrics": [], "keep_samples": 4}).name, row_of({})
    ('recency', 'measure', None)
    >>> row_of({"study": "recency-figure"}).name, row_of({}, {"probe": {}}).name
    ('reproduce', 'probe')
    """
    if "study" in stored:
        return next((row for row in STUDIES if stored["study"] in (row.name, *row.also)), None)
    known = provenance or {}
    for row in STUDIES:
        if (row.marks and stored.keys() >= {*row.marks}) or (row.facts and known.keys() >= {*row.facts}):
            return row
    return None
