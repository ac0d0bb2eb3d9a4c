"""From a row of the table of studies, or from a config, to the study itself."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from repflow.core.studies import STUDIES, StudyRow, row_named

if TYPE_CHECKING:
    from repflow.studies.engine.study import BaseStudy


def study_at(row: StudyRow) -> BaseStudy[Any]:
    """The study of a row, imported now; needs no torch."""
    study: BaseStudy[Any] = importlib.import_module(row.module).STUDY
    return study


def study_named(name: str) -> BaseStudy[Any]:
    """The study of that name."""
    return study_at(row_named(name))


def study_for(config: Any) -> BaseStudy[Any]:
    """The study that a config belongs to."""
    return next(study for study in map(study_at, STUDIES) if study.config is type(config))
